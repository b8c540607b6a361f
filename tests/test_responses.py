"""Folding updates into responses, and the stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpipe import (
    AgentPipeError,
    ChatOptions,
    ChatRequest,
    ChatResponse,
    ChatResponseUpdate,
    FunctionCallContent,
    FunctionResultContent,
    Message,
    ProgressContent,
    ReasoningContent,
    ResponseStream,
    TextContent,
    ThoughtContent,
    TransportError,
    UsageDetails,
)
from agentpipe._responses import ResponseFolder, fold
from agentpipe.testing import ScriptedChatClient
from tests.strategies import usages

pieces = st.lists(
    st.tuples(st.sampled_from([TextContent, ReasoningContent]), st.text(min_size=1, max_size=9)), max_size=6
)


@given(pieces, st.randoms(use_true_random=False))
def test_any_cut_folds_into_the_same_response(parts: Sequence[Any], random: Any) -> None:
    """However texts and thoughts are cut into updates, they fold into the same messages."""
    whole = fold([ChatResponseUpdate([kind(text) for kind, text in parts], "assistant", "m")])
    cut = []
    for kind, text in parts:
        while text:
            size = random.randint(1, len(text))
            cut.append(ChatResponseUpdate([kind(text[:size])], "assistant" if random.random() < 0.5 else None, "m"))
            text = text[size:]
    assert fold(cut).messages == whole.messages


@given(usages, usages, usages)
def test_usages_add_up(a: UsageDetails, b: UsageDetails, c: UsageDetails) -> None:
    """Usages add, None counting as nothing, in whatever order."""
    assert (a + b) + c == a + (b + c)
    assert a + UsageDetails() == a
    total = fold([ChatResponseUpdate(usage=usage) for usage in (a, b, c)]).usage
    assert total == a + b + c


def test_where_a_message_begins() -> None:
    """Another role or another id begins another message; no id goes on with the last."""
    response = fold(
        [
            ChatResponseUpdate([TextContent("a")], "assistant", "1"),
            ChatResponseUpdate([TextContent("b")]),
            ChatResponseUpdate([TextContent("c")], "assistant", "2"),
            ChatResponseUpdate([FunctionResultContent("x")], "tool"),
            ChatResponseUpdate([FunctionResultContent("y")], "tool"),
            ChatResponseUpdate([TextContent("d")], "assistant"),
        ]
    )
    assert [(message.role, message.message_id) for message in response.messages] == [
        ("assistant", "1"), ("assistant", "2"), ("tool", None), ("assistant", None),
    ]  # fmt: skip
    assert [message.text for message in response.messages] == ["ab", "c", "", "d"]


def test_what_is_not_part_of_what_was_said() -> None:
    """Progress is never folded in; empty messages are left out; text that was thought becomes reasoning."""
    response = fold(
        [
            ChatResponseUpdate(role="assistant"),
            ChatResponseUpdate([ProgressContent("c", "f", "half way")]),
            ChatResponseUpdate([TextContent("hm")], "assistant"),
            ChatResponseUpdate([ThoughtContent()]),
            ChatResponseUpdate([TextContent("yes")]),
        ]
    )
    assert [content.type for content in response.messages[0].contents] == ["reasoning", "text"]
    assert (response.reasoning, response.text) == ("hm", "yes")
    assert fold([ChatResponseUpdate(role="assistant"), ChatResponseUpdate(finish_reason="stop")]).messages == ()


def test_data_to_be_echoed_finds_its_text() -> None:
    """A content without text carries what is to be echoed with the text of its kind that came before."""
    response = fold(
        [
            ChatResponseUpdate([ReasoningContent("why"), TextContent("so")], "assistant"),
            ChatResponseUpdate([ReasoningContent("", {"signature": "s"})]),
        ]
    )
    assert response.messages[0].contents == (ReasoningContent("why", {"signature": "s"}), TextContent("so"))


def test_folding_looks_at_each_piece_once() -> None:
    """Folding is linear: the number of joins does not grow with the number of pieces."""
    folder = ResponseFolder()
    for _ in range(5000):
        folder.add(ChatResponseUpdate([TextContent("x")], "assistant"))
    message = folder._open
    assert message is not None
    assert (len(message.contents), len(message.pieces)) == (0, 5000)
    assert folder.response().text == "x" * 5000


def test_a_response_as_updates_folds_into_itself() -> None:
    """as_updates gives updates that fold into the same response."""
    response = ChatResponse(
        (Message("assistant", [TextContent("a"), FunctionCallContent("c", "f")], "m1"), Message("tool", [FunctionResultContent("c")], "m2")),
        UsageDetails(1, 2, 3), "tool_calls", "limit", "r", "m", "conv", metadata={"a": 1},
    )  # fmt: skip
    assert fold(list(response.as_updates())).replace(created_at=None) == response


def stream_of(*steps: Any) -> ResponseStream:
    async def updates() -> AsyncIterator[ChatResponseUpdate]:
        for step in steps:
            if isinstance(step, BaseException):
                raise step
            yield ChatResponseUpdate([TextContent(step)], "assistant")

    return ResponseStream(updates())


async def test_get_response_takes_what_is_left() -> None:
    """get_response after some updates takes the rest, and gives the whole; partial is incomplete until then."""
    stream = stream_of("a", "b", "c")
    assert (await anext(stream)).text == "a"
    assert stream.partial.incomplete
    response = await stream.get_response()
    assert (response.text, response.incomplete) == ("abc", False)
    assert await stream.get_response() is response
    assert [text async for text in stream_of("x", "y").text_deltas()] == ["x", "y"]


async def test_an_error_in_mid_stream_is_raised_again() -> None:
    """After an error get_response raises it again; what had come is in partial, and never looks like an answer."""
    error = TransportError("cut")
    stream = stream_of("half", error)
    with pytest.raises(TransportError):
        async for _ in stream:
            pass
    for _ in range(2):
        with pytest.raises(TransportError) as caught:
            await stream.get_response()
        assert caught.value is error
    assert (stream.partial.text, stream.partial.incomplete) == ("half", True)
    assert error.response is not None
    assert error.response.incomplete


async def test_a_stream_that_was_left_has_no_response() -> None:
    """A stream that was closed before its end has no response, and says so."""
    client = ScriptedChatClient("a long story")
    async with client.stream("go") as stream:
        await anext(stream)
    assert client.open == 0
    with pytest.raises(AgentPipeError, match="closed before its end"):
        await stream.get_response()
    assert [update async for update in stream] == []


async def test_cancelling_closes_what_is_under_it() -> None:
    """Cancelling whoever reads a stream closes the client under it."""
    asked = asyncio.Event()

    async def hang(request: ChatRequest) -> None:
        asked.set()
        await asyncio.Event().wait()

    client = ScriptedChatClient(hang)
    task = asyncio.ensure_future(client.get_response("go"))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert client.open == 0


async def test_the_object_so_far() -> None:
    """partial_output gives the JSON values of a structured answer while it comes."""
    client = ScriptedChatClient('{"value": [1, 2, 3]}', piece=4)
    async with client.stream("go", ChatOptions(response_format=list[int])) as stream:
        seen = [stream.partial_output async for _ in stream]
    assert seen[-1] == [1, 2, 3]
    assert seen[0] is None
    assert (await stream.get_response()).parse(list[int]) == [1, 2, 3]
    with pytest.raises(ValueError, match="response_format"):
        _ = stream_of("x").partial_output
