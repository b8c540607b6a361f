"""Agents: the same waist as chat clients, with sessions; and the base of the layers around an agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, final

from agentpipe._messages import Input
from agentpipe._options import ChatOptions
from agentpipe._request import ChatRequest
from agentpipe._responses import ChatResponse, ChatResponseUpdate, ResponseStream
from agentpipe._session import AgentSession
from agentpipe._waist import FunctionMiddleware, Responder, put_around


class BaseAgent(Responder):
    """Something that runs: takes input, and answers when it is done. Implement `respond`."""

    name: str | None = None
    description: str | None = None

    @final
    async def run(
        self,
        input: Input | ChatRequest,
        *,
        session: AgentSession | None = None,
        options: ChatOptions | None = None,
        deps: Any = None,
    ) -> ChatResponse:
        """Run to the end.

        Args:
            input: Text, a Message, a content (an approval, an image), or a sequence of these.
            session: The conversation that this run goes on; None for a run that stands alone.
            options: What this run wants otherwise than the agent.
            deps: Your own object, handed to tools as ``ctx.deps``; never sent.

        Raises what the endpoint, a tool, a provider or a layer raises, see `agentpipe.exceptions`.
        """
        return await self._ask(input, options, session, deps, False).get_response()

    @final
    def stream(
        self,
        input: Input | ChatRequest,
        *,
        session: AgentSession | None = None,
        options: ChatOptions | None = None,
        deps: Any = None,
    ) -> ResponseStream:
        """The same run, piece by piece. Nothing happens before the first piece is asked for."""
        return self._ask(input, options, session, deps, True)

    @final
    def run_sync(
        self,
        input: Input | ChatRequest,
        *,
        session: AgentSession | None = None,
        options: ChatOptions | None = None,
        deps: Any = None,
    ) -> ChatResponse:
        """`run` for code without an event loop; RuntimeError where one is running."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.run(input, session=session, options=options, deps=deps))
        raise RuntimeError("run_sync cannot be used inside of an event loop; use 'await agent.run(...)'")

    @final
    def wrap(self, layer: Any, /, **settings: Any) -> BaseAgent:
        """Put one layer (a class, a partial of one, or a middleware function) around this agent."""
        return put_around(layer, self, BaseAgent, FunctionAgent, **settings)


class DelegatingAgent(BaseAgent):
    """The base of agent layers: it asks the agent inside it, and changes what it wants of that."""

    def __init__(self, inner: BaseAgent) -> None:
        if not isinstance(inner, BaseAgent):
            name = f"the class {inner.__name__}" if isinstance(inner, type) else type(inner).__name__
            raise TypeError(f"{type(self).__name__} needs an agent inside it, not {name}")
        self.inner = inner
        self.name = inner.name
        self.description = inner.description

    def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Answer as the agent inside does."""
        return self.inner.respond(request)


AgentMiddleware = (
    Callable[[ChatRequest, BaseAgent], AsyncIterator[ChatResponseUpdate]]
    | Callable[[ChatRequest, BaseAgent], Awaitable[ChatResponse]]
)


class FunctionAgent(FunctionMiddleware[BaseAgent], DelegatingAgent):
    """The layer that a middleware function makes."""

    def __init__(self, inner: BaseAgent, function: AgentMiddleware) -> None:
        super().__init__(inner)
        self._take(function)
