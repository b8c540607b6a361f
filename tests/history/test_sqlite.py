"""`SQLiteHistoryProvider`: the file, its layout, its errors, and who may use it from where."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentpipe import AgentSession, HistoryError, Message, SQLiteHistoryProvider, user


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chat.db"


@contextmanager
def database(path: Path) -> Iterator[sqlite3.Connection]:
    """The file as somebody else sees it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


async def store(path: Path, text: str, session: str = "s", **settings: Any) -> None:
    provider = SQLiteHistoryProvider(path, **settings)
    try:
        await provider.add_messages(AgentSession(session), [user(text)])
    finally:
        await provider.aclose()


async def stored(path: Path, session: str = "s", **settings: Any) -> list[str]:
    provider = SQLiteHistoryProvider(path, **settings)
    try:
        return [message.text for message in await provider.get_messages(AgentSession(session))]
    finally:
        await provider.aclose()


async def test_layout(path: Path) -> None:
    """The table holds session, place, id and readable JSON, in WAL mode, and the version of the layout is recorded."""
    provider = SQLiteHistoryProvider(path)
    await provider.add_messages(AgentSession("s"), [Message("user", "Grüße", "m1"), Message("assistant", "x", "m2")])
    with database(path) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("SELECT * FROM agentpipe_schema").fetchall() == [("agentpipe_messages", 1)]
        rows = db.execute("SELECT session, seq, item, body FROM agentpipe_messages ORDER BY seq").fetchall()
    assert rows[0] == ("s", 1, "m1", '{"role":"user","contents":[{"type":"text","text":"Grüße"}],"message_id":"m1"}')
    assert rows[1][:3] == ("s", 2, "m2")
    await provider.aclose()


async def test_newer_schema_is_refused(path: Path) -> None:
    """A file that a newer version wrote is neither read nor written."""
    await store(path, "a")
    with database(path) as db:
        db.execute("UPDATE agentpipe_schema SET version = 2")
    with pytest.raises(HistoryError, match=r"chat\.db.*newer agentpipe \(schema 2\); this one knows schema 1"):
        await stored(path)
    with pytest.raises(HistoryError, match="newer agentpipe"):
        await store(path, "b")


async def test_tables_are_apart(path: Path) -> None:
    """Two tables in one file hold two histories."""
    await store(path, "a", table="one")
    await store(path, "b", table="two")
    assert await stored(path, table="one") == ["a"]
    assert await stored(path, table="two") == ["b"]


