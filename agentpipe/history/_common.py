"""What the stores outside of the process have in common: a thread each, one layout, one rule for lost races."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import hashlib
import json
import math
import os
import re
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from agentpipe._messages import Message
from agentpipe._providers import HistoryProvider
from agentpipe._records import json_text, new_id
from agentpipe._session import AgentSession
from agentpipe.exceptions import HistoryError

#: The version of the layout (session, seq, item, body) that this code writes and reads.
SCHEMA = 1
#: Where the versions of the layouts are recorded.
SCHEMA_TABLE = "agentpipe_schema"

#: A message as it is stored: its id and its JSON.
Row = tuple[str, str]
T = TypeVar("T")


class Lost(Exception):
    """The history does not end where the session object saw it end; nothing was stored."""

    def __init__(self, seen: int, found: int) -> None:
        super().__init__(seen, found)
        self.seen = seen
        self.found = found


class Backend(ABC):
    """A store that is open. Its methods run on the thread of its provider."""

    @abstractmethod
    async def read(self, session: str) -> Sequence[str | bytes]:
        """The JSON of all messages of ``session``, oldest first."""

    @abstractmethod
    async def append(self, session: str, seen: int | None, rows: Sequence[Row]) -> int:
        """Store those of ``rows`` that are not there yet, all or none; Lost if the history does not end at ``seen``.

        Returns where the history ends, as far as the caller knows it now.
        """

    @abstractmethod
    async def delete(self, session: str) -> None:
        """Forget ``session``."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections."""


