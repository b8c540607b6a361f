"""LoggingAgent."""

from __future__ import annotations

import logging
import re

import pytest

from agentpipe import Agent, AgentSession, LoggingAgent, TransportError, UsageDetails
from agentpipe.testing import ScriptedChatClient, call
from tests.conftest import ask


def look(place: str) -> str:
    """Look at a place."""
    return place


async def test_one_line_a_run(streaming: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A run is one line: who, in which session, rounds, calls, usage, why it ended, how long it took."""
    caplog.set_level(logging.INFO)
    client = ScriptedChatClient(call("look", place="secret"), "secret", usage=UsageDetails(10, 2))
    agent = LoggingAgent(Agent(client, name="Ada", tools=[look]))
    await ask(agent, "a secret", streaming, session=AgentSession("s1"))
    line = re.sub(r"seconds=\d+\.\d{3}", "seconds=T", caplog.records[0].getMessage())
    assert line == (
        f"run agent=Ada session=s1 {'streaming=True ' if streaming else ''}messages=1 answered_by=scripted finish=stop "
        "stop=answer rounds=1 calls=1 input_tokens=20 output_tokens=4 seconds=T"
    )
    assert len(caplog.records) == 1


async def test_a_failed_run_is_a_warning_and_content_comes_at_debug(
    streaming: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A failure is told by its class; at DEBUG there is the input too, redacted."""
    caplog.set_level(logging.DEBUG)
    agent = LoggingAgent(Agent(ScriptedChatClient(TransportError("secret"))), redact=lambda text: "***")
    with pytest.raises(TransportError):
        await ask(agent, "a secret", streaming)
    assert [record.levelname for record in caplog.records] == ["DEBUG", "WARNING"]
    assert caplog.records[0].getMessage() == "run request user: ***"
    assert "error=TransportError" in caplog.records[1].getMessage()


def test_an_agent_layer_keeps_the_name() -> None:
    """The layer is found, printed, and goes by the name of its agent."""
    agent = LoggingAgent(Agent(ScriptedChatClient(), name="Ada"), level=logging.DEBUG)
    assert agent.name == "Ada"
    assert agent.find(LoggingAgent) is agent
    assert repr(agent) == "LoggingAgent(level=10)"
    with pytest.raises(ValueError, match="level"):
        LoggingAgent(agent, level="loud")
