"""Random conversations with an agent: rounds, parallel calls, failures, cancellations, approvals in any order, deaths of
the process at every point where something is stored.

Whatever happens: what the model is sent is closed, no recorded call has its side effect twice, and whole and streamed
leave the same transcript.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentpipe import (
    Agent,
    AgentSession,
    ApprovalError,
    ApprovalRequestContent,
    ChatClient,
    ChatRequest,
    ChatResponseUpdate,
    FunctionCallContent,
    FunctionInvokingChatClient,
    FunctionResultContent,
    FunctionTool,
    HistoryProvider,
    Message,
    TextContent,
    ToolLoopError,
    TransportError,
)
from tests.conftest import ask, shape
from tests.scenes import assert_closed

Kind = Literal["act", "careful", "fails", "unknown", "garbled"]


@dataclass(frozen=True)
class Plan:
    """What the model says, what the user does, and what goes wrong."""

    turns: Sequence[Sequence[Kind] | Literal["text", "error"]]
    moves: Sequence[tuple[Literal["text", "answer"], int]]  # a number says which requests are answered, and how
    cancel_at: int | None  # the checkpoint at which the run is cancelled
    die_at: int | None  # the write after which the process dies
    dies_before: bool  # ... or before which
    concurrent: bool


kinds = st.sampled_from(["act", "careful", "fails", "unknown", "garbled"])
plans = st.builds(
    Plan,
    turns=st.lists(st.lists(kinds, min_size=1, max_size=3) | st.sampled_from(["text", "error"]), max_size=6),
    moves=st.lists(st.tuples(st.sampled_from(["text", "answer"]), st.integers(0, 26)), min_size=1, max_size=5),
    cancel_at=st.none() | st.integers(1, 12),
    die_at=st.none() | st.integers(1, 8),
    dies_before=st.booleans(),
    concurrent=st.booleans(),
)


class Died(BaseException):
    """The process is gone: nothing more is run, and nothing more is stored."""


@dataclass
class World:
    """What outlives a process, and what happens to it."""

    plan: Plan
    stored: list[Message] = field(default_factory=list)
    effects: Counter[str] = field(default_factory=Counter)
    writes: int = 0
    checkpoints: int = 0
    turn: int = 0
    dead: bool = False
    cancel: Any = None

    async def checkpoint(self) -> None:
        """A place where a run may be cancelled."""
        self.checkpoints += 1
        if self.checkpoints == self.plan.cancel_at and self.cancel is not None:
            self.cancel()
        await asyncio.sleep(0)


class Store(HistoryProvider):
    """Keeps messages as JSON, and dies where the plan says so."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def get_messages(self, session: AgentSession) -> Sequence[Message]:
        return [Message.model_validate_json(message.model_dump_json()) for message in self.world.stored]

    async def add_messages(self, session: AgentSession, messages: Sequence[Message]) -> None:
        world = self.world
        world.writes += 1
        if world.dead or (world.writes == world.plan.die_at and world.plan.dies_before):
            world.dead = True
            raise Died
        known = {message.message_id for message in world.stored}
        world.stored += [message for message in messages if message.message_id not in known]
        if world.writes == world.plan.die_at:
            world.dead = True
            raise Died