async def test_file_of_somebody_else(path: Path) -> None:
    """The history may live in a database that holds other things."""
    with database(path) as db:
        db.execute("CREATE TABLE other (x)")
        db.execute("PRAGMA user_version = 77")
    await store(path, "a")
    assert await stored(path) == ["a"]
    with database(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (77,)


async def test_no_directory(tmp_path: Path) -> None:
    """A file that cannot be opened is a HistoryError that names it and says what to look at."""
    with pytest.raises(HistoryError, match=r"nowhere/chat\.db'\): unable to open.*does the directory exist") as caught:
        await store(tmp_path / "nowhere" / "chat.db", "a")
    assert isinstance(caught.value.__cause__, sqlite3.Error)


async def test_no_database(path: Path) -> None:
    """A file that is no database is a HistoryError, and is left as it was."""
    path.write_bytes(b"important " * 100)
    with pytest.raises(HistoryError, match="file is not a database"):
        await store(path, "a")
    assert path.read_bytes() == b"important " * 100


async def test_trouble_may_pass(tmp_path: Path) -> None:
    """A provider that could not open its file tries again with the next call."""
    provider, session = SQLiteHistoryProvider(tmp_path / "later" / "chat.db"), AgentSession()
    with pytest.raises(HistoryError):
        await provider.get_messages(session)
    (tmp_path / "later").mkdir()
    assert list(await provider.get_messages(session)) == []
    await provider.aclose()


async def test_locked_by_another_process(path: Path) -> None:
    """A write lock that is not given back in time is a HistoryError; the append may be repeated afterwards."""
    provider, session = SQLiteHistoryProvider(path), AgentSession()
    assert list(await provider.get_messages(session)) == []
    messages = [user("a").with_id()]
    with database(path) as db:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(HistoryError, match=r"chat\.db.*(did not answer within 0\.2 s|held the write lock)"):
            await store(path, "b", timeout=0.2)
        provider.timeout = 0.1
        with pytest.raises(HistoryError, match=r"chat\.db.*did not answer within 0\.1 s"):
            await provider.add_messages(session, messages)
        db.execute("ROLLBACK")
    provider.timeout = 30
    await provider.add_messages(session, messages)
    assert list(await provider.get_messages(session)) == messages
    await provider.aclose()


async def test_row_that_is_no_message(path: Path) -> None:
    """A row that somebody spoiled is a HistoryError that says which."""
    await store(path, "a")
    for body in ("{", "[]", '{"role":"nobody"}', "[" * 100_000):
        with database(path) as db:
            db.execute("UPDATE agentpipe_messages SET body = ?", (body,))
        with pytest.raises(HistoryError, match=r"chat\.db'\): message 0 of session 's' cannot be read"):
            await stored(path)


async def test_message_that_is_no_json(path: Path) -> None:
    """A message that cannot be written is a HistoryError that names it, and nothing of the batch is stored."""
    provider, session = SQLiteHistoryProvider(path), AgentSession()
    bad = Message("user", "x", "bad", metadata={"x": object()})
    with pytest.raises(HistoryError, match="message 'bad' cannot be written as JSON"):
        await provider.add_messages(session, [user("good"), bad])
    assert list(await provider.get_messages(session)) == []
    await provider.aclose()


def test_full_disk(path: Path) -> None:
    """A disk that is full is a HistoryError, half an append is not stored, and the next one that fits is."""
    program = f"""
import asyncio, resource, signal
from agentpipe import AgentSession, HistoryError, SQLiteHistoryProvider, user
async def main():
    provider, session = SQLiteHistoryProvider({str(path)!r}), AgentSession("s")
    await provider.add_messages(session, [user("first")])
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    try:
        await provider.add_messages(session, [user("small"), user("x" * 1_000_000)])
    except HistoryError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await provider.add_messages(session, [user("second")])
    print([message.text for message in await provider.get_messages(session)])
    await provider.aclose()
asyncio.run(main())
"""
    lines = run(program)
    assert lines[0].startswith(f"SQLiteHistoryProvider({str(path)!r}): ")
    assert "full" in lines[0]
    assert lines[1:] == ["['first', 'second']"]


def test_many_event_loops(path: Path) -> None:
    """One provider serves one `asyncio.run` after the other, and says what it stored in each."""
    provider, session = SQLiteHistoryProvider(path), AgentSession()
    for n in range(5):
        asyncio.run(provider.add_messages(session, [user(str(n))]))
    assert [message.text for message in asyncio.run(_got(provider, session))] == ["0", "1", "2", "3", "4"]
    asyncio.run(provider.aclose())
    asyncio.run(provider.aclose())


async def _got(provider: SQLiteHistoryProvider, session: AgentSession) -> list[Message]:
    return list(await provider.get_messages(session))


def test_many_threads(path: Path) -> None:
    """One provider serves event loops in several threads at once."""
    provider = SQLiteHistoryProvider(path)

    async def write(name: str) -> None:
        session = AgentSession(name)
        for n in range(10):
            await provider.get_messages(session)
            await provider.add_messages(session, [user(f"{name}{n}")])

    threads = [threading.Thread(target=lambda name=name: asyncio.run(write(name))) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in "abcd":
        texts = [message.text for message in asyncio.run(_got(provider, AgentSession(name)))]
        assert texts == [f"{name}{n}" for n in range(10)]
    asyncio.run(provider.aclose())


async def test_used_again_after_closing(path: Path) -> None:
    """A provider that was closed opens its file again, and its thread ends with each closing."""
    provider, session = SQLiteHistoryProvider(path), AgentSession()
    for n in range(3):
        await provider.add_messages(session, [user(str(n))])
        await provider.aclose()
    assert len(await provider.get_messages(session)) == 3
    await provider.aclose()
    for thread in threading.enumerate():
        if thread.name == repr(provider):
            thread.join(30)
            assert not thread.is_alive()


async def test_closing_waits_for_what_goes_on(path: Path) -> None:
    """Appends that go on when the provider is closed are stored."""
    provider, session = SQLiteHistoryProvider(path), AgentSession("s")
    appends = [asyncio.ensure_future(provider.add_messages(session, [user(str(n))])) for n in range(5)]
    await asyncio.sleep(0)
    await provider.aclose()
    await asyncio.gather(*appends)
    assert await stored(path) == ["0", "1", "2", "3", "4"]


async def test_forgotten_provider(path: Path) -> None:
    """The thread of a provider that nobody closed ends when the provider is gone."""
    provider = SQLiteHistoryProvider(path)
    await provider.add_messages(AgentSession(), [user("a")])
    [thread] = [thread for thread in threading.enumerate() if thread.name == repr(provider)]
    del provider
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()


def test_program_that_forgets_to_close(path: Path) -> None:
    """A program ends by itself, without a word, though it did not close the provider."""
    program = f"""
import asyncio
from agentpipe import AgentSession, SQLiteHistoryProvider, user
provider = SQLiteHistoryProvider({str(path)!r})
asyncio.run(provider.add_messages(AgentSession("s"), [user("a")]))
"""
    assert run(program) == []
    assert asyncio.run(stored(path)) == ["a"]


def test_fork(path: Path) -> None:
    """After a fork parent and child each go on with a connection of their own."""
    program = f"""
import asyncio, os, sys, warnings
from agentpipe import AgentSession, SQLiteHistoryProvider, user
warnings.simplefilter("ignore", DeprecationWarning)
provider = SQLiteHistoryProvider({str(path)!r})
def add(text):
    asyncio.run(provider.add_messages(AgentSession("s"), [user(text)]))
add("before")
if child := os.fork():
    add("parent")
    assert os.waitpid(child, 0)[1] == 0
    add("parent again")
    texts = sorted(message.text for message in asyncio.run(provider.get_messages(AgentSession("s"))))
    print(*texts, sep=", ")
else:
    add("child")
    asyncio.run(provider.aclose())
"""
    assert run(program) == ["before, child, parent, parent again"]


def run(program: str) -> list[str]:
    """What ``program`` prints; nothing may appear on stderr."""
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout.splitlines()


async def test_cancelled_while_it_waits(path: Path) -> None:
    """An append that is cancelled while it waits for its turn is stored all the same, before the cancellation ends."""
    provider, session = SQLiteHistoryProvider(path), AgentSession("s")
    await provider.get_messages(session)
    with database(path) as db:
        db.execute("BEGIN IMMEDIATE")
        first = asyncio.ensure_future(provider.add_messages(session, [user("a")]))
        second = asyncio.ensure_future(provider.add_messages(session, [user("b")]))
        for _ in range(3):
            await asyncio.sleep(0)
            second.cancel()
        assert not second.done()
        db.execute("ROLLBACK")
    with pytest.raises(asyncio.CancelledError):
        await second
    await first
    await provider.add_messages(session, [user("c")])
    await provider.aclose()
    assert await stored(path) == ["a", "b", "c"]


async def test_delete(path: Path) -> None:
    """A conversation can be deleted, twice; others stay, it may begin anew, and whoever had read it is told."""
    provider, session, reader = SQLiteHistoryProvider(path), AgentSession("s"), AgentSession("s")
    await provider.add_messages(session, [user("a")])
    await provider.add_messages(AgentSession("other"), [user("b")])
    await provider.get_messages(reader)
    await provider.delete_messages(session)
    await provider.delete_messages(session)
    with pytest.raises(HistoryError, match="another run"):
        await provider.add_messages(reader, [user("c")])
    assert list(await provider.get_messages(session)) == []
    await provider.add_messages(session, [user("d")])
    await provider.aclose()
    assert await stored(path) == ["d"]
    assert await stored(path, "other") == ["b"]


def test_repr_and_settings(path: Path) -> None:
    """The provider shows its file; wrong settings are refused by name."""
    assert repr(SQLiteHistoryProvider("chat.db")) == "SQLiteHistoryProvider('chat.db')"
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ValueError, "table", {"table": "x; DROP TABLE y"}),
        (ValueError, "table", {"table": "x" * 49}),
        (ValueError, "table", {"table": 5}),
        (ValueError, "synchronous", {"synchronous": "OFF"}),
        (ValueError, "timeout", {"timeout": 0}),
        (ValueError, "timeout", {"timeout": float("nan")}),
        (TypeError, "timeout", {"timeout": "1"}),
        (TypeError, "path", {"path": b"chat.db"}),
        (TypeError, "path", {"path": ""}),
    ]
    for error, name, settings in wrong:
        with pytest.raises(error, match=f"^{name} must"):
            SQLiteHistoryProvider(**{"path": "chat.db", **settings})


