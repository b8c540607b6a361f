"""History in an SQLite file."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Literal

from agentpipe._sqlite import open_wal
from agentpipe.history._common import (
    SCHEMA,
    SCHEMA_TABLE,
    Backend,
    Row,
    StoredHistoryProvider,
    check_schema,
    fresh_rows,
    identifier,
    new_head,
)


class SQLiteHistoryProvider(StoredHistoryProvider):
    """Keeps messages in an SQLite file, which any number of processes on one machine may use at once.

    Args:
        path: The file; it is made if it is not there. Not on a network drive: SQLite's locks do not work there.
        table: The table in it.
        synchronous: "FULL" survives a power cut with everything that was stored; "NORMAL" is several times faster and
            may then lose the last messages. Neither loses anything when a process is killed.
        timeout: Seconds that a call may take, and that it waits for the locks of other processes.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        table: str = "agentpipe_messages",
        synchronous: Literal["FULL", "NORMAL"] = "FULL",
        timeout: float = 30.0,
    ) -> None:
        super().__init__(timeout=timeout)
        if not isinstance(path, (str, os.PathLike)) or not isinstance(name := os.fspath(path), str) or not name:
            raise TypeError(f"path must be the name of a file, not {path!r:.80}")
        self.path = name
        self.table = identifier("table", table)
        if synchronous not in ("FULL", "NORMAL"):
            raise ValueError(f"synchronous must be 'FULL' or 'NORMAL', not {synchronous!r:.50}")
        self.synchronous = synchronous

    async def _open(self) -> Backend:
        connection = open_wal(self.path, timeout=self.timeout)
        try:
            connection.execute(f"PRAGMA synchronous = {self.synchronous}")
            if (version := _schema_of(connection, self.table)) is None:
                with _transaction(connection) as execute:
                    for statement in _LAYOUT:
                        execute(statement.format(table=self.table, schema=SCHEMA))
                version = _schema_of(connection, self.table)
            check_schema(repr(self), version or SCHEMA)
        except BaseException:
            connection.close()
            raise
        return _SQLite(connection, self.table)

    def _explain(self, error: Exception) -> str | None:
        if not isinstance(error, sqlite3.Error):
            return None
        name = getattr(error, "sqlite_errorname", "")
        hint = next((hint for code, hint in _HINTS.items() if name.startswith(code)), "")
        return f"{error}{hint}"

    def __repr__(self) -> str:
        return f"SQLiteHistoryProvider({self.path!r})"


_LAYOUT = (
    f"CREATE TABLE IF NOT EXISTS {SCHEMA_TABLE} (name TEXT PRIMARY KEY, version INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS {table} (session TEXT NOT NULL, seq INTEGER NOT NULL, item TEXT NOT NULL, "
    "body TEXT NOT NULL, PRIMARY KEY (session, seq), UNIQUE (session, item))",
    f"INSERT OR IGNORE INTO {SCHEMA_TABLE} VALUES ('{{table}}', {{schema}})",
)
_HINTS = {
    "SQLITE_BUSY": ": another process held the write lock for too long",
    "SQLITE_CANTOPEN": ": does the directory exist, and may this process write there?",
    "SQLITE_READONLY": ": this process may not write there",
    "SQLITE_IOERR": ": the disk is full or broken, or out of reach",
}


class _SQLite(Backend):
    """One connection. Nothing is awaited in here: the thread does one thing at a time."""

    def __init__(self, connection: sqlite3.Connection, table: str) -> None:
        self._connection = connection
        self._read = f"SELECT body FROM {table} WHERE session = ? ORDER BY seq"
        self._head = f"SELECT coalesce(max(seq), 0) FROM {table} WHERE session = ?"
        self._find = f"SELECT seq FROM {table} WHERE session = ? AND item = ?"
        self._insert = f"INSERT INTO {table} (session, seq, item, body) VALUES (?, ?, ?, ?)"
        self._delete = f"DELETE FROM {table} WHERE session = ?"

    async def read(self, session: str) -> Sequence[str]:
        return [body for (body,) in self._connection.execute(self._read, (session,))]

    async def append(self, session: str, seen: int | None, rows: Sequence[Row]) -> int:
        with _transaction(self._connection) as execute:
            (head,) = execute(self._head, (session,)).fetchone()
            known = {
                item: found[0]
                for item, _ in rows
                if head and (found := execute(self._find, (session, item)).fetchone())
            }
            fresh = fresh_rows(rows, known, head, seen)
            for seq, (item, body) in enumerate(fresh.items(), head + 1):
                execute(self._insert, (session, seq, item, body))
        return new_head(fresh, known, head, seen)

    async def delete(self, session: str) -> None:
        with _transaction(self._connection) as execute:
            execute(self._delete, (session,))

    async def close(self) -> None:
        self._connection.close()


def _schema_of(connection: sqlite3.Connection, table: str) -> int | None:
    """The version of the layout of ``table``; None if it is not there yet."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (SCHEMA_TABLE,)).fetchone() is None:
        return None
    found = connection.execute(f"SELECT version FROM {SCHEMA_TABLE} WHERE name = ?", (table,)).fetchone()
    return None if found is None else int(found[0])


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[Callable[..., sqlite3.Cursor]]:
    # IMMEDIATE: a transaction that becomes a writer only later can fail at once instead of waiting for its turn.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection.execute
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # some errors have rolled back already
            connection.execute("ROLLBACK")
        raise
