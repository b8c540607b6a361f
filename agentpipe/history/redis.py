"""History in Redis."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from agentpipe.history._common import (
    SCHEMA,
    Backend,
    Lost,
    Row,
    StoredHistoryProvider,
    check_schema,
    identifier,
    positive,
    public_url,
)


class RedisHistoryProvider(StoredHistoryProvider):
    """Keeps messages in Redis, for any number of processes on any number of machines.

    Needs ``pip install 'agentpipe-chat[redis]'``. A server loses on a crash what its settings allow it to: with
    ``appendonly yes`` the last second, with ``appendfsync always`` nothing. Its ``maxmemory-policy`` must not evict.

    Args:
        url: Where the server is: ``redis://user:password@host:6379/0``, ``rediss://...`` or ``unix:///path``.
        prefix: What the names of all keys begin with.
        ttl: Seconds after its last append that a session is forgotten; None for never.
        timeout: Seconds that a call may take.
    """

    def __init__(self, url: str, *, prefix: str = "agentpipe", ttl: float | None = None, timeout: float = 30.0) -> None:
        super().__init__(timeout=timeout)
        self._shown = public_url("url", url, ("redis", "rediss", "unix"))
        self._url = url
        self.prefix = identifier("prefix", prefix)
        self.ttl = None if ttl is None else positive("ttl", ttl)
        _redis()

    async def _open(self) -> Backend:
        client = _redis().from_url(self._url, socket_timeout=self.timeout, socket_connect_timeout=self.timeout)
        backend = _Redis(client, self.prefix, self.ttl)
        try:
            await client.set(f"{self.prefix}:schema", SCHEMA, nx=True)
            check_schema(repr(self), int(await client.get(f"{self.prefix}:schema")))
        except BaseException:
            await backend.close()
            raise
        return backend

    def _explain(self, error: Exception) -> str | None:
        from redis.exceptions import RedisError

        ours = isinstance(error, (RedisError, OSError, TimeoutError))
        return (str(error) or type(error).__name__) if ours else None

    def __repr__(self) -> str:
        return f"RedisHistoryProvider({self._shown!r})"


# KEYS: the bodies in order, and the place of each id. ARGV: the head that was seen (-1: none), the ttl in ms (0: none),
# then id and body of each row. Returns whether it was done, the head, and the head that was expected.
_APPEND = """
local head = redis.call('LLEN', KEYS[1])
local seen = math.max(tonumber(ARGV[1]), 0)
local fresh, twice = {}, {}
for i = 3, #ARGV, 2 do
  local place = redis.call('HGET', KEYS[2], ARGV[i])
  if place then
    seen = math.max(seen, tonumber(place))
  elseif not twice[ARGV[i]] then
    twice[ARGV[i]] = true
    fresh[#fresh + 1] = i
  end
end
if #fresh == 0 then return {1, seen, seen} end
if tonumber(ARGV[1]) >= 0 and head ~= seen then return {0, head, seen} end
for place, i in ipairs(fresh) do
  redis.call('HSET', KEYS[2], ARGV[i], head + place)
  redis.call('RPUSH', KEYS[1], ARGV[i + 1])
end
if tonumber(ARGV[2]) > 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
return {1, head + #fresh, seen}
"""


class _Redis(Backend):
    def __init__(self, client: Any, prefix: str, ttl: float | None) -> None:
        self._client = client
        self._prefix = prefix
        self._ttl = 0 if ttl is None else max(1, round(ttl * 1000))
        self._append = client.register_script(_APPEND)

    def _keys(self, session: str) -> list[str]:
        # The braces are a hash tag: in a cluster both keys lie on one node.
        return [f"{self._prefix}:{{{session}}}:messages", f"{self._prefix}:{{{session}}}:items"]

    async def read(self, session: str) -> Sequence[bytes]:
        bodies: Sequence[bytes] = await self._client.lrange(self._keys(session)[0], 0, -1)
        return bodies

    async def append(self, session: str, seen: int | None, rows: Sequence[Row]) -> int:
        arguments: list[str | int] = [-1 if seen is None else seen, self._ttl]
        for row in rows:
            arguments += row
        done, head, expected = await self._append(keys=self._keys(session), args=arguments)
        if not done:
            raise Lost(int(expected), int(head))
        return int(head)

    async def delete(self, session: str) -> None:
        await self._client.delete(*self._keys(session))

    async def close(self) -> None:
        with suppress(Exception):  # the server may be gone
            await self._client.aclose()


def _redis() -> Any:
    try:
        import redis.asyncio
    except ImportError as error:
        raise ImportError("RedisHistoryProvider needs redis: pip install 'agentpipe-chat[redis]'") from error
    return redis.asyncio
