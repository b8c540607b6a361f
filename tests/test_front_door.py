"""``import agentpipe``: what is there, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import agentpipe


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_every_name_is_there() -> None:
    """Every public name is there, and the list is sorted."""
    assert agentpipe.__all__ == sorted(agentpipe.__all__)
    for name in agentpipe.__all__:
        assert getattr(agentpipe, name) is not None, name
        assert name in dir(agentpipe)
    with pytest.raises(AttributeError, match="nonsense"):
        agentpipe.nonsense


def test_importing_loads_nothing_that_is_not_used() -> None:
    """Neither importing, nor making a client and an agent, loads the openai package, httpx2 or pydantic."""
    code = """
import sys
import agentpipe
agentpipe.Agent(agentpipe.OpenAIChatClient("m", base_url="http://127.0.0.1:9/v1", api_key="k"))
heavy = {"openai", "pydantic", "httpx", "httpx2", "tenacity", "rich", "asyncpg", "redis", "xllamacpp", "opentelemetry"}
print(sorted(heavy & set(sys.modules)))
"""
    assert run(code).strip() == "[]"


def test_the_version_is_there() -> None:
    """The installed distribution has a version, and the package is typed."""
    from importlib.metadata import version
    from importlib.resources import files

    assert version("agentpipe-chat")
    assert (files("agentpipe") / "py.typed").is_file()
