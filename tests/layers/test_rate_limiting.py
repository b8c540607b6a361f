"""RateLimitingChatClient."""

from __future__ import annotations

import asyncio
import heapq
from functools import partial
from typing import Any

import pytest

from agentpipe import (
    ChatRequest,
    ChatResponse,
    RateLimitingChatClient,
    RetryingChatClient,
    TransportError,
    UsageDetails,
    pipeline,
)
from agentpipe.layers.rate_limiting import RateLimiter
from agentpipe.testing import ScriptedChatClient
from tests.conftest import ask


class Virtual:
    """A clock that stands still until everybody waits, and then goes on to the first who wakes up."""

    def __init__(self) -> None:
        self.now = 0.0
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self._count += 1
        done = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self.now + seconds, self._count, done))
        await done

    async def run(self, *calls: Any) -> list[Any]:
        """Run calls until all have ended, the time going on whenever nobody can do anything."""
        all_of_them = asyncio.gather(*calls)
        while not all_of_them.done():
            for _ in range(50):  # whatever can go on, does
                await asyncio.sleep(0)
            while self._waiting and not all_of_them.done():
                self.now, _, done = heapq.heappop(self._waiting)
                if not done.done():
                    done.set_result(None)
                    break
        return await all_of_them


class Endpoint(ScriptedChatClient):
    """Answers always, and knows when it was asked what."""

    def __init__(self, clock: Virtual, tokens: int = 0) -> None:
        super().__init__(*[self._answer_one] * 100, usage=UsageDetails(total_tokens=tokens) if tokens else None)
        self.clock = clock
        self.times: list[float] = []
        self.order: list[str] = []

    def _answer_one(self, request: ChatRequest) -> str:
        self.times.append(self.clock.now)
        self.order.append(request.messages[0].text)
        return "Hello."


async def test_requests_per_minute(streaming: bool) -> None:
    """In any 60 seconds no more requests begin than are allowed, in the order in which they came."""
    clock = Virtual()
    endpoint = Endpoint(clock)
    client = RateLimitingChatClient(endpoint, limiter=RateLimiter(requests_per_minute=2, clock=clock))
    await clock.run(*[ask(client, str(i), streaming) for i in range(5)])
    assert endpoint.times == [0, 0, 60, 60, 120]
    assert endpoint.order == ["0", "1", "2", "3", "4"]
    assert endpoint.open == 0


async def test_tokens_per_minute(streaming: bool) -> None:
    """A request waits while the last 60 seconds used all tokens; what was used is known from the answers."""
    clock = Virtual()
    endpoint = Endpoint(clock, tokens=60)
    client = RateLimitingChatClient(endpoint, limiter=RateLimiter(tokens_per_minute=100, max_concurrent=1, clock=clock))
    await clock.run(*[ask(client, str(i), streaming) for i in range(5)])
    assert endpoint.times == [0, 0, 60, 60, 120]


async def test_concurrent_requests(streaming: bool) -> None:
    """No more requests are under way at once than are allowed, and all get their turn."""
    most = 0

    async def answer(request: ChatRequest) -> str:
        nonlocal most
        most = max(most, endpoint.open)
        await asyncio.sleep(0)
        return "Hello."

    endpoint = ScriptedChatClient(*[answer] * 10)
    client = RateLimitingChatClient(endpoint, max_concurrent=3)
    await asyncio.gather(*[ask(client, "Hi", streaming) for _ in range(10)])
    assert most == 3
    assert len(endpoint.requests) == 10


