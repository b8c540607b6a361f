"""What stands beside a run: where its history lies, and what is added to what the model sees."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from agentpipe._layered import name_of
from agentpipe._messages import Message
from agentpipe._options import ChatOptions
from agentpipe._request import ChatRequest
from agentpipe._responses import ChatResponse
from agentpipe._session import AgentSession
from agentpipe._tools import ToolLike, ToolMiddleware


class HistoryProvider(ABC):
    """Keeps the messages of sessions.

    Adding is append-only and idempotent by ``message_id``: a message that is stored already is passed over. A store
    that several processes share raises HistoryError where another one has added to the session since it was read here,
    rather than mixing two runs.
    """

    @abstractmethod
    async def get_messages(self, session: AgentSession) -> Sequence[Message]:
        """All messages of ``session``, oldest first; none for a session that is not known. HistoryError on trouble."""

    @abstractmethod
    async def add_messages(self, session: AgentSession, messages: Sequence[Message]) -> None:
        """Store ``messages`` after the others, all of them or none. HistoryError on trouble."""

    async def aclose(self) -> None:
        """Close what the store holds open."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


@dataclass(frozen=True, slots=True)
class Context:
    """What a context provider adds to one run.

    Args:
        instructions: Joined to the agent's own.
        messages: Put after the history and before the new input. They are sent, but not stored as history, unless
            ``store``.
        tools: Offered besides the agent's.
        middleware: Tool middleware around the calls of this run, inside that of the loop.
        options: Anything else, merged like options.
        store: Whether ``messages`` become history.
    """

    instructions: str | None = None
    messages: Sequence[Message] = ()
    tools: Sequence[ToolLike] = ()
    middleware: Sequence[ToolMiddleware] = ()
    options: ChatOptions | None = None
    store: bool = False


class ContextProvider:
    """Adds to what the model sees before a run, and learns what came of it after.

    A plain ``async def name(request)`` that returns a `Context` or None is a provider too. With ``required = False``
    a failure or a ``timeout`` (seconds) is logged and the run goes on without it.
    """

    required: bool = True
    timeout: float | None = None

    async def before_run(self, request: ChatRequest) -> Context | None:
        """What to add to ``request`` (the input of the run, its options and session); None for nothing."""
        return None

    async def after_run(self, request: ChatRequest, response: ChatResponse | None, error: BaseException | None) -> None:
        """Learn what came of the run: its response, or what there is of one and the error that ended it."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


ContextFunction = Callable[[ChatRequest], Awaitable[Context | None]]


class FunctionContextProvider(ContextProvider):
    """The provider that a plain async function makes."""

    def __init__(self, function: ContextFunction, *, required: bool = True, timeout: float | None = None) -> None:
        if not inspect.iscoroutinefunction(function) and not inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004
        ):
            raise TypeError(f"a context provider must be a ContextProvider or an async function, not {function!r:.80}")
        self.function = function
        self.required = required
        self.timeout = timeout

    async def before_run(self, request: ChatRequest) -> Context | None:
        """What the function returns."""
        return await self.function(request)

    def __repr__(self) -> str:
        return name_of(self.function)
