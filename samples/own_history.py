"""A history provider of one's own: two methods. Here: one file of JSON lines per session."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from agentpipe import Agent, AgentSession, HistoryError, HistoryProvider, Message
from agentpipe.testing import ScriptedChatClient


class JsonLinesHistoryProvider(HistoryProvider):
    """Keeps messages in ``<directory>/<hash of the session's id>.jsonl``; for one process at a time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    async def get_messages(self, session: AgentSession) -> Sequence[Message]:
        path = self._path(session)
        return [Message.model_validate_json(line) for line in path.read_bytes().splitlines()] if path.exists() else []

    async def add_messages(self, session: AgentSession, messages: Sequence[Message]) -> None:
        stored = {message.message_id: message for message in await self.get_messages(session)}
        for message in map(Message.with_id, messages):
            stored.setdefault(message.message_id, message)
        path = self._path(session)
        new = path.with_suffix(".new")
        try:
            new.write_text("".join(message.model_dump_json() + "\n" for message in stored.values()), "utf-8")
            new.replace(path)  # all of it or nothing, whenever the process may end
        except OSError as error:
            raise HistoryError(f"the history in {self.directory} cannot be written: {error}") from error

    def _path(self, session: AgentSession) -> Path:
        # An id may come from anywhere: as it stands, "../x" would be a file in another directory.
        return self.directory / f"{hashlib.sha256(session.id.encode('utf-8', 'surrogatepass')).hexdigest()}.jsonl"


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
