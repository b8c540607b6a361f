"""How a run of the loop ends before its time, and what the transcript says then: spec/function_invocation.md, L3 and L11."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest

from agentpipe import (
    Agent,
    AgentSession,
    ApprovalRequestContent,
    ChatClient,
    ChatRequest,
    ChatResponseUpdate,
    DelegatingAgent,
    DelegatingChatClient,
    FunctionCallContent,
    FunctionInvokingChatClient,
    FunctionResultContent,
    FunctionTool,
    RedactingChatClient,
    RetryingChatClient,
    TextContent,
    TransportError,
    UsageDetails,
    tool,
)
from agentpipe.testing import ScriptedChatClient, call
from tests.conftest import ask


@tool(requires_approval=True)
async def danger() -> str:
    """Needs a person's approval."""
    return "boom"


async def good() -> str:
    """Needs none."""
    return "fine"


def said(*contents: Any, **fields: Any) -> ChatResponseUpdate:
    return ChatResponseUpdate(contents, "assistant", **fields)


def kinds(messages: Any) -> list[tuple[str, list[str]]]:
    """The roles of messages, and what they hold: calls and results by their ids."""

    def kind(content: Any) -> str:
        if isinstance(content, (FunctionCallContent, FunctionResultContent)):
            return f"{content.type} {content.call_id}"
        return str(content.type)

    return [(message.role, [kind(content) for content in message.contents]) for message in messages]


CLOSED = [
    ("assistant", ["function_call call_good", "function_call call_danger"]),
    ("tool", ["function_result call_good", "function_result call_danger"]),
]


@pytest.mark.parametrize("first", [[], [call("good")]], ids=["alone", "after another"])
async def test_an_answer_that_breaks_off_behind_a_held_call(first: list[Any], streaming: bool) -> None:
    """L11: A call that waits for the end of its turn, which never comes, is told with its result like any other."""
    broken = [*map(said, first), said(call("danger")), TransportError("cut")]
    agent, session = Agent(ScriptedChatClient(broken, "on"), tools=[good, danger]), AgentSession()
    with pytest.raises(TransportError) as caught:
        await ask(agent, "x", streaming, session=session)
    assert caught.value.response is not None
    expected = [(role, told[-len(first) - 1 :]) for role, told in CLOSED]
    assert kinds(caught.value.response.messages) == expected
    assert kinds(session.messages[1:]) == expected
    assert all("not run" in result.text for result in caught.value.response.function_results)
    assert (await ask(agent, "go on", streaming, session=session)).text == "on"


async def test_a_policy_that_raises(streaming: bool) -> None:
    """L11: A policy that fails stops the run; the calls of the round, held ones too, are told as not run."""

    def policy(call: FunctionCallContent) -> bool:
        raise LookupError(call.name)

    agent = Agent(
        ScriptedChatClient([call("good"), call("danger")]),
        tools=[good, FunctionTool(danger.function, requires_approval=policy)],
    )
    session = AgentSession()
    with pytest.raises(LookupError):
        await ask(agent, "x", streaming, session=session)
    assert kinds(session.messages[1:]) == CLOSED


async def test_cancelled_behind_a_held_call(streaming: bool) -> None:
    """L11: The same when the run is cancelled while the model still speaks."""
    reached = asyncio.Event()

    async def speak(request: Any) -> Any:
        reached.set()
        await asyncio.Event().wait()

    class Slow(ScriptedChatClient):
        async def respond(self, request: Any) -> Any:
            yield said(call("good"))
            yield said(call("danger"))
            await speak(request)

    agent, session = Agent(Slow(), tools=[good, danger]), AgentSession()
    task = asyncio.ensure_future(ask(agent, "x", streaming, session=session))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert kinds(session.messages[1:]) == CLOSED


async def test_a_reader_that_leaves_before_a_held_call() -> None:
    """L11: A reader that leaves at the first call is told in `partial` of those held behind it too."""
    script = ScriptedChatClient([said(call("good")), said(call("danger"))])
    agent, session = Agent(script, tools=[good, danger]), AgentSession()
    async with agent.stream("x", session=session) as stream:
        async for update in stream:
            if update.contents:
                break
    assert kinds(stream.partial.messages)[0] == ("assistant", ["function_call call_good"])
    assert kinds(session.messages[1:]) == kinds(stream.partial.messages)


