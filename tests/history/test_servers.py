"""`PostgresHistoryProvider` and `RedisHistoryProvider`: what is theirs alone, and what happens when the server fails."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import pytest
import redis.asyncio as redis_client

from agentpipe import AgentSession, HistoryError, Message, PostgresHistoryProvider, RedisHistoryProvider, user
from agentpipe._records import new_id
from tests.history.conftest import PASSWORD, PostgresServer, RedisServer, free_port

Provider = PostgresHistoryProvider | RedisHistoryProvider


class Place:
    """A kind of store and its server, so that one test body serves both."""

    def __init__(self, kind: type[Provider], server: PostgresServer | RedisServer) -> None:
        self.kind = kind
        self.server = server

    @property
    def url(self) -> str:
        return self.server.dsn if isinstance(self.server, PostgresServer) else self.server.url

    def provider(self, **settings: Any) -> Provider:
        return self.kind(self.url, **settings)


@pytest.fixture(params=["postgres", "redis"])
def place(request: pytest.FixtureRequest) -> Place:
    kind = PostgresHistoryProvider if request.param == "postgres" else RedisHistoryProvider
    return Place(kind, request.getfixturevalue(request.param))


@asynccontextmanager
async def using(provider: Provider) -> AsyncIterator[Provider]:
    try:
        yield provider
    finally:
        await provider.aclose()


@pytest.fixture
def name() -> str:
    """A table or prefix of the test's own."""
    return new_id("t")


async def texts(provider: Provider, session: AgentSession) -> list[str]:
    return [message.text for message in await provider.get_messages(session)]


async def test_server_restarts(place: Place) -> None:
    """While the server is down every call is a HistoryError; when it is back the same provider goes on."""
    async with using(place.provider(timeout=10)) as provider:
        session, batch = AgentSession(new_id("s")), [user("a").with_id()]
        assert await texts(provider, session) == []
        place.server.stop()
        try:
            for _ in range(2):
                with pytest.raises(HistoryError, match=place.kind.__name__) as caught:
                    await provider.add_messages(session, batch)
                check_no_secret(caught.value)
        finally:
            place.server.start()
        await provider.add_messages(session, batch)
        assert await texts(provider, session) == ["a"]


async def test_nobody_there(place: Place) -> None:
    """A server that is not there is a HistoryError that names it, without the password."""
    url = place.url.replace(str(place.server.port), str(free_port()))
    async with using(place.kind(url, timeout=10)) as provider:
        with pytest.raises(HistoryError, match=r"HistoryProvider\('.*127\.0\.0\.1") as caught:
            await provider.get_messages(AgentSession())
        check_no_secret(caught.value)


async def test_wrong_password(place: Place) -> None:
    """A password that the server does not take is a HistoryError, and is not shown."""
    async with using(place.kind(place.url.replace(PASSWORD, "wr0ng-pass"), timeout=10)) as provider:
        with pytest.raises(HistoryError, match="(?i)password") as caught:
            await provider.get_messages(AgentSession())
        check_no_secret(caught.value, "wr0ng-pass")


async def test_slow_server(place: Place) -> None:
    """A server that accepts and never answers is a HistoryError after the timeout; closing is not held up by it."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        url = place.url.replace(str(place.server.port), str(port))
        async with using(place.kind(url, timeout=0.3)) as provider:
            with pytest.raises(HistoryError, match="did not answer within|Timeout|timed out") as caught:
                await provider.get_messages(AgentSession())
            check_no_secret(caught.value)


def check_no_secret(error: BaseException, secret: str = PASSWORD) -> None:
    assert secret not in "".join(traceback.format_exception(error))


def test_repr_hides_secrets() -> None:
    """What is shown has neither password nor query."""
    shown = {
        "postgresql://user:pw@host:5432/db?sslmode=require&password=pw": "'postgresql://user@host:5432/db'",
        "postgres://host/db": "'postgres://host/db'",
        "postgresql://user:p%40w@h1:1,h2:2/db": "'postgresql://user@h1:1,h2:2/db'",
        "postgresql:///db?host=/run&user=me": "'postgresql:///db'",
    }
    for dsn, short in shown.items():
        assert repr(PostgresHistoryProvider(dsn)) == f"PostgresHistoryProvider({short})"
    assert repr(RedisHistoryProvider("redis://:pw@host:6379/0")) == "RedisHistoryProvider('redis://host:6379/0')"
    assert repr(RedisHistoryProvider("unix:///run/r.sock?db=1")) == "RedisHistoryProvider('unix:///run/r.sock')"


@pytest.mark.parametrize(
    "url", ["postgresql://u:p@pw@h/db", "postgresql://u:p/pw@h/db", "postgresql://u:p#pw@h/db", "u:p?pw@h", "", "pw"]
)
def test_wrong_urls(url: str) -> None:
    """A URL that would be misread, for example with a raw @ in the password, is refused without being shown."""
    with pytest.raises(ValueError, match=r"^dsn must look like postgresql://.*percent-encoded") as caught:
        PostgresHistoryProvider(url)
    assert "pw" not in str(caught.value)
    with pytest.raises(ValueError, match=r"^url must look like redis://.*percent-encoded"):
        RedisHistoryProvider(url)


def test_settings() -> None:
    """Wrong settings are refused by name."""
    wrong: list[tuple[Any, str, type[Exception], dict[str, Any]]] = [
        (PostgresHistoryProvider, "dsn", TypeError, {"dsn": 5}),
        (PostgresHistoryProvider, "table", ValueError, {"table": "a-b"}),
        (PostgresHistoryProvider, "pool_size", ValueError, {"pool_size": 0}),
        (PostgresHistoryProvider, "timeout", ValueError, {"timeout": -1}),
        (RedisHistoryProvider, "url", TypeError, {"url": None}),
        (RedisHistoryProvider, "prefix", ValueError, {"prefix": "a{b}"}),
        (RedisHistoryProvider, "ttl", ValueError, {"ttl": 0}),
        (RedisHistoryProvider, "ttl", TypeError, {"ttl": "1 day"}),
    ]
    for kind, argument, error, settings in wrong:
        right = {"dsn": "postgresql://h/d"} if kind is PostgresHistoryProvider else {"url": "redis://h"}
        with pytest.raises(error, match=f"^{argument} must"):
            kind(**{**right, **settings})


@pytest.mark.parametrize(("module", "extra"), [("asyncpg", "postgres"), ("redis.asyncio", "redis")])
def test_driver_missing(monkeypatch: pytest.MonkeyPatch, module: str, extra: str) -> None:
    """Without its driver a provider cannot be made, and says which extra to install."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"pip install 'agentpipe-chat\[{extra}\]'"):
        PostgresHistoryProvider("postgresql://h/d") if extra == "postgres" else RedisHistoryProvider("redis://h")