async def test_a_stream_holds_its_place_until_it_is_closed() -> None:
    """A place is taken as long as an answer is read, and given back when the reader leaves."""
    endpoint = ScriptedChatClient("Hello.", "Hello.")
    client = RateLimitingChatClient(endpoint, max_concurrent=1)
    stream = client.stream("Hi")
    await stream.__anext__()
    second = asyncio.create_task(client.get_response("Hi"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(endpoint.requests) == 1
    await stream.aclose()
    assert (await second).text == "Hello."


async def test_who_is_cancelled_gives_the_place_back() -> None:
    """A caller that is cancelled, while it waits for the time or for a place, holds nobody up."""
    clock = Virtual()
    endpoint = Endpoint(clock)
    limiter = RateLimiter(requests_per_minute=1, max_concurrent=1, clock=clock)
    client = RateLimitingChatClient(endpoint, limiter=limiter)
    await client.get_response("first")
    waiting = [asyncio.create_task(client.get_response(f"cancelled {i}")) for i in range(3)]
    for _ in range(20):
        await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await clock.run(client.get_response("last"))
    assert endpoint.order == ["first", "last"]
    assert clock.now == 60


async def test_a_failure_gives_the_place_back(streaming: bool) -> None:
    """After an error the next one gets the place."""
    endpoint = ScriptedChatClient(TransportError("down"), "Hello.")
    client = RateLimitingChatClient(endpoint, max_concurrent=1)
    with pytest.raises(TransportError):
        await ask(client, "Hi", streaming)
    assert (await ask(client, "Hi", streaming)).text == "Hello."


async def test_clients_share_a_limiter(streaming: bool) -> None:
    """Two clients with one limiter have one limit."""
    clock = Virtual()
    limiter = RateLimiter(requests_per_minute=1, clock=clock)
    a, b = Endpoint(clock), Endpoint(clock)
    clients = [RateLimitingChatClient(a, limiter=limiter), RateLimitingChatClient(b, limiter=limiter)]
    await clock.run(*[ask(client, "Hi", streaming) for client in clients])
    assert (a.times, b.times) == ([0], [60])


@pytest.mark.parametrize(("retries", "times"), [("outside", [0, 60, 120]), ("inside", [0, 0, 0])])
async def test_retries_outside_count_and_retries_inside_do_not(
    retries: str, times: list[float], streaming: bool
) -> None:
    """With retries outside each attempt waits for a place, as the endpoint counts it; inside, attempts slip through."""
    clock = Virtual()
    seen: list[float] = []

    def down(request: ChatRequest) -> Exception:
        seen.append(clock.now)
        return TransportError("down")

    retry = partial(RetryingChatClient, wait_initial=0, jitter=0)
    limit = partial(RateLimitingChatClient, limiter=RateLimiter(requests_per_minute=1, clock=clock))
    layers: list[Any] = [retry, limit] if retries == "outside" else [limit, retry]
    client = pipeline(*layers, ScriptedChatClient(*[down] * 3))
    with pytest.raises(TransportError):
        await clock.run(ask(client, "Hi", streaming))
    assert seen == times


def test_a_limiter_serves_one_event_loop_after_the_other() -> None:
    """Locks belong to a loop: a limiter that was waited for in one loop works in the next."""

    async def many() -> list[ChatResponse]:
        return await asyncio.gather(*[client.get_response("Hi") for _ in range(5)])

    async def answer(request: ChatRequest) -> str:
        await asyncio.sleep(0)
        return "Hello."

    client = RateLimitingChatClient(ScriptedChatClient(*[answer] * 10), max_concurrent=1)
    assert len(asyncio.run(many())) == len(asyncio.run(many())) == 5


def test_it_prints_its_settings_and_is_found() -> None:
    """The tree shows the limits, or the limiter that is shared; there may be two."""
    client = pipeline(
        partial(RateLimitingChatClient, requests_per_minute=60, max_concurrent=4),
        partial(RateLimitingChatClient, limiter=RateLimiter(tokens_per_minute=1000)),
        ScriptedChatClient(),
    )
    assert str(client).split("\n")[:2] == [
        "RateLimitingChatClient(requests_per_minute=60, max_concurrent=4)",
        "└─ RateLimitingChatClient(limiter=RateLimiter(tokens_per_minute=1000))",
    ]
    assert client.find(RateLimitingChatClient) is client


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "a rate limit needs at least one of requests_per_minute"),
        ({"requests_per_minute": 0}, "requests_per_minute"),
        ({"tokens_per_minute": -5}, "tokens_per_minute"),
        ({"max_concurrent": 1.5}, "max_concurrent"),
        ({"limiter": 3}, "limiter"),
        ({"limiter": RateLimiter(max_concurrent=1), "max_concurrent": 1}, "limiter"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], name: str) -> None:
    """A bad setting raises where the layer is made, and the message names it."""
    with pytest.raises((ValueError, TypeError), match=f"^{name}"):
        RateLimitingChatClient(ScriptedChatClient(), **settings)
