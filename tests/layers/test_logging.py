"""LoggingChatClient."""

from __future__ import annotations

import asyncio
import logging
import re
from functools import partial
from typing import Any

import pytest

from agentpipe import (
    Agent,
    ChatOptions,
    DataContent,
    FunctionInvokingChatClient,
    LoggingChatClient,
    TransportError,
    UsageDetails,
    pipeline,
    user,
)
from agentpipe.testing import ScriptedChatClient, call
from tests.conftest import ask


def look(place: str) -> str:
    """Look at a place."""
    return f"{place} is secret"


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    return [re.sub(r"seconds=\d+\.\d{3}", "seconds=T", r.getMessage()) for r in caplog.records if r.levelno >= level]


async def test_one_line_a_call(streaming: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A call is one line, of which model, how much, how it ended and how long it took; no content."""
    caplog.set_level(logging.INFO)
    client = ScriptedChatClient("a secret", usage=UsageDetails(12, 34), model="gpt x")
    logged = LoggingChatClient(client)
    await ask(logged, "my secret", streaming, options=ChatOptions(model="gpt", tools=[look]))
    streamed = "streaming=True " if streaming else ""
    assert lines(caplog) == [
        f"chat model=gpt {streamed}messages=1 tools=1 answered_by='gpt x' finish=stop "
        "input_tokens=12 output_tokens=34 seconds=T"
    ]
    assert caplog.records[0].name == "agentpipe.chat"


async def test_content_only_at_debug_and_redacted(streaming: bool, caplog: pytest.LogCaptureFixture) -> None:
    """With the logger at DEBUG every text is logged, through ``redact``."""
    caplog.set_level(logging.DEBUG)
    client = ScriptedChatClient("the secret", call("look", place="secret"))
    logged = LoggingChatClient(client, redact=lambda text: text.replace("secret", "***"))
    await ask(logged, "a secret", streaming)
    await ask(logged, user("go", DataContent(b"abc", "image/png")), streaming)
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    assert told[:2] == ["chat request user: a ***", "chat response assistant: the ***"]
    assert told[2] == "chat request user: go <image/png, 3 bytes>"
    assert "look" in told[3]
    assert "secret" not in "".join(told)


async def test_a_redact_that_fails_fails_no_call(caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be redacted is not logged, and the answer comes all the same."""
    caplog.set_level(logging.DEBUG)

    def broken(text: str) -> str:
        raise KeyError(text)

    response = await LoggingChatClient(ScriptedChatClient("a secret"), redact=broken).get_response("my secret")
    assert response.text == "a secret"
    assert caplog.records[0].getMessage() == "chat request user: (9 characters, left out: redact raised KeyError)"
    assert "secret" not in caplog.text


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
async def test_a_failed_call_is_a_warning(streaming: bool, level: int, caplog: pytest.LogCaptureFixture) -> None:
    """A call that fails is logged with the class of its error, at WARNING, without its text."""
    caplog.set_level(logging.INFO)
    with pytest.raises(TransportError):
        await ask(LoggingChatClient(ScriptedChatClient(TransportError("secret")), level=level), "hi", streaming)
    assert lines(caplog, logging.WARNING) == [
        f"chat model=scripted {'streaming=True ' if streaming else ''}messages=1 error=TransportError seconds=T"
    ]


async def test_a_call_that_is_closed_or_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    """A consumer that stops, and a task that is cancelled, are no failures, and the stream under it is closed."""
    caplog.set_level(logging.INFO)
    started = asyncio.Event()

    async def waits(request: Any) -> str:
        started.set()
        await asyncio.Event().wait()
        return ""

    client = ScriptedChatClient("a long answer", waits)
    logged = LoggingChatClient(client)
    async with logged.stream("hi") as stream:
        await anext(stream)
    task = asyncio.create_task(logged.get_response("hi"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [line.split("error=")[1] for line in lines(caplog)] == ["closed seconds=T", "cancelled seconds=T"]
    assert client.open == 0
    assert {record.levelno for record in caplog.records} == {logging.INFO}


async def test_above_and_below_the_loop(streaming: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Below the loop there is a line for each model call, above it one for the run, with rounds and calls."""
    caplog.set_level(logging.INFO)
    above = partial(LoggingChatClient, logger=logging.getLogger("above"))
    client = ScriptedChatClient(call("look", place="a"), "done")
    stack = pipeline(above, FunctionInvokingChatClient, LoggingChatClient, client)
    await ask(Agent(stack, tools=[look]), "go", streaming)
    assert [record.name for record in caplog.records] == ["agentpipe.chat", "agentpipe.chat", "above"]
    assert "finish=tool_calls calls=1" in lines(caplog)[0]
    assert "stop=answer rounds=1 calls=1" in lines(caplog)[2]


async def test_a_name_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """What an endpoint says stays within its line."""
    caplog.set_level(logging.INFO)
    await LoggingChatClient(ScriptedChatClient("x", model="a\nchat model=b")).get_response("hi")
    assert "\n" not in caplog.records[0].getMessage()


def test_settings() -> None:
    """A logging layer prints its level, and refuses what cannot be one."""
    client = ScriptedChatClient()
    assert repr(LoggingChatClient(client)) == "LoggingChatClient()"
    assert repr(LoggingChatClient(client, level="DEBUG")) == "LoggingChatClient(level='DEBUG')"
    with pytest.raises(ValueError, match="level must be one of logging's levels"):
        LoggingChatClient(client, level="loud")
    with pytest.raises(TypeError, match=r"logger must be a logging\.Logger"):
        LoggingChatClient(client, logger="here")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="redact must be a function"):
        LoggingChatClient(client, redact="email")  # type: ignore[arg-type]
