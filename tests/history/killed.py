"""The process that is killed: one run of an agent on a real store, which kills itself with SIGKILL at a given point.

    python -m tests.history.killed STORE EFFECTS KILL_AT [PROMPT]

It counts the points at which something begins or ends (a model call, a tool, a write to the store), and dies at the one
with the number KILL_AT (0: lives). Every side effect of the tool is a line in the file EFFECTS.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentpipe import (
    Agent,
    AgentSession,
    ChatRequest,
    HistoryProvider,
    Message,
    PostgresHistoryProvider,
    SQLiteHistoryProvider,
)
from agentpipe.testing import ScriptedChatClient, call
from tests.scenes import assert_closed

points = 0


def point(kill_at: int) -> None:
    """Something begins or ends here."""
    global points
    points += 1
    if points == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)


class Watched(HistoryProvider):
    """A store with a point before and after each write."""

    def __init__(self, inner: HistoryProvider, kill_at: int) -> None:
        self.inner = inner
        self.kill_at = kill_at

    async def get_messages(self, session: AgentSession) -> Sequence[Message]:
        return await self.inner.get_messages(session)

    async def add_messages(self, session: AgentSession, messages: Sequence[Message]) -> None:
        point(self.kill_at)
        await self.inner.add_messages(session, messages)
        point(self.kill_at)

    async def aclose(self) -> None:
        await self.inner.aclose()


def store_of(name: str) -> HistoryProvider:
    return PostgresHistoryProvider(name) if name.startswith("postgres") else SQLiteHistoryProvider(name)


async def main(store: str, effects: Path, kill_at: int, prompt: str) -> None:
    async def pay(order: str) -> str:
        point(kill_at)
        with effects.open("a") as file:
            file.write(f"{order}\n")
            file.flush()
            os.fsync(file.fileno())
        point(kill_at)
        return f"paid {order}"

    def model(request: ChatRequest) -> Any:
        """Pays two orders in two rounds, unless the transcript shows that they are paid."""
        assert_closed(request)
        point(kill_at)
        paid = {
            str(c.result).removeprefix("paid ")
            for m in request.messages
            for c in m.contents
            if c.type == "function_result"
        }  # type: ignore[attr-defined]
        due = [order for order in ("a", "b") if order not in paid]
        return [call("pay", {"order": due[0]})] if due else "all paid"

    history = Watched(store_of(store), kill_at)
    agent = Agent(ScriptedChatClient(*[model] * 5), tools=[pay], history_provider=history)
    response = await agent.run(prompt, session=AgentSession("orders"))
    await agent.aclose()
    print(points, response.text)


if __name__ == "__main__":
    given = sys.argv[4] if len(sys.argv) > 4 else "Pay."
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), given))
