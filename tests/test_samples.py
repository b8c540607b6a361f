"""Every sample runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SAMPLES = sorted(
    path.stem for path in (ROOT / "samples").glob("*.py") if path.stem not in ("__init__", "weather", "approvals")
)


def run(name: str, *arguments: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", f"samples.{name}", *arguments],
        cwd=cwd, capture_output=True, text=True, timeout=240, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_runs(name: str, tmp_path: Path) -> None:
    """A sample runs without a network, and has something to say."""
    assert run(name, cwd=tmp_path).strip()


@pytest.mark.parametrize(
    ("decision", "result"), [("approve", "/tmp/old is gone"), ("reject", "The user declined. Keep it.")]
)
def test_approvals_survive_a_restart_of_the_process(decision: str, result: str, tmp_path: Path) -> None:
    """One process asks and ends; another one decides, and the run goes on."""
    asked = run("approvals", cwd=tmp_path)
    assert "may I run delete" in asked
    decided = run("approvals", decision, cwd=tmp_path)
    assert f"result: {result}" in decided
    assert ("(deleting" in decided) is (decision == "approve")


@pytest.mark.usefixtures("local_weights")
def test_the_quickstart_runs_on_the_local_model() -> None:
    """The quickstart prints its pipeline and an answer of a real model."""
    printed = run("weather")
    assert "LocalChatClient" in printed
    assert len(printed.strip().split("\n")) >= 5
