"""The types of the public face, as two type checkers see them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_mypy_agrees() -> None:
    """mypy --strict finds every promise of tests/typing/api.py kept, and every error that has to be one."""
    command = [sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", "tests/typing/api.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_pyright_agrees() -> None:
    """So does pyright."""
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "tests/typing/api.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
