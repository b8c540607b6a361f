from __future__ import annotations

from pathlib import Path

import pytest

TOOLS = '''
import time
from agentpipe import ToolContext, ToolError, tool

def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b

def fail() -> str:
    """Fail."""
    raise ToolError("the shelf is\\x1b[31m empty")

@tool(requires_approval=True)
def delete(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"

def which(ctx: ToolContext) -> str:
    """Ask which one."""
    return f"you said {ctx.interrupt('Which one?')}"

@tool(name="add")
def plus(a: int, b: int) -> int:
    return a + b

def variadic(*numbers: int) -> int:
    return sum(numbers)

def slow() -> str:
    """Take long."""
    print("SLEEPING", flush=True)
    time.sleep(30)
    open("finished", "w").close()
    return "done"

number = 3
'''


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A directory with a module of tools in it, to run the command in."""
    (tmp_path / "desk_tools.py").write_text(TOOLS)
    return tmp_path