@pytest.mark.parametrize("others", [[], ["good"]], ids=["alone", "with a sibling"])
async def test_a_reader_that_leaves_with_the_request(others: list[str]) -> None:
    """L11, L27: A request that was passed on stays open when its reader leaves; a sibling that had not begun is not run."""
    contents = [call("danger"), *map(call, others)]
    agent, session = Agent(ScriptedChatClient(contents, "done"), tools=[good, danger]), AgentSession()
    async with agent.stream("x", session=session) as stream:
        async for update in stream:
            if requests := [c for c in update.contents if isinstance(c, ApprovalRequestContent)]:
                break
    assert [result.text for result in stream.partial.function_results] == ["not run: cancelled"] * len(others)
    session = AgentSession.model_validate_json(session.model_dump_json())
    response = await agent.run(requests[0].approve(), session=session)
    assert (response.text, [result.text for result in response.function_results]) == ("done", ["boom"])


def arguments_fail(client: ScriptedChatClient) -> FunctionInvokingChatClient:
    async def handler(context: Any, raw: str) -> str:
        raise LookupError("arguments")

    return FunctionInvokingChatClient(client, arguments_handler=handler)


def policy_fails(client: ScriptedChatClient) -> FunctionInvokingChatClient:
    def policy(call: FunctionCallContent) -> bool:
        raise TransportError("policy")

    asking = FunctionTool(good, requires_approval=policy)
    return FunctionInvokingChatClient(client, additional_tools=[asking])


@pytest.mark.parametrize("made", [arguments_fail, policy_fails])
async def test_a_turn_is_counted_once(made: Callable[[Any], FunctionInvokingChatClient], streaming: bool) -> None:
    """L3: What fails after the model's turn is over does not count its tokens, or tell its messages, a second time."""
    client = made(ScriptedChatClient([call("good")], usage=UsageDetails(10, 5, 15)))
    late: list[Any] = []

    async def keep(request: Any, inner: Any) -> Any:
        async for update in inner.respond(request):
            late.append(update)
            yield update

    with pytest.raises((LookupError, TransportError)) as caught:
        await ask(client.wrap(keep), "x", streaming)
    assert sum(update.usage.total_tokens for update in late if update.usage) == 15
    if isinstance(caught.value, TransportError):
        assert caught.value.response is not None
        assert caught.value.response.usage == UsageDetails(10, 5, 15)
        assert kinds(caught.value.response.messages) == [(role, told[:1]) for role, told in CLOSED]


async def test_what_comes_behind_a_held_call_is_known(streaming: bool) -> None:
    """L15, L2: That the model was cut off, and the endpoint's conversation, are known though the update waits."""
    script = ScriptedChatClient([said(call("danger")), said(finish_reason="length", conversation_id="conv")], "done")
    response = await ask(Agent(script, tools=[danger]), "x", streaming)
    assert "cut off" in response.function_results[0].text
    assert [message.role for message in script.requests[1].messages] == ["tool"]


def first() -> object:
    return next(iter([]))


class First:
    def __call__(self) -> object:
        raise StopIteration


@pytest.mark.parametrize("function", [first, FunctionTool(First(), name="first")])
async def test_a_function_that_raises_stop_iteration(function: Any, streaming: bool) -> None:
    """L18: StopIteration, which no future can carry, is an error like any other."""
    response = await ask(Agent(ScriptedChatClient([call("first")], "ok"), tools=[function]), "x", streaming)
    [result] = response.function_results
    assert (response.text, result.text) == ("ok", "Error: the function failed.")
    assert isinstance(result.exception, RuntimeError)
    assert isinstance(result.exception.__cause__, StopIteration)


async def test_an_async_generator_is_closed_with_its_call(streaming: bool) -> None:
    """L14: A generator whose item cannot be written is closed before the run goes on."""
    events: list[str] = []

    async def items() -> AsyncIterator[object]:
        try:
            yield object()
        finally:
            events.append("closed")

    def answer(request: Any) -> str:
        events.append("asked")
        return "ok"

    response = await ask(Agent(ScriptedChatClient([call("items")], answer), tools=[items]), "x", streaming)
    assert (response.text, events) == ("ok", ["closed", "asked"])
    assert response.function_results[0].is_error


class Simple(DelegatingChatClient):
    """A layer in the simplest form, which does not close what it asks."""

    async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        async for update in self.inner.respond(request):
            yield update


class SimpleAgent(DelegatingAgent):
    """The same around an agent."""

    async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        async for update in self.inner.respond(request):
            yield update


async def live(request: ChatRequest, inner: ChatClient) -> AsyncIterator[ChatResponseUpdate]:
    async for update in inner.respond(request):
        yield update


