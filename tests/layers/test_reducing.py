"""ReducingChatClient: agents.md A13."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from agentpipe import (
    Agent,
    AgentSession,
    ChatRequest,
    FunctionInvokingChatClient,
    Message,
    OpenAIChatClient,
    ReducingChatClient,
    TransportError,
    UsageDetails,
    assistant,
    pipeline,
    user,
)
from agentpipe._reducers import SlidingWindowReducer, SummarizingReducer, ToolResultReducer, TruncatingReducer
from agentpipe.testing import ScriptedChatClient, call
from tests.conftest import ask, shape
from tests.strict_endpoint import StrictEndpoint


def look(place: str) -> str:
    """Look at a place."""
    return f"{place}: {'x' * 300}"


def one_each(message: Message) -> int:
    return 1


async def last_two(messages: Sequence[Message]) -> Sequence[Message]:
    return messages[-2:]


def sent(client: ScriptedChatClient) -> list[int]:
    return [len(request.messages) for request in client.requests]


async def test_what_is_sent_is_short_and_what_is_stored_is_whole(streaming: bool) -> None:
    """The model sees the last turn and the first question; the session keeps everything."""
    client = ScriptedChatClient("one", "two", "three")
    agent = Agent(client.wrap(ReducingChatClient, reducer=SlidingWindowReducer(1)))
    session = AgentSession()
    for question in ("first", "second", "third"):
        await ask(agent, question, streaming, session=session)
    assert [m.text for m in client.requests[2].messages] == ["first", "third"]
    assert [m.text for m in session.messages] == ["first", "one", "second", "two", "third", "three"]


SCRIPT: list[Any] = [call("look", place="a"), call("look", place="b"), call("look", place="c"), "done"]


async def test_below_the_loop_each_call_is_shortened_and_above_it_only_the_first(streaming: bool) -> None:
    """Below the loop, where people want it, a long run stays short; above it, the run grows all the same."""
    layer = partial(ReducingChatClient, reducer=ToolResultReducer(1))
    below, above = ScriptedChatClient(*SCRIPT), ScriptedChatClient(*SCRIPT)
    responses = [
        await ask(Agent(pipeline(FunctionInvokingChatClient, layer, below), tools=[look]), "go", streaming),
        await ask(Agent(pipeline(layer, FunctionInvokingChatClient, above), tools=[look]), "go", streaming),
    ]
    old = "[old result left out: 303 characters]"
    assert str(below.requests[3].messages).count(old) == 2
    assert str(above.requests[3].messages).count(old) == 0
    assert shape(responses[0].messages) == shape(responses[1].messages)
    assert old not in str(responses[0].messages)


async def test_a_reducer_is_a_message_rewriter_too(streaming: bool) -> None:
    """Inside the loop, later rounds go on from what the reducer made; the response has everything."""
    client = ScriptedChatClient(*SCRIPT)
    loop = FunctionInvokingChatClient(client, message_rewriter=TruncatingReducer(3, count_tokens=one_each))
    response = await ask(Agent(loop, tools=[look]), "go", streaming)
    assert sent(client) == [1, 3, 3, 3]
    assert len(response.messages) == 7


async def test_the_summary_is_private_and_counted(streaming: bool) -> None:
    """Nothing of the summary call is seen but its usage, which comes with the first update; the next turn is free."""
    writer = ScriptedChatClient("a summary", usage=UsageDetails(50, 5))
    client = ScriptedChatClient("one", "two", usage=UsageDetails(10, 1))
    reducer = SummarizingReducer(writer, 6, keep_tokens=2, count_tokens=one_each)
    reducing = ReducingChatClient(client, reducer)
    messages = [user("first"), *[assistant(f"said {n}") for n in range(6)], user("and?")]
    messages = [message.with_id() for message in messages]
    session = AgentSession()
    response = await ask(reducing, messages, streaming, session=session)
    assert response.text == "one"
    assert len(response.messages) == 1
    assert response.usage == UsageDetails(60, 6)
    again = await ask(reducing, messages, streaming, session=session)
    assert again.usage == UsageDetails(10, 1)
    assert len(writer.requests) == 1
    assert client.requests[0].messages == client.requests[1].messages


async def test_the_usage_of_a_summary_is_not_lost_with_the_call(streaming: bool) -> None:
    """Where the model fails before it says anything, what the summary used is on the error's partial answer."""
    writer = ScriptedChatClient("a summary", usage=UsageDetails(50, 5))
    reducer = SummarizingReducer(writer, 2, keep_tokens=1, count_tokens=one_each)
    reducing = ReducingChatClient(ScriptedChatClient(TransportError("down")), reducer)
    stream = reducing.stream([user("first"), assistant("said"), user("second")])
    with pytest.raises(TransportError):
        await stream.get_response()
    assert stream.partial.usage == UsageDetails(50, 5)
    empty = ReducingChatClient(ScriptedChatClient([]), SummarizingReducer(
        ScriptedChatClient("a summary", usage=UsageDetails(50, 5)), 2, keep_tokens=1, count_tokens=one_each
    ))  # fmt: skip
    assert (await ask(empty, [user("a"), assistant("b"), user("c")], streaming)).usage == UsageDetails(50, 5)


