"""Messages and contents: making them, and JSON in and out."""

from __future__ import annotations

import dataclasses
from typing import Any

import pydantic
import pytest
from hypothesis import given

from agentpipe import (
    ChatResponse,
    Content,
    DataContent,
    FunctionResultContent,
    Message,
    TextContent,
    UnknownContent,
    UriContent,
    assistant,
    system,
    user,
)
from agentpipe._messages import as_messages
from tests.strategies import contents, messages, responses


@given(messages)
def test_a_message_survives_json(message: Message) -> None:
    """The JSON round trip of a message with any contents is exact, through values and through text."""
    assert Message.model_validate_json(message.model_dump_json()) == message
    assert Message.model_validate(message.model_dump()) == message


@given(contents)
def test_a_content_survives_json(content: Content) -> None:
    """The JSON round trip of every content is exact, and the tag tells its kind, also as a plain Content."""
    assert Content.model_validate_json(content.model_dump_json()) == content
    assert type(Content.model_validate(content.model_dump())) is type(content)


@given(responses)
def test_a_response_survives_json(response: ChatResponse) -> None:
    """The JSON round trip of a response is exact."""
    assert ChatResponse.model_validate_json(response.model_dump_json()) == response


@given(messages)
def test_messages_are_fields_of_pydantic_models(message: Message) -> None:
    """A message can be a field of a pydantic model, and TypeAdapter knows it."""

    class Row(pydantic.BaseModel):
        message: Message

    assert Row.model_validate_json(Row(message=message).model_dump_json()).message == message
    adapter = pydantic.TypeAdapter(list[Message])
    assert adapter.validate_json(adapter.dump_json([message])) == [message]


def test_half_a_surrogate_pair_survives_json() -> None:
    """Text that cannot be encoded is written escaped, and read back as it was."""
    message = Message("user", "\ud800 and \x00")
    text = message.model_dump_json()
    text.encode()
    assert Message.model_validate_json(text) == message


def test_what_is_not_known_is_kept() -> None:
    """Contents of unknown kinds and unknown fields are kept as they came."""
    told = {
        "role": "user",
        "contents": [{"type": "hologram", "x": 1}, {"type": "text", "text": "a", "glow": True}],
        "mood": "good",
    }
    message = Message.model_validate(told)
    assert isinstance(message.contents[0], UnknownContent)
    assert message.model_dump() == told


@pytest.mark.parametrize(
    ("told", "what"),
    [
        ({"role": "boss", "contents": []}, "role"),
        ({"role": "user", "contents": [{"text": "no type"}]}, "type"),
        ({"role": "user", "contents": [{"type": "text"}]}, "text"),
        ({"role": "user", "contents": [5]}, "object"),
        ({"role": "user", "contents": "x"}, "contents"),
        ({"contents": []}, "role"),
        ([], "Message"),
        ({"role": "user", "contents": [{"type": "data", "data": "%%%"}]}, "base64"),
    ],
)
def test_wrong_json_is_refused(told: Any, what: str) -> None:
    """Wrong JSON raises ValueError that names what is wrong, and nothing else."""
    with pytest.raises(ValueError, match=what):
        Message.model_validate(told)


def test_what_lives_in_the_process_is_not_written() -> None:
    """The exception of a result and the origin of a message stay in the process."""
    result = FunctionResultContent("c", "f", "Error", True, exception=ValueError("secret"))
    message = Message("tool", [result], origin="response")
    assert "secret" not in message.model_dump_json()
    assert "origin" not in message.model_dump_json()
    assert Message.model_validate_json(message.model_dump_json()) == message


def test_messages_are_frozen() -> None:
    """A message cannot be changed; a list that was given is copied."""
    given = [TextContent("a")]
    message = Message("user", given)
    given.append(TextContent("b"))
    assert message.text == "a"
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.role = "tool"  # type: ignore[misc]
    assert message.replace(role="assistant").role == "assistant"


def test_short_ways_to_make_messages() -> None:
    """Text stands for a TextContent, one content for a list of one; user, system and assistant make messages."""
    assert Message("user", "hi") == user("hi") == Message("user", [TextContent("hi")])
    assert user("look:", UriContent("http://x/a.png")).contents[1] == UriContent("http://x/a.png", "image/png")
    assert (system("s").role, assistant("a").role) == ("system", "assistant")
    with pytest.raises(ValueError, match="role"):
        Message("boss", "hi")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [5, b"bytes", {"type": "text"}, [5], None])
def test_what_is_no_content(wrong: Any) -> None:
    """Anything else raises TypeError."""
    with pytest.raises(TypeError, match="content"):
        Message("user", wrong)


def test_loose_contents_share_a_message() -> None:
    """Contents that stand side by side share one message of the user; results make a message of tools."""
    made = as_messages(["a", TextContent("b"), Message("assistant", "c"), FunctionResultContent("1")])
    assert [(message.role, len(message.contents)) for message in made] == [("user", 2), ("assistant", 1), ("tool", 1)]


def test_data_from_a_file(tmp_path: Any) -> None:
    """An image is read from its path, with its media type, and does not show its bytes."""
    path = tmp_path / "dot.png"
    path.write_bytes(b"\x89PNG")
    content = DataContent.from_path(path)
    assert (content.media_type, content.name, content.data_uri) == (
        "image/png",
        "dot.png",
        "data:image/png;base64,iVBORw==",
    )
    assert "PNG" not in repr(content)
