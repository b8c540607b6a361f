"""What travels down the pipeline."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentpipe._messages import Message
from agentpipe._options import NO_OPTIONS, ChatOptions
from agentpipe._responses import ChatResponseUpdate, Late
from agentpipe._session import AgentSession


class Run:
    """The mark that all requests of one run carry: what a layer keys by to count, or to stay with a choice, per run."""

    __slots__ = ("__weakref__",)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What travels down the pipeline; never changed, ``replace`` makes another.

    ``streaming`` matters only to the endpoint (and to a cache). ``session`` and ``deps`` are carried along and never
    sent. ``late`` is where a layer that is closed or cancelled while it works leaves the updates that it can no longer
    yield: whoever asked folds them in, so that nothing that a tool did is forgotten. ``run`` is the same in every
    request that comes of one outermost call.
    """

    messages: Sequence[Message]
    options: ChatOptions = NO_OPTIONS
    streaming: bool = False
    session: AgentSession | None = None
    deps: Any = field(default=None, repr=False)
    late: list[ChatResponseUpdate] | None = field(default=None, repr=False, compare=False)
    run: Run | None = field(default=None, repr=False, compare=False)

    def replace(self, **changes: Any) -> ChatRequest:
        """The same request with other fields; TypeError for a field that does not exist."""
        made = {
            "messages": self.messages,
            "options": self.options,
            "streaming": self.streaming,
            "session": self.session,
            "deps": self.deps,
            "late": self.late,
            "run": self.run,
        }
        made.update(changes)
        return ChatRequest(**made)

    def watched(self, updates: AsyncIterator[ChatResponseUpdate]) -> AsyncIterator[ChatResponseUpdate]:
        """``updates``, closed before anybody looks into ``late``, even by a layer that leaves them open."""
        return self.late.watch(updates) if isinstance(self.late, Late) else updates