class StoredHistoryProvider(HistoryProvider):
    """The base of the stores outside of the process.

    All work is done on one thread with an event loop of its own, which begins with the first call. So a provider may
    be used from any event loops and threads, one after the other or at once, and its connections outlive them.
    """

    def __init__(self, *, timeout: float) -> None:
        self.timeout = positive("timeout", timeout)
        self._key = new_id("store")  # under which sessions remember what this provider showed
        self._guard = threading.Lock()
        self._worker: _Worker | None = None

    async def get_messages(self, session: AgentSession) -> Sequence[Message]:
        """All messages of ``session``, oldest first; none for a session that is not known.

        What is added to this session object from now on has to follow what was read.

        Raises:
            HistoryError: The store is down, slow, of a newer schema, or holds what is no message.
        """

        async def read(backend: Backend) -> list[Message]:
            bodies = await backend.read(key_of(session.id))
            return [self._decode(session, place, body) for place, body in enumerate(bodies)]

        messages = await self._call(read)
        _remember(session, self._key, len(messages))
        return messages

    async def add_messages(self, session: AgentSession, messages: Sequence[Message]) -> None:
        """Store ``messages`` after the others, in one transaction; one whose id is there already is passed over.

        So a call that failed may be repeated: what it stored after all is not stored twice. (A message without an id
        gets a new one each time.) If this session object was read or added to before, its history must still end
        there; if not, the messages go after whatever is stored. A call that is cancelled ends its work first.

        Raises:
            HistoryError: Another run added to the session meanwhile, and nothing was stored; or the store is down,
                slow, full, read-only or of a newer schema. A slow one has stored all or nothing: which is not known.
        """
        if messages:
            await self._call(lambda backend: self._append(backend, session, messages), finish=True)

    async def _append(self, backend: Backend, session: AgentSession, messages: Sequence[Message]) -> None:
        rows = [self._encode(message.with_id()) for message in messages]
        # Read and noted here, not by the caller: he may be gone before the store has answered.
        seen = (session.heads or {}).get(self._key)
        try:
            head = await backend.append(key_of(session.id), seen, rows)
        except Lost as lost:
            raise HistoryError(
                f"another run added to this session since it was read here: session {session.id!r} in {self!r} had "
                f"{lost.seen} messages and has {lost.found} now. Nothing was stored; read the session again"
            ) from None
        _remember(session, self._key, head)

    async def delete_messages(self, session: AgentSession) -> None:
        """Delete all messages of ``session``; fine if there are none. HistoryError on trouble."""

        async def delete(backend: Backend) -> None:
            await backend.delete(key_of(session.id))
            _remember(session, self._key, 0)

        await self._call(delete, finish=True)

    async def aclose(self) -> None:
        """Finish what is going on and close the connections. They are opened again if the provider is used again."""
        with self._guard:
            worker, self._worker = self._worker, None
            if worker is None or worker.pid != os.getpid():
                return
            ended = worker.submit(worker.end())
        await self._outcome(ended, finish=True)

    @abstractmethod
    async def _open(self) -> Backend:
        """Connect, and see to the schema."""

    @abstractmethod
    def _explain(self, error: Exception) -> str | None:
        """What to tell about an error of the store, without secrets; None for an error that is not the store's."""

    async def _call(self, job: Callable[[Backend], Awaitable[T]], *, finish: bool = False) -> T:
        with self._guard:
            if self._worker is not None and self._worker.pid != os.getpid():
                _inherited.append(self._worker)
                self._worker = None
            if self._worker is None:
                self._worker = _Worker(self, self._open)
            future = self._worker.submit(self._run(self._worker, job))
        return await self._outcome(future, finish)

    async def _run(self, worker: _Worker, job: Callable[[Backend], Awaitable[T]]) -> T:
        try:
            return await job(await worker.backend())
        except HistoryError:
            raise
        except Exception as error:
            told = self._explain(error)
            if told is None:
                raise
            raise HistoryError(f"{self!r}: {told}") from error

    async def _outcome(self, future: concurrent.futures.Future[T], finish: bool) -> T:
        """What comes of ``future``; with ``finish`` a caller who is cancelled waits for that, within the timeout."""
        loop = asyncio.get_running_loop()
        waiter = asyncio.wrap_future(future)
        deadline = loop.time() + self.timeout
        cancelled: asyncio.CancelledError | None = None
        while not waiter.done() and (left := deadline - loop.time()) > 0:
            try:
                await asyncio.wait({waiter}, timeout=left)
            except asyncio.CancelledError as error:
                cancelled = error
                if not finish:
                    break
        if not waiter.done():
            waiter.cancel()
        elif cancelled is not None and not waiter.cancelled():
            waiter.exception()  # seen
        if cancelled is not None:
            raise cancelled
        return self._result(waiter)

    def _result(self, waiter: asyncio.Future[T]) -> T:
        if waiter.done() and not waiter.cancelled():
            return waiter.result()
        raise HistoryError(f"{self!r} did not answer within {self.timeout:g} s")

    def _encode(self, message: Message) -> Row:
        try:
            return key_of(str(message.message_id)), json_text(message.model_dump())
        except (TypeError, ValueError, RecursionError) as error:
            raise HistoryError(f"message {message.message_id!r} cannot be written as JSON: {error}") from error

    def _decode(self, session: AgentSession, place: int, body: str | bytes) -> Message:
        try:
            return Message.model_validate(json.loads(body))
        except (ValueError, RecursionError) as error:
            raise HistoryError(
                f"{self!r}: message {place} of session {session.id!r} cannot be read: {error!s:.300}"
            ) from error


#: What a fork left behind: without a thread, and its connections are the parent's. Closing them would disturb it.
_inherited: list[_Worker] = []


class _Worker:
    """A thread with an event loop, and the store that is open there."""

    def __init__(self, provider: StoredHistoryProvider, open_: Callable[[], Awaitable[Backend]]) -> None:
        self.pid = os.getpid()
        self._open = open_
        self._store: list[Backend] = []  # the one that is open, if any
        self._opening = asyncio.Lock()
        self._loop = asyncio.new_event_loop()
        # A daemon, so that a program whose author forgot to close the provider can end.
        threading.Thread(target=_serve, args=(self._loop, self._store), name=repr(provider), daemon=True).start()
        self._finalizer = weakref.finalize(provider, _stop, self._loop)
        self._finalizer.atexit = False

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run ``coroutine`` on the thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def backend(self) -> Backend:
        """The open store."""
        async with self._opening:
            if not self._store:
                self._store.append(await self._open())
            return self._store[0]

    async def end(self) -> None:
        """Let what is going on come to its end, then close the store and stop the thread."""
        try:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if others:
                await asyncio.wait(others)
            await _close(self._store)
        finally:
            self._finalizer.detach()
            self._loop.call_soon(self._loop.stop)


