"""A conversation that goes on over many runs."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import Any

from agentpipe._messages import Message
from agentpipe._records import json_text, new_id, to_json

VERSION = 1
#: How deep the JSON of a session may be nested: as deep as pydantic reads, and far from where Python gives up.
MAX_DEPTH = 200


class AgentSession:
    """What a conversation needs to go on: an id, the state of its tools and providers, and where its history lies.

    ``state`` holds JSON values. ``conversation_id`` is the endpoint's own id where the endpoint keeps the history;
    ``messages`` is the history where `InMemoryHistoryProvider` keeps it. `model_dump_json` and `model_validate_json`
    store and restore it all; unknown fields are kept.
    """

    __slots__ = ("__weakref__", "_turns", "conversation_id", "created_at", "extra", "heads", "id", "messages", "state")

    def __init__(
        self,
        id: str | None = None,
        *,
        conversation_id: str | None = None,
        state: Mapping[str, Any] | None = None,
        messages: list[Message] | None = None,
        created_at: datetime | None = None,
    ) -> None:
        if id is not None and not isinstance(id, str):
            raise TypeError(f"the id of a session must be text, not {type(id).__name__}")
        self.id = id or new_id("session")
        self.conversation_id = conversation_id
        self.state: dict[str, Any] = dict(state or {})
        self.messages: list[Message] = list(messages or ())
        self.created_at = created_at or datetime.now(timezone.utc)
        self.extra: Mapping[str, Any] | None = None
        #: In process only: how much of the history each store had shown when it was last read (see HistoryProvider).
        self.heads: dict[str, int] | None = None
        self._turns: _Turns | None = None

    def lock(self) -> _Turns:
        """What makes runs on this session take turns: ``async with session.lock(): ...``.

        First come, first served, in whatever event loops and threads they run.
        """
        if self._turns is None:
            with _making_turns:
                self._turns = self._turns or _Turns(self.id)
        return self._turns

    def inside(self) -> _Inside:
        """What marks code as a part of the turn that is going on: ``with session.inside(): ...``.

        Such code, and what it calls, must not wait for the session's next turn: it raises OwnTurnError instead.
        """
        return _Inside(self.lock())

    def model_dump(self) -> dict[str, Any]:
        """The session as JSON values; TypeError that names the key of ``state`` that cannot be one."""
        dumped: dict[str, Any] = {
            **(self.extra or {}),
            "version": VERSION,
            "id": self.id,
            "created_at": self.created_at.isoformat(),
            "state": {str(key): self._state_to_json(key, value) for key, value in self.state.items()},
        }
        if self.conversation_id is not None:
            dumped["conversation_id"] = self.conversation_id
        if self.messages:
            dumped["messages"] = [message.model_dump() for message in self.messages]
        return dumped

    def model_dump_json(self) -> str:
        """The session as a JSON text; TypeError that names the key of ``state`` that cannot be written."""
        return json_text(self.model_dump())

    @classmethod
    def model_validate(cls, data: object) -> AgentSession:
        """The session that ``data`` (from `model_dump`) describes; ValueError that says what is wrong with it."""
        if isinstance(data, AgentSession):
            return data
        if not isinstance(data, Mapping):
            raise ValueError(f"a session is a JSON object, not {type(data).__name__}")
        _check_depth(data)
        version = data.get("version", VERSION)
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise ValueError(f"'version' of a session must be a positive integer, not {_short(version)}")
        if version > VERSION:
            raise ValueError(
                f"the session was written by a newer agentpipe (version {_short(version)}); this one reads {VERSION}"
            )
        return _read(data)

    @classmethod
    def model_validate_json(cls, text: str | bytes) -> AgentSession:
        """The session that the JSON ``text`` describes; ValueError that says what is wrong with it."""
        try:
            data = json.loads(text)
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None
        except ValueError as error:
            raise ValueError(f"a session must be JSON: {error}") from None
        return cls.model_validate(data)

    def _state_to_json(self, key: object, value: object) -> Any:
        try:
            dumped = to_json(value)
            _check_depth(dumped, depth=2)
        except Exception as error:
            why = "it goes too deep" if isinstance(error, RecursionError) else error
            raise TypeError(f"state[{key!r}] of session {self.id!r} cannot be written as JSON: {why}") from error
        return dumped

    def __repr__(self) -> str:
        return f"AgentSession(id={self.id!r}, messages={len(self.messages)})"


class OwnTurnError(RuntimeError):
    """A session is used inside of its own run: that would wait for itself."""


class _Turns:
    """A fair lock for tasks in any event loops and threads."""

    __slots__ = ("_guard", "_holder", "_session_id", "_waiting")

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._guard = threading.Lock()
        self._holder: asyncio.AbstractEventLoop | None = None
        self._waiting: list[tuple[asyncio.AbstractEventLoop, Future[None]]] = []

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        with self._guard:
            # A loop that was closed in the middle of a turn will never end it.
            if self._holder is None or self._holder.is_closed():
                self._holder = loop
                return
            self._refuse_own()
            turn: Future[None] = Future()
            self._waiting.append((loop, turn))
        try:
            await asyncio.wrap_future(turn)
        except BaseException:
            if not turn.cancel():  # it came at the same moment
                self._next()
            raise

    def _refuse_own(self) -> None:
        inside = _INSIDE.get()
        while inside is not None:
            if inside.turns is self and not inside.over:
                raise OwnTurnError(
                    f"session {self._session_id!r} is used inside of its own run, by a tool or a context provider, "
                    "which would wait for itself: use another session there, or none"
                )
            inside = inside.outer

    async def __aexit__(self, *exc_info: object) -> None:
        self._next()

    def _next(self) -> None:
        with self._guard:
            self._holder = None
            while self._holder is None and self._waiting:
                loop, turn = self._waiting.pop(0)
                if not loop.is_closed() and turn.set_running_or_notify_cancel():
                    self._holder = loop
                    turn.set_result(None)


class _Inside:
    """A part of a turn. It is over when it is left, whatever tasks it has started."""

    __slots__ = ("_token", "outer", "over", "turns")

    def __init__(self, turns: _Turns) -> None:
        self.turns = turns
        self.over = False

    def __enter__(self) -> None:
        self.outer = _INSIDE.get()
        self._token = _INSIDE.set(self)

    def __exit__(self, *exc_info: object) -> None:
        self.over = True
        _INSIDE.reset(self._token)


_INSIDE: ContextVar[_Inside | None] = ContextVar("agentpipe_inside", default=None)
_making_turns = threading.Lock()


_KNOWN = {"version", "id", "created_at", "state", "conversation_id", "messages"}
_TOO_DEEP = f"the JSON of a session must not be nested deeper than {MAX_DEPTH} levels"


def _check_depth(data: object, depth: int = 0) -> None:
    """ValueError if ``data``, which lies at ``depth``, is nested too deeply."""
    level = [data]
    while level := [container for container in level if isinstance(container, (Mapping, list))]:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(_TOO_DEEP)
        level = [item for one in level for item in (one.values() if isinstance(one, Mapping) else one)]


def _read(data: Mapping[str, Any]) -> AgentSession:
    session = AgentSession(
        _of(data, "id", str, None),
        conversation_id=_of(data, "conversation_id", str, None),
        state=_of(data, "state", dict, {}),
        messages=[_message(place, message) for place, message in enumerate(_of(data, "messages", list, []))],
        created_at=_time(_of(data, "created_at", str, None)),
    )
    session.extra = {key: value for key, value in data.items() if key not in _KNOWN} or None
    return session


def _message(place: int, data: object) -> Message:
    try:
        return Message.model_validate(data)
    except ValueError as error:
        raise ValueError(f"message {place} of the session is none: {error}") from error


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"'created_at' of a session must be an ISO 8601 time, not {_short(text)}") from None
    return time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)


def _of(data: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    value = data.get(key)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise ValueError(f"{key!r} of a session must be a {kind.__name__}, not {type(value).__name__}")
    return value


def _short(value: object) -> str:
    if isinstance(value, int) and not -(10**18) < value < 10**18:
        return "a huge number"
    return repr(value)[:50]
