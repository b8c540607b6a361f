"""CachingChatClient and its stores."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentpipe import (
    Agent,
    CachingChatClient,
    ChatClient,
    ChatOptions,
    ChatRequest,
    ChatResponse,
    ChatResponseUpdate,
    FunctionCallContent,
    FunctionInvokingChatClient,
    HostedTool,
    Message,
    ReasoningContent,
    RedactingChatClient,
    RetryingChatClient,
    TextContent,
    TransportError,
    UsageDetails,
    pipeline,
    user,
)
from agentpipe._responses import fold
from agentpipe.layers._exchange import _TOLD, PIECE, again
from agentpipe.layers.caching import MemoryCache, SQLiteCache
from agentpipe.testing import ScriptedChatClient, call
from tests.conftest import ask, shape

USAGE = UsageDetails(total_tokens=10)


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    """Each store, with a clock of ours as ``store._clock``."""
    if request.param == "memory":
        yield MemoryCache(clock=Time())
        return
    async with SQLiteCache(tmp_path / "cache.db", clock=Time()) as made:
        yield made


# ------------------------------------------------------------------------------------------------ answers


@pytest.mark.parametrize("second", [False, True], ids=["then whole", "then streamed"])
async def test_an_answer_is_given_again(store: Any, streaming: bool, second: bool) -> None:
    """Whole and streamed share entries; an answer out of the cache says so, and used nothing."""
    text = "A long answer. " * 20
    endpoint = ScriptedChatClient([ReasoningContent("Hm."), text], usage=USAGE)
    client = CachingChatClient(endpoint, store=store)
    first = await ask(client, "Hi", streaming)
    again_ = await ask(client, "Hi", second)
    assert len(endpoint.requests) == 1
    assert again_.messages == first.messages
    assert (again_.finish_reason, again_.model, again_.response_id) == ("stop", "scripted", "response_0")
    assert (first.usage, again_.usage) == (USAGE, None)
    assert (first.metadata, again_.metadata) == (None, {"cached": True})


async def test_a_hit_is_streamed_in_pieces() -> None:
    """A streamed call gets an answer of the cache piece by piece."""
    client = CachingChatClient(ScriptedChatClient("A long answer. " * 20))
    await client.get_response("Hi")
    pieces = [delta async for delta in client.stream("Hi").text_deltas()]
    assert len(pieces) > 5
    assert "".join(pieces) == "A long answer. " * 20


CONTENTS = st.one_of(
    st.builds(TextContent, st.text(max_size=3 * PIECE), st.none() | st.just({"signature": "s"})),
    st.builds(ReasoningContent, st.text(max_size=3 * PIECE), st.none() | st.just({"signature": "s"})),
    st.builds(FunctionCallContent, st.text(max_size=3), st.text(max_size=3)),
)


@settings(max_examples=100, deadline=None)
@example([(TextContent("x" * 3 * PIECE, {"signature": "s"}),)])
@given(st.lists(st.lists(CONTENTS, max_size=4).map(tuple), max_size=3))
def test_streamed_again_is_the_same_as_whole(messages: list[Any]) -> None:
    """However an answer is cut into pieces, it folds into what it was."""
    told = [Message("assistant", contents, f"m{i}") for i, contents in enumerate(messages)]
    response = fold(list(ChatResponse(tuple(told), finish_reason="stop").as_updates()))
    once_more = fold(list(again(response, True)))
    assert once_more.messages == fold(list(again(response, False))).messages == response.messages


@pytest.mark.parametrize(
    "change",
    [
        {"model": "b"},
        {"temperature": 0.5},
        {"instructions": "Be brief."},
        {"response_format": int},
        {"tools": [HostedTool({"type": "web_search"})]},
        {"seed": 1},
        {"tool_choice": "none"},
        {"stop": "x"},
        {"extra_body": {"top_k": 3}},
    ],
    ids=str,
)
async def test_another_request_is_another_request(change: dict[str, Any]) -> None:
    """Every option that bears on the answer is part of the key."""
    endpoint = ScriptedChatClient("one", "two")
    client = CachingChatClient(endpoint)
    await client.get_response("Hi")
    assert (await client.get_response("Hi", ChatOptions(**change))).text == "two"


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"a": 1}},
        {"extra_headers": {"authorization": "Bearer other"}},
        {"extra_body": {"user": "u", "prompt_cache_key": "k", "stream_options": {}}},
    ],
    ids=str,
)
async def test_what_bears_on_nothing_is_not_in_the_key(change: dict[str, Any]) -> None:
    """Metadata, headers, ids of messages and how the answer is carried make no difference."""
    client = CachingChatClient(ScriptedChatClient("one"))
    await client.get_response(user("Hi"))
    same = Message("user", "Hi", "an-id", metadata={"b": 2})
    assert (await client.get_response(same, ChatOptions(**change))).text == "one"


async def test_tools_are_part_of_the_key() -> None:
    """Another description of a tool, and another order of tools, is another request."""

    def a() -> None:
        """A."""

    def b() -> None:
        """B."""

    endpoint = ScriptedChatClient("one", "two", "three")
    client = CachingChatClient(endpoint)
    asked = [[a], [a, b], [b, a], [a]]
    answers = [(await client.get_response("Hi", ChatOptions(tools=tools))).text for tools in asked]
    assert answers == ["one", "two", "three", "one"]


def test_every_option_is_in_the_key_or_known_not_to_matter() -> None:
    """An option that ChatOptions gets one day must be sorted in, or two requests would be taken for one."""
    beside = {"loop", "tool_middleware", "metadata", "extra_headers"}
    made = {"response_format", "tools", "extra_body"}
    assert {field.name for field in fields(ChatOptions)} == {*_TOLD, *made, *beside}


async def test_another_endpoint_is_another_request(store: Any) -> None:
    """Two endpoints may share a store."""
    for model in ("a", "b", "a"):
        client = CachingChatClient(ScriptedChatClient(f"I am {model}.", model=model), store=store)
        assert (await client.get_response("Who?")).text == f"I am {model}."


async def test_a_scope_keeps_tenants_apart() -> None:
    """A function of the request says who shares; where it says None, nothing is kept."""
    endpoint = ScriptedChatClient("for a", "for b", "for nobody", "for nobody again")
    client = CachingChatClient(endpoint, scope=lambda request: request.deps)
    answers = [(await client.get_response("Hi", deps=tenant)).text for tenant in ("a", "b", "a", None, None)]
    assert answers == ["for a", "for b", "for a", "for nobody", "for nobody again"]


async def test_a_conversation_of_the_endpoint_is_passed_through() -> None:
    """What an endpoint answers depends on what it keeps, so that is never cached."""
    client = CachingChatClient(ScriptedChatClient("one", "two"))
    options = ChatOptions(conversation_id="c")
    assert [(await client.get_response("Hi", options)).text for _ in range(2)] == ["one", "two"]


CUT: Any = [ChatResponseUpdate((TextContent("Hel"),), "assistant", "m"), TransportError("cut off")]


def ended(reason: Any, *contents: Any) -> list[Any]:
    return [ChatResponseUpdate(contents, "assistant", "m"), ChatResponseUpdate(finish_reason=reason)]


@pytest.mark.parametrize(
    "step",
    [
        TransportError("down"),
        CUT,
        ended("length", TextContent("Hel")),
        ended("content_filter", TextContent("Hel")),
        ended("stop"),
        ended("tool_calls", FunctionCallContent("c", "f", {}, "{", "no JSON")),
    ],
    ids=["error", "cut", "truncated", "filtered", "empty", "invalid call"],
)
async def test_what_is_no_whole_answer_is_not_kept(step: Any, streaming: bool) -> None:
    """Errors and answers that did not come to their end are asked for again."""
    endpoint = ScriptedChatClient(step, "Hello.")
    client = CachingChatClient(endpoint)
    with suppress(TransportError):
        await ask(client, "Hi", streaming)
    assert (await ask(client, "Hi", streaming)).text == "Hello."
    assert endpoint.open == 0


async def test_a_stream_that_is_left_is_not_kept() -> None:
    """A reader that leaves early leaves nothing in the cache, and holds nobody up."""
    endpoint = ScriptedChatClient("Hello.", "Hello again.")
    client = CachingChatClient(endpoint)
    async with client.stream("Hi") as stream:
        await stream.__anext__()
    assert endpoint.open == 0
    assert (await client.get_response("Hi")).text == "Hello again."


# -------------------------------------------------------------------------------------------- equal at once


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_equal_requests_at_once_ask_once(streaming: bool) -> None:
    """Ten equal requests at the same time are one question and ten answers."""
    go = asyncio.Event()

    async def answer(request: ChatRequest) -> str:
        await go.wait()
        return "Hello."

    endpoint = ScriptedChatClient(answer, "asked twice")
    client = CachingChatClient(endpoint)
    asked = [asyncio.create_task(ask(client, "Hi", streaming)) for _ in range(10)]
    await settle()
    go.set()
    answers = await asyncio.gather(*asked)
    del asked
    assert {answer.text for answer in answers} == {"Hello."}
    assert len(endpoint.requests) == 1
    assert not client._turns


@pytest.mark.parametrize("how", ["cancelled", "failed"])
async def test_a_waiter_takes_over(how: str) -> None:
    """Where the one that asks is cancelled or fails, the next one asks, and the others go on waiting."""
    go = asyncio.Event()

    async def first(request: ChatRequest) -> Any:
        await go.wait()
        return TransportError("down")

    endpoint = ScriptedChatClient(first, "Hello.")
    client = CachingChatClient(endpoint)
    tasks = [asyncio.create_task(client.get_response("Hi")) for _ in range(4)]
    await settle()
    assert len(endpoint.requests) == 1
    if how == "cancelled":
        tasks[0].cancel()
    else:
        go.set()
    leader, *others = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(leader, asyncio.CancelledError if how == "cancelled" else TransportError)
    assert [other.text for other in others if isinstance(other, ChatResponse)] == ["Hello."] * 3
    assert len(endpoint.requests) == 2
    assert endpoint.open == 0


async def test_one_task_may_read_two_equal_streams_in_turns() -> None:
    """Who holds the turn does not wait for itself."""
    client = CachingChatClient(ScriptedChatClient("Hello.", "Hello."))
    async with client.stream("Hi") as one, client.stream("Hi") as other:
        await one.__anext__()
        await other.__anext__()
        assert (await one.get_response()).text == (await other.get_response()).text == "Hello."


# --------------------------------------------------------------------------------------------------- stores


async def test_a_store_keeps_and_forgets(store: Any) -> None:
    """A store gives what was set, the last one, until it is too old."""
    assert await store.get("k") is None
    await store.set("k", "old")
    await store.set("k", "new \N{SNOWMAN}", ttl=10)
    await store.set("other", "stays")
    assert await store.get("k") == "new \N{SNOWMAN}"
    store._clock.now = 10.0
    assert await store.get("k") is None
    assert await store.get("other") == "stays"


async def test_ttl_is_handed_to_the_store(store: Any) -> None:
    """An answer is asked for again when it is older than ttl seconds."""
    client = CachingChatClient(ScriptedChatClient("one", "two"), store=store, ttl=60)
    assert (await client.get_response("Hi")).text == "one"
    store._clock.now = 59.0
    assert (await client.get_response("Hi")).text == "one"
    store._clock.now = 60.0
    assert (await client.get_response("Hi")).text == "two"


async def test_memory_forgets_what_was_used_longest_ago() -> None:
    """Where there are too many entries, the one that nobody asked for goes."""
    store = MemoryCache(max_entries=2)
    await store.set("a", "1")
    await store.set("b", "2")
    await store.get("a")
    await store.set("c", "3")
    assert [await store.get(key) for key in "abc"] == ["1", None, "3"]


async def test_sqlite_survives_the_process(tmp_path: Path) -> None:
    """Another store on the same file has the entries; one that was closed opens again."""
    path = tmp_path / "cache.db"
    async with SQLiteCache(path) as store:
        await store.set("k", "v")
    assert await store.get("k") == "v"
    async with SQLiteCache(path) as another:
        assert await another.get("k") == "v"
    await store.aclose()


async def test_a_store_of_aiocaches_kind_will_do() -> None:
    """A store needs get and set with ttl; it may give bytes."""

    class Bytes(dict[str, bytes]):
        async def get(self, key: str) -> Any:  # type: ignore[override]
            return dict.get(self, key)

        async def set(self, key: str, value: str, ttl: Any = None) -> bool:
            self[key] = value.encode()
            return True

    client = CachingChatClient(ScriptedChatClient("Hello."), store=Bytes())
    for _ in range(2):
        assert (await client.get_response("Hi")).text == "Hello."


@pytest.mark.parametrize("broken", ["get", "set", "content"])
async def test_a_broken_store_costs_a_question(broken: str, caplog: pytest.LogCaptureFixture) -> None:
    """A store that fails, or gives what is no answer, is logged; the answer comes from the endpoint."""

    class Broken(MemoryCache):
        async def get(self, key: str) -> str | None:
            if broken == "get":
                raise OSError("unreachable")
            return "{" if broken == "content" else None

        async def set(self, key: str, value: str, *, ttl: float | None = None) -> None:
            if broken == "set":
                raise OSError("unreachable")

    client = CachingChatClient(ScriptedChatClient("Hello."), store=Broken())
    with caplog.at_level(logging.WARNING, "agentpipe.cache"):
        assert (await client.get_response("Hi")).text == "Hello."
    assert len(caplog.records) == 1


# ---------------------------------------------------------------------------------------------------- order


def work() -> str:
    """Work."""
    runs.append("work")
    return "done"


runs: list[str] = []


@pytest.mark.parametrize("place", ["below", "above"])
async def test_below_the_loop_tools_run_again_and_above_it_they_do_not(place: str, streaming: bool) -> None:
    """Below the loop model calls are remembered; above it whole runs are. The transcript is the same."""
    runs.clear()
    endpoint = ScriptedChatClient(call("work"), "Done.")
    layers = [FunctionInvokingChatClient, CachingChatClient]
    client = pipeline(*(layers if place == "below" else layers[::-1]), endpoint)
    first, second = [await ask(Agent(client, tools=[work]), "Work", streaming) for _ in range(2)]
    assert shape(first.messages) == shape(second.messages)
    assert len(endpoint.requests) == 2
    assert runs == ["work"] * (2 if place == "below" else 1)


@pytest.mark.parametrize(("cache", "lookups"), [("outside", 1), ("inside", 2)])
async def test_outside_of_retries_the_cache_is_asked_once(cache: str, lookups: int, streaming: bool) -> None:
    """Both orders give the same answer; inside, each attempt looks it up."""
    found: list[str] = []

    class Counting(MemoryCache):
        async def get(self, key: str) -> str | None:
            found.append(key)
            return await super().get(key)

    layers: list[Any] = [
        partial(CachingChatClient, store=Counting()),
        partial(RetryingChatClient, wait_initial=0, jitter=0),
    ]
    client = pipeline(
        *(layers if cache == "outside" else layers[::-1]), ScriptedChatClient(TransportError("down"), "Hello.")
    )
    assert (await ask(client, "Hi", streaming)).text == "Hello."
    assert len(found) == lookups
    assert (await ask(client, "Hi", streaming)).text == "Hello."


@pytest.mark.parametrize("cache", ["below", "above"])
async def test_below_redacting_the_store_sees_no_secrets(cache: str, streaming: bool) -> None:
    """Below a RedactingChatClient only placeholders are stored; above it, the real values are."""
    kept: list[str] = []

    class Watched(MemoryCache):
        async def set(self, key: str, value: str, *, ttl: float | None = None) -> None:
            kept.append(value)
            await super().set(key, value, ttl=ttl)

    def echo(request: ChatRequest) -> str:
        return f"You wrote {request.messages[0].text}"

    layers: list[Any] = [
        partial(RedactingChatClient, patterns="email", key="k"),
        partial(CachingChatClient, store=Watched()),
    ]
    endpoint = ScriptedChatClient(echo)
    client: ChatClient = pipeline(*(layers if cache == "below" else layers[::-1]), endpoint)
    for _ in range(2):
        assert (await ask(client, "ann@example.com", streaming)).text == "You wrote ann@example.com"
    assert len(endpoint.requests) == 1
    assert ("ann@example.com" in kept[0]) is (cache == "above")


async def test_two_of_them(streaming: bool) -> None:
    """A near cache in front of a far one: what the far one has, the near one learns."""
    near, far = MemoryCache(), MemoryCache()
    endpoint = ScriptedChatClient("Hello.")
    inner = CachingChatClient(endpoint, store=far)
    await ask(inner, "Hi", streaming)
    client = CachingChatClient(inner, store=near)
    for _ in range(2):
        assert (await ask(client, "Hi", streaming)).text == "Hello."
    assert len(endpoint.requests) == 1
    assert len(near._entries) == 1


async def test_no_secret_reaches_the_key_or_the_store() -> None:
    """What looks like a key in extra_body is masked before it is hashed, so that it can be changed."""
    client = CachingChatClient(ScriptedChatClient("one"))
    for key in ("k1", "k2"):
        options = ChatOptions(extra_body={"provider": {"api_key": key}})
        assert (await client.get_response("Hi", options)).text == "one"


def test_it_prints_its_settings_and_is_found() -> None:
    """The tree shows the store, the ttl and the scope."""

    def tenant(request: ChatRequest) -> str:
        return ""

    client = CachingChatClient(ScriptedChatClient(), ttl=60, scope=tenant)
    assert repr(client) == "CachingChatClient(store=MemoryCache(max_entries=1000), ttl=60, scope='tenant')"
    assert repr(SQLiteCache("a.db")) == "SQLiteCache('a.db')"
    assert client.wrap(RetryingChatClient).find(CachingChatClient) is client


@pytest.mark.parametrize(
    ("given_", "name"), [({"ttl": 0}, "ttl"), ({"store": 3}, "store"), ({"scope": 3}, "scope"), ({"ttl": "a"}, "ttl")]
)
def test_bad_settings_are_refused(given_: dict[str, Any], name: str) -> None:
    """A bad setting raises where the layer is made, and the message names it."""
    with pytest.raises((ValueError, TypeError), match=f"^{name} "):
        CachingChatClient(ScriptedChatClient(), **given_)
    with pytest.raises(ValueError, match="^max_entries "):
        MemoryCache(0)


async def test_answers_of_clients_that_tell_no_reason(streaming: bool) -> None:
    """An answer that came to its end without a finish_reason, as clients of one's own give, is kept like others."""

    class Plain(ChatClient):
        asked = 0

        async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
            self.asked += 1
            yield ChatResponseUpdate((TextContent("hello"),), "assistant")

    plain = Plain()
    client = CachingChatClient(plain)
    for _ in range(2):
        assert (await ask(client, "hi", streaming)).text == "hello"
    assert plain.asked == 1
