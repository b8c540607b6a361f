"""One line in the log for each call."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence

from agentpipe._client import ChatClient, DelegatingChatClient
from agentpipe._messages import Content, DataContent, Message, TextContent
from agentpipe._options import tools_of
from agentpipe._request import ChatRequest
from agentpipe._responses import ROUNDS, ChatResponse, ChatResponseUpdate, ResponseFolder
from agentpipe._telemetry import endpoint_attributes
from agentpipe._waist import closing

Redact = Callable[[str], str]


class LoggingChatClient(DelegatingChatClient):
    """Logs one line for each call: what was asked of which model, how it ended, and how long it took.

    Below the FunctionInvokingChatClient it logs each model call, above it each run. The line holds no content; with
    the logger at DEBUG, what is sent and what comes back is logged too, through ``redact``.

    Args:
        inner: The client to ask.
        logger: Where to; the logger "agentpipe.chat" by default.
        level: The level of the line, a number or a name. A call that fails is logged a WARNING at least.
        redact: What every text is passed through before it is logged.

    Raises:
        ValueError: There is no such level.
        TypeError: ``logger`` or ``redact`` is of the wrong kind.
    """

    def __init__(
        self,
        inner: ChatClient,
        *,
        logger: logging.Logger | None = None,
        level: int | str = logging.INFO,
        redact: Redact | None = None,
    ) -> None:
        super().__init__(inner)
        self.level = level
        self._log = CallLog(logger or logging.getLogger("agentpipe.chat"), level, redact)

    async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Answer as the client inside does, and log it."""
        facts: dict[str, object] = {
            "model": request.options.model or endpoint_attributes(self.inner, None)[1],
            "streaming": request.streaming or None,
            "messages": len(request.messages),
            "tools": len(tools_of(request.options)) or None,
        }
        async with closing(self._log.watch("chat", facts, request, self.inner.respond(request))) as updates:
            async for update in updates:
                yield update


class CallLog:
    """Writes the lines; shared with the agent layer."""

    def __init__(self, logger: logging.Logger, level: int | str, redact: Redact | None) -> None:
        if not isinstance(logger, logging.Logger):
            raise TypeError(f"logger must be a logging.Logger, not {type(logger).__name__}")
        if redact is not None and not callable(redact):
            raise TypeError(f"redact must be a function from text to text, not {type(redact).__name__}")
        self._logger = logger
        self._level = _level_of(level)
        self._redact: Redact = redact or str

    async def watch(
        self, what: str, facts: dict[str, object], request: ChatRequest, updates: AsyncIterator[ChatResponseUpdate]
    ) -> AsyncIterator[ChatResponseUpdate]:
        """Pass the updates on, and write the line when they end, however they end."""
        started, folder = time.perf_counter(), ResponseFolder()
        self._content(f"{what} request", request.messages)
        error: BaseException | None = None
        try:
            async with closing(updates) as inner:
                async for update in inner:
                    folder.add(update)
                    yield update
        except BaseException as raised:
            error = raised
            raise
        finally:
            response = folder.response(incomplete=error is not None)
            self._content(f"{what} response", response.messages)
            told = {**facts, **_outcome(response, error), "seconds": f"{time.perf_counter() - started:.3f}"}
            self._line(what, told, failed=isinstance(error, Exception))

    def _line(self, what: str, facts: dict[str, object], *, failed: bool) -> None:
        line = " ".join([what, *[f"{name}={_spelt(value)}" for name, value in facts.items() if value is not None]])
        self._logger.log(max(self._level, logging.WARNING) if failed else self._level, "%s", line)

    def _content(self, what: str, messages: Sequence[Message]) -> None:
        if self._logger.isEnabledFor(logging.DEBUG):
            for message in messages:
                self._logger.debug("%s %s: %s", what, message.role, self._redacted(_as_text(message)))

    def _redacted(self, text: str) -> str:
        try:
            return self._redact(text)
        except Exception as error:  # a log line is nothing to fail a call for, and nothing to leak a text in
            return f"({len(text)} characters, left out: redact raised {type(error).__name__})"


def _level_of(level: int | str) -> int:
    known = logging.getLevelName(level.upper()) if isinstance(level, str) else level
    if not isinstance(known, int) or isinstance(known, bool):
        raise ValueError(f"level must be one of logging's levels, like logging.INFO or 'INFO', not {level!r}")
    return known


def _outcome(response: ChatResponse, error: BaseException | None) -> dict[str, object]:
    usage = response.usage
    return {
        "answered_by": response.model,
        "finish": response.finish_reason,
        "stop": response.stop_reason,
        "rounds": (response.metadata or {}).get(ROUNDS),
        "calls": len(response.function_calls) or None,
        "input_tokens": usage.input_tokens if usage is not None else None,
        "output_tokens": usage.output_tokens if usage is not None else None,
        "error": _name_of(error),
    }


def _name_of(error: BaseException | None) -> str | None:
    if isinstance(error, GeneratorExit):
        return "closed"  # who asked did not want the rest
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    return type(error).__name__ if error is not None else None


def _spelt(value: object) -> str:
    """A value that stays one word on one line."""
    text = str(value)
    return text if text.isprintable() and " " not in text and '"' not in text else repr(text)


def _as_text(message: Message) -> str:
    return " ".join([_told(content) for content in message.contents])


def _told(content: Content) -> str:
    if isinstance(content, TextContent):
        return content.text
    if isinstance(content, DataContent):
        return f"<{content.media_type}, {len(content.data)} bytes>"
    return content.model_dump_json()
