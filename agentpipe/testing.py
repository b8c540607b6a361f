"""What tests of an agent need: a client that answers from a script, and the contract of history stores."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentpipe._client import ChatClient
from agentpipe._messages import (
    Content,
    FunctionCallContent,
    Message,
    ReasoningContent,
    TextContent,
    as_contents,
)
from agentpipe._request import ChatRequest
from agentpipe._responses import ChatResponse, ChatResponseUpdate, FinishReason, UsageDetails

if TYPE_CHECKING:
    from agentpipe._history_contract import HistoryProviderContract as HistoryProviderContract

__all__ = ["HistoryProviderContract", "ScriptedChatClient", "Step", "call"]

#: One answer: text, contents, a message, a response, updates as they are, an error to raise, or a function of the
#: request that returns (or is awaited for) one of these.
Step = (
    str
    | Content
    | Message
    | ChatResponse
    | Sequence[str | Content | ChatResponseUpdate | BaseException]
    | BaseException
    | Callable[[ChatRequest], Any]
)


def call(
    name: str, arguments: Mapping[str, Any] | None = None, call_id: str | None = None, /, **kwargs: Any
) -> FunctionCallContent:
    """A call of ``name`` as a model would make it: ``call("get_weather", place="Suzhou")``."""
    given = {**(arguments or {}), **kwargs}
    return FunctionCallContent(call_id or f"call_{name}", name, given, json.dumps(given))


class ScriptedChatClient(ChatClient):
    """A chat client that answers from a script, one step a call, and remembers what it was asked.

    Args:
        steps: The answers, in order; see `Step`. A call past the last one raises AssertionError.
        usage: The usage to report for each answer; None reports none.
        piece: How many characters of text a piece of a streamed answer has; every other content comes by itself.
        model: The name of the model to report.

    Attributes:
        requests: The requests that came, in order.
        open: How many answers are being read at this moment; 0 when every stream was closed.
    """

    def __init__(
        self, *steps: Step, usage: UsageDetails | None = None, piece: int = 3, model: str = "scripted"
    ) -> None:
        if piece < 1:
            raise ValueError(f"piece must be at least 1 character, not {piece}")
        self.steps = list(steps)
        self.usage = usage
        self.piece = piece
        self.model = model
        self.requests: list[ChatRequest] = []
        self.open = 0

    async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Answer with the next step."""
        place = len(self.requests)
        self.requests.append(request)
        if place >= len(self.steps):
            raise AssertionError(f"the script has {len(self.steps)} steps, and this is call {place + 1}")
        self.open += 1
        try:
            for update in self._updates(await _resolve(self.steps[place], request), place, request.streaming):
                if isinstance(update, BaseException):
                    raise update
                yield update
        finally:
            self.open -= 1

    def _updates(self, step: Any, place: int, streaming: bool) -> Iterator[ChatResponseUpdate | BaseException]:
        if isinstance(step, BaseException):
            yield step
        elif isinstance(step, ChatResponse):
            yield from step.as_updates()
        elif isinstance(step, (list, tuple)) and any(isinstance(s, (ChatResponseUpdate, BaseException)) for s in step):
            yield from step
        else:
            yield from self._answer(step, place, streaming)

    def _answer(self, step: Any, place: int, streaming: bool) -> Iterator[ChatResponseUpdate]:
        contents = step.contents if isinstance(step, Message) else as_contents(step)
        message_id = step.message_id if isinstance(step, Message) else None
        pieces = self._pieces(contents) if streaming else [contents]
        for piece in pieces:
            yield ChatResponseUpdate(piece, "assistant", message_id, model=self.model)
        reason: FinishReason = "tool_calls" if any(isinstance(c, FunctionCallContent) for c in contents) else "stop"
        yield ChatResponseUpdate(
            response_id=f"response_{place}", model=self.model, finish_reason=reason, usage=self.usage
        )

    def _pieces(self, contents: Sequence[Content]) -> Iterator[tuple[Content, ...]]:
        for content in contents:
            if isinstance(content, (TextContent, ReasoningContent)) and not (content.provider_data or content.extra):
                for start in range(0, len(content.text), self.piece):
                    yield (type(content)(content.text[start : start + self.piece]),)
            else:
                yield (content,)


async def _resolve(step: Any, request: ChatRequest) -> Any:
    if callable(step) and not isinstance(step, type):
        step = step(request)
        if hasattr(step, "__await__"):
            step = await step
    return step


def __getattr__(name: str) -> object:
    if name != "HistoryProviderContract":
        raise AttributeError(f"module 'agentpipe.testing' has no attribute {name!r}")
    from agentpipe._history_contract import HistoryProviderContract  # needs pytest, which not every user of this has

    return HistoryProviderContract
