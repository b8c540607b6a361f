"""A history provider of one's own: two methods. Here: one file of JSON lines per session."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from agentpipe import Agent, AgentSession, HistoryError, HistoryProvider, Message
from agentpipe.testing import ScriptedChatClient


class JsonLinesHistoryProvider(HistoryProvider):
    """Appends messages to ``<directory>/<session id>.jsonl``; for one process at a time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    async def get_messages(self, session: AgentSession) -> Sequence[Message]:
        path = self._path(session)
        if not path.exists():
            return []
        return [Message.model_validate_json(line) for line in path.read_bytes().splitlines()]

    async def add_messages(self, session: AgentSession, messages: Sequence[Message]) -> None:
        stored = {message.message_id for message in await self.get_messages(session)}
        new = [message for message in messages if message.message_id not in stored]
        try:
            with self._path(session).open("a", encoding="utf-8") as file:
                file.write("".join(message.model_dump_json() + "\n" for message in new))
        except OSError as error:
            raise HistoryError(f"the history in {self.directory} cannot be written: {error}") from error

    def _path(self, session: AgentSession) -> Path:
        return self.directory / f"{session.id}.jsonl"


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        history = JsonLinesHistoryProvider(Path(directory))
        session = AgentSession("ada")
        await Agent(ScriptedChatClient("Hello, Ada."), history_provider=history).run("I am Ada.", session=session)
        # Another process would get here with nothing but the session's id.
        agent = Agent(ScriptedChatClient("You said that you are Ada."), history_provider=history)
        print(await agent.run("Who am I?", session=AgentSession("ada")))
        for message in await history.get_messages(session):
            print(f"{message.role}: {message.text}")


if __name__ == "__main__":
    asyncio.run(main())
