"""What the tests of the endpoint share: chunks as endpoints send them, and how they are read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from agentpipe import ChatResponse, EndpointProfile
from agentpipe._responses import ResponseFolder
from agentpipe.openai._assemble import Assembler
from agentpipe.openai._reading import Reading, whole

Json = dict[str, Any]

INTEGER = {"type": "object", "properties": {"a": {"type": "integer"}}}
OFFERED = {"f": INTEGER, "g": INTEGER, "get_weather": INTEGER}
STOP: Json = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def delta(**fields: Any) -> Json:
    """A chunk."""
    return {"id": "answer-1", "model": "m", "choices": [{"index": 0, "delta": fields}]}


def fragment(arguments: object = None, name: str | None = None, id: str | None = None, index: object = None) -> Json:
    """A piece of a call; what is None is left out."""
    function = {"name": name, "arguments": arguments}
    fields = {"index": index, "id": id, "function": {key: v for key, v in function.items() if v is not None}}
    return {key: value for key, value in fields.items() if value is not None}


def calls(*fragments: Json) -> Json:
    """A chunk with pieces of calls."""
    return delta(tool_calls=list(fragments))


def assembler(profile: EndpointProfile | None = None, names: Mapping[str, str] | None = None) -> Assembler:
    return Assembler(profile or EndpointProfile(), OFFERED, names)


def sse(*chunks: object, done: bool = True) -> bytes:
    """Chunks as an event stream."""
    events = b"".join(b"data: %b\n\n" % json.dumps(chunk, ensure_ascii=False).encode() for chunk in chunks)
    return events + (b"data: [DONE]\n\n" if done else b"")


def read(packets: Iterable[bytes], profile: EndpointProfile | None = None) -> ChatResponse:
    """The response that a streamed answer makes."""
    reading, folder = Reading(assembler(profile)), ResponseFolder()
    for packet in packets:
        for update in reading.feed(packet):
            folder.add(update)
    for update in reading.end():
        folder.add(update)
    return folder.response()


def streamed(*chunks: Json, profile: EndpointProfile | None = None, end: Json | None = STOP) -> ChatResponse:
    """The response that chunks make."""
    return read([sse(*chunks, *([end] if end else []))], profile)


def whole_of(message: Json, profile: EndpointProfile | None = None, **fields: Any) -> ChatResponse:
    """The response that a whole message makes."""
    body = {"id": "answer-1", "model": "m", "choices": [{"index": 0, "message": message, **fields}]}
    folder = ResponseFolder()
    for update in whole(json.dumps(body).encode(), assembler(profile)):
        folder.add(update)
    return folder.response()


def told(response: ChatResponse) -> Json:
    """All of a response that is not made up on this side."""
    made_up = {"message_id", "created_at", "raw"}
    dumped = {key: value for key, value in response.model_dump().items() if key not in made_up}
    messages = [{key: v for key, v in message.items() if key not in made_up} for message in dumped.get("messages", ())]
    return {**dumped, "messages": messages}


def called(response: ChatResponse) -> list[tuple[str, Any]]:
    """The calls of a response: name and arguments, or what is wrong with them."""
    return [(call.name, call.invalid or dict(call.arguments)) for call in response.function_calls]
