"""SQLite files that several processes open at once."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from agentpipe import AgentSession, SQLiteCache, SQLiteHistoryProvider, user
from agentpipe._sqlite import open_wal


def test_many_make_one_file_at_once(tmp_path: Path) -> None:
    """Whoever opens a file that others are making at this moment waits for them, rather than failing at once."""
    failed: list[sqlite3.Error] = []

    def open_together(path: Path, start: threading.Barrier) -> None:
        start.wait()
        try:
            open_wal(str(path), timeout=60).close()
        except sqlite3.Error as error:
            failed.append(error)

    for number in range(50):
        given = (tmp_path / f"{number}.db", threading.Barrier(4))
        threads = [threading.Thread(target=open_together, args=given) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []


async def test_a_new_file_that_somebody_writes(tmp_path: Path) -> None:
    """A history and a cache wait until a file that is not in WAL mode yet is free, and then they switch it."""
    path = tmp_path / "new.db"
    async with SQLiteCache(path) as cache:
        history = SQLiteHistoryProvider(path)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            other.execute("CREATE TABLE other (x)")
            work = [
                asyncio.ensure_future(history.add_messages(AgentSession("s"), [user("a")])),
                asyncio.ensure_future(cache.set("key", "text")),
            ]
            done, _ = await asyncio.wait(work, timeout=0.3, return_when=asyncio.FIRST_COMPLETED)
            assert not done
            other.execute("COMMIT")
            await asyncio.gather(*work)
        assert path.read_bytes()[18:20] == b"\2\2"  # in the header of the file: WAL
        assert [message.text for message in await history.get_messages(AgentSession("s"))] == ["a"]
        assert await cache.get("key") == "text"
        await history.aclose()


def test_a_file_that_stays_locked(tmp_path: Path) -> None:
    """A file that others do not give back in time is the error that SQLite has for it, and nothing stays open."""
    path = tmp_path / "new.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="database is locked"):
            open_wal(str(path), timeout=0.05)
