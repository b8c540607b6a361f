"""RedactingChatClient."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpipe import (
    Agent,
    AgentSession,
    ApprovalRequestContent,
    ChatOptions,
    ChatRequest,
    ChatResponseUpdate,
    FunctionCallContent,
    FunctionInvokingChatClient,
    FunctionResultContent,
    InputRequestContent,
    Message,
    OpenAIChatClient,
    ReasoningContent,
    RedactingChatClient,
    TextContent,
    ToolError,
    ToolLoopError,
    assistant,
    pipeline,
    system,
    tool,
    user,
)
from agentpipe._responses import fold
from agentpipe.testing import ScriptedChatClient, call
from tests.conftest import ask, shape
from tests.strategies import messages
from tests.strict_endpoint import StrictEndpoint

EMAIL = "ada@example.org"
PLACEHOLDER = re.compile(r"\[[A-Z]+_[0-9a-f]{8}\]")


def placeholder_in(request: ChatRequest) -> str:
    """The placeholder in the last text of a request."""
    found = PLACEHOLDER.search(str(request.messages) + str(request.options.instructions))
    assert found is not None
    return found.group()


def repeats(request: ChatRequest) -> str:
    return f"Write to {placeholder_in(request)}, please."


async def test_there_and_back(streaming: bool) -> None:
    """The model sees a placeholder, and the caller the real value again, however the stream is cut."""
    for piece in range(1, 12):
        client = ScriptedChatClient(repeats, piece=piece)
        redacting = RedactingChatClient(client, patterns=["email"])
        response = await ask(redacting, f"I am {EMAIL}.", streaming)
        assert response.text == f"Write to {EMAIL}, please."
        assert EMAIL not in str(client.requests[0])


def everything(value: str) -> list[Message]:
    """Messages that hold ``value`` in every place that can hold text."""
    made = call("send", {"to": value, "deep": [{value: [value]}], "n": 1}, "c1")
    plain = FunctionCallContent("c2", "send", {}, f"{value} is no JSON", invalid=f"not JSON: {value}")
    escaped = FunctionCallContent("c3", "send", {"to": value}, json.dumps({"to": value}).replace("@", "\\u0040"))
    result = FunctionResultContent("c1", "send", {"said": [value]}, contents=(TextContent(value),))
    approval = ApprovalRequestContent("r1", made, parent_call=made, state={"for": value})
    question = InputRequestContent("r2", made, f"is {value} right?")
    return [
        system(f"You help {value}."),
        user(value, author_name=value),
        assistant(ReasoningContent(f"so {value}"), made, plain, escaped),
        Message("tool", result),
        assistant(approval, question),
        user(approval.reject(f"not {value}"), approval.approve(arguments={"to": value}), question.answer({"x": value})),
    ]


async def test_no_place_is_forgotten(streaming: bool) -> None:
    """Texts, thoughts, arguments, raw arguments, results, questions and answers: all of it out, all of it back."""
    given = everything(EMAIL)

    def says_it_back(request: ChatRequest) -> list[Any]:
        return [
            *[ChatResponseUpdate(m.contents, m.role, f"m{place}") for place, m in enumerate(request.messages)],
            ChatResponseUpdate(finish_reason="stop"),
        ]

    client = ScriptedChatClient(says_it_back)
    redacting = RedactingChatClient(client, patterns=["email"])
    response = await ask(redacting, given, streaming, options=ChatOptions(instructions=f"From {EMAIL}"))
    seen = json.dumps([message.model_dump() for message in client.requests[0].messages])
    assert EMAIL not in seen
    assert "u0040" not in seen
    assert EMAIL not in str(client.requests[0].options)
    assert shape(response.messages) == shape(given)


async def test_arguments_with_quotes_stay_json() -> None:
    """A value with quotes in it goes into raw arguments as JSON spells it."""
    value = 'the "big" one'
    client = ScriptedChatClient(lambda request: call("buy", what=placeholder_in(request)))
    redacting = RedactingChatClient(client, patterns=re.compile('the "big" one'))
    made = (await redacting.get_response(f"Buy {value}")).function_calls[0]
    assert made.arguments == {"what": value}
    assert json.loads(made.raw_arguments or "") == {"what": value}


async def test_below_the_loop_tools_get_real_values_and_above_it_placeholders(streaming: bool) -> None:
    """Below the loop, where people want it, a tool gets the real value and its result is redacted."""

    def run(order: str) -> tuple[Agent, ScriptedChatClient, list[str]]:
        got: list[str] = []

        def send(to: str) -> str:
            """Send mail."""
            got.append(to)
            return "bob@example.org has got it too"

        client = ScriptedChatClient(lambda request: call("send", to=placeholder_in(request)), "Sent.")
        redacting = partial(RedactingChatClient, patterns=["email"])
        layers: list[Any] = [FunctionInvokingChatClient, redacting]
        return Agent(pipeline(*(layers if order == "below" else layers[::-1]), client), tools=[send]), client, got

    agent, client, got = run("below")
    await ask(agent, f"Write to {EMAIL}.", streaming)
    assert got == [EMAIL]
    assert "bob@" not in str(client.requests[1])
    agent, client, got = run("above")
    response = await ask(agent, f"Write to {EMAIL}.", streaming)
    assert PLACEHOLDER.fullmatch(got[0])
    assert "bob@" in str(client.requests[1])
    assert response.function_calls[0].arguments == {"to": EMAIL}


async def test_one_value_has_one_placeholder_in_every_request(streaming: bool) -> None:
    """The same in each round and turn and after other messages; another layer has others, unless they share a key."""
    client = ScriptedChatClient(*["ok"] * 3)
    redacting = RedactingChatClient(client, patterns=["email"], key="k")
    await ask(redacting, f"a {EMAIL} b {EMAIL}", streaming)
    await ask(redacting, [user("bob@example.org"), user(EMAIL)], streaming)
    first, second = PLACEHOLDER.findall(client.requests[0].messages[0].text)
    assert first == second == client.requests[1].messages[1].text
    same = RedactingChatClient(client, patterns=["email"], key="k")
    await ask(same, EMAIL, streaming)
    assert client.requests[2].messages[0].text == first
    other = ScriptedChatClient("ok")
    await ask(RedactingChatClient(other, patterns=["email"]), EMAIL, streaming)
    assert other.requests[0].messages[0].text != first


async def test_two_layers_in_one_pipeline(streaming: bool) -> None:
    """A layer may see the placeholders of the one above it, and even replace parts of them."""
    digits = re.compile(r"\d+")
    client = ScriptedChatClient(lambda request: f"You said: {request.messages[0].text}")
    twice = pipeline(
        partial(RedactingChatClient, patterns=["email"]), partial(RedactingChatClient, patterns=digits), client
    )
    said = f"{EMAIL} since 1815"
    assert (await ask(twice, said, streaming)).text == f"You said: {said}"
    assert "1815" not in client.requests[0].messages[0].text
    assert str(twice) == (
        "RedactingChatClient(patterns=['email'])\n└─ RedactingChatClient(patterns=['secret'])\n   └─ ScriptedChatClient()"
    )


async def test_what_looks_like_a_placeholder_but_is_none(streaming: bool) -> None:
    """Brackets in an answer, and placeholders that nobody made, come through as they are."""
    answer = "a[0] [EMAIL_ [EMAIL_00000000] [[X_12] [link](url) ["
    redacting = RedactingChatClient(ScriptedChatClient(answer, piece=1), patterns=["email"])
    assert (await ask(redacting, EMAIL, streaming)).text == answer


async def test_text_is_held_back_only_where_it_may_be_a_placeholder() -> None:
    """Whatever cannot be the start of one is passed on at once."""
    client = ScriptedChatClient("Dear [friend], hello [A", piece=1)
    pieces = [text async for text in RedactingChatClient(client, patterns=["email"]).stream("hi").text_deltas()]
    assert "".join(pieces) == "Dear [friend], hello [A"
    assert pieces[:7] == ["D", "e", "a", "r", " ", "[f", "r"]


async def test_held_text_comes_before_what_follows_it() -> None:
    """Text that was held back comes before a call, another message and the end, each in its own message."""
    updates = [
        ChatResponseUpdate((ReasoningContent("hm ["),), "assistant", "m1"),
        ChatResponseUpdate((TextContent("a ["),), message_id="m1"),
        ChatResponseUpdate((call("look"), TextContent("b [")), message_id="m1"),
        ChatResponseUpdate((TextContent("c ["),), "assistant", "m2"),
        ChatResponseUpdate(finish_reason="stop"),
    ]
    client = ScriptedChatClient(updates)
    stream = RedactingChatClient(client, patterns=["email"]).stream("hi")
    seen = [update async for update in stream]
    response = await stream.get_response()
    assert shape(response.messages) == shape(
        [
            assistant(ReasoningContent("hm ["), "a [", call("look"), "b ["),
            assistant("c ["),
        ]
    )
    assert seen[-1].finish_reason == "stop"


async def test_what_was_done_before_a_failure_is_restored_too(streaming: bool) -> None:
    """Above the loop, the transcript on an error has the real values."""

    def send(to: str) -> str:
        """Send mail."""
        raise ToolError(f"{to} is full")

    client = ScriptedChatClient(lambda request: call("send", to=placeholder_in(request)))
    stack = RedactingChatClient(FunctionInvokingChatClient(client, max_consecutive_errors=0), patterns=["email"])
    with pytest.raises(ToolLoopError) as caught:
        await ask(stack, EMAIL, streaming, options=ChatOptions(tools=[send]))
    assert caught.value.response is not None
    assert caught.value.response.function_calls[0].arguments == {"to": EMAIL}
    assert caught.value.response.function_results[0].text == f"Error: {EMAIL} is full"


async def test_what_comes_late_is_restored_too() -> None:
    """What a loop below leaves when it is cancelled has the real values."""
    late: list[ChatResponseUpdate] = []

    async def leaves(request: ChatRequest) -> str:
        assert request.late is not None
        assert request.late is not late
        request.late.append(ChatResponseUpdate((TextContent(request.messages[0].text),), "tool"))
        raise KeyError("stop")

    redacting = RedactingChatClient(ScriptedChatClient(leaves), patterns=["email"])
    with pytest.raises(KeyError):
        async for _ in redacting.respond(ChatRequest([user(EMAIL)], late=late)):
            pass
    assert [update.text for update in late] == [EMAIL]


async def test_approvals_and_sessions(streaming: bool) -> None:
    """A person sees the real value in a request for approval, and the history holds real values only."""
    got: list[str] = []

    @tool(requires_approval=True)
    def send(to: str) -> str:
        """Send mail."""
        got.append(to)
        return f"sent to {to}"

    client = ScriptedChatClient(lambda request: call("send", to=placeholder_in(request)), repeats)
    agent = Agent(RedactingChatClient(client, patterns=["email"]), tools=[send])
    session = AgentSession()
    response = await ask(agent, f"Write to {EMAIL}.", streaming, session=session)
    assert response.approval_requests[0].call.arguments == {"to": EMAIL}
    response = await ask(agent, response.approval_requests[0].approve(), streaming, session=session)
    assert got == [EMAIL]
    assert response.text == f"Write to {EMAIL}, please."
    assert not PLACEHOLDER.search(session.model_dump_json())
    assert EMAIL not in str(client.requests)


async def test_the_same_question_is_the_same_request(streaming: bool) -> None:
    """So a cache below, and the endpoint's own, find what they know."""
    client = ScriptedChatClient(repeats, repeats)
    redacting = RedactingChatClient(client, patterns=["email"])
    for _ in range(2):
        await ask(redacting, EMAIL, streaming)
    assert client.requests[0].messages == client.requests[1].messages