def _serve(loop: asyncio.AbstractEventLoop, store: list[Backend]) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(_close(store))  # of a provider that nobody closed
    finally:
        loop.close()


async def _close(store: list[Backend]) -> None:
    while store:
        await store.pop().close()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    with contextlib.suppress(RuntimeError):  # closed already
        loop.call_soon_threadsafe(loop.stop)


def _remember(session: AgentSession, key: str, head: int) -> None:
    if session.heads is None:
        session.heads = {}
    session.heads[key] = head


def fresh_rows(rows: Sequence[Row], known: Mapping[str, int], head: int, seen: int | None) -> dict[str, str]:
    """Those of ``rows`` to store: the ones that are not ``known`` (id to place) in a history that ends at ``head``.

    An append whose outcome the caller never learned may have moved the end: if its rows are there, they were seen.
    Raises Lost if the history ends elsewhere than the caller has ``seen``.
    """
    fresh: dict[str, str] = {}
    for item, body in rows:
        if item not in known:
            fresh.setdefault(item, body)
    if fresh and seen is not None and head != (expected := max(seen, *known.values(), 0)):
        raise Lost(expected, head)
    return fresh


def new_head(fresh: Mapping[str, str], known: Mapping[str, int], head: int, seen: int | None) -> int:
    """Where the history ends for the caller, once ``fresh`` is stored."""
    return head + len(fresh) if fresh else max(seen or 0, *known.values(), 0)


def check_schema(store: str, found: int) -> None:
    """HistoryError if a newer version wrote the store."""
    if found > SCHEMA:
        raise HistoryError(
            f"{store} was written by a newer agentpipe (schema {found}); this one knows schema {SCHEMA}: upgrade it"
        )


_UNSAFE = re.compile("[\0\\\\\ud800-\udfff]")


def key_of(text: str) -> str:
    """An id as every store can hold and index it: no NUL, no lone surrogate, not long; unlike ids stay unlike."""
    key = json.dumps(text)[1:-1] if _UNSAFE.search(text) else text
    if len(key.encode()) > 500:
        return "\\sha256 " + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return key


def positive(argument: str, value: object) -> float:
    """``value`` if it is a positive, finite number; else TypeError or ValueError that names the argument."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{argument} must be a number of seconds, not {value!r:.50}")
    if not 0 < value < math.inf:
        raise ValueError(f"{argument} must be positive, not {value!r}")
    return value


def identifier(argument: str, value: object) -> str:
    """``value`` if it is a plain name; else ValueError that names the argument. It is put into statements as it is."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,47}", value):
        raise ValueError(
            f"{argument} must be a name of letters, digits and underscores (at most 48), not {value!r:.80}"
        )
    return value


_URL = re.compile(r"(?P<scheme>\w+)://(?:(?P<user>[^:@/?#]*)(?::[^@/?#]*)?@)?(?P<rest>[^@?#]*)(?:\?[^@#]*)?")


def public_url(argument: str, url: object, schemes: Sequence[str]) -> str:
    """``url`` as it may be shown: without password and query.

    Raises TypeError or ValueError, which do not show it, if it is no URL of these schemes.
    """
    if not isinstance(url, str):
        raise TypeError(f"{argument} must be a URL, not {type(url).__name__}")
    found = _URL.fullmatch(url)
    if found is None or found["scheme"] not in schemes:
        raise ValueError(
            f"{argument} must look like {schemes[0]}://user:password@host/name; special characters in the user and the "
            "password have to be percent-encoded"
        )
    return f"{found['scheme']}://{found['user'] + '@' if found['user'] else ''}{found['rest']}"