async def test_a_function_and_two_layers(streaming: bool) -> None:
    """An async function is a reducer, and one layer may stand above the other."""
    client = ScriptedChatClient("fine")
    twice = pipeline(
        partial(ReducingChatClient, reducer=last_two),
        partial(ReducingChatClient, reducer=TruncatingReducer(1, count_tokens=one_each)),
        client,
    )
    await ask(twice, [user("a"), user("b"), assistant("c"), user("d")], streaming)
    assert [m.text for m in client.requests[0].messages] == ["d"]
    assert str(twice) == (
        "ReducingChatClient(reducer=last_two)\n"
        "└─ ReducingChatClient(reducer=TruncatingReducer(max_tokens=1))\n"
        "   └─ ScriptedChatClient()"
    )


async def test_the_writer_of_summaries_is_in_the_tree_and_closed_with_it() -> None:
    """The client that writes summaries is printed beside the one that answers, and closed with the pipeline."""

    class Closable(ScriptedChatClient):
        closed = False

        async def aclose(self) -> None:
            self.closed = True

    writer, client = Closable(), Closable()
    reducing = ReducingChatClient(client, SummarizingReducer(writer, 10))
    assert str(reducing).count("Closable") == 2
    await reducing.aclose()
    assert writer.closed
    assert client.closed


async def test_closing_closes_what_is_under_it() -> None:
    """A consumer that stops closes the model's stream at once."""
    client = ScriptedChatClient("a long answer")
    async with ReducingChatClient(client, last_two).stream("hi") as stream:
        await anext(stream)
        assert client.open == 1
    assert client.open == 0


@pytest.mark.parametrize(
    "reducer",
    [
        TruncatingReducer(3, count_tokens=one_each),
        SlidingWindowReducer(1),
        ToolResultReducer(0),
        SummarizingReducer(ScriptedChatClient(*["told"] * 20), 4, keep_tokens=2, count_tokens=one_each),
    ],
    ids=lambda reducer: type(reducer).__name__,
)
async def test_a_strict_endpoint_takes_what_is_left(reducer: Any, streaming: bool) -> None:
    """Whatever is dropped, what is sent is a transcript in which every call has its result."""
    rounds: list[Any] = [{"tool_calls": [("look", {"place": "a"}), ("look", {"place": "b"})]}] * 3
    async with StrictEndpoint(*[*rounds, "done"] * 2) as endpoint:
        async with OpenAIChatClient("m", base_url=endpoint.url, api_key="k") as client:
            agent = Agent(client.wrap(ReducingChatClient, reducer=reducer), tools=[look])
            session = AgentSession()
            for question in ("first", "second"):
                assert (await ask(agent, question, streaming, session=session)).text == "done"
        assert endpoint.refused == []
        assert len(session.messages) == 16


async def test_a_reducer_that_fails_fails_the_call(streaming: bool) -> None:
    """What a reducer raises is what the caller gets, and nothing is sent."""

    async def broken(messages: Sequence[Message]) -> Sequence[Message]:
        raise KeyError("oops")

    client = ScriptedChatClient("never")
    with pytest.raises(KeyError):
        await ask(ReducingChatClient(client, broken), "hi", streaming)
    assert client.requests == []


@pytest.mark.parametrize("reducer", [None, 3, lambda messages: messages, ChatRequest])
def test_what_is_no_reducer(reducer: Any) -> None:
    """A reducer is refused where the layer is made if it is none."""
    with pytest.raises(TypeError, match="reducer must be a Reducer or an async function"):
        ReducingChatClient(ScriptedChatClient(), reducer)