async def test_messages_without_anything_to_hide_stay_the_same_objects() -> None:
    """So that what was encoded once is found again."""
    client = ScriptedChatClient("ok")
    messages = [user("nothing here"), assistant(call("look", {"n": 1, "x": [1.5, None, True]}))]
    await RedactingChatClient(client, patterns=["email", "phone"]).get_response(messages)
    assert all(a is b for a, b in zip(client.requests[0].messages, messages, strict=True))


@pytest.mark.parametrize(
    ("name", "hits", "misses"),
    [
        ("email", ["a.b+c@mail.example.co.uk", "jörg@müller.de"], ["a@b", "@home", "x @ y.z"]),
        ("phone", ["+49 151 2345 6789", "0049-30-123456", "030 12345678", "(415) 555-2671"], ["2026-12-01", "12345678"]),
        ("card", ["4111 1111 1111 1111", "4111111111111111", "378282246310005"], ["4111 1111 1111 1112", "1" * 12]),
        ("iban", ["DE89 3704 0044 0532 0130 00", "GB82WEST12345698765432"], ["DE12", "ABC123"]),
        ("ip", ["192.168.0.1"], ["1.2.3", "v1.2.3.4.5"]),
        ("key", ["sk-abcdefghijklmnop1234", "ghp_abcdefghijklmnop", "AKIAIOSFODNN7EXAMPLE"], ["sk-8", "task-force-onehundred"]),
    ],
)  # fmt: skip
async def test_the_named_patterns(name: str, hits: list[str], misses: list[str]) -> None:
    """Each finds what it is named for, and leaves alone what is not."""
    for text in [*hits, *misses]:
        client = ScriptedChatClient("ok")
        await RedactingChatClient(client, patterns=name).get_response(f"It is {text} here.")
        sent = client.requests[0].messages[0].text
        assert (text not in sent) is (text in hits), sent


