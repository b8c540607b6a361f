"""The body of a request, as bytes; what was encoded once is not encoded again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from agentpipe._arguments import sendable
from agentpipe._messages import Message
from agentpipe._options import tools_of
from agentpipe._records import to_json
from agentpipe._request import ChatRequest
from agentpipe._tools import Tools
from agentpipe._transcript import repaired
from agentpipe.openai._encode import (
    MessageEncoder,
    WireTools,
    arranged,
    has_calls,
    needs_arranging,
    parameters_of,
    with_media_behind,
)
from agentpipe.openai._profiles import EndpointProfile

_to_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=to_json).encode

#: How many messages, and how many bytes of them, a client keeps encoded; and how many sets of tools.
_MESSAGES, _BYTES, _TOOLS = 8192, 16 * 1024 * 1024, 16


def to_bytes(value: object) -> bytes:
    """A JSON value as compact UTF-8."""
    return _to_text(value).encode("utf-8", "replace")


class BodyBuilder:
    """Builds the bodies of one client's requests.

    Encoded messages and tools are kept by identity, together with the object itself, so that the identity is its own
    for as long as the entry lives; they are frozen, so an entry can never be out of date. The number of entries is
    bounded.
    """

    def __init__(self, profile: EndpointProfile) -> None:
        self.profile = profile
        self._encoder = MessageEncoder(profile)
        self._messages: dict[int, tuple[Message, bytes]] = {}
        self._size = 0
        self._tools: dict[int, tuple[Tools, WireTools, bytes]] = {}

    def build(self, request: ChatRequest, model: str) -> tuple[bytes, WireTools]:
        """The body of a request, and the tools as they are named in it."""
        options, profile = request.options, self.profile
        tools, tools_json = self._wire_tools(tools_of(options))
        messages = with_media_behind(repaired(request.messages), profile)
        wants_history = profile.tools_required_with_history and not tools.declared
        fields = parameters_of(options, tools, profile, history_calls=wants_history and has_calls(messages))
        declared = fields.pop("tools", None)
        if request.streaming:
            fields["stream"] = True
            if profile.stream_usage:
                fields["stream_options"] = {"include_usage": True}
        own = {"model": model, **fields}
        if options.extra_body:
            own.update(options.extra_body)
        parts = [to_bytes(own)[:-1]]
        if "messages" not in own:
            parts.append(b',"messages":[%b]' % self._messages_json(messages, options.instructions, tools))
        if declared is not None and "tools" not in own:
            parts.append(b',"tools":%b' % (tools_json if declared is tools.declared else to_bytes(declared)))
        return b"".join([*parts, b"}"]), tools

    def _messages_json(self, messages: Sequence[Message], instructions: str | None, tools: WireTools) -> bytes:
        profile = self.profile
        if needs_arranging(profile, messages):
            encoded = [one for message in messages for one in self._encoder.encode(message, tools)]
            return to_bytes(arranged(encoded, instructions, profile))[1:-1]
        parts = [to_bytes({"role": "system", "content": sendable(instructions)})] if instructions else []
        kept = self._messages
        for message in messages:
            entry = kept.get(id(message))
            encoded_message = entry[1] if entry is not None else self._encode(message, tools)
            if encoded_message:
                parts.append(encoded_message)
        return b",".join(parts)

    def _encode(self, message: Message, tools: WireTools) -> bytes:
        encoded = b",".join([to_bytes(one) for one in self._encoder.encode(message, tools)])
        if len(self._messages) >= _MESSAGES or self._size > _BYTES:
            self._forget()
        self._messages[id(message)] = (message, encoded)
        self._size += len(encoded)
        return encoded

    def _forget(self) -> None:
        """Make room: the older half goes."""
        for key in list(self._messages)[: len(self._messages) // 2 + 1]:
            self._size -= len(self._messages.pop(key)[1])

    def _wire_tools(self, tools: Tools) -> tuple[WireTools, bytes]:
        if not tools:
            return WireTools((), self.profile), b"[]"
        entry = self._tools.get(id(tools))
        if entry is None:
            wire = WireTools(tools, self.profile)
            if len(self._tools) >= _TOOLS:
                del self._tools[next(iter(self._tools))]
            entry = self._tools[id(tools)] = (tools, wire, to_bytes(wire.declared))
        return entry[1], entry[2]


def as_values(body: bytes) -> dict[str, Any]:
    """The body as JSON values, for a transport that has to look into it."""
    values: dict[str, Any] = json.loads(body)
    return values
