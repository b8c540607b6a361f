"""Every code block of the README runs, and what it claims is so."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentpipe
from agentpipe import Agent, AgentSession
from agentpipe.testing import ScriptedChatClient
from tests.models import cooperative
from tests.strict_endpoint import StrictEndpoint

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.S)


@pytest.fixture
def endpoint() -> Iterator[StrictEndpoint]:
    """An endpoint in a thread of its own, since the README's code has event loops of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = StrictEndpoint(*[cooperative] * 200)
    asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(10)
    yield server
    asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_the_python_blocks_run_one_after_the_other(
    endpoint: StrictEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Python blocks run in their order, against a strict endpoint; the printed tree is the one that is shown."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
    monkeypatch.setenv("OPENAI_API_KEY", "test-key")
    names: dict[str, Any] = {"__name__": "readme"}
    blocks = [text for kind, text in BLOCKS if kind == "python"]
    exec(compile(blocks[0], "README.md", "exec"), names)
    printed = capsys.readouterr().out
    shown = next(text for kind, text in BLOCKS if kind == "" and text.startswith("Agent("))
    host = f", base_url='{endpoint.url}'"
    assert shown.strip() in printed.replace(host, "")
    monkeypatch.delenv("OPENAI_BASE_URL")
    monkeypatch.delenv("OPENAI_API_KEY")  # only the first block needs a key, or another model there
    for block in blocks[1:]:
        exec(compile(block, "README.md", "exec"), names)
    assert not endpoint.refused


def test_the_store_of_the_readme_keeps_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store that the README shows passes the tests that the README says to run it through, and they are not none."""
    blocks = [text for kind, text in BLOCKS if kind == "python" and "DictHistory" in text]
    names: dict[str, Any] = {"__name__": "readme", "client": ScriptedChatClient("Hello."), "asyncio": asyncio}
    names |= {"Agent": Agent, "AgentSession": AgentSession}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    contract = names["TestDictHistory"]()
    tests = [name for name in dir(contract) if name.startswith("test_") and getattr(contract, name) is not None]
    assert len(tests) > 10
    for name in tests:
        getattr(contract, name)()


LAYERS = re.findall(r"[|,] `(\w+\([^`]+\))`", README[README.index("| layer | what") : README.index("## What the loop")])


@pytest.mark.parametrize("text", LAYERS)
def test_layers_are_made_as_the_readme_says(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call in the README's table of layers makes that layer."""
    monkeypatch.chdir(tmp_path)

    async def decide(request: object) -> object:
        return request

    clients = {name: ScriptedChatClient() for name in ("inner", "client", "other")}
    inner: Any = Agent(ScriptedChatClient()) if "Agent(" in text else clients["inner"]
    names: dict[str, Any] = {**vars(agentpipe), **clients, "inner": inner, "choose": lambda request: "small"}
    for name in agentpipe.__all__:
        names[name] = getattr(agentpipe, name)
    made = eval(text, names | {"decide": decide})  # noqa: S307
    assert type(made).__name__ == text.partition("(")[0]


def test_every_layer_is_in_the_readme() -> None:
    """The README's table names every layer that there is."""
    told = {text.partition("(")[0] for text in LAYERS}
    layers = {
        name
        for name in agentpipe.__all__
        if name.endswith(("ChatClient", "Agent")) and getattr(agentpipe, name).__module__.startswith(LAYER_PACKAGES)
    }
    assert told == layers


LAYER_PACKAGES = ("agentpipe.layers.", "agentpipe.agent_layers.")


def test_code_comes_before_line_30() -> None:
    """A reader sees code before line 30."""
    lines = README.split("\n")
    assert lines.index("```python") < 30


@pytest.mark.usefixtures("local_weights")
def test_the_first_command_talks_to_a_real_model() -> None:
    """The README's first command, after its installation: a real model calls the tool and answers."""
    command = next(text for kind, text in BLOCKS if kind == "sh")
    words = shlex.split(command.partition("&&")[2])
    done = subprocess.run(
        [sys.executable, "-m", "agentpipe.cli", *words[1:], "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"type": "function_call"' in done.stdout
    assert '"stop_reason": "answer"' in done.stdout
