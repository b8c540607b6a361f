"""kill -9 at every step of a run, on SQLite and on PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentpipe import AgentSession, FunctionCallContent, FunctionResultContent
from tests.history.killed import store_of

ROOT = Path(__file__).parent.parent.parent


def run(store: str, effects: Path, kill_at: int, prompt: str = "Pay.") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.history.killed", store, str(effects), str(kill_at), prompt],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_killed_at_every_step(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Killed at each step and started again: what was finished is there, and what was recorded is not done twice."""
    server: Any = request.getfixturevalue("postgres") if kind == "postgres" else None
    lived = 0
    for kill_at in range(1, 40):
        effects = tmp_path / f"effects-{kill_at}"
        store = str(tmp_path / f"{kill_at}.db") if server is None else server.dsn
        if server is not None:
            await _empty(store)
        first = run(store, effects, kill_at)
        if first.returncode == 0:
            lived = kill_at
            assert "all paid" in first.stdout
            break
        assert first.returncode == -signal.SIGKILL, first.stderr
        recorded = await _recorded(store)
        second = run(store, effects, 0, "Go on.")
        assert second.returncode == 0, second.stderr
        done = Counter(effects.read_text().split())
        # What was recorded before the death was not done again; what was not recorded may have been, once.
        assert all(done[order] == 1 for order in recorded)
        assert all(1 <= done[order] <= 2 for order in ("a", "b"))
        assert sum(done.values()) <= 3
        assert await _recorded(store) >= recorded
    assert lived > 10


async def _empty(dsn: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(dsn)
    tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    for table in tables:
        await connection.execute(f'DROP TABLE "{table["tablename"]}"')
    await connection.close()


async def _recorded(store: str) -> set[str]:
    """The orders whose payment is in the history; the history itself is closed."""
    history = store_of(store)
    messages = await history.get_messages(AgentSession("orders"))
    await history.aclose()
    calls = [c.call_id for m in messages for c in m.contents if isinstance(c, FunctionCallContent)]
    results = [c for m in messages for c in m.contents if isinstance(c, FunctionResultContent)]
    assert len(calls) == len(results)
    return {str(result.result).removeprefix("paid ") for result in results if not result.is_error}
