"""Answers a request that was answered before without asking again."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any
from weakref import WeakValueDictionary

from agentpipe._client import ChatClient, DelegatingChatClient
from agentpipe._layered import name_of
from agentpipe._request import ChatRequest
from agentpipe._responses import ChatResponse, ChatResponseUpdate, ResponseFolder
from agentpipe._waist import closing
from agentpipe.layers._cache_stores import CacheStore as CacheStore
from agentpipe.layers._cache_stores import MemoryCache as MemoryCache
from agentpipe.layers._cache_stores import SQLiteCache as SQLiteCache
from agentpipe.layers._common import check_number
from agentpipe.layers._exchange import again, canonical

#: A part of the key, or a function of the request that returns one.
Scope = str | Callable[[ChatRequest], str | None]
#: Where the metadata of a response says that it came out of a cache.
CACHED = "cached"
_VERSION = 1
_logger = logging.getLogger("agentpipe.cache")


class CachingChatClient(DelegatingChatClient):
    """Gives the same answer to the same request.

    Two requests are the same if the model, the endpoint below, the messages (without their ids) and every option that
    bears on the answer are. Whole and streamed calls share entries; an answer is streamed in pieces. It says
    ``{"cached": True}`` in its metadata and has no usage, since none was used. Equal requests at the same time ask
    once, and the others wait until that answer was read. Only answers that came to their end are kept: no errors,
    nothing cut off or filtered, no call that cannot be read. A request that goes on with a conversation of the
    endpoint's is passed through. A store that fails is logged and costs a question, not the answer.

    Below the FunctionInvokingChatClient, where people want it, model calls are remembered and tools still run; above
    it whole runs are, and tools run once. Above a RetryingChatClient, where people want it, a request is looked up
    once. Below a RedactingChatClient with a ``key``, where people want it, the store never sees what is redacted.

    Args:
        inner: The client to ask.
        store: Where answers are kept: a `MemoryCache` by default, a `SQLiteCache`, or any `CacheStore`.
        ttl: Seconds that an answer is good for; None is forever.
        scope: Who shares answers: a name, or a function of the request that returns one (such as the tenant). Where
            it returns None, the request is passed through.

    Raises:
        ValueError: ``ttl`` is out of range.
        TypeError: ``store`` or ``scope`` is none.
    """

    def __init__(
        self,
        inner: ChatClient,
        *,
        store: CacheStore | None = None,
        ttl: float | None = None,
        scope: Scope | None = None,
    ) -> None:
        super().__init__(inner)
        check_number("ttl", ttl, above=0)
        if store is not None and not (hasattr(store, "get") and hasattr(store, "set")):
            raise TypeError(f"store must have get and set, see CacheStore, and {type(store).__name__} has not")
        if scope is not None and not isinstance(scope, str) and not callable(scope):
            raise TypeError(f"scope must be a text or a function of the request, not {scope!r:.80}")
        self.store: CacheStore = MemoryCache() if store is None else store
        self.ttl = ttl
        self.scope = scope
        self._turns: WeakValueDictionary[str, _Turn] = WeakValueDictionary()

    async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Answer from the store, or ask and remember."""
        key = self._key(request)
        async with self._turn(key):
            found = await self._read(key)
            if found is None:
                async with closing(self._remembering(request, key)) as updates:
                    async for update in updates:
                        yield update
                return
        kept = found.replace(usage=None, metadata={**(found.metadata or {}), CACHED: True})
        for update in again(kept, request.streaming):
            yield update

    async def _remembering(self, request: ChatRequest, key: str | None) -> AsyncIterator[ChatResponseUpdate]:
        folder = ResponseFolder()
        async with closing(self.inner.respond(request)) as updates:
            async for update in updates:
                if key is not None:
                    folder.add(update)
                yield update
        if key is not None and _is_whole(response := folder.response()):
            await self._write(key, response)

    def _turn(self, key: str | None) -> AbstractAsyncContextManager[object]:
        if key is None:
            return nullcontext()
        turn = self._turns.get(key)
        if turn is None:
            turn = self._turns[key] = _Turn()
        # Who reads two equal streams in turns would wait for itself.
        return nullcontext() if turn.holder is asyncio.current_task() else turn

    def _key(self, request: ChatRequest) -> str | None:
        """The key of a request; None for one that is passed through."""
        scope = self.scope(request) if callable(self.scope) else self.scope
        if request.options.conversation_id is not None or (scope is None and self.scope is not None):
            return None
        told = {"version": _VERSION, "scope": scope, "endpoints": self._endpoints(), "request": canonical(request)}
        text = json.dumps(told, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def _endpoints(self) -> list[list[str]]:
        ends = [layer for layer in self.inner._walk() if not layer._inside()]
        return [
            [type(end).__name__, *[str(getattr(end, name, None)) for name in ("model", "base_url")]] for end in ends
        ]

    async def _read(self, key: str | None) -> ChatResponse | None:
        if key is None:
            return None
        try:
            text = await self.store.get(key)
            return None if text is None else ChatResponse.model_validate_json(text)
        except Exception as error:
            _logger.warning("the cache could not be read, the request is sent: %s: %s", type(error).__name__, error)
            return None

    async def _write(self, key: str, response: ChatResponse) -> None:
        try:
            await self.store.set(key, response.model_dump_json(), ttl=self.ttl)
        except Exception as error:
            _logger.warning("the cache could not be written: %s: %s", type(error).__name__, error)

    def _settings(self) -> dict[str, object]:
        scope = name_of(self.scope) if callable(self.scope) else self.scope
        told: dict[str, Any] = {"store": self.store, "ttl": self.ttl, "scope": scope}
        return {name: value for name, value in told.items() if value is not None}


def _is_whole(response: ChatResponse) -> bool:
    """Whether an answer came to its end, and can be given once more."""
    ended = response.finish_reason in (None, "stop", "tool_calls") and response.stop_reason in (None, "answer")
    return ended and bool(response.messages) and not any(call.invalid for call in response.function_calls)


class _Turn(AbstractAsyncContextManager[None]):
    """Who asks for a key, and who waits meanwhile; the next one has its turn however the one before ended."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self.holder: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> None:
        await self._lock.acquire()
        self.holder = asyncio.current_task()

    async def __aexit__(self, *exc_info: object) -> None:
        self.holder = None
        self._lock.release()