@pytest.mark.parametrize("with_session", [True, False])
@pytest.mark.parametrize("leave_at", ["function_call", "function_result"])
@pytest.mark.parametrize(
    "layers",
    [[], [Simple], [live], [Simple, live, Simple], [Simple, partial(RedactingChatClient, patterns="email"), Simple]],
    ids=["none", "class", "live", "all", "redacting"],
)
async def test_a_reader_that_leaves_layers_that_close_nothing(
    layers: list[Any], leave_at: str, with_session: bool
) -> None:
    """L11: Whatever form the layers above the loop have, `partial` and history hold the closed transcript at once."""
    client: ChatClient = FunctionInvokingChatClient(ScriptedChatClient([call("good", {}, id) for id in "ab"], "on"))
    for layer in layers:
        client = client.wrap(layer)
    agent = Agent(client, tools=[good])
    outer = SimpleAgent(agent) if layers else agent
    session = AgentSession() if with_session else None
    async with outer.stream("x", session=session) as stream:
        async for update in stream:
            if any(content.type == leave_at for content in update.contents):
                break
    results = [result.text.split(":")[0] for result in stream.partial.function_results]
    assert results == (["not run"] if leave_at == "function_call" else ["fine", "cancelled"])
    assert [role for role, _ in kinds(stream.partial.messages)] == ["assistant", "tool"]
    if session is not None:
        assert kinds(session.messages[1:]) == kinds(stream.partial.messages)
        assert (await outer.run("x", session=session)).text == "on"


async def test_a_layer_that_ends_early(streaming: bool) -> None:
    """What a layer leaves open when it answers without it is closed before the run is over."""
    closed: list[str] = []

    async def slow() -> AsyncIterator[str]:
        try:
            yield "item"
            await asyncio.Event().wait()
        finally:
            closed.append("tool")

    async def early(request: ChatRequest, inner: ChatClient) -> AsyncIterator[ChatResponseUpdate]:
        async for update in inner.respond(request):
            if any(content.type == "progress" for content in update.contents):
                yield said(TextContent("enough"))
                return

    for session in (None, AgentSession()):
        agent = Agent(FunctionInvokingChatClient(ScriptedChatClient([call("slow")])).wrap(early), tools=[slow])
        assert (await ask(agent, "x", streaming, session=session)).text == "enough"
    assert closed == ["tool"] * 2


class Refused(Exception):
    """A guard does not let an answer pass."""


def guard(error: BaseException) -> Any:
    async def whole(request: ChatRequest, inner: ChatClient) -> Any:
        response = await inner.get_response(request)
        if "secret" in response.text:
            raise error
        return response

    return whole


@pytest.mark.parametrize("between", [[], [Simple], [live], [guard(Refused())]], ids=["bare", "class", "live", "whole"])
async def test_a_guard_that_raises_above_the_loop(between: list[Any], streaming: bool) -> None:
    """L11, L31: A function that refuses a whole answer leaves what tools did for it, and not the words it refused."""
    script = ScriptedChatClient([call("good")], "a secret", "fine", usage=UsageDetails(10, 5, 15))
    client: ChatClient = FunctionInvokingChatClient(script)
    for layer in between:
        client = client.wrap(layer)
    agent, session = Agent(client.wrap(guard(TransportError("refused"))), tools=[good]), AgentSession()
    with pytest.raises((TransportError, Refused)) as caught:
        await ask(agent, "x", streaming, session=session)
    assert kinds(session.messages[1:]) == [(role, told[:1]) for role, told in CLOSED]
    if isinstance(caught.value, TransportError):
        assert caught.value.response is not None
        assert kinds(caught.value.response.messages) == kinds(session.messages[1:])
        assert caught.value.response.usage == UsageDetails(20, 10, 30)
    assert (await ask(agent, "x", streaming, session=session)).text == "fine"


async def at_once(seconds: float) -> None:
    """What a retry waits for, when it need not wait."""


@pytest.mark.parametrize("acts", [True, False])
async def test_a_refused_answer_is_not_tried_again_once_tools_ran(acts: bool, streaming: bool) -> None:
    """L31: A retrying layer around such a function tries again only where no tool has run."""
    steps = [[call("good")]] if acts else []
    client = FunctionInvokingChatClient(ScriptedChatClient(*steps, "a secret", "fine"))
    retrying = RetryingChatClient(client.wrap(guard(TransportError("refused"))), attempts=2, sleep=at_once)
    agent = Agent(retrying, tools=[good])
    if acts:
        with pytest.raises(TransportError):
            await ask(agent, "x", streaming, session=AgentSession())
    else:
        assert (await ask(agent, "x", streaming, session=AgentSession())).text == "fine"
