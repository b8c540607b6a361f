"""Messages and tools in OpenAI's own JSON form, to and from ours."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

from agentpipe._arguments import read_arguments
from agentpipe._messages import (
    Content,
    DataContent,
    FunctionCallContent,
    FunctionResultContent,
    Message,
    ReasoningContent,
    RefusalContent,
    TextContent,
    UnknownContent,
    UriContent,
)
from agentpipe._records import new_id
from agentpipe._tools import FunctionTool, HostedTool, Tool
from agentpipe.openai._encode import MessageEncoder, WireTools
from agentpipe.openai._profiles import EndpointProfile

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_CALL_KEYS = ("id", "type", "function", "index")


def load_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Messages from OpenAI's JSON form; the results of one turn become one tool message.

    Raises ValueError that says which message is wrong, and what is.
    """
    loaded: list[Message] = []
    results: list[Content] = []
    names: dict[str, str] = {}
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ValueError(f"message {place} must be an object, not {type(message).__name__}")
        if message.get("role") in ("tool", "function"):
            results.append(_result(message, place, names))
            continue
        if results:
            loaded.append(Message("tool", tuple(results)))
            results = []
        loaded.append(_message(message, place, names))
    if results:
        loaded.append(Message("tool", tuple(results)))
    return loaded


def dump_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages in OpenAI's JSON form; each result becomes a message of its own."""
    profile = EndpointProfile(reasoning_echo="reasoning_content", tool_images=True)
    encoder, names = MessageEncoder(profile), _SameNames((), profile)
    dumped = [one for message in messages for one in encoder.encode(message, names)]
    for one in dumped:
        if one.get("reasoning_content") == "":
            del one["reasoning_content"]
    return dumped


class _SameNames(WireTools):
    def name(self, own: str) -> str:
        return own


def load_tools(tools: Sequence[Mapping[str, Any]]) -> list[Tool]:
    """Tools from OpenAI's JSON form: functions become declarations without a function, all else hosted tools.

    Raises ValueError that says which tool is wrong, and what is.
    """
    loaded: list[Tool] = []
    for place, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping):
            loaded.append(_function(function, place))
        elif isinstance(tool, Mapping) and tool.get("type") not in (None, "function"):
            loaded.append(HostedTool(tool))
        else:
            raise ValueError(f"tool {place} must be an object with a 'function' or a hosted 'type'")
    return loaded


def _function(function: Mapping[str, Any], place: int) -> FunctionTool:
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError(f"tool {place} needs a 'name'")
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    strict = function.get("strict")
    return FunctionTool(name=name, description=function.get("description") or "", parameters=parameters, strict=strict)


def _message(message: Mapping[str, Any], place: int, names: dict[str, str]) -> Message:
    role = _ROLES.get(str(message.get("role")))
    if role is None:
        raise ValueError(
            f"message {place} has the role {message.get('role')!r}; known are system, user, assistant, tool"
        )
    contents: list[Content] = []
    if thoughts := message.get("reasoning_content") or message.get("reasoning"):
        contents.append(ReasoningContent(str(thoughts), _details(message)))
    elif details := _details(message):
        contents.append(ReasoningContent("", details))
    contents.extend(_contents(message.get("content"), place))
    if refusal := message.get("refusal"):
        contents.append(RefusalContent(str(refusal)))
    contents.extend([_call(call, place) for call in message.get("tool_calls") or ()])
    if isinstance(legacy := message.get("function_call"), Mapping):
        contents.append(_call({"id": new_id("call"), "function": legacy}, place))
    names.update({c.call_id: c.name for c in contents if isinstance(c, FunctionCallContent)})
    name = message.get("name")
    return Message(role, tuple(contents), author_name=name if isinstance(name, str) else None)  # type: ignore[arg-type]


def _details(message: Mapping[str, Any]) -> dict[str, Any] | None:
    details = message.get("reasoning_details")
    return {"reasoning_details": details} if details else None


def _contents(content: object, place: int) -> list[Content]:
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [TextContent(content)]
    if isinstance(content, Sequence):
        return [_part(part, place) for part in content]
    raise ValueError(f"the content of message {place} must be a text or a list of parts, not {type(content).__name__}")


def _part(part: object, place: int) -> Content:
    if isinstance(part, str):
        return TextContent(part)
    if not isinstance(part, Mapping):
        raise ValueError(f"a part of message {place} must be an object, not {type(part).__name__}")
    kind = part.get("type")
    if kind in ("text", "input_text", "output_text"):
        return TextContent(str(part.get("text") or ""))
    if kind == "refusal":
        return RefusalContent(str(part.get("refusal") or ""))
    if kind == "image_url":
        return _image(part.get("image_url"))
    if kind == "input_audio" and isinstance(sound := part.get("input_audio"), Mapping):
        media_type = {"mp3": "audio/mpeg", "wav": "audio/wav"}.get(
            str(sound.get("format")), f"audio/{sound.get('format')}"
        )
        return _data(str(sound.get("data") or ""), media_type) or UnknownContent(dict(part))
    if kind == "file" and isinstance(file := part.get("file"), Mapping) and isinstance(file.get("file_data"), str):
        return _uri(file["file_data"], file.get("filename"), None)
    return UnknownContent(dict(part))


def _image(image: object) -> Content:
    told = image if isinstance(image, Mapping) else {"url": image}
    others = {key: value for key, value in told.items() if key != "url"}
    return _uri(str(told.get("url") or ""), None, others or None, "image/*")


def _uri(uri: str, name: str | None, provider_data: Mapping[str, Any] | None, media_type: str | None = None) -> Content:
    if uri.startswith("data:") and ";base64," in uri:
        kind, _, encoded = uri[5:].partition(";base64,")
        if (found := _data(encoded, kind, name, provider_data)) is not None:
            return found
    return UriContent(uri, media_type, name, provider_data)


def _data(
    encoded: str, media_type: str, name: str | None = None, provider_data: Mapping[str, Any] | None = None
) -> DataContent | None:
    try:
        return DataContent(base64.b64decode(encoded, validate=True), media_type, name, provider_data)
    except (binascii.Error, ValueError):
        return None


def _call(call: object, place: int) -> FunctionCallContent:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not function.get("name"):
        raise ValueError(f"a call of message {place} needs a 'function' with a 'name'")
    arguments, raw, invalid = read_arguments(function.get("arguments"))
    echo = {key: value for key, value in call.items() if key not in _CALL_KEYS}
    call_id = str(call.get("id") or new_id("call"))
    return FunctionCallContent(call_id, str(function["name"]), arguments, raw, invalid, echo or None)


def _result(message: Mapping[str, Any], place: int, names: Mapping[str, str]) -> FunctionResultContent:
    call_id = message.get("tool_call_id")
    if message.get("role") == "function":
        call_id = next((i for i, name in reversed(names.items()) if name == message.get("name")), None)  # type: ignore[call-overload]
    if not call_id:
        raise ValueError(f"message {place} is a result and needs a 'tool_call_id'")
    contents = _contents(message.get("content"), place)
    texts = [content.text for content in contents if isinstance(content, TextContent)]
    media = tuple([content for content in contents if not isinstance(content, TextContent)])
    name = names.get(str(call_id)) or message.get("name")
    return FunctionResultContent(str(call_id), name, "\n".join(texts), contents=media)
