"""From a request to the endpoint's JSON, by its profile.

What every endpoint takes is sent to every endpoint; where they differ, the profile says so. Messages are encoded one by
one, so that what was encoded once need not be again.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from agentpipe._arguments import arguments_json, read_arguments, sendable
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
from agentpipe._options import ChatOptions
from agentpipe._schema import output_type
from agentpipe._tools import FunctionTool, HostedTool, Tool
from agentpipe.openai._profiles import EndpointProfile
from agentpipe.openai._schemas import schema_for

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

Json = dict[str, Any]


class WireTools:
    """The offered tools as the endpoint gets them, and their names on the wire."""

    def __init__(self, tools: Sequence[Tool], profile: EndpointProfile) -> None:
        self.to_wire: dict[str, str] = {}
        self.to_own: dict[str, str] = {}
        self.schemas: dict[str, Mapping[str, Any]] = {}
        self.declared = [self._declared(tool, profile) for tool in tools]

    def _declared(self, tool: Tool, profile: EndpointProfile) -> Json:
        if isinstance(tool, HostedTool):
            return dict(tool.definition)
        assert isinstance(tool, FunctionTool)
        name = self.name(tool.name)
        self.schemas[name] = tool.parameters
        function: Json = {"name": name, "description": sendable(tool.description)}
        strict = {None: tool.strict, True: True, False: None}[profile.strict_tools]
        function["parameters"], expressible = schema_for(tool.parameters, profile, bool(strict))
        if strict is not None:
            function["strict"] = bool(strict and expressible)
        if not function["description"]:
            del function["description"]
        return {"type": "function", "function": function}

    def name(self, own: str) -> str:
        """The name on the wire: letters, digits, underscores and hyphens, at most 64 of them."""
        known = self.to_wire.get(own)
        if known is not None:
            return known
        wire = own
        if not _NAME.fullmatch(own):
            digest = hashlib.sha256(own.encode("utf-8", "surrogatepass")).hexdigest()[:8]
            wire = f"{re.sub(r'[^a-zA-Z0-9_-]', '_', own)[:55]}_{digest}"
            self.to_own[wire] = own
        self.to_wire[own] = wire
        return wire


def parameters_of(options: ChatOptions, tools: WireTools, profile: EndpointProfile, *, history_calls: bool) -> Json:
    """Everything of the body that is not model, messages or stream."""
    body: Json = {}
    if profile.supports_sampling:
        for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty"):
            if (value := getattr(options, name)) is not None:
                body[name] = value
    if options.max_output_tokens is not None:
        body[profile.max_tokens_field] = options.max_output_tokens
    if options.stop is not None:
        body["stop"] = list(options.stop)
    if options.seed is not None:
        body["seed"] = options.seed
    _put_reasoning(body, options, profile)
    if options.response_format is not None:
        body["response_format"] = response_format_of(options.response_format, profile)
        if body["response_format"] is None:
            del body["response_format"]
    _put_tools(body, options, tools, profile, history_calls)
    return body


def _put_reasoning(body: Json, options: ChatOptions, profile: EndpointProfile) -> None:
    if options.reasoning_effort is None:
        return
    if profile.thinking_param is None:
        body["reasoning_effort"] = options.reasoning_effort
    elif options.reasoning_effort != "none":
        body.update(profile.thinking_param)


def _put_tools(
    body: Json, options: ChatOptions, tools: WireTools, profile: EndpointProfile, history_calls: bool
) -> None:
    if not tools.declared:
        if history_calls and profile.tools_required_with_history:
            body["tools"] = [_STUB]
            if "none" in profile.tool_choice:
                body["tool_choice"] = "none"
        return
    body["tools"] = tools.declared
    if (choice := options.tool_choice) is not None:
        body["tool_choice"] = _choice(choice, tools, profile)
    if options.parallel_tool_calls is not None and profile.parallel_tool_calls:
        body["parallel_tool_calls"] = options.parallel_tool_calls


_STUB = {
    "type": "function",
    "function": {
        "name": "no_tool",
        "description": "There is no tool to call.",
        "parameters": {"type": "object", "properties": {}},
    },
}


def _choice(choice: str | Mapping[str, Any], tools: WireTools, profile: EndpointProfile) -> Any:
    if isinstance(choice, Mapping):
        return dict(choice) if "named" in profile.tool_choice else "auto"
    if choice in ("auto", "none", "required"):
        return choice if choice in profile.tool_choice else "auto"
    if "named" in profile.tool_choice:
        return {"type": "function", "function": {"name": tools.name(choice)}}
    return "required" if "required" in profile.tool_choice else "auto"


def response_format_of(wanted: Any, profile: EndpointProfile) -> Json | None:
    """The ``response_format`` of a type or of the endpoint's own form; None where the endpoint knows none."""
    if isinstance(wanted, Mapping):
        return dict(wanted)
    if isinstance(wanted, str):
        return {"type": wanted}
    if profile.structured_output is None:
        return None
    if profile.structured_output == "json_object":
        return {"type": "json_object"}
    output = output_type(wanted)
    schema, strict = schema_for(output.schema, profile, profile.strict_tools is not False)
    return {"type": "json_schema", "json_schema": {"name": output.name, "schema": schema, "strict": strict}}