def test_many_event_loops(place: Place) -> None:
    """One provider serves one `asyncio.run` after the other over the same connections."""
    provider, session = place.provider(), AgentSession(new_id("s"))
    for n in range(4):
        asyncio.run(provider.add_messages(session, [user(str(n))]))
    assert asyncio.run(texts(provider, session)) == ["0", "1", "2", "3"]
    asyncio.run(provider.aclose())
    asyncio.run(provider.aclose())


async def test_delete(place: Place) -> None:
    """A conversation can be deleted, others stay, and whoever had read it is told."""
    async with using(place.provider()) as provider:
        session, other, reader = AgentSession(new_id("s")), AgentSession(new_id("s")), None
        await provider.add_messages(session, batch := [user("a").with_id()])
        await provider.add_messages(other, [user("b")])
        reader = AgentSession(session.id)
        await provider.get_messages(reader)
        await provider.delete_messages(session)
        await provider.delete_messages(session)
        with pytest.raises(HistoryError, match="another run"):
            await provider.add_messages(reader, [user("c")])
        assert await texts(provider, session) == []
        await provider.add_messages(session, batch)
        assert await texts(provider, session) == ["a"]
        assert await texts(provider, other) == ["b"]


# PostgreSQL alone


async def test_postgres_newer_schema(postgres: PostgresServer, name: str) -> None:
    """A table that a newer version wrote is refused."""
    async with using(PostgresHistoryProvider(postgres.dsn, table=name)) as provider:
        await provider.get_messages(AgentSession())
    connection = await asyncpg.connect(postgres.dsn)
    await connection.execute("UPDATE agentpipe_schema SET version = 7 WHERE name = $1", name)
    await connection.close()
    async with using(PostgresHistoryProvider(postgres.dsn, table=name)) as provider:
        with pytest.raises(HistoryError, match=r"newer agentpipe \(schema 7\)"):
            await provider.get_messages(AgentSession())


async def test_postgres_without_right_to_create(postgres: PostgresServer, name: str) -> None:
    """Who may only read and write rows can use a table that is there; who may not even that gets a HistoryError."""
    async with using(PostgresHistoryProvider(postgres.dsn, table=name)) as provider:
        await provider.get_messages(AgentSession())
    connection = await asyncpg.connect(postgres.dsn)
    await connection.execute(f"CREATE ROLE {name}_user LOGIN PASSWORD 'p'")
    await connection.execute(f"GRANT SELECT ON agentpipe_schema TO {name}_user")
    dsn = postgres.dsn.replace(f"tester:{PASSWORD}", f"{name}_user:p")
    async with using(PostgresHistoryProvider(dsn, table=name)) as provider:
        with pytest.raises(HistoryError, match=f"permission denied for table {name}"):
            await provider.add_messages(AgentSession(), [user("a")])
        await connection.execute(f"GRANT SELECT, INSERT ON {name} TO {name}_user")
        await provider.add_messages(session := AgentSession(), [user("a")])
        assert await texts(provider, session) == ["a"]
    async with using(PostgresHistoryProvider(dsn, table=f"{name}_new")) as provider:
        with pytest.raises(HistoryError, match="permission denied"):
            await provider.get_messages(AgentSession())
    await connection.close()