async def test_numbers_functions_and_overlaps() -> None:
    """A number that matches is hidden too; a function names parts; the match that begins first and is longest counts."""

    def names(text: str) -> Sequence[str]:
        return ["Ada Lovelace", "Ada", ""]

    client = ScriptedChatClient("ok")
    redacting = RedactingChatClient(client, patterns=[names, re.compile(r"Ada L\w+ x|\b7\d{3}\b")])
    result = FunctionResultContent("c", "look", {"pin": 7123, "n": 12, "ok": True})
    await redacting.get_response([user("Ada Lovelace x, Ada y"), assistant(call("look", {}, "c")), result])
    sent = client.requests[0]
    assert re.fullmatch(r"\[SECRET_\w+\], \[NAMES_\w+\] y", sent.messages[0].text)
    told = sent.messages[2].contents[0]
    assert isinstance(told, FunctionResultContent)
    assert re.fullmatch(r"\[SECRET_\w+\]", told.result.pop("pin"))
    assert told.result == {"n": 12, "ok": True}
    assert repr(redacting) == "RedactingChatClient(patterns=['names', 'secret'])"


@given(
    st.lists(st.sampled_from([EMAIL, "bob@x.org", "[", "]", "[EMAIL_", "a", " ", "\n", "0f"]), max_size=12), st.data()
)
async def test_however_the_stream_is_cut(parts: list[str], data: Any) -> None:
    """What is said back comes back exactly, whatever it is and wherever it is cut."""
    said = "".join(parts)

    def cut(request: ChatRequest) -> list[ChatResponseUpdate]:
        text = request.messages[0].text
        at = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
        ends = zip([0, *at], [*at, len(text)], strict=True)
        return [ChatResponseUpdate((TextContent(text[start:end]),), "assistant", "m") for start, end in ends]

    response = await RedactingChatClient(ScriptedChatClient(cut), patterns=["email"]).get_response([user(said)])
    assert response.text == said


