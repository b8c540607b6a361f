"""Where a cache keeps its answers."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from agentpipe._sqlite import open_wal
from agentpipe.layers._common import check_whole

if TYPE_CHECKING:
    from typing import Self

T = TypeVar("T")


class CacheStore(Protocol):
    """What keeps texts by key. The caches of aiocache are such stores as they are."""

    async def get(self, key: str) -> Any:
        """The text (or bytes) of ``key``; None where there is none, or it is too old."""
        ...

    async def set(self, key: str, value: str, *, ttl: float | None = None) -> Any:
        """Keep ``value``, for ``ttl`` seconds if given."""
        ...


class MemoryCache:
    """Keeps the entries that were used last, in this process.

    Args:
        max_entries: How many; at least 1.
        clock: What tells the time, in seconds.
    """

    def __init__(self, max_entries: int = 1000, *, clock: Callable[[], float] = time.monotonic) -> None:
        check_whole("max_entries", max_entries, 1)
        self.max_entries = max_entries
        self._clock = clock
        self._entries: OrderedDict[str, tuple[str, float | None]] = OrderedDict()

    async def get(self, key: str) -> str | None:
        """The text of ``key``, if it is there and not too old."""
        value, expires = self._entries.get(key, (None, None))
        if value is None:
            return None
        if expires is not None and expires <= self._clock():
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return value

    async def set(self, key: str, value: str, *, ttl: float | None = None) -> None:
        """Keep ``value``; the entry that was used longest ago goes where there are too many."""
        self._entries[key] = (value, None if ttl is None else self._clock() + ttl)
        self._entries.move_to_end(key)
        if len(self._entries) > self.max_entries:
            self._entries.popitem(last=False)

    def __repr__(self) -> str:
        return f"MemoryCache(max_entries={self.max_entries})"


class SQLiteCache:
    """Keeps entries in an SQLite file, which several processes of one machine may use.

    It works on a thread of its own. ``async with SQLiteCache(path) as store`` closes it at the end.

    Args:
        path: The file; made, on first use, if it is not there.
        clock: What tells the time, in seconds since 1970.
    """

    def __init__(self, path: str | os.PathLike[str], *, clock: Callable[[], float] = time.time) -> None:
        self.path = os.fspath(path)
        self._clock = clock
        self._connection: sqlite3.Connection | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def get(self, key: str) -> str | None:
        """The text of ``key``, if it is there and not too old. Raises sqlite3.Error."""
        return await self._run(lambda database: _get(database, key, self._clock()))

    async def set(self, key: str, value: str, *, ttl: float | None = None) -> None:
        """Keep ``value``; what is too old is removed. Raises sqlite3.Error."""
        now = self._clock()
        await self._run(lambda database: _set(database, key, value, now, None if ttl is None else now + ttl))

    async def aclose(self) -> None:
        """Close the file. Another use opens it again."""
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.get_running_loop().run_in_executor(thread, self._close)
            thread.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "agentpipe-cache")
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: work(self._opened()))

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = _open(self.path)
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __repr__(self) -> str:
        return f"SQLiteCache({self.path!r})"


_LAYOUT = (
    # A cache may lose its last entries in a power cut.
    "PRAGMA synchronous = NORMAL",
    "CREATE TABLE IF NOT EXISTS agentpipe_cache (key TEXT PRIMARY KEY, value TEXT, expires REAL)",
    "CREATE INDEX IF NOT EXISTS agentpipe_cache_expires ON agentpipe_cache (expires)",
)


def _open(path: str) -> sqlite3.Connection:
    connection = open_wal(path, timeout=30)
    try:
        for statement in _LAYOUT:
            connection.execute(statement)
    except BaseException:
        connection.close()
        raise
    return connection


def _get(database: sqlite3.Connection, key: str, now: float) -> str | None:
    query = "SELECT value FROM agentpipe_cache WHERE key = ? AND (expires IS NULL OR expires > ?)"
    row = database.execute(query, (key, now)).fetchone()
    return str(row[0]) if row else None


def _set(database: sqlite3.Connection, key: str, value: str, now: float, expires: float | None) -> None:
    database.execute("DELETE FROM agentpipe_cache WHERE expires <= ?", (now,))
    database.execute("INSERT OR REPLACE INTO agentpipe_cache VALUES (?, ?, ?)", (key, value, expires))
