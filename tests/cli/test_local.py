"""The command on the real local model: structure only, never prose."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.terminal import ROOT, run
from tests.local.weights import real_weights


async def test_the_first_command_of_the_readme() -> None:
    """The main job: the local model is asked, calls the tool, and answers; every step is an event."""
    real_weights()
    question = "What should I wear in Suzhou today?"
    ended = await run("chat", "--local", "--tool", "samples.weather:get_weather", "--json", question, cwd=ROOT)
    assert (ended.code, ended.err) == (0, "")
    events = [json.loads(line) for line in ended.out.splitlines()]
    assert [event["type"] for event in events[:2]] == ["function_call", "function_result"]
    assert events[0]["name"] == "get_weather"
    assert events[0]["call_id"] == events[1]["call_id"]
    assert events[-1]["type"] == "response"
    assert events[-1]["stop_reason"] == "answer"
    assert events[-1]["usage"]["total_tokens"] > 0


async def test_no_endpoint_means_the_local_model_and_says_so(tmp_path: Path) -> None:
    """Without any endpoint the local model answers, and one line on stderr says so."""
    real_weights()
    ended = await run("chat", "Say hello.", cwd=tmp_path)
    assert ended.code == 0
    assert ended.out.strip()
    assert ended.err.startswith("agentpipe: no endpoint is configured")
    assert "local model" in ended.err.splitlines()[0]


async def test_weights_that_cannot_be_had_are_told(tmp_path: Path) -> None:
    """Where the weights cannot be fetched, one line says why and what to do, the code is 1, and nothing is left."""
    env = {"AGENTPIPE_CACHE": str(tmp_path / "cache"), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    ended = await run("chat", "--local", "hi", cwd=tmp_path, env=env)
    assert (ended.code, ended.out) == (1, "")
    assert "AGENTPIPE_LOCAL_MODEL" in ended.err.splitlines()[-1]
    assert list((tmp_path / "cache").iterdir()) == []


async def test_own_model_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    """A path in AGENTPIPE_LOCAL_MODEL at which there is nothing ends with 2."""
    ended = await run("chat", "--local", "hi", cwd=tmp_path, env={"AGENTPIPE_LOCAL_MODEL": str(tmp_path / "no.gguf")})
    assert (ended.code, ended.out) == (2, "")
    assert "there is no model at" in ended.err