class Planned(ChatClient):
    """The model: says what the plan says, and refuses a transcript that is not closed."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        assert_closed(request)
        world = self.world
        turn: Any = world.plan.turns[world.turn] if world.turn < len(world.plan.turns) else "text"
        number = world.turn
        world.turn += 1
        await world.checkpoint()
        if turn == "error":
            yield ChatResponseUpdate([TextContent("I was abou")], "assistant")
            raise TransportError("cut")
        contents: list[Any] = [TextContent(f"turn {number}")]
        if turn != "text":
            # The ids repeat from turn to turn, as they do with some endpoints.
            contents += [_call(kind, f"c{place}", f"{number}.{place}") for place, kind in enumerate(turn)]
        for piece in [[content] for content in contents] if request.streaming else [contents]:
            yield ChatResponseUpdate(piece, "assistant")
        yield ChatResponseUpdate(finish_reason="stop" if turn == "text" else "tool_calls")


def _call(kind: Kind, call_id: str, key: str) -> FunctionCallContent:
    if kind == "garbled":
        return FunctionCallContent(call_id, "act", {}, '{"key": "')
    return FunctionCallContent(call_id, kind, {"key": key})


def agent_in(world: World) -> Agent:
    async def act(key: str) -> str:
        await world.checkpoint()
        world.effects[key] += 1
        await world.checkpoint()
        return f"did {key}"

    async def fails(key: str) -> str:
        await world.checkpoint()
        raise ValueError(key)

    client = FunctionInvokingChatClient(
        Planned(world), allow_concurrent_invocation=world.plan.concurrent, max_iterations=4
    )
    tools = [act, fails, FunctionTool(act, name="careful", requires_approval=True)]
    return Agent(client, tools=tools, history_provider=Store(world))


async def live(plan: Plan, streaming: bool) -> World:
    """Play a plan to its end, with a new process wherever one died."""
    world = World(plan)
    pending: list[Any] = []
    session = AgentSession("s")
    for kind, number in plan.moves:
        given: Any = _answers(pending, number) if kind == "answer" and pending else f"move {number}"
        task = asyncio.ensure_future(ask(agent_in(world), given, streaming, session=session))
        world.cancel = task.cancel
        try:
            pending = (await task).approval_requests
        except (TransportError, ToolLoopError, asyncio.CancelledError):
            pass
        except ApprovalError as error:
            # A run that failed had closed the request, or stored the first answer: the user learns of it, nothing is run.
            if not any(text in str(error) for text in ("no longer open", "answered otherwise")):
                raise
            pending = []
        except Died:
            world.dead = False
            session = AgentSession.model_validate_json(session.model_dump_json())
        world.cancel = None
    await ask(
        agent_in(World(Plan([], [], None, None, False, False), world.stored)), "the end", streaming, session=session
    )
    return world


def _answers(pending: Sequence[Any], number: int) -> list[Any]:
    """Some of the requests, approved or rejected: each digit of ``number`` to the base 3 decides one."""
    answers = []
    for request in pending:
        number, digit = divmod(number, 3)
        if digit:
            answers.append(request.approve() if digit == 1 else request.reject())
    return answers or [pending[0].approve()]


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plans)
def test_whatever_happens_the_transcript_is_closed_and_nothing_is_done_twice(plan: Plan) -> None:
    """Rounds, failures, cancels, approvals in any order, deaths: closed, at most once, whole == streamed."""
    worlds = [asyncio.run(live(plan, streaming)) for streaming in (False, True)]
    for world in worlds:
        assert all(count == 1 for count in world.effects.values())
        told = [c for m in world.stored for c in m.contents if isinstance(c, FunctionResultContent)]
        assert all(not result.is_error or not str(result.result).startswith("did") for result in told)
    assert shape(worlds[0].stored) == shape(worlds[1].stored)
    assert worlds[0].effects == worlds[1].effects


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 14), st.booleans(), st.booleans())
def test_cancelled_at_every_await(checkpoint: int, concurrent: bool, streaming: bool) -> None:
    """A run of two rounds with two calls each, cancelled at each of its awaits: what ran is told, the rest is answered."""
    plan = Plan([["act", "act"], ["act", "fails"], "text"], [("text", 0)], checkpoint, None, False, concurrent)
    world = asyncio.run(live(plan, streaming))
    results = [c for m in world.stored for c in m.contents if isinstance(c, FunctionResultContent)]
    calls = [c for m in world.stored for c in m.contents if isinstance(c, FunctionCallContent)]
    assert len(calls) == len(results)
    for call, result in zip(calls, results, strict=True):
        done = world.effects[str(call.arguments["key"])]
        assert done or result.is_error
        assert not done or result.result == f"did {call.arguments['key']}" or "cancelled" in str(result.result)


async def left(turn: Sequence[Kind], number: int, concurrent: bool) -> World:
    """A reader leaves a run at the update of this ``number``, answers what it was asked, and says something more."""
    world = World(Plan([turn, ["act"], "text"], [], None, None, False, concurrent))
    session = AgentSession("s")
    requests: list[ApprovalRequestContent] = []
    async with agent_in(world).stream("go", session=session) as stream:
        async for update in stream:
            requests += [content for content in update.contents if isinstance(content, ApprovalRequestContent)]
            if (number := number - 1) < 0:
                break
    told = [
        message for message in stream.partial.messages if any(content.type != "text" for content in message.contents)
    ]
    # Text that the model had not finished is in `partial` only.
    assert shape(world.stored[1:]) in (shape(told), shape(stream.partial.messages))
    if requests:
        await agent_in(world).run([request.approve() for request in requests], session=session)
        for request in requests:
            assert world.effects[str(request.call.arguments["key"])] == 1
    await agent_in(world).run("and now?", session=session)
    return world


@settings(max_examples=150, deadline=None)
@given(st.lists(kinds, min_size=1, max_size=3), st.integers(0, 12), st.booleans())
def test_left_at_every_update(turn: Sequence[Kind], number: int, concurrent: bool) -> None:
    """A reader that leaves at any update: `partial` and history agree and are closed, and what it was asked stays open."""
    world = asyncio.run(left(turn, number, concurrent))
    assert all(count == 1 for count in world.effects.values())
    contents = [content for message in world.stored for content in message.contents]
    calls = [c for c in contents if isinstance(c, (FunctionCallContent, ApprovalRequestContent))]
    results = [c for c in contents if isinstance(c, FunctionResultContent)]
    assert len(results) == len(calls)
