"""Chat clients: what answers requests, and the base of the layers around it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, final

from agentpipe._messages import Input
from agentpipe._options import ChatOptions
from agentpipe._request import ChatRequest
from agentpipe._responses import ChatResponse, ChatResponseUpdate, ResponseStream
from agentpipe._session import AgentSession
from agentpipe._waist import FunctionMiddleware, Responder, put_around

if TYPE_CHECKING:
    from agentpipe._agent import Agent


class ChatClient(Responder):
    """Something that answers chat requests. Implement `respond`; everything else stands on it.

    ``print(client)`` shows the layers in the order in which a request travels.
    """

    @final
    async def get_response(
        self,
        messages: Input | ChatRequest,
        options: ChatOptions | None = None,
        *,
        session: AgentSession | None = None,
        deps: Any = None,
    ) -> ChatResponse:
        """The whole answer to ``messages``: text, a message, a content, a sequence of these, or a ChatRequest.

        Raises what the endpoint or a layer raises, see `agentpipe.exceptions`.
        """
        return await self._open_stream(messages, options, session, deps, False).get_response()

    @final
    def stream(
        self,
        messages: Input | ChatRequest,
        options: ChatOptions | None = None,
        *,
        session: AgentSession | None = None,
        deps: Any = None,
    ) -> ResponseStream:
        """The answer to ``messages``, piece by piece. Nothing is sent before the first piece is asked for."""
        return self._open_stream(messages, options, session, deps, True)

    @final
    def wrap(self, layer: Any, /, **settings: Any) -> ChatClient:
        """Put one layer (a class, a partial of one, or a middleware function) around this client."""
        return put_around(layer, self, ChatClient, FunctionChatClient, **settings)

    @final
    def as_agent(self, instructions: str | None = None, **settings: Any) -> Agent:
        """``Agent(self, instructions, ...)``."""
        # Agents stand on a floor above this one, so the class is looked up when it is asked for.
        agent: Agent = import_module("agentpipe._agent").Agent(self, instructions, **settings)
        return agent


class DelegatingChatClient(ChatClient):
    """The base of every layer: it asks the client inside it, and changes what it wants of that."""

    def __init__(self, inner: ChatClient) -> None:
        if not isinstance(inner, ChatClient):
            name = f"the class {inner.__name__}" if isinstance(inner, type) else type(inner).__name__
            raise TypeError(f"{type(self).__name__} needs a ChatClient inside it, not {name}")
        self.inner = inner

    def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Answer as the client inside does."""
        return self.inner.respond(request)


ChatMiddleware = (
    Callable[[ChatRequest, ChatClient], AsyncIterator[ChatResponseUpdate]]
    | Callable[[ChatRequest, ChatClient], Awaitable[ChatResponse]]
)


class FunctionChatClient(FunctionMiddleware[ChatClient], DelegatingChatClient):
    """The layer that a middleware function makes."""

    def __init__(self, inner: ChatClient, function: ChatMiddleware) -> None:
        super().__init__(inner)
        self._take(function)
