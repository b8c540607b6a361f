"""The body of a request, as bytes; what was encoded once is not encoded again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from agentpipe._arguments import sendable
from agentpipe._messages import Message, TextContent
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
_MESSAGES, _BYTES, _TOOLS = 2048, 16 * 1024 * 1024, 16


_HEADS = {role: b'{"role":"%b","content":' % role.encode() for role in ("system", "user", "assistant")}
_quoted: Callable[[str], str] = json.encoder.encode_basestring


def to_bytes(value: object) -> bytes:
    """A JSON value as compact UTF-8."""
    return _to_text(value).encode("utf-8", "replace")


class BodyBuilder:
    """Builds the bodies of one client's requests.

    What was encoded is kept by the identity of the contents (of the tools), together with them, so that the identity is
    theirs for as long as the entry lives; they are frozen, so an entry can never be out of date. Copies of a message
    that differ in where they come from share an entry. The number of entries is bounded. Plain text is encoded anew.
    """

    def __init__(self, profile: EndpointProfile) -> None:
        self.profile = profile
        self._encoder = MessageEncoder(profile)
        self._messages: dict[int, tuple[Message, bytes]] = {}  # by the identity of the contents
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
            encoded_message = self._plain(message)
            if encoded_message is None:
                entry = kept.get(id(message.contents))
                known = entry is not None and _same_but_origin(entry[0], message)
                encoded_message = entry[1] if entry is not None and known else self._encode(message, tools)
            if encoded_message:
                parts.append(encoded_message)
        return b",".join(parts)

    def _plain(self, message: Message) -> bytes | None:
        """The JSON of a message that is one text, which takes less time than it would take room; None for others."""
        contents = message.contents
        if len(contents) != 1 or type(contents[0]) is not TextContent or contents[0].provider_data is not None:
            return None
        head = _HEADS.get(message.role)
        text = contents[0].text
        if head is None or not text or (message.author_name is not None and message.role == "user"):
            return None
        if message.role == "assistant" and self.profile.reasoning_echo is not None:
            return None
        return b"%b%b}" % (head, _quoted(sendable(text)).encode())

    def _encode(self, message: Message, tools: WireTools) -> bytes:
        encoded = b",".join([to_bytes(one) for one in self._encoder.encode(message, tools)])
        if len(self._messages) >= _MESSAGES or self._size > _BYTES:
            self._forget()
        self._messages[id(message.contents)] = (message, encoded)
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


def _same_but_origin(one: Message, other: Message) -> bool:
    """Whether two messages with the very same contents are encoded alike."""
    return one is other or (one.role == other.role and one.author_name == other.author_name)


def as_values(body: bytes) -> dict[str, Any]:
    """The body as JSON values, for a transport that has to look into it."""
    values: dict[str, Any] = json.loads(body)
    return values
