"""The benchmarks run, and every peer gives the right answers; no time is asserted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.benchmarks.__main__ import SCENARIOS
from tests.benchmarks.peers import PEERS

ROOT = Path(__file__).parents[2]


def test_the_benchmarks_run(tmp_path: Path) -> None:
    """One command measures every scenario on every peer, and writes a table and a plot."""
    command = [sys.executable, "-m", "tests.benchmarks", "--quick", "--repeats", "1", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    beside, alone = done.stdout.strip().split("\n\n")
    lines = beside.split("\n")
    assert len(lines) == 2 + len(SCENARIOS)
    assert all(name in lines[0] for name in PEERS)
    assert [line[2:5].strip() for line in alone.split("\n")[2:]] == ["S9", "S11", "S11", "S12", "S12", "a c"]
    assert (tmp_path / "results.svg").read_text().startswith("<svg")
