"""Connections to endpoints: pools that belong to an event loop, as connections do, and that clients share.

Clients with the same settings share one, so that the second costs no new TLS context, and its connections are there
already. A pool ends with its last user, or with its loop.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

#: Seconds to reach the endpoint, and seconds between two packets of its answer.
CONNECT_TIMEOUT, READ_TIMEOUT = 10.0, 600.0
#: Seconds that an idle connection is kept: longer than most tools take, so that the next round finds it open.
KEEPALIVE = 120.0


@dataclass(frozen=True)
class PoolSettings:
    """What clients that share a pool have in common.

    Attributes:
        secure: Whether endpoints are verified.
        loopback: Whether they run on this machine.
        timeout: Seconds between two packets.
        aiohttp: Whether aiohttp carries the requests.
        owner: Whose they are, with aiohttp. It keeps cookies together with connections, and those of one key are not to
            go with another.
    """

    secure: bool
    loopback: bool
    timeout: float
    aiohttp: bool
    owner: object = field(default=None, repr=False)

    @classmethod
    def of(cls, base_url: str | None, timeout: float | None, aiohttp: bool, owner: object) -> PoolSettings:
        """The settings for an endpoint; None is OpenAI's own, and ten minutes."""
        parts = urlsplit(base_url or "https:")
        host = parts.hostname or ""
        loopback = host in ("localhost", "::1") or host.startswith("127.")
        return cls(parts.scheme == "https", loopback, timeout or READ_TIMEOUT, aiohttp, owner if aiohttp else None)


class Pool:
    """An HTTP client that several chat clients use."""

    def __init__(self, settings: PoolSettings, pools: dict[PoolSettings, Pool]) -> None:
        self.http_client: Any = _http_client(settings)
        self._settings = settings
        self._pools = pools
        self._users = 0
        self._guard = self._until_the_loop_ends()

    async def open(self) -> None:
        """Let others find it, and tell the running loop of it."""
        self._pools[self._settings] = self
        await self._guard.__anext__()

    async def _until_the_loop_ends(self) -> AsyncGenerator[None, None]:
        # A loop that shuts down closes the generators that it knows, while it can still close connections.
        try:
            yield
        finally:
            if self._pools.get(self._settings) is self:
                del self._pools[self._settings]
            await self.http_client.aclose()

    def take(self) -> Pool:
        """This pool, with one user more."""
        self._users += 1
        return self

    async def release(self) -> None:
        """One user less; the last one closes the connections."""
        self._users -= 1
        if self._users == 0:
            await self._guard.aclose()


_POOLS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[PoolSettings, Pool]] = WeakKeyDictionary()


async def pool_for(settings: PoolSettings) -> Pool:
    """The pool of the running event loop for these settings, with one user more."""
    for ended in [known for known in _POOLS if known.is_closed()]:
        del _POOLS[ended]  # one that did not shut down in order, and took its connections with it
    pools = _POOLS.setdefault(asyncio.get_running_loop(), {})
    if settings not in pools:
        await Pool(settings, pools).open()
    return pools[settings].take()


def _http_client(settings: PoolSettings) -> Any:
    from urllib.request import getproxies

    import httpx2
    import openai

    common: dict[str, Any] = {
        "timeout": httpx2.Timeout(settings.timeout, connect=min(CONNECT_TIMEOUT, settings.timeout)),
        # Connections are shared, cookies are not: what belongs to one key is not to go with another.
        "cookies": CookieJar(DefaultCookiePolicy(allowed_domains=[])),
    }
    # "no" alone is none; and what runs on this machine is asked without one, or prompt and key would leave it.
    proxies = not settings.loopback and bool(getproxies().keys() & {"http", "https", "all"})
    # At http there is nothing to verify, and loading certificates takes 30 ms. Without any, nothing passes.
    bare = not settings.secure and not proxies
    verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if bare else httpx2.create_ssl_context()
    if settings.aiohttp:
        # None would be aiohttp's own limit of 100, zero is no limit.
        limits = httpx2.Limits(max_connections=0, keepalive_expiry=KEEPALIVE)
        return openai.DefaultAioHttpClient(verify=verify, limits=limits, trust_env=proxies, **common)
    if proxies:
        limits = httpx2.Limits(max_connections=None, keepalive_expiry=KEEPALIVE)
        return openai.DefaultAsyncHttpx2Client(verify=verify, limits=limits, **common)
    from agentpipe.openai._spread import SpreadTransport

    return openai.DefaultAsyncHttpx2Client(transport=SpreadTransport(verify, KEEPALIVE), **common)
