"""A conversation that goes on over many runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from agentpipe._messages import Message
from agentpipe._records import new_id, to_json

VERSION = 1


class AgentSession:
    """What a conversation needs to go on: an id, the state of its tools and providers, and where its history lies.

    ``state`` holds JSON values. ``conversation_id`` is the endpoint's own id where the endpoint keeps the history;
    ``messages`` is the history where `InMemoryHistoryProvider` keeps it. `model_dump_json` and `model_validate_json`
    store and restore it all; unknown fields are kept.
    """

    __slots__ = ("__weakref__", "_locks", "conversation_id", "created_at", "extra", "heads", "id", "messages", "state")

    def __init__(
        self,
        id: str | None = None,
        *,
        conversation_id: str | None = None,
        state: Mapping[str, Any] | None = None,
        messages: list[Message] | None = None,
        created_at: datetime | None = None,
    ) -> None:
        self.id = id or new_id("session")
        self.conversation_id = conversation_id
        self.state: dict[str, Any] = dict(state or {})
        self.messages: list[Message] = list(messages or ())
        self.created_at = created_at or datetime.now(timezone.utc)
        self.extra: Mapping[str, Any] | None = None
        #: In process only: how much of the history each store had shown when it was last read (see HistoryProvider).
        self.heads: dict[str, int] | None = None
        self._locks: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    def lock(self) -> asyncio.Lock:
        """The lock that makes runs on this session take turns, within the running event loop."""
        loop = asyncio.get_running_loop()
        if self._locks is None or self._locks[0] is not loop:
            self._locks = (loop, asyncio.Lock())
        return self._locks[1]

    def model_dump(self) -> dict[str, Any]:
        """The session as JSON values."""
        dumped: dict[str, Any] = {
            **(self.extra or {}),
            "version": VERSION,
            "id": self.id,
            "created_at": self.created_at.isoformat(),
            "state": to_json(self.state),
        }
        if self.conversation_id is not None:
            dumped["conversation_id"] = self.conversation_id
        if self.messages:
            dumped["messages"] = [message.model_dump() for message in self.messages]
        return dumped

    def model_dump_json(self) -> str:
        """The session as a JSON text."""
        return json.dumps(self.model_dump(), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def model_validate(cls, data: object) -> AgentSession:
        """The session that ``data`` (from `model_dump`) describes; ValueError that says what is wrong with it."""
        if isinstance(data, AgentSession):
            return data
        if not isinstance(data, Mapping):
            raise ValueError(f"a session is a JSON object, not {type(data).__name__}")
        version = data.get("version", VERSION)
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise ValueError(f"'version' of a session must be a positive integer, not {version!r:.50}")
        if version > VERSION:
            raise ValueError(
                f"the session was written by a newer agentpipe (version {version}); this one reads {VERSION}"
            )
        return _read(data)

    @classmethod
    def model_validate_json(cls, text: str | bytes) -> AgentSession:
        """The session that the JSON ``text`` describes; ValueError that says what is wrong with it."""
        from pydantic_core import from_json

        return cls.model_validate(from_json(text))

    def __repr__(self) -> str:
        return f"AgentSession(id={self.id!r}, messages={len(self.messages)})"


_KNOWN = {"version", "id", "created_at", "state", "conversation_id", "messages"}


def _read(data: Mapping[str, Any]) -> AgentSession:
    messages = _of(data, "messages", list, [])
    try:
        created_at = datetime.fromisoformat(
            _of(data, "created_at", str, None) or datetime.now(timezone.utc).isoformat()
        )
    except ValueError:
        raise ValueError(
            f"'created_at' of a session must be an ISO 8601 time, not {data['created_at']!r:.50}"
        ) from None
    session = AgentSession(
        _of(data, "id", str, None),
        conversation_id=_of(data, "conversation_id", str, None),
        state=_of(data, "state", dict, {}),
        messages=[Message.model_validate(message) for message in messages],
        created_at=created_at,
    )
    session.extra = {key: value for key, value in data.items() if key not in _KNOWN} or None
    return session


def _of(data: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    value = data.get(key)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise ValueError(f"{key!r} of a session must be a {kind.__name__}, not {type(value).__name__}")
    return value
