"""The client that answers from a script."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpipe import (
    ChatRequest,
    ChatResponse,
    ChatResponseUpdate,
    DataContent,
    FunctionCallContent,
    Message,
    ReasoningContent,
    TextContent,
    UsageDetails,
    assistant,
    user,
)
from agentpipe.testing import ScriptedChatClient, call
from tests.conftest import ask
from tests.strategies import contents

ANSWER = ChatResponse((assistant("a"),), UsageDetails(1), "length", response_id="r", model="m", metadata={"k": 1})
UPDATES = [ChatResponseUpdate([TextContent("a")], "assistant"), ChatResponseUpdate([TextContent("b")])]


async def sooner(request: ChatRequest) -> str:
    return f"re: {request.messages[-1].text}"


@pytest.mark.parametrize(
    ("step", "messages"),
    [
        ("some text", (assistant("some text"),)),
        ("", ()),
        ([], ()),
        (TextContent("a"), (assistant("a"),)),
        (["a", ReasoningContent("b"), "c"], (assistant("a", ReasoningContent("b"), "c"),)),
        (("a", call("f", {"x": 1})), (assistant("a", FunctionCallContent("call_f", "f", {"x": 1}, '{"x": 1}')),)),
        (DataContent(b"x", "image/png"), (assistant(DataContent(b"x", "image/png")),)),
        (Message("assistant", "long text", "m1"), (Message("assistant", "long text", "m1"),)),
        (ANSWER, ANSWER.messages),
        (UPDATES, (assistant("ab"),)),
        (lambda request: f"re: {request.messages[-1].text}", (assistant("re: go"),)),
        (lambda request: ["a", call("f")], (assistant("a", FunctionCallContent("call_f", "f", {}, "{}")),)),
        (sooner, (assistant("re: go"),)),
    ],
)
async def test_every_kind_of_step(step: Any, messages: Any, streaming: bool) -> None:
    """Each kind of step is answered with what it says, whole and streamed alike."""
    client = ScriptedChatClient(step)
    response = await ask(client, "go", streaming)
    assert response.messages == messages
    assert client.open == 0


@given(st.lists(contents, max_size=4), st.integers(1, 5))
def test_streamed_and_whole_fold_alike(said: Any, piece: int) -> None:
    """Whatever contents, in pieces of whatever size: streamed they fold into the same messages as whole."""

    async def run() -> None:
        whole = await ask(ScriptedChatClient(said, usage=UsageDetails(1)), "go", False)
        streamed = await ask(ScriptedChatClient(said, usage=UsageDetails(1), piece=piece), "go", True)
        assert streamed.replace(created_at=None) == whole.replace(created_at=None)

    asyncio.run(run())


async def test_text_comes_in_pieces() -> None:
    """A streamed text comes in pieces of so many characters; a whole one in one."""
    async with ScriptedChatClient("abcdefg", piece=3).stream("go") as stream:
        assert [text async for text in stream.text_deltas()] == ["abc", "def", "g"]
    assert len([update async for update in ScriptedChatClient("abcdefg").respond(ChatRequest([user("go")]))]) == 2
    with pytest.raises(ValueError, match="piece"):
        ScriptedChatClient(piece=0)


async def test_what_is_told_of_an_answer(streaming: bool) -> None:
    """Finish reason, usage, model and id come with each answer; a response step brings its own."""
    client = ScriptedChatClient("a", call("f"), ANSWER, usage=UsageDetails(5), model="m1")
    first, second, third = [await ask(client, "go", streaming) for _ in range(3)]
    assert (first.finish_reason, first.usage, first.model, first.response_id) == (
        "stop",
        UsageDetails(5),
        "m1",
        "response_0",
    )
    assert (second.finish_reason, second.response_id) == ("tool_calls", "response_1")
    assert third.replace(created_at=None) == ANSWER


async def test_errors_in_the_script(streaming: bool) -> None:
    """An error is raised, at once, in mid-answer, or by a function; the next call goes on with the next step."""

    def fail(request: ChatRequest) -> str:
        raise KeyError("from a function")

    client = ScriptedChatClient(ValueError("at once"), [*UPDATES, OSError("in mid-answer")], fail, "fine")
    with pytest.raises(ValueError, match="at once"):
        await ask(client, "go", streaming)
    stream = client.stream("go") if streaming else client._open_stream("go", None, None, None, False)
    with pytest.raises(OSError, match="mid-answer"):
        await stream.get_response()
    assert stream.partial.text == "ab"
    with pytest.raises(KeyError):
        await ask(client, "go", streaming)
    assert (await ask(client, "go", streaming)).text == "fine"
    assert (client.open, len(client.requests)) == (0, 4)


async def test_a_call_past_the_end_of_the_script(streaming: bool) -> None:
    """One call too many raises AssertionError that says how many steps there are."""
    client = ScriptedChatClient("only one")
    await ask(client, "go", streaming)
    with pytest.raises(AssertionError, match="the script has 1 steps, and this is call 2"):
        await ask(client, "again", streaming)
    assert client.open == 0
    assert [request.messages[-1].text for request in client.requests] == ["go", "again"]


async def test_open_counts_the_answers_that_are_read() -> None:
    """open is the number of answers being read; leaving or cancelling brings it back to 0."""
    client = ScriptedChatClient("one long", "two long")
    async with client.stream("a") as first, client.stream("b") as second:
        await anext(first)
        await anext(second)
        assert client.open == 2
    assert client.open == 0


def test_calls_as_a_model_makes_them() -> None:
    """call makes a call with its arguments as an object and as text; arguments may be called like its own parameters."""
    assert call("f", {"a": 1}, b=2) == FunctionCallContent("call_f", "f", {"a": 1, "b": 2}, '{"a": 1, "b": 2}')
    assert call("f", None, "id7").call_id == "id7"
    assert call("f", name="x", arguments=[1]).arguments == {"name": "x", "arguments": [1]}


def test_the_contract_needs_pytest_only_when_asked_for() -> None:
    """The contract of history stores is there; what is not there says so."""
    from agentpipe import testing

    assert testing.HistoryProviderContract.__name__ == "HistoryProviderContract"
    with pytest.raises(AttributeError, match="nonsense"):
        testing.nonsense