async def test_postgres_locked(postgres: PostgresServer, name: str) -> None:
    """An append that has to wait too long is a HistoryError, stores nothing later, and may be repeated."""
    async with using(PostgresHistoryProvider(postgres.dsn, table=name)) as provider:
        session, batch = AgentSession(), [user("a").with_id(), user("b").with_id()]
        assert await texts(provider, session) == []
        connection = await asyncpg.connect(postgres.dsn)
        async with connection.transaction():
            await connection.execute(f"LOCK TABLE {name}")
            provider.timeout = 0.3
            with pytest.raises(HistoryError, match=r"did not answer within 0\.3 s"):
                await provider.add_messages(session, batch)
        await connection.close()
        provider.timeout = 30
        await provider.add_messages(session, batch)
        assert await texts(provider, session) == ["a", "b"]


async def test_postgres_connection_lost_in_mid_append(postgres: PostgresServer, name: str) -> None:
    """A connection that the server ends while an append waits leaves nothing behind; the append may be repeated."""
    async with using(PostgresHistoryProvider(postgres.dsn, table=name, timeout=20)) as provider:
        session, batch = AgentSession(), [user("a").with_id(), user("b").with_id()]
        assert await texts(provider, session) == []
        connection, watcher = await asyncpg.connect(postgres.dsn), await asyncpg.connect(postgres.dsn)
        async with connection.transaction():
            await connection.execute(f"LOCK TABLE {name}")
            append = asyncio.ensure_future(provider.add_messages(session, batch))
            while not append.done() and not await watcher.fetchval(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
                "AND query LIKE '%' || $1 || '%'", name
            ):  # fmt: skip
                pass
            with pytest.raises(HistoryError, match="PostgresHistoryProvider"):
                await append
        await connection.close()
        await watcher.close()
        await provider.add_messages(session, batch)
        assert await texts(provider, session) == ["a", "b"]


async def test_postgres_first_use_at_once(postgres: PostgresServer, name: str) -> None:
    """Many providers that make the same table at the same time all succeed."""
    providers = [PostgresHistoryProvider(postgres.dsn, table=name, pool_size=1) for _ in range(8)]
    await asyncio.gather(*[provider.get_messages(AgentSession()) for provider in providers])
    await asyncio.gather(*[provider.aclose() for provider in providers])


# Redis alone


async def test_redis_keys(redis: RedisServer, name: str) -> None:
    """Both keys of a session share a hash tag, and live as long as ``ttl`` says after each append."""
    client = redis_client.from_url(redis.url)
    async with using(RedisHistoryProvider(redis.url, prefix=name, ttl=1000)) as provider:
        await provider.add_messages(AgentSession("s"), [Message("user", "a", "m1")])
    keys = sorted(await client.keys(f"{name}:*"))
    assert keys == [f"{name}:schema".encode(), f"{name}:{{s}}:items".encode(), f"{name}:{{s}}:messages".encode()]
    assert [await client.ttl(key) for key in keys[1:]] in ([1000, 1000], [999, 999])
    assert await client.ttl(keys[0]) == -1
    assert await client.lrange(keys[2], 0, -1) == [
        b'{"role":"user","contents":[{"type":"text","text":"a"}],"message_id":"m1"}'
    ]
    assert await client.hgetall(keys[1]) == {b"m1": b"1"}
    async with using(RedisHistoryProvider(redis.url, prefix=f"{name}_")) as provider:
        await provider.add_messages(AgentSession("s"), [user("a")])
    assert await client.ttl(f"{name}_:{{s}}:messages") == -1
    await client.aclose()


async def test_redis_newer_schema(redis: RedisServer, name: str) -> None:
    """Keys that a newer version wrote are refused."""
    client = redis_client.from_url(redis.url)
    await client.set(f"{name}:schema", 7)
    await client.aclose()
    async with using(RedisHistoryProvider(redis.url, prefix=name)) as provider:
        with pytest.raises(HistoryError, match=r"newer agentpipe \(schema 7\)"):
            await provider.get_messages(AgentSession())


async def test_redis_full(redis: RedisServer, name: str) -> None:
    """A server without memory left is a HistoryError; nothing is stored, and there is no trouble once it has some."""
    client = redis_client.from_url(redis.url)
    async with using(RedisHistoryProvider(redis.url, prefix=name)) as provider:
        session, batch = AgentSession(), [user("a").with_id(), user("b").with_id()]
        assert await texts(provider, session) == []
        await client.config_set("maxmemory", 1)
        try:
            with pytest.raises(HistoryError, match="maxmemory"):
                await provider.add_messages(session, batch)
        finally:
            await client.config_set("maxmemory", 0)
        assert await texts(provider, AgentSession(session.id)) == []
        await provider.add_messages(session, batch)
        assert await texts(provider, session) == ["a", "b"]
    await client.aclose()
