"""A request as canonical JSON values, and an answer that is given once more: what a cache and a recording share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentpipe._messages import Content, Message, ReasoningContent, RefusalContent, TextContent
from agentpipe._options import ChatOptions, tools_of
from agentpipe._records import to_json
from agentpipe._request import ChatRequest
from agentpipe._responses import ChatResponse, ChatResponseUpdate
from agentpipe._schema import output_type
from agentpipe._tools import FunctionTool, HostedTool, Tool

#: Characters of a piece when a stored answer is streamed.
PIECE = 32

_TOLD = (
    "model", "instructions", "temperature", "top_p", "max_output_tokens", "stop", "seed", "frequency_penalty",
    "presence_penalty", "reasoning_effort", "tool_choice", "parallel_tool_calls", "conversation_id",
)  # fmt: skip
# What changes how an answer is carried, kept or charged, and not what it says.
_BESIDE_THE_POINT = frozenset(
    {"stream", "stream_options", "user", "safety_identifier", "metadata", "store", "service_tier", "timeout",
     "prompt_cache_key", "prompt_cache_retention"}
)  # fmt: skip
_SECRET = re.compile(r"api.?key|secret|password|authorization|credential|(^|[_-])token$", re.I)


def canonical(request: ChatRequest) -> dict[str, Any]:
    """What of a request an answer depends on, as JSON values: no ids, no metadata, no headers, nothing secret."""
    options = request.options
    told: dict[str, Any] = {name: to_json(getattr(options, name)) for name in _TOLD}
    told["response_format"] = _format(options.response_format)
    told["tools"] = [_tool(tool) for tool in tools_of(options)]
    told["extra_body"] = _body(options)
    kept = {name: value for name, value in told.items() if value not in (None, [], {})}
    return {"messages": [_message(message) for message in request.messages], **kept}


def _message(message: Message) -> dict[str, Any]:
    told: dict[str, Any] = {"role": message.role, "contents": [content.model_dump() for content in message.contents]}
    return {**told, "author_name": message.author_name} if message.author_name else told


def _format(kind: Any) -> Any:
    if kind is None or isinstance(kind, Mapping):
        return to_json(kind)
    output = output_type(kind)
    return {"name": output.name, "schema": output.schema}


def _tool(tool: Tool) -> Any:
    if isinstance(tool, HostedTool):
        return to_json(tool.definition)
    if not isinstance(tool, FunctionTool):
        return {"name": tool.name}
    told = {"name": tool.name, "description": tool.description, "parameters": to_json(tool.parameters)}
    return told if tool.strict is None else {**told, "strict": tool.strict}


def _body(options: ChatOptions) -> Any:
    body = options.extra_body or {}
    return _without_secrets({key: value for key, value in body.items() if key not in _BESIDE_THE_POINT})


def _without_secrets(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): "***" if _SECRET.search(str(k)) else _without_secrets(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_secrets(item) for item in value]
    return to_json(value)


def again(response: ChatResponse, streaming: bool) -> Iterator[ChatResponseUpdate]:
    """The updates of an answer that was stored: each message whole, or in pieces where ``streaming``."""
    for update in response.as_updates():
        if streaming:
            yield from _pieces(update)
        else:
            yield update


def _pieces(update: ChatResponseUpdate) -> Iterator[ChatResponseUpdate]:
    pieces = [piece for content in update.contents for piece in _cut(content)]
    if len(pieces) < 2:
        yield update
        return
    for piece in pieces:
        yield ChatResponseUpdate((piece,), update.role, update.message_id, update.author_name)


def _cut(content: Content) -> Sequence[Content]:
    if not isinstance(content, (TextContent, ReasoningContent, RefusalContent)) or len(content.text) <= PIECE:
        return (content,)
    text = content.text
    pieces = [type(content)(text[start : start + PIECE]) for start in range(0, len(text), PIECE)]
    # What the endpoint wants echoed goes with the last piece.
    pieces[-1] = replace(content, text=pieces[-1].text)
    return pieces
