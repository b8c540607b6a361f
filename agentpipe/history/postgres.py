"""History in PostgreSQL."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

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
    public_url,
)

if TYPE_CHECKING:
    import asyncpg


class PostgresHistoryProvider(StoredHistoryProvider):
    """Keeps messages in PostgreSQL, for any number of processes on any number of machines.

    Needs ``pip install 'agentpipe-chat[postgres]'``.

    Args:
        dsn: Where the server is: ``postgresql://user:password@host/database``.
        table: The table, which is made if it is not there. It lies in the first schema of the ``search_path``.
        pool_size: At most so many connections at once.
        timeout: Seconds that a call may take.
    """

    def __init__(
        self, dsn: str, *, table: str = "agentpipe_messages", pool_size: int = 8, timeout: float = 30.0
    ) -> None:
        super().__init__(timeout=timeout)
        self._shown = public_url("dsn", dsn, ("postgresql", "postgres"))
        self._dsn = dsn
        self.table = identifier("table", table).lower()
        if isinstance(pool_size, bool) or not isinstance(pool_size, int) or pool_size < 1:
            raise ValueError(f"pool_size must be a positive integer, not {pool_size!r:.50}")
        self.pool_size = pool_size
        _asyncpg()

    async def _open(self) -> Backend:
        pool = await _asyncpg().create_pool(
            self._dsn, min_size=1, max_size=self.pool_size, timeout=self.timeout, command_timeout=self.timeout
        )
        try:
            async with pool.acquire() as connection:
                await self._prepare(connection)
        except BaseException:
            pool.terminate()
            raise
        return _Postgres(pool, self.table)

    async def _prepare(self, connection: Any) -> None:
        # The layout is looked for first: whoever may only read and write rows need not be allowed to make tables.
        version = await _schema_of(connection, self.table)
        if version is None:
            async with connection.transaction(isolation="read_committed"):
                await connection.execute("SELECT pg_advisory_xact_lock($1)", _lock_number(SCHEMA_TABLE))
                for statement in _LAYOUT:
                    await connection.execute(statement.format(table=self.table, schema=SCHEMA))
            version = await _schema_of(connection, self.table)
        check_schema(repr(self), version or SCHEMA)

    def _explain(self, error: Exception) -> str | None:
        asyncpg = _asyncpg()
        ours = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
        return (str(error) or type(error).__name__) if isinstance(error, ours) else None

    def __repr__(self) -> str:
        return f"PostgresHistoryProvider({self._shown!r})"


_LAYOUT = (
    f"CREATE TABLE IF NOT EXISTS {SCHEMA_TABLE} (name text PRIMARY KEY, version integer NOT NULL)",
    "CREATE TABLE IF NOT EXISTS {table} (session text NOT NULL, seq bigint NOT NULL, item text NOT NULL, "
    "body text NOT NULL, PRIMARY KEY (session, seq), UNIQUE (session, item))",
    f"INSERT INTO {SCHEMA_TABLE} VALUES ('{{table}}', {{schema}}) ON CONFLICT DO NOTHING",
)


class _Postgres(Backend):
    def __init__(self, pool: asyncpg.Pool, table: str) -> None:
        self._pool = pool
        self._table = table
        self._read = f"SELECT body FROM {table} WHERE session = $1 ORDER BY seq"
        # The head and the places of the rows that are there already, in one look.
        self._look = (
            f"SELECT NULL AS item, coalesce(max(seq), 0) AS seq FROM {table} WHERE session = $1 "
            f"UNION ALL SELECT item, seq FROM {table} WHERE session = $1 AND item = ANY($2::text[])"
        )
        self._insert = (
            f"INSERT INTO {table} (session, seq, item, body) SELECT $1, $2 + place, item, body "
            "FROM unnest($3::text[], $4::text[]) WITH ORDINALITY AS new(item, body, place)"
        )
        self._delete = f"DELETE FROM {table} WHERE session = $1"

    async def read(self, session: str) -> Sequence[str]:
        return [row["body"] for row in await self._pool.fetch(self._read, session)]

    async def append(self, session: str, seen: int | None, rows: Sequence[Row]) -> int:
        async with self._pool.acquire() as connection, connection.transaction(isolation="read_committed"):
            # One writer of a session at a time; the lock goes with the transaction, however that ends.
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _lock_number(f"{self._table} {session}"))
            found = await connection.fetch(self._look, session, [item for item, _ in rows])
            known = {row["item"]: row["seq"] for row in found}
            head = known.pop(None)
            fresh = fresh_rows(rows, known, head, seen)
            if fresh:
                await connection.execute(self._insert, session, head, list(fresh), list(fresh.values()))
        return new_head(fresh, known, head, seen)

    async def delete(self, session: str) -> None:
        await self._pool.execute(self._delete, session)

    async def close(self) -> None:
        with suppress(Exception):  # the server may be gone
            async with asyncio.timeout(5):
                await self._pool.close()
        self._pool.terminate()


async def _schema_of(connection: Any, table: str) -> int | None:
    """The version of the layout of ``table``; None if it is not there yet."""
    if await connection.fetchval("SELECT to_regclass($1)::text", SCHEMA_TABLE) is None:
        return None
    version: int | None = await connection.fetchval(f"SELECT version FROM {SCHEMA_TABLE} WHERE name = $1", table)
    return version


def _lock_number(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)


def _asyncpg() -> Any:
    try:
        import asyncpg
    except ImportError as error:
        raise ImportError("PostgresHistoryProvider needs asyncpg: pip install 'agentpipe-chat[postgres]'") from error
    return asyncpg
