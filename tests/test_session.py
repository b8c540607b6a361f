"""`AgentSession`: as JSON and back, hostile JSON, and turns."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from agentpipe import AgentSession, Message, TextContent, assistant, user
from agentpipe._history_contract import EVERY_CONTENT, HARD_TEXTS

read = AgentSession.model_validate_json
texts = st.text(st.one_of(st.characters(), st.sampled_from('\0\ud800\udfff\\"é')), max_size=10)
zones = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


def same(one: AgentSession, other: AgentSession) -> bool:
    return all(
        getattr(one, f) == getattr(other, f) for f in ("id", "conversation_id", "state", "messages", "extra")
    ) and (one.created_at == other.created_at)


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


# JSON


@given(
    st.none() | texts.filter(bool),
    st.none() | texts,
    st.dictionaries(texts, values, max_size=4),
    st.lists(texts, max_size=3),
    st.none() | st.datetimes(timezones=zones),
)
def test_round_trip(
    id: str | None, conversation_id: str | None, state: dict[str, Any], said: list[str], created_at: datetime | None
) -> None:
    """Every session comes back exactly from its JSON, which can be encoded, and has the same JSON again."""
    session = AgentSession(
        id,
        conversation_id=conversation_id,
        state=state,
        messages=[Message("user", text, text) for text in said],
        created_at=created_at,
    )
    dumped = session.model_dump_json()
    assert same(read(dumped.encode()), session)
    assert same(AgentSession.model_validate(session.model_dump()), session)
    assert read(dumped).model_dump_json() == dumped


def test_everything_that_a_message_holds() -> None:
    """Messages with every kind of content and the hardest texts come back exactly."""
    session = AgentSession(messages=[Message("assistant", EVERY_CONTENT, "m"), *[user(text) for text in HARD_TEXTS]])
    assert same(read(session.model_dump_json()), session)


def test_form() -> None:
    """The JSON has a version, the id, a time and the state; what is empty is left out."""
    session = AgentSession("s", created_at=datetime(2026, 12, 1, tzinfo=timezone.utc), state={"a": 1})
    expected = {"version": 1, "id": "s", "created_at": "2026-12-01T00:00:00+00:00", "state": {"a": 1}}
    assert json.loads(session.model_dump_json()) == expected
    session.conversation_id = "c"
    session.messages.append(assistant("hi"))
    hi = {"role": "assistant", "contents": [{"type": "text", "text": "hi"}]}
    assert session.model_dump() == {**expected, "conversation_id": "c", "messages": [hi]}


def test_unknown_fields_are_kept() -> None:
    """Fields of a later version survive a visit, in the session, its messages and their contents."""
    content = {"type": "text", "text": "x", "shade": "blue"}
    hologram = {"type": "hologram", "depth": [1]}
    messages = [{"role": "user", "contents": [content, hologram], "mood": {"a": 1}}]
    data = {"version": 1, "id": "s", "created_at": "2026-12-01T00:00:00+00:00", "state": {}, "messages": messages}
    data["new"] = {"deep": [None]}
    session = read(json.dumps(data))
    session.state["seen"] = True
    assert session.model_dump() == {**data, "state": {"seen": True}}


def test_unknown_fields_do_not_hide_known_ones() -> None:
    """What the session holds now wins over whatever stands in ``extra``."""
    session = AgentSession("s")
    session.extra = {"id": "other", "version": 99}
    assert session.model_dump()["id"] == "s"
    assert session.model_dump()["version"] == 1


def test_defaults() -> None:
    """From an empty object comes a new session; a time without a zone is taken as UTC."""
    one, other = read("{}"), read(b"{}")
    assert one.id != other.id
    assert one.created_at.tzinfo is not None
    assert read('{"created_at": "2026-12-01T08:00:00"}').created_at == datetime(2026, 12, 1, 8, tzinfo=timezone.utc)
    assert AgentSession.model_validate(one) is one


HOSTILE: list[str | bytes] = [
    *("", " ", "null", "[]", "5", '"x"', "NaN", "true", "{", "{}}", "{'id': 1}", "\ufeff{}", "\0", "\ud800"),
    *(b"\x80", b"\xff\xfe\xfd", b'{"id": "\xff"}', b"\x00\x00\x00"),
    *(nested(100_000), "[" * 100_000, '{"a":' * 100_000, f'{{"state": {{"a": {nested(199)}}}}}', nested(500)),
    *(
        f'{{"{key}": {value}}}'
        for key in ("id", "conversation_id", "created_at")
        for value in ("5", "[]", "{}", "true")
    ),
    *(f'{{"state": {value}}}' for value in ("5", "[]", '"x"', "true", "NaN")),
    *(f'{{"version": {value}}}' for value in ("0", "-1", "2", '"1"', "1.0", "true", "null1", "[1]", "NaN", "1e999")),
    *('{"version": ' + "9" * digits + "}" for digits in (19, 4_000, 10_000)),
    *(f'{{"created_at": "{value}"}}' for value in ("x", "2026-13-01", "9" * 5000, "\\u0000", "\\ud800")),
    *(f'{{"messages": {value}}}' for value in ("5", "{}", '"x"', "[5]", "[null]", "[[]]", '["x"]', "[{}]")),
    *(
        f'{{"messages": [{{"role": "user", {rest}}}]}}'
        for rest in (
            '"role": "root"',
            '"role": ["user"]',
            '"contents": "x"',
            '"contents": 5',
            '"contents": [5]',
            '"contents": [{}]',
            '"contents": [{"type": 5}]',
            '"contents": [{"type": "text"}]',
            '"contents": [{"type": "text", "text": 5}]',
            '"contents": [{"type": "data", "data": "%%%"}]',
            '"contents": [{"type": "data", "data": "é"}]',
            '"contents": [{"type": "uri", "uri": null}]',
            '"contents": [{"type": "function_call", "call_id": "c", "name": "n", "arguments": [1]}]',
            '"contents": [{"type": "function_result", "call_id": {}}]',
            '"contents": [{"type": "approval_request", "id": "a", "call": {"type": "text", "text": "x"}}]',
            '"metadata": [1]',
            '"message_id": 7',
        )
    ),
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:40]))
def test_hostile_json(text: str | bytes) -> None:
    """Whatever is wrong with the JSON of a session is a ValueError that says so in a few words."""
    with pytest.raises(ValueError) as caught:
        read(text)
    assert 10 < len(str(caught.value)) < 2000


@given(st.binary(max_size=30) | st.text(max_size=30) | values.map(json.dumps))
def test_any_text(text: str | bytes) -> None:
    """Any text at all is read or is a ValueError."""
    try:
        session = read(text)
    except ValueError:
        return
    read(session.model_dump_json())


keys = st.sampled_from(["version", "id", "created_at", "state", "conversation_id", "messages", "extra", "heads", "x"])
fields = st.sampled_from(
    ["role", "contents", "message_id", "metadata", "author_name", "type", "text", "call_id", "data"]
)
kinds = st.sampled_from(["user", "text", "data", "function_call", "function_result", "approval_request", "x"])
shapes = st.recursive(
    values | kinds,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(fields, inner | kinds, max_size=5),
    max_leaves=12,
)


@given(st.dictionaries(keys, shapes, max_size=5))
def test_any_object(data: dict[str, Any]) -> None:
    """Any object with the right names in it is read, and can be written again, or is a ValueError."""
    try:
        session = read(json.dumps(data))
    except ValueError:
        return
    assert same(read(session.model_dump_json()), session)


@pytest.mark.parametrize(
    "text",
    [
        f'{{"state": {{"a": {nested(198)}}}}}',
        '{"state": {"a": NaN, "b": -Infinity, "c": 1e999, "d": ' + "9" * 4000 + "}}",
        '{"id": "a", "id": "b", "state": {"k": 1, "k": 2}}',
        '{"id": "\\ud800\\u0000", "state": {"\\udfff": "\\ud800"}}',
        '{"state": {"__class__": "x", "__init__": null}, "heads": {"store": 5}, "_turns": 1, "__dict__": {}}',
        '{"messages": [{"role": "tool", "contents": ['
        + '{"type": "function_result", "call_id": "c", "contents": [' * 60
        + "]}" * 60
        + "]}]}",
    ],
    ids=["deep", "numbers", "twice", "surrogates", "names", "contents"],
)
def test_odd_but_sound_json(text: str) -> None:
    """What is odd but can be read is data and nothing else, and can be written again."""
    session = read(text)
    assert session.heads is None
    assert read(session.model_dump_json()).model_dump_json() == session.model_dump_json()


class Color(Enum):
    RED = "red"


class Point(BaseModel):
    x: int


@dataclass
class Pair:
    one: Any
    two: Any


def test_state_is_written_as_well_as_it_can_be() -> None:
    """What has an obvious JSON form is written in it: times, bytes, models, dataclasses, enums, sets, tuples, numbers."""
    state = {
        "time": datetime(2026, 12, 1, tzinfo=timezone.utc),
        "day": date(2026, 12, 1),
        "bytes": b"\xff\0",
        "model": Point(x=1),
        "models": [Point(x=2), {"deep": Point(x=3)}],
        "pair": Pair({1}, Color.RED),
        "tuple": (1, (2,)),
        "set": {7},
        "decimal": Decimal("1.10"),
        "uuid": UUID(int=5),
        "span": timedelta(seconds=90),
        "content": TextContent("x"),
        "keys": {1: 2, None: 3},
        "float": float("inf"),
    }
    written = read(AgentSession(state=state).model_dump_json()).state
    assert written == {
        "time": "2026-12-01T00:00:00+00:00",
        "day": "2026-12-01",
        "bytes": "/wA=",
        "model": {"x": 1},
        "models": [{"x": 2}, {"deep": {"x": 3}}],
        "pair": {"one": [1], "two": "red"},
        "tuple": [1, [2]],
        "set": [7],
        "decimal": "1.10",
        "uuid": "00000000-0000-0000-0000-000000000005",
        "span": "PT1M30S",
        "content": {"type": "text", "text": "x"},
        "keys": {"1": 2, "None": 3},
        "float": float("inf"),
    }


def _circle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


@pytest.mark.parametrize(
    "value",
    [object(), {"deep": [object()]}, lambda: None, _circle(), json.loads(nested(199)), {"x": threading.Lock()}],
    ids=["object", "deep object", "function", "circle", "too deep", "lock"],
)
def test_state_that_is_no_json(value: object) -> None:
    """A value that cannot be written is a TypeError that names its key and the session."""
    session = AgentSession("s", state={"fine": 1, "bad one": value})
    with pytest.raises(TypeError, match=r"^state\['bad one'\] of session 's' cannot be written as JSON: "):
        session.model_dump_json()


def test_deepest_state_comes_back() -> None:
    """What may be written may be read: the deepest state that is written comes back."""
    session = AgentSession(state={"a": json.loads(nested(198))})
    assert read(session.model_dump_json()).state == session.state


def test_id_must_be_text() -> None:
    """An id that is no text is refused at once."""
    with pytest.raises(TypeError, match="id of a session must be text, not int"):
        AgentSession(5)  # type: ignore[arg-type]


def test_copies_what_it_is_given() -> None:
    """A session does not share the containers that it was made from."""
    state, messages = {"a": 1}, [user("x")]
    session = AgentSession(state=state, messages=messages)
    session.state["b"] = 2
    session.messages.clear()
    assert state == {"a": 1}
    assert len(messages) == 1


def test_light() -> None:
    """To make and write a session loads no pydantic; an idle one has no lock and few bytes."""
    program = (
        "import sys; from agentpipe import AgentSession, user; "
        "AgentSession(state={'a': [1]}, messages=[user('x')]).model_dump_json(); "
        "assert not {'pydantic', 'pydantic_core', 'openai', 'sqlite3'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    session = AgentSession()
    parts = (session, session.id, session.state, session.messages, session.created_at)
    assert sum(map(sys.getsizeof, parts)) < 500
    assert session.heads is None
    assert session._turns is None


# Turns


async def test_turns_in_order() -> None:
    """Tasks get the session one at a time, in the order in which they asked."""
    session, log = AgentSession(), []

    async def turn(n: int) -> None:
        async with session.lock():
            log.append((n, "in"))
            await asyncio.sleep(0)
            log.append((n, "out"))

    await asyncio.gather(*map(turn, range(10)))
    assert log == [(n, way) for n in range(10) for way in ("in", "out")]


def test_turns_across_threads() -> None:
    """Runs in event loops of different threads take turns too: nothing is counted twice."""
    session = AgentSession(state={"n": 0, "inside": 0})

    async def count() -> None:
        for _ in range(50):
            async with session.lock():
                session.state["inside"] += 1
                n = session.state["n"]
                await asyncio.sleep(0)
                session.state["n"] = n + 1
                assert session.state["inside"] == 1
                session.state["inside"] -= 1

    async def several() -> None:
        await asyncio.gather(*[count() for _ in range(3)])

    threads = [threading.Thread(target=lambda: asyncio.run(several())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert session.state == {"n": 600, "inside": 0}


async def test_turn_given_up() -> None:
    """A task that is cancelled while it waits leaves the queue; the others go on."""
    session, log = AgentSession(), []

    async def turn(name: str) -> None:
        async with session.lock():
            log.append(name)

    async with session.lock():
        waiting = [asyncio.ensure_future(turn(name)) for name in "abc"]
        await asyncio.sleep(0)
        waiting[1].cancel()
    await asyncio.wait(waiting)
    assert log == ["a", "c"]
    assert waiting[1].cancelled()
    async with session.lock():
        pass


@pytest.mark.parametrize("moments", range(6))
async def test_turn_that_comes_as_it_is_given_up(moments: int) -> None:
    """A task that is cancelled as its turn comes passes it on, at whatever moment that is."""
    session = AgentSession()
    turn = session.lock()
    await turn.__aenter__()

    async def take() -> None:
        async with session.lock():
            pass

    task = asyncio.ensure_future(take())
    await asyncio.sleep(0)
    await turn.__aexit__()
    for _ in range(moments):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    async with asyncio.timeout(30), session.lock():
        pass


async def test_turn_ends_with_an_error() -> None:
    """An error ends the turn and is not swallowed."""
    session = AgentSession()
    with pytest.raises(KeyError):
        async with session.lock():
            raise KeyError("x")
    async with asyncio.timeout(30), session.lock():
        pass


def test_closed_loops_hold_up_nobody() -> None:
    """An event loop that was closed in its turn, or while it waited for one, is passed over."""
    session = AgentSession()

    async def take() -> str:
        async with asyncio.timeout(30), session.lock():
            return "in"

    holding, waiting, third = (asyncio.new_event_loop() for _ in range(3))
    holding.run_until_complete(session.lock().__aenter__())
    left = waiting.create_task(take())
    waiting.run_until_complete(asyncio.sleep(0))
    right = third.create_task(take())
    third.run_until_complete(asyncio.sleep(0))
    waiting.close()
    holding.run_until_complete(session.lock().__aexit__())
    assert third.run_until_complete(right) == "in"
    holding.run_until_complete(session.lock().__aenter__())
    for loop in (holding, third):
        loop.close()
    assert asyncio.run(take()) == "in"
    left._log_destroy_pending = False  # type: ignore[attr-defined]
