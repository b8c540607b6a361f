"""One line in the log for each run of an agent."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

from agentpipe._base_agent import BaseAgent, DelegatingAgent
from agentpipe._request import ChatRequest
from agentpipe._responses import ChatResponseUpdate
from agentpipe._waist import closing
from agentpipe.layers.logging import CallLog, Redact


class LoggingAgent(DelegatingAgent):
    """Logs one line for each run: who ran in which session, how many rounds and calls it took, and how it ended.

    The line holds no content; with the logger at DEBUG, the input and the answer are logged too, through ``redact``.

    Args:
        inner: The agent to run.
        logger: Where to; the logger "agentpipe.agent" by default.
        level: The level of the line, a number or a name. A run that fails is logged a WARNING at least.
        redact: What every text is passed through before it is logged.

    Raises:
        ValueError: There is no such level.
        TypeError: ``logger`` or ``redact`` is of the wrong kind.
    """

    def __init__(
        self,
        inner: BaseAgent,
        *,
        logger: logging.Logger | None = None,
        level: int | str = logging.INFO,
        redact: Redact | None = None,
    ) -> None:
        super().__init__(inner)
        self.level = level
        self._log = CallLog(logger or logging.getLogger("agentpipe.agent"), level, redact)

    async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Run as the agent inside does, and log it."""
        facts: dict[str, object] = {
            "agent": self.name,
            "session": request.session.id if request.session is not None else None,
            "streaming": request.streaming or None,
            "messages": len(request.messages),
        }
        async with closing(self._log.watch("run", facts, request, self.inner.respond(request))) as updates:
            async for update in updates:
                yield update