# ------------------------------------------------------------------------------------------- messages


class MessageEncoder:
    """Turns messages into the endpoint's, one by one.

    A message becomes one or more: the results of a tool message go one by one, and images of theirs may have to follow
    in a message of the user.
    """

    def __init__(self, profile: EndpointProfile) -> None:
        self.profile = profile

    def encode(self, message: Message, tools: WireTools) -> list[Json]:
        """The endpoint's messages for one of ours; none for one that holds nothing to send."""
        if message.role == "assistant":
            return self._assistant(message, tools)
        if message.role == "tool":
            return list(self._results(message))
        contents = message.contents
        if len(contents) == 1 and isinstance(contents[0], TextContent):
            content: Any = sendable(contents[0].text)
        else:
            content = self._parts(contents)
            if not content and contents:
                return []  # nothing that a model could read: questions and answers about calls, say
        encoded: Json = {"role": message.role, "content": content}
        if message.author_name and self.profile.message_name and message.role == "user":
            encoded["name"] = re.sub(r"[^a-zA-Z0-9_-]", "_", message.author_name)[:64]
        return [encoded]

    def _parts(self, contents: Sequence[Content]) -> Any:
        parts = [part for content in contents if (part := _part(content)) is not None]
        if all(part["type"] == "text" for part in parts):
            return "".join([part["text"] for part in parts]) if len(parts) < 2 else "\n".join(p["text"] for p in parts)
        return parts

    def _assistant(self, message: Message, tools: WireTools) -> list[Json]:
        text: list[str] = []
        thoughts: list[str] = []
        details: list[Any] = []
        calls: list[Json] = []
        encoded: Json = {"role": "assistant", "content": None}
        for content in message.contents:
            if isinstance(content, TextContent):
                text.append(content.text)
                encoded.update(_echoed(content.provider_data))
            elif isinstance(content, ReasoningContent):
                thoughts.append(content.text)
                details.extend((content.provider_data or {}).get("reasoning_details") or ())
            elif isinstance(content, RefusalContent):
                text.append(content.text)
            elif isinstance(content, FunctionCallContent):
                calls.append(_call(content, tools))
        said = sendable("".join(text))
        encoded["content"] = said or (self._beside_calls() if calls else "")
        if calls:
            encoded["tool_calls"] = calls
        if not said and not calls and not thoughts:
            return []
        self._put_thoughts(encoded, "".join(thoughts), details)
        return [encoded]

    def _beside_calls(self) -> str | None:
        beside = self.profile.tool_call_content
        return None if beside == "auto" else beside

    def _put_thoughts(self, encoded: Json, thoughts: str, details: list[Any]) -> None:
        echo = self.profile.reasoning_echo
        if echo == "reasoning_details":
            if details:
                encoded["reasoning_details"] = details
            elif thoughts:
                encoded["reasoning_details"] = [{"type": "reasoning.text", "text": sendable(thoughts)}]
        elif echo is not None:
            # A model that wants its thoughts back wants the field on every message of its own.
            encoded[echo] = sendable(thoughts)

    def _results(self, message: Message) -> Iterator[Json]:
        media: list[Content] = []
        for content in message.contents:
            if isinstance(content, FunctionResultContent):
                yield self._result(content, media)
        if media:
            parts = [part for content in media if (part := _part(content)) is not None]
            yield {"role": "user", "content": [{"type": "text", "text": "(returned by the tool:)"}, *parts]}

    def _result(self, content: FunctionResultContent, media: list[Content]) -> Json:
        text: Any = sendable(content.text)
        if content.contents:
            if self.profile.tool_images:
                parts = [part for item in content.contents if (part := _part(item)) is not None]
                text = [{"type": "text", "text": text}, *parts] if text else parts
            else:
                media.extend(content.contents)
                text = text or "(see the next message of the user)"
        return {"role": "tool", "tool_call_id": content.call_id, "content": text or self.profile.empty_tool_result}


