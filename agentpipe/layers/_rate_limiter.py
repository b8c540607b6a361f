"""The limits of an endpoint, and who waits for them."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from agentpipe._responses import UsageDetails
from agentpipe.layers._common import check_whole, tokens_of

MINUTE = 60.0


class Clock(Protocol):
    """What tells the time and waits; a test brings its own."""

    def time(self) -> float:
        """Seconds since some moment; never goes back."""
        ...

    async def sleep(self, seconds: float) -> object:
        """Wait."""
        ...


class RateLimiter:
    """The limits of one endpoint, which any number of clients share.

    Who comes first is served first. In any 60 seconds no more than ``requests_per_minute`` requests begin, and none
    begins while the last 60 seconds have used ``tokens_per_minute``. Tokens are known only when they were used: the
    request that passes the limit is answered, and the next one waits.

    Args:
        requests_per_minute: Requests in any 60 seconds; at least 1.
        tokens_per_minute: Tokens in any 60 seconds, of input and output together; at least 1.
        max_concurrent: Requests at the same time; at least 1.
        clock: What tells the time and waits.

    Raises:
        ValueError: A number is out of range, or none is given.
    """

    def __init__(
        self,
        *,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        max_concurrent: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.limits = {
            "requests_per_minute": requests_per_minute,
            "tokens_per_minute": tokens_per_minute,
            "max_concurrent": max_concurrent,
        }
        for name, value in self.limits.items():
            check_whole(name, value, 1)
        if all(value is None for value in self.limits.values()):
            raise ValueError(f"a rate limit needs at least one of {', '.join(self.limits)}")
        self._clock = clock or _Time()
        self._requests = _LastMinute(requests_per_minute)
        self._tokens = _LastMinute(tokens_per_minute)
        self._queue: _Queue | None = None

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place, and give it back at the end."""
        queue = self._queue_here()
        async with queue.next_one:
            await queue.free.acquire()
            try:
                await self._wait_for_windows()
            except BaseException:
                queue.free.release()
                raise
            self._requests.add(self._clock.time(), 1)
        try:
            yield
        finally:
            queue.free.release()

    def used(self, usage: UsageDetails) -> None:
        """Count the tokens that were used."""
        self._tokens.add(self._clock.time(), tokens_of(usage))

    async def _wait_for_windows(self) -> None:
        while True:
            now = self._clock.time()
            wait = max(self._requests.wait(now), self._tokens.wait(now))
            if wait <= 0:
                return
            await self._clock.sleep(wait)

    def _queue_here(self) -> _Queue:
        # Locks belong to one event loop; `run_sync` makes a new one each time.
        loop = asyncio.get_running_loop()
        if self._queue is None or self._queue.loop is not loop:
            self._queue = _Queue(loop, self.limits["max_concurrent"])
        return self._queue

    def __repr__(self) -> str:
        return f"RateLimiter({', '.join(f'{k}={v}' for k, v in self.limits.items() if v is not None)})"


class _Queue:
    """Who waits, within one event loop. Locks and semaphores of asyncio are fair."""

    def __init__(self, loop: asyncio.AbstractEventLoop, places: int | None) -> None:
        self.loop = loop
        self.next_one = asyncio.Lock()
        self.free = asyncio.Semaphore(sys.maxsize if places is None else places)


class _LastMinute:
    """What was used in the last 60 seconds, against a limit."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._used: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, now: float, amount: int) -> None:
        if self.limit is not None and amount:
            self._used.append((now, amount))
            self._sum += amount

    def wait(self, now: float) -> float:
        """Seconds until there is room again; 0 where there is."""
        while self._used and self._used[0][0] + MINUTE <= now:
            self._sum -= self._used.popleft()[1]
        if self.limit is None or self._sum < self.limit:
            return 0.0
        over = self._sum - self.limit
        for moment, amount in self._used:
            over -= amount
            if over < 0:
                return moment + MINUTE - now
        raise AssertionError("what is used adds up to the sum")


class _Time:
    def time(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
