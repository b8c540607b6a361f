"""The waist, and what both towers, chat clients and agents, build on it.

Something that answers takes a request and gives a stream of updates. Whole or streamed, one way down and up.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

from agentpipe._layered import Layered, is_function, is_live, name_of
from agentpipe._messages import Input, as_messages
from agentpipe._options import NO_OPTIONS, ChatOptions
from agentpipe._request import ChatRequest, Run
from agentpipe._responses import Asked, ChatResponse, ChatResponseUpdate, Late, ResponseStream
from agentpipe._session import AgentSession

InnerT = TypeVar("InnerT", bound="Responder")


class Responder(Layered):
    """Something that answers requests: a chat client or an agent."""

    @abstractmethod
    def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Answer ``request`` with updates: each message whole, or in pieces where ``request.streaming``."""

    def _open_stream(
        self,
        given: Input | ChatRequest,
        options: ChatOptions | None,
        session: AgentSession | None,
        deps: Any,
        streaming: bool,
    ) -> ResponseStream:
        """The one way in: a request made of what was given, and the stream of its answer."""
        _check(options, session)
        if isinstance(given, ChatRequest):
            if (options or NO_OPTIONS) is not NO_OPTIONS or session is not None or deps is not None:
                raise TypeError("a ChatRequest has its own options, session and deps: use request.replace(...)")
            outermost = given.late is None
            late = Late() if given.late is None else given.late
            asked = late if isinstance(late, Asked) and late.inner is self else None
            request = given.replace(streaming=streaming, late=late, run=given.run or Run())
        else:
            outermost, late, asked = True, Late(), None
            request = ChatRequest(as_messages(given), options or NO_OPTIONS, streaming, session, deps, late, Run())
        output = request.options.response_format
        if output is None:
            output = self._usual_output()
        return ResponseStream(self.respond(request), late, outermost=outermost, asked=asked, output=output)

    def _usual_output(self) -> object:
        """The response_format of requests that have none of their own."""
        return None

    async def aclose(self) -> None:
        """Close what this and everything inside it hold open."""
        for inside in self._inside():
            if isinstance(inside, Responder):
                await inside.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


def _check(options: object, session: object) -> None:
    if options is not None and not isinstance(options, ChatOptions):
        raise TypeError(f"options must be ChatOptions, not {type(options).__name__}")
    if session is not None and not isinstance(session, AgentSession):
        raise TypeError(f"session must be an AgentSession, not {type(session).__name__}")


def closing(
    updates: AsyncIterator[ChatResponseUpdate],
) -> AbstractAsyncContextManager[AsyncIterator[ChatResponseUpdate]]:
    """``updates``, closed for sure on leaving: ``async with closing(inner.respond(request)) as updates``."""
    return aclosing(cast("Any", updates)) if hasattr(updates, "aclose") else _NothingToClose(updates)


class _NothingToClose:
    def __init__(self, updates: AsyncIterator[ChatResponseUpdate]) -> None:
        self.updates = updates

    async def __aenter__(self) -> AsyncIterator[ChatResponseUpdate]:
        return self.updates

    async def __aexit__(self, *exc_info: object) -> None:
        return None


class FunctionMiddleware(Generic[InnerT]):
    """How a middleware function answers; mixed into the layer of each tower that it makes.

    A function that yields (``live``) sees every piece; one that returns a response sees the whole answer, and a
    streamed call then arrives in one piece. Where it raises instead, what tools did for the answer is kept.
    """

    inner: InnerT

    def _take(self, function: Callable[[ChatRequest, InnerT], Any]) -> None:
        self.live = is_live(function)
        self.function = function

    def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Answer as the function says."""
        if self.live:
            return cast("AsyncIterator[ChatResponseUpdate]", self.function(request, self.inner))
        return request.watched(self._respond_whole(request))

    async def _respond_whole(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        late: list[ChatResponseUpdate] = [] if request.late is None else request.late
        updates = (await self._answer(request, late)).as_updates()
        try:
            for update in updates:
                yield update
        finally:
            late.extend(updates)  # what nobody asked for any more

    async def _answer(self, request: ChatRequest, late: list[ChatResponseUpdate]) -> ChatResponse:
        asked = Asked(self.inner)
        try:
            response = await cast("Awaitable[ChatResponse]", self.function(request.replace(late=asked), self.inner))
            if not isinstance(response, ChatResponse):
                raise TypeError(f"{name_of(self.function)} must return a ChatResponse, not {type(response).__name__}")
        except BaseException:
            await asked.close()
            late.extend(asked.left())
            raise
        await asked.close()
        late.extend(asked)
        return response

    def __repr__(self) -> str:
        name = name_of(self.function)
        return name if self.live else f"{name} (whole: a streamed answer arrives in one piece)"


def put_around(layer: Any, inner: InnerT, kind: Any, of_function: Any, **settings: Any) -> InnerT:
    """``inner`` with one layer around it: a class, a partial of one, or a middleware function.

    Raises TypeError where the layer is none for ``kind``, or does not take these settings.
    """
    if not is_function(layer):
        if not callable(layer):
            raise TypeError(f"a layer must be a class or a middleware function, not {layer!r}")
        made = layer(inner, **settings)
        if not isinstance(made, kind):
            raise TypeError(f"{name_of(layer)} is no layer of a {kind.__name__}")
        return cast("InnerT", made)
    if settings:
        raise TypeError(f"{name_of(layer)} is a middleware function and takes no settings; use functools.partial")
    return cast("InnerT", of_function(inner, layer))
