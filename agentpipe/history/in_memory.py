"""History in the session itself."""

from __future__ import annotations

from collections.abc import Sequence

from agentpipe._messages import Message
from agentpipe._providers import HistoryProvider
from agentpipe._session import AgentSession


class InMemoryHistoryProvider(HistoryProvider):
    """Keeps the messages in ``session.messages``: they live, and are stored, with the session."""

    async def get_messages(self, session: AgentSession) -> Sequence[Message]:
        """All messages of ``session``, oldest first."""
        return list(session.messages)

    async def add_messages(self, session: AgentSession, messages: Sequence[Message]) -> None:
        """Put ``messages`` after the others; one whose id is there already is passed over.

        A message without an id gets one, and is a new message each time.
        """
        known = {message.message_id for message in session.messages}
        for message in messages:
            if message.message_id is None or message.message_id not in known:
                session.messages.append(message.with_id())
                known.add(message.message_id)

    async def delete_messages(self, session: AgentSession) -> None:
        """Delete all messages of ``session``."""
        session.messages.clear()