@pytest.mark.parametrize("with_session", [True, False])
async def test_an_endpoint_that_keeps_the_conversation(with_session: bool, streaming: bool) -> None:
    """It may use a placeholder of an earlier round or turn, though the message is not sent again."""
    seen: list[str] = []

    def answers(request: ChatRequest) -> list[ChatResponseUpdate]:
        seen.extend(PLACEHOLDER.findall(str(request.messages)))
        content = call("look") if not seen[1:] and len(client.requests) == 1 else TextContent(f"To {seen[0]}.")
        return [
            ChatResponseUpdate((content,), "assistant", conversation_id="conv"),
            ChatResponseUpdate(finish_reason="stop"),
        ]

    def look() -> str:
        """Look."""
        return "fine"

    client = ScriptedChatClient(answers, answers, answers)
    agent = Agent(RedactingChatClient(client, patterns=["email"]), tools=[look])
    session = AgentSession() if with_session else None
    assert (await ask(agent, f"I am {EMAIL}.", streaming, session=session)).text == f"To {EMAIL}."
    assert EMAIL not in str(client.requests[1].messages)
    if session is not None:
        later = AgentSession.model_validate_json(session.model_dump_json())
        fresh = Agent(RedactingChatClient(client, patterns=["email"]), tools=[look])
        assert (await ask(fresh, "Who am I?", streaming, session=later)).text == f"To {EMAIL}."
    for state in (None, 3, ["x"], {"[EMAIL_00000000]": 3}):
        hostile = AgentSession(state={"agentpipe.redacted": state}, conversation_id="conv")
        stack = RedactingChatClient(ScriptedChatClient("[EMAIL_00000000]"), patterns=["email"])
        answer = await ask(Agent(stack), "hi", streaming, session=hostile)
        assert answer.text == "[EMAIL_00000000]"


