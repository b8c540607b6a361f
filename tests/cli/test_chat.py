"""One question: arguments, outputs and exit codes, against a strict endpoint on loopback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.terminal import run
from tests.strict_endpoint import StrictEndpoint

CALL = {"tool_calls": [("add", {"a": 1, "b": 2})]}


def at(endpoint: StrictEndpoint) -> tuple[str, ...]:
    return ("--base-url", endpoint.url, "--model", "m")


async def test_answer_goes_to_stdout_and_nothing_else(desk: Path) -> None:
    """A prompt is answered on stdout alone, streamed, and the command ends with 0."""
    async with StrictEndpoint("Good morning.") as endpoint:
        ended = await run("chat", "hello", *at(endpoint), "--instructions", "Be brief.", cwd=desk)
    assert (ended.code, ended.out, ended.err) == (0, "Good morning.\n", "")
    body = endpoint.bodies[0]
    assert [message["content"] for message in body["messages"]] == ["Be brief.", "hello"]
    assert body["stream"] is True
    assert body["model"] == "m"


@pytest.mark.parametrize("arguments", [(), ("-",)], ids=["piped", "dash"])
async def test_prompt_from_stdin(desk: Path, arguments: tuple[str, ...]) -> None:
    """What is piped in is the prompt, with a '-' or without any."""
    async with StrictEndpoint("ok") as endpoint:
        ended = await run("chat", *arguments, *at(endpoint), cwd=desk, stdin="two\nlines\n")
    assert (ended.code, ended.out) == (0, "ok\n")
    assert endpoint.bodies[0]["messages"][0]["content"] == "two\nlines\n"


async def test_tool_of_the_current_directory_is_called(desk: Path) -> None:
    """--tool takes a function of a module in the current directory; nothing is shown where stderr is no terminal."""
    async with StrictEndpoint(CALL, "It is 3.") as endpoint:
        ended = await run("chat", "1+2?", *at(endpoint), "--tool", "desk_tools:add", cwd=desk)
    assert (ended.code, ended.out, ended.err) == (0, "It is 3.\n", "")
    assert endpoint.bodies[1]["messages"][-1]["content"] == "3"
    assert "tool_choice" not in endpoint.bodies[0]


async def test_json_is_one_event_a_line(desk: Path) -> None:
    """--json writes text, calls, results and at last the response with its usage and stop reason, one object a line."""
    async with StrictEndpoint(CALL, "It is 3.") as endpoint:
        ended = await run("chat", "1+2?", *at(endpoint), "--tool", "desk_tools:add", "--json", cwd=desk)
    events = [json.loads(line) for line in ended.out.splitlines()]
    assert (ended.code, ended.err) == (0, "")
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["function_call", "function_result"]
    assert set(kinds[2:-1]) == {"text"}
    assert kinds[-1] == "response"
    assert (events[0]["name"], events[0]["arguments"]) == ("add", {"a": 1, "b": 2})
    assert (events[1]["call_id"], events[1]["result"]) == (events[0]["call_id"], 3)
    assert "".join(event["text"] for event in events[2:-1]) == events[-1]["text"] == "It is 3."
    assert events[-1]["usage"]["total_tokens"] == 30
    assert events[-1]["stop_reason"] == "answer"


@pytest.mark.parametrize("json_flag", [(), ("--json",)], ids=["text", "json"])
async def test_failed_run_is_one_line_and_1(desk: Path, json_flag: tuple[str, ...]) -> None:
    """A refusal of the endpoint is one clear line on stderr, no traceback, and exit code 1."""
    async with StrictEndpoint(404) as endpoint:
        ended = await run("chat", "hello", *at(endpoint), *json_flag, cwd=desk)
    assert ended.code == 1
    assert ended.err.startswith("agentpipe: ")
    assert ended.err.count("\n") == 1
    assert "404" in ended.err
    if json_flag:
        assert json.loads(ended.out)["type"] == "error"
    else:
        assert ended.out == ""


async def test_refusal_is_an_answer(desk: Path) -> None:
    """What a model says in refusal is shown as the answer that it is."""
    async with StrictEndpoint({"content": None, "refusal": "I will not."}) as endpoint:
        ended = await run("chat", "hello", *at(endpoint), cwd=desk)
    assert (ended.code, ended.out) == (0, "I will not.\n")


async def test_unreachable_endpoint_is_told(desk: Path) -> None:
    """Nobody at the URL: one line that names it, and exit code 1."""
    ended = await run("chat", "hello", "--base-url", "http://127.0.0.1:9/v1", "--model", "m", cwd=desk)
    assert ended.code == 1
    assert "http://127.0.0.1:9/v1" in ended.err
    assert ended.err.count("\n") == 1


async def test_endpoint_from_the_environment(desk: Path) -> None:
    """OPENAI_BASE_URL and OPENAI_MODEL configure the endpoint too."""
    async with StrictEndpoint("ok") as endpoint:
        ended = await run("chat", "hi", cwd=desk, env={"OPENAI_BASE_URL": endpoint.url, "OPENAI_MODEL": "m2"})
    assert (ended.code, endpoint.bodies[0]["model"]) == (0, "m2")


USAGE = [
    ((), "{chat,show}"),
    (("chat", "hi", "--nope"), "--nope"),
    (("chat", ""), "the prompt is empty"),
    (("chat", "-"), "the prompt is empty"),
    (("chat",), "the prompt is empty"),
    (("chat", "hi", "--local", "--model", "m"), "--local and --model"),
    (("chat", "hi", "--local", "--base-url", "http://127.0.0.1:1"), "--local and --base-url"),
    (("chat", "hi", "--base-url", "http://127.0.0.1:1"), "no model is given"),
    (("chat", "hi", "--base-url", "nonsense", "--model", "m"), "base_url must be the URL"),
    (("chat", "hi", "--tool", "add"), "'add' must be written as module:name"),
    (("chat", "hi", "--tool", "no_such_module:add"), "'no_such_module' cannot be imported"),
    (("chat", "hi", "--tool", "desk_tools:nope"), "there is no 'nope'"),
    (("chat", "hi", "--tool", "desk_tools:number"), "desk_tools:number cannot be a tool"),
    (("chat", "hi", "--tool", "desk_tools:variadic"), "desk_tools:variadic cannot be a tool"),
    (("chat", "hi", "--tool", "desk_tools:add", "--tool", "desk_tools:plus"), "two tools are named 'add'"),
    (("show", "desk_tools:number"), "neither an agent nor a chat client"),
    (("show", "desk_tools:nope"), "there is no 'nope'"),
]


@pytest.mark.parametrize(("arguments", "told"), USAGE, ids=[" ".join(case[0]) for case in USAGE])
async def test_wrong_usage_is_told_and_2(desk: Path, arguments: tuple[str, ...], told: str) -> None:
    """Wrong usage ends with 2 and says what is wrong, before anything is sent."""
    env = {} if "--base-url" in arguments or "--local" in arguments else {"OPENAI_API_KEY": "k", "OPENAI_MODEL": "m"}
    ended = await run(*arguments, cwd=desk, env=env)
    assert (ended.code, ended.out) == (2, "")
    assert told in ended.err
    assert "Traceback" not in ended.err


async def test_stdin_that_is_no_text_is_wrong_usage(desk: Path) -> None:
    """Bytes that are no text on stdin end with 2."""
    env = {"OPENAI_API_KEY": "k", "OPENAI_MODEL": "m", "PYTHONUTF8": "1"}
    ended = await run("chat", cwd=desk, stdin=b"\xff\xfe\xff", env=env)
    assert ended.code == 2
    assert "is no text" in ended.err


async def test_nobody_approves_where_nobody_sits(desk: Path) -> None:
    """A call that needs approval is rejected where there is no terminal, and stderr says so."""
    call = {"tool_calls": [("delete", {"path": "/tmp/x"})]}
    async with StrictEndpoint(call, "I was not allowed to.") as endpoint:
        ended = await run("chat", "Tidy up.", *at(endpoint), "--tool", "desk_tools:delete", cwd=desk)
    assert (ended.code, ended.out) == (0, "I was not allowed to.\n")
    assert "nobody to ask: run delete" in ended.err
    assert "deleted" not in endpoint.bodies[1]["messages"][-1]["content"]


async def test_question_of_a_tool_fails_where_nobody_sits(desk: Path) -> None:
    """A tool's question where there is no terminal ends the run with 1, rather than with a made-up answer."""
    async with StrictEndpoint({"tool_calls": [("which", {})]}) as endpoint:
        ended = await run("chat", "hi", *at(endpoint), "--tool", "desk_tools:which", cwd=desk)
    assert ended.code == 1
    assert "nobody is there to answer" in ended.err


async def test_reader_that_has_had_enough(desk: Path) -> None:
    """A reader that closes the pipe early (``| head``) gets no traceback."""
    import asyncio
    import os

    from tests.cli.terminal import COMMAND, environment

    async with StrictEndpoint("word " * 4000) as endpoint:
        reading, writing = os.pipe()
        os.close(reading)
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            "chat",
            "hi",
            *at(endpoint),
            cwd=desk,
            env=environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=writing,
            stderr=asyncio.subprocess.PIPE,
        )
        os.close(writing)
        _, err = await process.communicate()
    assert process.returncode == 1
    assert err == b""


async def test_version_and_help(desk: Path) -> None:
    """--version and --help end with 0 and load no endpoint."""
    assert (await run("--version", cwd=desk)).out.startswith("agentpipe ")
    assert "--tool" in (await run("chat", "--help", cwd=desk)).out


async def test_show_prints_the_tree_of_the_sample() -> None:
    """show prints the tree of an agent, and its Mermaid flowchart, without starting anything."""
    tree = await run("show", "samples.weather:agent")
    assert tree.code == 0
    assert tree.out.startswith("Agent(")
    assert "tools=['get_weather']" in tree.out
    assert "LocalChatClient(model='SmolLM2-135M-Instruct')" in tree.out
    chart = await run("show", "samples.weather:agent", "--mermaid")
    assert chart.out.startswith("flowchart TD")
    assert "asks again" in chart.out
