"""A transport for httpx2 that stays quick however many connections it keeps.

For each request httpx2 looks at every idle connection of its pool, at 12 us apiece: after two hundred calls at once,
each later call would cost 2.4 ms more. Here the connections lie in many small pools, and a request looks into one.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from time import monotonic

import httpx2

#: How many requests go through one pool at a time.
_SIZE = 4


class _SmallPool:
    def __init__(self, verify: ssl.SSLContext, keepalive: float) -> None:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=_SIZE, keepalive_expiry=keepalive)
        self.transport = httpx2.AsyncHTTPTransport(verify=verify, limits=limits)
        self.active = 0
        self.used = 0.0


class SpreadTransport(httpx2.AsyncBaseTransport):
    """Sends requests through as few small pools as have room for them.

    Args:
        verify: How to verify the endpoint.
        keepalive: Seconds that an idle connection is kept.
    """

    def __init__(self, verify: ssl.SSLContext, keepalive: float) -> None:
        self._verify = verify
        self._keepalive = keepalive
        self._pools: list[_SmallPool] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; the response is still to be read."""
        await self._close_unused()
        pool = self._with_room()
        pool.active += 1
        pool.used = monotonic()
        try:
            response = await pool.transport.handle_async_request(request)
        except BaseException:
            pool.active -= 1
            raise
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Counted(response.stream, pool)
        return response

    def _with_room(self) -> _SmallPool:
        for pool in self._pools:
            if pool.active < _SIZE:
                return pool
        self._pools.append(_SmallPool(self._verify, self._keepalive))
        return self._pools[-1]

    async def _close_unused(self) -> None:
        """Close the last pool if it has not been needed for long; the others come last in their turn."""
        if len(self._pools) < 2:
            return
        last = self._pools[-1]
        if not last.active and monotonic() - last.used > self._keepalive:
            self._pools.pop()
            await last.transport.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        pools, self._pools = self._pools, []
        for pool in pools:
            await pool.transport.aclose()


class _Counted(httpx2.AsyncByteStream):
    """The body of a response; its place in the pool is free again when it is closed."""

    def __init__(self, stream: httpx2.AsyncByteStream, pool: _SmallPool) -> None:
        self._stream = stream
        self._pool: _SmallPool | None = pool

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._stream.__aiter__()

    async def aclose(self) -> None:
        pool, self._pool = self._pool, None
        try:
            await self._stream.aclose()
        finally:
            if pool is not None:
                pool.active -= 1