def _echoed(provider_data: Mapping[str, Any] | None) -> Json:
    extra = (provider_data or {}).get("extra_content")
    return {"extra_content": extra} if extra else {}


def _call(content: FunctionCallContent, tools: WireTools) -> Json:
    function = {"name": tools.name(content.name), "arguments": _arguments(content)}
    return {"id": content.call_id, "type": "function", "function": function, **(content.provider_data or {})}


def _arguments(content: FunctionCallContent) -> str:
    """The arguments as the text of a JSON object, whatever the model sent."""
    if content.invalid is not None:
        return arguments_json({"invalid_arguments": content.raw_arguments or ""})
    if not content.arguments and content.raw_arguments and content.raw_arguments.strip() not in ("", "{}"):
        arguments, raw, invalid = read_arguments(content.raw_arguments)
        return arguments_json({"invalid_arguments": raw} if invalid else arguments)
    return arguments_json(content.arguments)


def _part(content: Content) -> Json | None:
    if isinstance(content, (TextContent, RefusalContent)):
        return {"type": "text", "text": sendable(content.text)} if content.text else None
    if isinstance(content, UriContent):
        return _uri_part(content)
    if isinstance(content, DataContent):
        return _data_part(content)
    if isinstance(content, UnknownContent):
        return dict(content.data)
    if isinstance(content, FunctionResultContent):
        return {"type": "text", "text": sendable(content.text)}
    return None


def _uri_part(content: UriContent) -> Json:
    if (content.media_type or "").startswith(("image/", "*/")) or content.uri.startswith("data:image"):
        return {"type": "image_url", "image_url": {"url": content.uri, **(content.provider_data or {})}}
    for kind in ("audio", "video"):  # no part of OpenAI's own, but of the servers that take such a URL
        if (content.media_type or "").startswith(f"{kind}/"):
            return {"type": f"{kind}_url", f"{kind}_url": {"url": content.uri}}
    return {"type": "file", "file": {"file_data": content.uri, "filename": content.name or "file"}}


_AUDIO = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/wave": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}


def _data_part(content: DataContent) -> Json:
    kind = content.media_type
    if kind.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": content.data_uri, **(content.provider_data or {})}}
    if kind.startswith("audio/"):
        sound = {"data": base64.b64encode(content.data).decode("ascii"), "format": _AUDIO.get(kind, kind[6:])}
        return {"type": "input_audio", "input_audio": sound}
    if kind.startswith("video/"):
        return {"type": "video_url", "video_url": {"url": content.data_uri}}
    return {"type": "file", "file": {"file_data": content.data_uri, "filename": content.name or "file"}}


# --------------------------------------------------------------------------- what concerns the whole list


def has_calls(messages: Sequence[Message]) -> bool:
    """Whether a history has calls or results."""
    kinds = (FunctionCallContent, FunctionResultContent)
    return any(isinstance(content, kinds) for message in messages for content in message.contents)


def with_media_behind(messages: Sequence[Message], profile: EndpointProfile) -> Sequence[Message]:
    """Results that stand side by side in one message, so that media of theirs, which follow it, part none of them."""
    if profile.tool_images or not any(
        one.role == "tool" == next.role and any(getattr(content, "contents", ()) for content in one.contents)
        for one, next in pairwise(messages)
    ):
        return messages
    joined: list[Message] = []
    for message in messages:
        if joined and message.role == "tool" == joined[-1].role:
            joined[-1] = joined[-1].replace(contents=(*joined[-1].contents, *message.contents))
        else:
            joined.append(message)
    return joined


def needs_arranging(profile: EndpointProfile, messages: Sequence[Message]) -> bool:
    """Whether `arranged` has more to do than to put the instructions first."""
    return (
        profile.system_role != "system"
        or not profile.multiple_system
        or profile.strict_alternation
        or profile.assistant_after_tool
        or profile.tool_id_format is not None
        or (not profile.assistant_prefill and bool(messages) and messages[-1].role == "assistant")
    )


