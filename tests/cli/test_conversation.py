"""A conversation on a terminal: what is shown, what is asked, and what Ctrl-C does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal
from tests.loopback import Request, Wire
from tests.strict_endpoint import StrictEndpoint

CALL = {"tool_calls": [("add", {"a": 1, "b": 2})]}


class SlowEndpoint(StrictEndpoint):
    """Begins to answer "hang", and never goes on."""

    async def handle(self, request: Request, wire: Wire) -> None:
        if request.body["messages"][-1]["content"] == "hang":
            await wire.begin()
            await wire.packet(b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"Well"}}]}\n\n')
            await asyncio.Event().wait()
        await super().handle(request, wire)


def chat(endpoint: StrictEndpoint, *arguments: str, desk: Path, **env: str) -> Terminal:
    return Terminal("chat", *arguments, "--base-url", endpoint.url, "--model", "m", cwd=desk, env=env)


async def test_conversation_goes_on_in_one_session(desk: Path) -> None:
    """Without a prompt on a terminal it is a conversation: the second question knows the first; Ctrl-D ends it."""
    async with StrictEndpoint("Hello Ada.", "You are Ada.") as endpoint, chat(endpoint, desk=desk) as terminal:
        await terminal.until("> ")
        terminal.type("I am Ada.\n")
        await terminal.until("Hello Ada.")
        await terminal.until("> ")
        terminal.type("\n")
        await terminal.until("> ")
        terminal.type("Who am I?\n")
        await terminal.until("You are Ada.")
        await terminal.until("> ")
        terminal.type("\x04")
        assert await terminal.ended() == 0
    said = [message["content"] for message in endpoint.bodies[1]["messages"]]
    assert said == ["I am Ada.", "Hello Ada.", "Who am I?"]


@pytest.mark.parametrize("plain", [False, True], ids=["rich", "NO_COLOR"])
async def test_calls_are_shown_on_a_terminal(desk: Path, plain: bool) -> None:
    """Each call is shown with its arguments, its result and how long it took; without colour where NO_COLOR is set."""
    env = {"NO_COLOR": "1"} if plain else {}
    async with (
        StrictEndpoint(CALL, "It is 3.") as endpoint,
        chat(endpoint, "1+2?", "--tool", "desk_tools:add", desk=desk, **env) as terminal,
    ):
        await terminal.until("add(a=1, b=2)")
        await terminal.until("← 3 (")
        await terminal.until(" s)")
        await terminal.until("It is 3.")
        assert await terminal.ended() == 0
    assert ("\x1b[" in terminal.shown) is not plain


async def test_result_cannot_steer_the_terminal(desk: Path) -> None:
    """Escape sequences in what a tool says are not passed on to the terminal."""
    async with (
        StrictEndpoint({"tool_calls": [("fail", {})]}, "No.") as endpoint,
        chat(endpoint, "hi", "--tool", "desk_tools:fail", desk=desk, NO_COLOR="1") as terminal,
    ):
        await terminal.until("the shelf is")
        assert await terminal.ended() == 0
    assert "\x1b" not in terminal.shown


async def test_ctrl_c_cancels_the_run_not_the_conversation(desk: Path) -> None:
    """Ctrl-C while the model answers breaks that answer off; the conversation goes on, and at the prompt it ends."""
    async with SlowEndpoint("Still here.") as endpoint, chat(endpoint, desk=desk) as terminal:
        await terminal.until("> ")
        terminal.type("hang\n")
        await terminal.until("Well")
        terminal.type("\x03")
        await terminal.until("interrupted")
        await terminal.until("> ")
        terminal.type("hello?\n")
        await terminal.until("Still here.")
        await terminal.until("> ")
        terminal.type("\x03")
        assert await terminal.ended() == 0
    assert "Traceback" not in terminal.shown
    assert endpoint.refused == []


async def test_ctrl_c_ends_a_single_question_with_130(desk: Path) -> None:
    """Ctrl-C in a single question ends the command with 130, closes the connection and shows no traceback."""
    async with SlowEndpoint() as endpoint, chat(endpoint, "hang", desk=desk) as terminal:
        await terminal.until("Well")
        terminal.type("\x03")
        assert await terminal.ended() == 130
        await endpoint.until_open(0)
    assert "Traceback" not in terminal.shown


@pytest.mark.parametrize(("typed", "result"), [("y", "deleted /tmp/x"), ("n", None), ("", None)])
async def test_approval_is_asked_on_the_terminal(desk: Path, typed: str, result: str | None) -> None:
    """A call that needs approval is asked about; only a yes runs it."""
    call = {"tool_calls": [("delete", {"path": "/tmp/x"})]}
    async with (
        StrictEndpoint(call, "Done.") as endpoint,
        chat(endpoint, "Tidy up.", "--tool", "desk_tools:delete", desk=desk) as terminal,
    ):
        await terminal.until("run delete({'path': '/tmp/x'})? [y/N] ")
        terminal.type(f"{typed}\n")
        await terminal.until("Done.")
        assert await terminal.ended() == 0
    told = endpoint.bodies[1]["messages"][-1]["content"]
    assert (told == result) if result else ("deleted" not in told)


async def test_ctrl_c_at_an_approval_cancels_the_run(desk: Path) -> None:
    """Ctrl-C while a question is asked is no answer: the run is over, and the conversation goes on."""
    call = {"tool_calls": [("delete", {"path": "/tmp/x"})]}
    async with (
        StrictEndpoint(call, "Fine.") as endpoint,
        chat(endpoint, "--tool", "desk_tools:delete", desk=desk) as terminal,
    ):
        await terminal.until("> ")
        terminal.type("Tidy up.\n")
        await terminal.until("[y/N] ")
        terminal.type("\x03")
        await terminal.until("interrupted")
        await terminal.until("> ")
        terminal.type("Leave it.\n")
        await terminal.until("Fine.")
        await terminal.until("> ")
        terminal.type("\x04")
        assert await terminal.ended() == 0
    assert endpoint.refused == []


async def test_question_of_a_tool_is_answered_on_the_terminal(desk: Path) -> None:
    """What a tool asks is asked on the terminal, and what is typed is its answer."""
    async with (
        StrictEndpoint({"tool_calls": [("which", {})]}, "So be it.") as endpoint,
        chat(endpoint, "hi", "--tool", "desk_tools:which", desk=desk) as terminal,
    ):
        await terminal.until("Which one?")
        terminal.type("the red one\n")
        await terminal.until("So be it.")
        assert await terminal.ended() == 0
    assert endpoint.bodies[1]["messages"][-1]["content"] == "you said the red one"


async def test_ctrl_c_does_not_wait_for_a_tool_that_cannot_be_stopped(desk: Path) -> None:
    """A tool that blocks its thread is left behind: Ctrl-C ends the command with 130 before the tool is done."""
    async with (
        StrictEndpoint({"tool_calls": [("slow", {})]}) as endpoint,
        chat(endpoint, "hi", "--tool", "desk_tools:slow", desk=desk) as terminal,
    ):
        await terminal.until("SLEEPING")
        terminal.type("\x03")
        assert await terminal.ended() == 130
    assert not (desk / "finished").exists()
    assert "Traceback" not in terminal.shown