@given(st.lists(messages, max_size=4), st.booleans())
async def test_whatever_the_messages(given: list[Message], streaming: bool) -> None:
    """Of any messages no letter gets out, and all of them come back as they were."""
    letters = re.compile(r"[^\W\d_]+")
    given = [message.replace(message_id=f"m{place}") for place, message in enumerate(given)]

    def says_it_back(request: ChatRequest) -> list[ChatResponseUpdate]:
        return [ChatResponseUpdate(m.contents, m.role, m.message_id, m.author_name) for m in request.messages]

    client = ScriptedChatClient(says_it_back)
    response = await ask(RedactingChatClient(client, patterns=letters), given or "1", streaming)
    said = fold([ChatResponseUpdate(m.contents, m.role, m.message_id, m.author_name) for m in given])
    told, expected = shape(response.messages), shape(said.messages)
    assert given == [] or told == expected
    for message in client.requests[0].messages:
        for content in message.contents:
            if isinstance(content, TextContent):
                assert not letters.search(re.sub(r"\[SECRET_[0-9a-f]+\]", "", content.text))


async def test_over_the_wire(streaming: bool) -> None:
    """A strict endpoint sees placeholders in text, arguments and results, and the caller and the tool real values."""
    got: list[str] = []

    def send(to: str) -> str:
        """Send mail."""
        got.append(to)
        return f"sent to {to}"

    def calls(body: dict[str, Any]) -> Any:
        return {"tool_calls": [("send", {"to": PLACEHOLDER.findall(json.dumps(body))[0]})]}

    def answers(body: dict[str, Any]) -> Any:
        return f"Done: {body['messages'][-1]['content']}."

    async with StrictEndpoint(calls, answers) as endpoint:
        async with OpenAIChatClient("m", base_url=endpoint.url, api_key="k") as client:
            stack = pipeline(FunctionInvokingChatClient, partial(RedactingChatClient, patterns="email"), client)
            response = await ask(Agent(stack, tools=[send]), f"Write to {EMAIL}.", streaming)
        assert endpoint.refused == []
        assert response.text == f"Done: sent to {EMAIL}."
        assert got == [EMAIL]
        assert EMAIL not in json.dumps(endpoint.bodies)


def test_wrong_settings() -> None:
    """A pattern that is none is refused where the layer is made; the key is not printed."""
    client = ScriptedChatClient()
    with pytest.raises(ValueError, match="patterns has no 'emial'; there are email, phone"):
        RedactingChatClient(client, patterns=["emial"])
    with pytest.raises(ValueError, match="patterns must name at least one"):
        RedactingChatClient(client, patterns=[])
    with pytest.raises(TypeError, match="patterns takes names"):
        RedactingChatClient(client, patterns=[3])  # type: ignore[list-item]
    assert "hush" not in repr(RedactingChatClient(client, patterns="ip", key="hush"))


async def test_closing_closes_what_is_under_it() -> None:
    """A consumer that stops closes the model's stream at once."""
    client = ScriptedChatClient("a long answer")
    async with RedactingChatClient(client, patterns="ip").stream("hi") as stream:
        await anext(stream)
        assert client.open == 1
    assert client.open == 0
