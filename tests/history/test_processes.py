"""Several processes write one session at once, and some of them are killed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from agentpipe import AgentSession
from agentpipe._records import new_id
from tests.history.writer import open_store, turn_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """A kind of store, and where it is."""
    if request.param == "sqlite":
        return "sqlite", str(tmp_path / "chat.db")
    server = request.getfixturevalue(request.param)
    return request.param, server.dsn if request.param == "postgres" else server.url


def start(place: tuple[str, str], session: AgentSession, name: str, turns: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.history.writer", *place, session.id, name, str(turns)],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def finish(writer: subprocess.Popen[str]) -> None:
    said, _ = writer.communicate(timeout=120)
    assert writer.returncode == 0, said


def kill_after(writer: subprocess.Popen[str], lines: int) -> None:
    """Kill ``writer`` once it has said so many lines: before, in or after an append."""
    assert writer.stdout is not None
    for _ in range(lines):
        assert writer.stdout.readline(), "the writer ended by itself"
    writer.kill()
    writer.wait()
    writer.stdout.close()


async def turns_in(place: tuple[str, str], session: AgentSession) -> list[tuple[str, int]]:
    """The turns in the order in which they are stored; each must be whole, in one piece and there once."""
    provider = open_store(*place)
    stored = list(await provider.get_messages(AgentSession(session.id)))
    await provider.aclose()
    found = []
    for start in range(0, len(stored), 3):
        name, turn, _ = stored[start].text.split()
        assert stored[start : start + 3] == turn_of(name, int(turn))
        found.append((name, int(turn)))
    assert len(set(found)) == len(found)
    return found


async def test_writers_at_once(place: tuple[str, str]) -> None:
    """Four processes that write at once leave every turn, each whole, once and in its writer's order."""
    session = AgentSession(new_id("s"))
    for writer in [start(place, session, name, 15) for name in "abcd"]:
        finish(writer)
    found = await turns_in(place, session)
    for name in "abcd":
        assert [turn for writer, turn in found if writer == name] == list(range(15))


async def test_killed_writers(place: tuple[str, str]) -> None:
    """A process that is killed again and again beside another leaves whole turns only, and none twice."""
    session, chance = AgentSession(new_id("s")), random.Random(5)
    steady = start(place, session, "steady", 60)
    for _ in range(10):
        kill_after(start(place, session, "killed", 10_000), chance.randint(1, 12))
        found = await turns_in(place, session)
        for name in ("steady", "killed"):
            mine = [turn for writer, turn in found if writer == name]
            assert mine == list(range(len(mine)))
    finish(steady)
    killed = sum(name == "killed" for name, _ in await turns_in(place, session))
    finish(start(place, session, "killed", killed + 2))
    found = await turns_in(place, session)
    assert [turn for name, turn in found if name == "killed"] == list(range(killed + 2))
    assert [turn for name, turn in found if name == "steady"] == list(range(60))
