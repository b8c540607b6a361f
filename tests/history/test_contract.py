"""Every store that comes with agentpipe keeps the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentpipe import (
    HistoryProvider,
    InMemoryHistoryProvider,
    PostgresHistoryProvider,
    RedisHistoryProvider,
    SQLiteHistoryProvider,
)
from agentpipe._history_contract import HistoryProviderContract
from tests.history.conftest import PostgresServer, RedisServer


class TestInMemory(HistoryProviderContract):
    """`InMemoryHistoryProvider`."""

    keeps_in_session = True

    async def make_provider(self) -> HistoryProvider:
        return InMemoryHistoryProvider()


class TestSQLite(HistoryProviderContract):
    """`SQLiteHistoryProvider`."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "history.db"

    async def make_provider(self) -> HistoryProvider:
        return SQLiteHistoryProvider(self.path)


class TestPostgres(HistoryProviderContract):
    """`PostgresHistoryProvider`."""

    @pytest.fixture(autouse=True)
    def _server(self, postgres: PostgresServer) -> None:
        self.dsn = postgres.dsn

    async def make_provider(self) -> HistoryProvider:
        return PostgresHistoryProvider(self.dsn)


class TestRedis(HistoryProviderContract):
    """`RedisHistoryProvider`."""

    @pytest.fixture(autouse=True)
    def _server(self, redis: RedisServer) -> None:
        self.url = redis.url

    async def make_provider(self) -> HistoryProvider:
        return RedisHistoryProvider(self.url)
