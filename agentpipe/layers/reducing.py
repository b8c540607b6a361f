"""Sends fewer messages than there are."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from agentpipe._client import ChatClient, DelegatingChatClient
from agentpipe._layered import Layered, name_of
from agentpipe._messages import Message
from agentpipe._reducers import Reducer, Reduction, SummarizingReducer
from agentpipe._request import ChatRequest
from agentpipe._responses import ChatResponseUpdate, UsageDetails
from agentpipe._waist import closing

ReducerFunction = Callable[[Sequence[Message]], Awaitable[Sequence[Message]]]


class ReducingChatClient(DelegatingChatClient):
    """Shortens what is sent; what the caller gets and what a history stores stays whole.

    Below the FunctionInvokingChatClient, where people want it, it shortens each model call, also in the middle of a
    long run; above it, it shortens once, at the start of a run. Several may stand one above the other.

    Args:
        inner: The client to ask.
        reducer: A `Reducer`, or an async function from messages to messages.

    Raises:
        TypeError: ``reducer`` is neither.
    """

    def __init__(self, inner: ChatClient, reducer: Reducer | ReducerFunction) -> None:
        super().__init__(inner)
        if not isinstance(reducer, Reducer) and not _is_async(reducer):
            raise TypeError(f"reducer must be a Reducer or an async function of the messages, not {reducer!r:.80}")
        self.reducer = reducer

    def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Ask with fewer messages. What the reducer used itself counts in the usage of the answer."""
        return request.watched(self._updates(request))

    async def _updates(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        reduction = await self._reduce(request)
        owed = reduction.usage  # goes with the first update: by itself it would look as if an answer had begun
        try:
            async with closing(self.inner.respond(request.replace(messages=reduction.messages))) as updates:
                async for update in updates:
                    if owed is not None:
                        update, owed = _with_usage(update, owed), None
                    yield update
        except BaseException:
            if owed is not None and request.late is not None:
                request.late.append(ChatResponseUpdate(usage=owed))
            raise
        if owed is not None:
            yield ChatResponseUpdate(usage=owed)

    async def _reduce(self, request: ChatRequest) -> Reduction:
        if isinstance(self.reducer, Reducer):
            return await self.reducer.reduce(request.messages, request.session)
        return Reduction(await self.reducer(request.messages))

    def _inside(self) -> Sequence[Layered]:
        own = (self.reducer.client,) if isinstance(self.reducer, SummarizingReducer) else ()
        return (self.inner, *own)

    def _settings(self) -> dict[str, object]:
        return {"reducer": _Shown(self.reducer)}


class _Shown:
    """A reducer in the printed tree: a function by its name."""

    def __init__(self, reducer: object) -> None:
        self.reducer = reducer

    def __repr__(self) -> str:
        return repr(self.reducer) if isinstance(self.reducer, Reducer) else name_of(self.reducer)


def _is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _with_usage(update: ChatResponseUpdate, usage: UsageDetails) -> ChatResponseUpdate:
    return update.replace(usage=usage if update.usage is None else update.usage + usage)
