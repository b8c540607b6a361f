"""Every store that comes with agentpipe keeps the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentpipe import (
    AgentSession,
    HistoryProvider,
    InMemoryHistoryProvider,
    PostgresHistoryProvider,
    RedisHistoryProvider,
    SQLiteHistoryProvider,
    user,
)
from agentpipe._history_contract import HistoryProviderContract
from samples.own_history import JsonLinesHistoryProvider
from tests.history.conftest import PostgresServer, RedisServer


class TestInMemory(HistoryProviderContract):
    """`InMemoryHistoryProvider`."""

    one_writer = True

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


class TestSample(HistoryProviderContract):
    """The provider of `samples.own_history`, which readers start from."""

    one_writer = True

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.directory = tmp_path

    async def make_provider(self) -> HistoryProvider:
        return JsonLinesHistoryProvider(self.directory)


async def test_no_session_leaves_the_directory_of_the_sample(tmp_path: Path) -> None:
    """The id of a session, which may come from anywhere, names no file outside of the sample's directory."""
    directory = tmp_path / "inside"
    directory.mkdir()
    provider = JsonLinesHistoryProvider(directory)
    for name in ("../outside", "/etc/outside", "..", ".", "a/b", "a\0b", "x" * 5000, "\ud800"):
        await provider.add_messages(AgentSession(name), [user(f"in {name}")])
        assert [message.text for message in await provider.get_messages(AgentSession(name))] == [f"in {name}"]
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]
    assert len(list(directory.iterdir())) == 8