async def test_lost_race_names_session_and_store(path: Path) -> None:
    """The error of a lost race says which session, which store, and what to do."""
    provider, one, other = SQLiteHistoryProvider(path), AgentSession("s"), AgentSession("s")
    await provider.get_messages(one)
    await provider.add_messages(other, [user("a"), user("b")])
    with pytest.raises(HistoryError, match=r"another run added.*'s' in SQLite.*had 0 messages and has 2 now.*again$"):
        await provider.add_messages(one, [user("c")])
    await provider.aclose()


@pytest.mark.skipif(os.getuid() == 0 and not Path("/usr/bin/setpriv").exists(), reason="root may write everywhere")
def test_no_permission(tmp_path: Path) -> None:
    """A file that this process may not write is a HistoryError that says so."""
    path = tmp_path / "chat.db"
    asyncio.run(store(path, "a"))
    program = f"""
import asyncio, os
from agentpipe import AgentSession, HistoryError, SQLiteHistoryProvider, user
if os.getuid() == 0:
    for place in {[str(parent) for parent in tmp_path.parents if str(parent).startswith("/tmp/")]!r}:
        os.chmod(place, 0o755)
os.chmod({str(tmp_path)!r}, 0o555)
if os.getuid() == 0:
    os.setuid(65534)
try:
    asyncio.run(SQLiteHistoryProvider({str(path)!r}).add_messages(AgentSession("s"), [user("b")]))
except HistoryError as error:
    print(error)
"""
    [line] = run(program)
    assert "may" in line
    os.chmod(tmp_path, 0o755)