def arranged(messages: Sequence[Json], instructions: str | None, profile: EndpointProfile) -> list[Json]:
    """The messages in the order, the roles and the company that the endpoint wants; those given stay as they are."""
    arranged = list(messages)
    if instructions:
        arranged.insert(0, {"role": "system", "content": sendable(instructions)})
    if not profile.multiple_system or profile.system_role == "user":
        arranged = _with_one_system(arranged)
    if profile.system_role == "developer":
        arranged = [{**m, "role": "developer"} if m["role"] == "system" else m for m in arranged]
    elif profile.system_role == "user":
        arranged = _with_system_in_user(arranged)
    if profile.strict_alternation:
        arranged = _alternating(arranged)
    if profile.assistant_after_tool:
        arranged = list(_with_assistant_after_tool(arranged))
    if (
        not profile.assistant_prefill
        and arranged
        and arranged[-1]["role"] == "assistant"
        and "tool_calls" not in arranged[-1]
    ):
        arranged.append({"role": "user", "content": "Continue."})
    if profile.tool_id_format == "mistral9":
        arranged = _with_short_ids(arranged)
    return arranged


def _with_one_system(messages: Sequence[Json]) -> list[Json]:
    texts = [_text_of(message["content"]) for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    joined = "\n\n".join(text for text in texts if text)
    return [{"role": "system", "content": joined}, *others] if joined else others


def _with_system_in_user(messages: Sequence[Json]) -> list[Json]:
    if not messages or messages[0]["role"] != "system":
        return list(messages)
    text, others = messages[0]["content"], list(messages[1:])
    for place, message in enumerate(others):
        if message["role"] == "user":
            others[place] = {**message, "content": _joined(text, message["content"])}
            return others
    return [{"role": "user", "content": text}, *others]


def _alternating(messages: Sequence[Json]) -> list[Json]:
    joined: list[Json] = []
    for message in messages:
        last = joined[-1] if joined else None
        plain = "tool_calls" not in message and (last is None or "tool_calls" not in last)
        if last is not None and message["role"] == last["role"] in ("user", "assistant") and plain:
            joined[-1] = {**last, "content": _joined(last["content"], message["content"])}
        else:
            joined.append(message)
    first = next((place for place, m in enumerate(joined) if m["role"] not in ("system", "developer")), len(joined))
    if first == len(joined) or joined[first]["role"] != "user":
        joined.insert(first, {"role": "user", "content": "(start)"})
    return _with_gaps_filled(joined)


def _with_gaps_filled(messages: Sequence[Json]) -> list[Json]:
    """Where joining was not possible (calls beside text), something said stands between."""
    filled: list[Json] = []
    spoke: str | None = None
    for message in messages:
        role = message["role"]
        if role == "assistant" and spoke == "assistant":
            filled.append({"role": "user", "content": "(continue)"})
        if role in ("user", "assistant"):
            spoke = role
        filled.append(message)
    return filled


def _with_assistant_after_tool(messages: Sequence[Json]) -> Iterator[Json]:
    last = None
    for message in messages:
        if last == "tool" and message["role"] == "user":
            yield {"role": "assistant", "content": "(noted)"}
        last = message["role"]
        yield message


def _with_short_ids(messages: Sequence[Json]) -> list[Json]:
    """Ids of nine letters and digits, each of them for one call only; results go with the last call of their id."""
    changed: list[Json] = []
    seen: dict[str, int] = {}
    short: dict[str, str] = {}
    for message in messages:
        if "tool_calls" in message:
            for call in message["tool_calls"]:
                times = seen[call["id"]] = seen.get(call["id"], 0) + 1
                short[call["id"]] = _short_id(call["id"] if times == 1 else f"{call['id']}#{times}")
            calls = [{**call, "id": short[call["id"]]} for call in message["tool_calls"]]
            changed.append({**message, "tool_calls": calls})
        elif message["role"] == "tool":
            call_id = message["tool_call_id"]
            changed.append({**message, "tool_call_id": short.get(call_id) or _short_id(call_id)})
        else:
            changed.append(message)
    return changed


_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _short_id(call_id: str) -> str:
    if re.fullmatch(r"[a-zA-Z0-9]{9}", call_id):
        return call_id
    number = int.from_bytes(hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).digest()[:8], "big")
    digits = []
    for _ in range(9):
        number, digit = divmod(number, 62)
        digits.append(_DIGITS[digit])
    return "".join(digits)


def _text_of(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if part.get("type") == "text")
    return content or ""


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, list) or isinstance(second, list):
        return [*_as_parts(first), *_as_parts(second)]
    return f"{first}\n\n{second}" if first and second else first or second


def _as_parts(content: Any) -> list[Json]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []
