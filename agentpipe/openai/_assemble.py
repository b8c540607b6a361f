"""From the endpoint's JSON to updates: one set of rules for a whole message and for the pieces of a stream.

A whole message is a stream of one piece. Text and thoughts are passed on as they come; calls when the answer has come
to its end, since until then an endpoint may still send more of any of them, or one of them again.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from agentpipe._arguments import read_arguments
from agentpipe._messages import (
    Content,
    DataContent,
    FunctionCallContent,
    ReasoningContent,
    RefusalContent,
    TextContent,
    ThoughtContent,
    UriContent,
)
from agentpipe._records import new_id
from agentpipe._responses import ChatResponseUpdate, FinishReason, UsageDetails
from agentpipe.exceptions import BadResponseError, ChatClientError, TransportError
from agentpipe.openai._calls import Calls
from agentpipe.openai._errors import error_of
from agentpipe.openai._profiles import EndpointProfile
from agentpipe.openai._thoughts import TextSplitter

_REASONS: dict[str, FinishReason] = {
    **dict.fromkeys(
        ("length", "max_tokens", "max_length", "model_length", "max_output_tokens", "token_limit"), "length"
    ),
    **dict.fromkeys(("tool_calls", "tool_call", "function_call", "tool_use", "tool_calling"), "tool_calls"),
    **dict.fromkeys(
        ("content_filter", "content_filtered", "sensitive", "safety", "recitation", "prohibited_content", "blocklist"),
        "content_filter",
    ),
    **dict.fromkeys(("refusal", "spii", "image_safety", "guardrail_intervened", "content-filter"), "content_filter"),
}
_FAILED = {"error", "malformed_function_call", "unexpected_tool_call", "malformed_response"}
_BROKE = {"network_error", "engine_overloaded", "abort", "aborted", "server_error", "timeout", "internal_error"}


class Assembler:
    """Reads one answer.

    Args:
        profile: What is to be known of the endpoint.
        schemas: The JSON schemas of the offered tools, by the name that they have on the wire.
        names: The names of tools that differ on the wire, back to their own.
        keep_raw: Whether the chunks of a stream are kept, as ``raw`` of the last update; a whole answer's JSON is.
    """

    def __init__(
        self,
        profile: EndpointProfile,
        schemas: Mapping[str, Mapping[str, Any]] | None = None,
        names: Mapping[str, str] | None = None,
        *,
        keep_raw: bool = False,
    ) -> None:
        self._profile = profile
        self._schemas = schemas or {}
        self._names = names or {}
        self._message_id = new_id("msg")
        self._begun = False
        self._said: list[str] = []  # the text as the endpoint sent it, which may come again at the end
        self._split = TextSplitter(profile.recover_text_tool_calls, self._said)
        self._repeats = profile.cumulative_deltas
        self._thought = False
        self._details = _Details()
        self._audio: list[str] = []
        self._echo: dict[str, Any] = {}
        self._calls = Calls(self._schemas)
        self._refused = False
        self._spoke = False
        self._choice: int | None = None
        self._reason: str | None = None
        self._native_reason: str | None = None
        self._response_id: str | None = None
        self._model: str | None = None
        self._usage: UsageDetails | None = None
        self._raw: Any = None
        self._chunks: list[Any] | None = [] if keep_raw else None

    @property
    def finished(self) -> bool:
        """Whether the endpoint has said why it stopped."""
        return self._reason is not None

    # ------------------------------------------------------------------------------------------- whole

    def whole(self, body: object) -> Iterator[ChatResponseUpdate]:
        """The updates of a whole answer: the message in one, the rest in another. Raises ChatClientError."""
        if not isinstance(body, dict):
            raise BadResponseError("the endpoint answered 200 with JSON that is no object", status=200)
        contents = self._take(body)
        if self._choice is None and (self._usage is None or "choices" not in body):
            raise BadResponseError("the endpoint answered 200 with no choices", status=200)
        self._raw = body
        if contents := _with_thoughts_apart([*contents, *self._end()]):
            yield self._update(contents)
        yield self._final()

    # ------------------------------------------------------------------------------------------ streamed

    def feed(self, chunk: object) -> ChatResponseUpdate | None:
        """The update that a chunk of a stream makes, if any. Raises ChatClientError for one that tells of an error."""
        if (delta := self._delta_alone(chunk)) is not None:
            text = delta.get("content")
            if self._is_plain(text):
                self._said.append(text)
                self._spoke = True
                return ChatResponseUpdate((TextContent(text),))
            if fragments := delta.get("tool_calls"):
                self._calls.add(fragments)
                return None
        if not isinstance(chunk, dict):
            self._take_odd(chunk)
            return None
        if self._chunks is not None:
            self._chunks.append(chunk)
        contents = self._take(chunk)
        return self._update(contents) if contents else None

    def _delta_alone(self, chunk: Any) -> dict[str, Any] | None:
        """The delta of a chunk that says one thing and no more, as nearly all do; a short cut."""
        try:
            (choice,) = chunk["choices"]
            delta: dict[str, Any] = choice["delta"]
            alone = len(delta) == 1 and choice["index"] == self._choice
            told, said = chunk.get, choice.get
            more = told("usage") or told("error") or told("x_groq")
            more = more or said("finish_reason") or said("message") or said("usage")
        except (AttributeError, KeyError, TypeError, ValueError):
            return None
        return delta if alone and not more and self._chunks is None and type(delta) is dict else None

    def _is_plain(self, text: object) -> TypeGuard[str]:
        """Whether a text goes on with the answer, and holds no mark of anything else."""
        if type(text) is not str or not text or not self._begun:
            return False
        return "<" not in text and not self._repeats and self._split.plain

    def _take_odd(self, chunk: object) -> None:
        if isinstance(chunk, str) and chunk:
            raise error_of(200, None, chunk, in_stream=True)
        if chunk:
            raise BadResponseError("the stream holds JSON that is no object", status=200)

    def end(self, *, done: bool) -> Iterator[ChatResponseUpdate]:
        """The updates at the end of a stream. ``done`` says whether it was closed with [DONE].

        Raises TransportError where it was cut off.
        """
        if self._reason is None and not done:
            yield from self.rest()
            raise TransportError("the stream was cut off: it ended before the endpoint had said that it is done")
        if done and self._reason is None and self._choice is None and self._usage is None:
            raise BadResponseError("the endpoint answered with a stream that holds no answer", status=200)
        if last := self._end():
            yield self._update(last)
        self._raw = self._chunks
        yield self._final()

    def rest(self) -> Iterator[ChatResponseUpdate]:
        """The text that is held back, where no end will come: it came all the same."""
        if held := list(self._split.end()):
            yield self._update(held)

    # ---------------------------------------------------------------------------------------- one piece

    def _take(self, chunk: Mapping[str, Any]) -> list[Content]:
        if (error := _error_in(chunk)) is not None:
            raise error
        self._take_envelope(chunk)
        choice = self._choice_of(chunk.get("choices"))
        if choice is None:
            return []
        contents: list[Content] = []
        delta = choice.get("delta")
        if isinstance(delta, dict):
            self._take_delta(delta, contents)
        message = choice.get("message")
        if isinstance(message, dict):
            self._take_message(message, contents)
        if not delta and not message and isinstance(choice.get("text"), str):
            self._take_text(choice["text"], contents)
        if reason := choice.get("finish_reason"):
            self._reason = str(reason)
            self._native_reason = choice.get("native_finish_reason")
        self._take_usage(choice.get("usage"))
        return contents

    def _take_envelope(self, chunk: Mapping[str, Any]) -> None:
        if self._response_id is None and (found := chunk.get("id")):
            self._response_id = str(found)
        if self._model is None and (found := chunk.get("model")):
            self._model = str(found)
        if usage := chunk.get("usage"):
            self._take_usage(usage)
        elif isinstance(groq := chunk.get("x_groq"), dict):
            self._take_usage(groq.get("usage"))

    def _choice_of(self, choices: object) -> Mapping[str, Any] | None:
        """The choice that counts: the first."""
        if isinstance(choices, dict):
            choices = [choices]
        if not isinstance(choices, list):
            return None
        found = [choice for choice in choices if isinstance(choice, dict)]
        if not found:
            return None
        if self._choice is None:
            indexes = [choice["index"] for choice in found if isinstance(choice.get("index"), int)]
            self._choice = min(indexes, default=0)
        for choice in found:
            if choice.get("index") in (None, self._choice):
                return choice
        return None

    def _take_delta(self, delta: Mapping[str, Any], contents: list[Content]) -> None:
        self._take_reasoning(delta, contents)
        content = delta.get("content")
        if isinstance(content, str):
            if content:
                self._take_text(content, contents)
        elif content:
            self._take_parts(content, contents)
        if calls := delta.get("tool_calls"):
            self._calls.add(calls)
        if legacy := delta.get("function_call"):
            self._calls.add_legacy(legacy)
        if refusal := delta.get("refusal"):
            self._refused = self._spoke = True
            contents.append(RefusalContent(str(refusal)))
        if len(delta) > 2 or "audio" in delta or "images" in delta:
            self._take_rest(delta, contents)

    def _take_rest(self, delta: Mapping[str, Any], contents: list[Content]) -> None:
        if extra := delta.get("extra_content"):
            self._echo["extra_content"] = extra
        if isinstance(images := delta.get("images"), list):
            self._take_parts(images, contents)
        if isinstance(audio := delta.get("audio"), dict):
            self._take_audio(audio, bool(delta.get("content")), contents)

    def _take_message(self, message: Mapping[str, Any], contents: list[Content]) -> None:
        """A whole message: all there is, or, at the end of a stream, all of it once more."""
        if not self._said and not self._calls.any and not self._thought and not self._refused:
            self._take_delta(message, contents)
            return
        said = "".join(self._said)
        text = message.get("content")
        rest: dict[str, Any] = {}
        if isinstance(text, str) and text.startswith(said):
            rest["content"] = text[len(said) :]
        elif not said:
            rest["content"] = text
        if calls := message.get("tool_calls"):
            rest["tool_calls"] = calls
        self._take_delta(rest, contents)

    def _take_text(self, text: str, contents: list[Content]) -> None:
        if self._repeats:
            said = "".join(self._said)
            if text.startswith(said):
                self._said[:], text = [text], text[len(said) :]
            else:
                self._said.append(text)
        else:
            self._said.append(text)
        if self._split.plain and "<" not in text:
            if text:
                self._spoke = True
                contents.append(TextContent(text))
        else:
            self._add_split(self._split.feed(text), contents)

    def _add_split(self, pieces: Iterator[Content], contents: list[Content]) -> None:
        for piece in pieces:
            if isinstance(piece, TextContent):
                self._spoke = True
            else:
                self._thought = True
            contents.append(piece)

    def _take_reasoning(self, delta: Mapping[str, Any], contents: list[Content]) -> None:
        text = delta.get("reasoning_content") or delta.get("reasoning") or delta.get("thinking")
        details = delta.get("reasoning_details")
        if isinstance(text, dict):
            text = text.get("content") or text.get("text")
        if isinstance(details, list):
            self._details.add(details)
            text = text or "".join([_detail_text(detail) for detail in details])
        if isinstance(text, str) and text:
            self._thought = True
            contents.append(ReasoningContent(text))

    def _take_parts(self, parts: object, contents: list[Content]) -> None:
        for part in parts if isinstance(parts, list) else [parts]:
            if isinstance(part, str):
                self._take_text(part, contents)
            elif isinstance(part, dict):
                self._take_part(part, contents)

    def _take_part(self, part: Mapping[str, Any], contents: list[Content]) -> None:
        kind = part.get("type")
        if kind in ("thinking", "reasoning", "reasoning_text", "reasoning_content"):
            self._take_thinking(part, contents)
        elif kind == "refusal":
            self._refused = self._spoke = True
            contents.append(RefusalContent(str(part.get("refusal") or part.get("text") or "")))
        elif kind in ("image_url", "output_image", "image"):
            contents.extend(_media_of(part))
        elif isinstance(text := part.get("text"), str) and text:
            self._take_text(text, contents)
        elif isinstance(inner := part.get("content"), str) and inner:
            self._take_text(inner, contents)

    def _take_thinking(self, part: Mapping[str, Any], contents: list[Content]) -> None:
        inner = part.get("thinking") or part.get("reasoning") or part.get("text") or part.get("summary")
        pieces = inner if isinstance(inner, list) else [inner]
        text = "".join([str(p.get("text") or "") if isinstance(p, dict) else str(p or "") for p in pieces])
        if text:
            self._thought = True
            signature = part.get("signature")
            contents.append(ReasoningContent(text, {"signature": signature} if signature else None))

    def _take_audio(self, audio: Mapping[str, Any], has_text: bool, contents: list[Content]) -> None:
        if isinstance(transcript := audio.get("transcript"), str) and transcript and not has_text:
            self._take_text(transcript, contents)
        if isinstance(data := audio.get("data"), str):
            self._audio.append(data)

    def _take_usage(self, usage: object) -> None:
        if isinstance(usage, dict) and (found := usage_of(usage)) is not None:
            complete = (
                found.input_tokens is not None
                and usage.get("completion_tokens", usage.get("output_tokens")) is not None
            )
            if self._usage is None or complete or self._usage.output_tokens in (None, 0):
                self._usage = found

    # ------------------------------------------------------------------------------------------- the end

    def _end(self) -> list[Content]:
        contents: list[Content] = []
        self._add_split(self._split.end(), contents)
        calls = self._calls.finished(_is_length(self._reason))
        if not calls and self._split.block is not None:
            calls, text = self._recovered(self._split.block)
            if text:
                self._spoke = True
                contents.append(TextContent(text))
        if details := self._details.joined():
            contents.append(ReasoningContent("", {"reasoning_details": details}))
        if self._audio and (sound := _decoded("".join(self._audio), "audio/wav")) is not None:
            contents.append(sound)
        if self._echo:
            contents.append(TextContent("", dict(self._echo)))
        contents.extend(self._named(call) for call in calls)
        self._check_reason(bool(calls))
        self._finish: FinishReason = self._finish_reason(calls)
        return contents

    def _recovered(self, block: str) -> tuple[list[FunctionCallContent], str]:
        """The calls that a message of nothing but <tool_call> blocks stands for; the text itself where it is none."""
        calls: list[FunctionCallContent] = []
        inner = _BLOCKS.findall(block)
        if not inner or _BLOCKS.sub("", block).strip():
            return [], block
        for text in inner:
            try:
                told = json.loads(text, strict=False)
            except (ValueError, RecursionError):
                return [], block
            name = told.get("name") if isinstance(told, dict) else None
            if not isinstance(name, str) or name not in self._schemas:
                return [], block
            given = told.get("arguments", told.get("parameters"))
            arguments, raw, invalid = read_arguments(given, self._schemas[name])
            calls.append(FunctionCallContent(new_id("call"), name, arguments, raw, invalid))
        return calls, ""

    def _named(self, call: FunctionCallContent) -> FunctionCallContent:
        own = self._names.get(call.name)
        if own is None:
            return call
        return FunctionCallContent(
            call.call_id, own, call.arguments, call.raw_arguments, call.invalid, call.provider_data
        )

    def _check_reason(self, has_calls: bool) -> None:
        reason = (self._reason or "").lower()
        if has_calls:
            return
        if reason in _BROKE:
            raise TransportError(f"the endpoint broke off its answer (finish_reason {self._reason!r})", status=200)
        if reason in _FAILED:
            why = self._native_reason or self._reason
            raise BadResponseError(f"the model's answer failed (finish_reason {why!r})", status=200, code=str(why))

    def _finish_reason(self, calls: Sequence[FunctionCallContent]) -> FinishReason:
        mapped = _REASONS.get((self._reason or "").lower(), "stop")
        if calls:
            return "length" if mapped == "length" and any(call.invalid for call in calls) else "tool_calls"
        if self._refused:
            return "content_filter"
        return "stop" if mapped == "tool_calls" else mapped

    def _update(self, contents: list[Content]) -> ChatResponseUpdate:
        if self._begun:
            return ChatResponseUpdate(contents)
        self._begun = True
        return ChatResponseUpdate(contents, "assistant", self._message_id, None, self._response_id, self._model)

    def _final(self) -> ChatResponseUpdate:
        empty = not self._spoke and not self._calls.any and self._split.block is None
        return ChatResponseUpdate(
            response_id=self._response_id,
            model=self._model,
            finish_reason=self._finish,
            usage=self._usage,
            metadata={"empty_completion": True} if empty else None,
            raw=self._raw,
        )


def _with_thoughts_apart(contents: list[Content]) -> list[Content]:
    """Contents in which the text before a lone closing tag is known to be thought from the start."""
    last = max((place for place, content in enumerate(contents) if isinstance(content, ThoughtContent)), default=-1)
    return [
        ReasoningContent(content.text, content.provider_data) if isinstance(content, TextContent) else content
        for content in contents[: max(last, 0)]
        if not isinstance(content, ThoughtContent)
    ] + contents[last + 1 :]


_BLOCKS = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.S)


def _is_length(reason: str | None) -> bool:
    return _REASONS.get((reason or "").lower()) == "length"


def _error_in(chunk: Mapping[str, Any]) -> ChatClientError | None:
    """The error that a 200 holds, if it is one."""
    error = chunk.get("error")
    if error and not (isinstance(error, dict) and not any(error.values())):
        return error_of(200, None, chunk, in_stream=True)
    if chunk.get("choices"):
        return None
    status = chunk.get("base_resp")
    refused = isinstance(status, dict) and status.get("status_code") not in (None, 0)
    if refused or chunk.get("object") == "error" or chunk.get("type") == "error":
        return error_of(200, None, chunk, in_stream=True)
    if "choices" not in chunk and any(key in chunk for key in ("detail", "message", "errors", "msg")):
        return error_of(200, None, chunk, in_stream=True)
    return None


class _Details:
    """The details of thoughts, to be echoed as they were; those that come in pieces are joined by their index."""

    def __init__(self) -> None:
        self._entries: list[tuple[dict[str, Any], dict[str, list[str]]]] = []

    def add(self, details: Sequence[Any]) -> None:
        for detail in details:
            if isinstance(detail, dict):
                self._add(detail)

    def _add(self, detail: Mapping[str, Any]) -> None:
        last = self._entries[-1] if self._entries else None
        same = last is not None and all(last[0].get(key) == detail.get(key) for key in ("index", "type"))
        if last is None or not same or detail.get("index") is None:
            last = ({}, {})
            self._entries.append(last)
        known, pieces = last
        for key, value in detail.items():
            if key in _PIECEMEAL and isinstance(value, str):
                pieces.setdefault(key, []).append(value)
                known.setdefault(key, "")
            elif value is not None or key not in known:
                known[key] = value

    def joined(self) -> list[dict[str, Any]]:
        return [{**known, **{key: "".join(texts) for key, texts in pieces.items()}} for known, pieces in self._entries]


_PIECEMEAL = ("text", "summary", "data")


def _detail_text(detail: object) -> str:
    if not isinstance(detail, dict):
        return ""
    return next((t for key in ("text", "summary") if isinstance(t := detail.get(key), str)), "")


def _media_of(part: Mapping[str, Any]) -> Iterator[Content]:
    found = part.get("image_url") or part.get("url") or part.get("image")
    url = found.get("url") if isinstance(found, dict) else found
    if isinstance(url, str) and url.startswith("data:"):
        media_type, _, data = url[5:].partition(";base64,")
        if (decoded := _decoded(data, media_type)) is not None:
            yield decoded
    elif isinstance(url, str) and url:
        yield UriContent(url)


def _decoded(data: str, media_type: str) -> DataContent | None:
    try:
        return DataContent(base64.b64decode(data), media_type or "application/octet-stream")
    except (binascii.Error, ValueError):
        return None


# --------------------------------------------------------------------------------------------- usage


def usage_of(usage: Mapping[str, Any]) -> UsageDetails | None:
    """The usage under its various names; None where no count is told."""
    given = _count(usage, "prompt_tokens", "input_tokens", "prompt_token_count", "promptTokens", "inputTokens")
    made = _count(
        usage, "completion_tokens", "output_tokens", "candidates_token_count", "completionTokens", "outputTokens"
    )
    total = _count(usage, "total_tokens", "total_token_count", "totalTokens")
    if given is None and made is None and total is None:
        return None
    if total is None or total < (given or 0) + (made or 0):
        total = (given or 0) + (made or 0)
    if given is not None and made is None:
        made = max(0, total - given)
    elif made is not None and given is None:
        given = max(0, total - made)
    cached = _count(_details(usage, "prompt", "input"), "cached_tokens", "cache_read")
    if cached is None:
        cached = _count(
            usage, "prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens", "num_cached_tokens"
        )
    reasoning = _count(_details(usage, "completion", "output"), "reasoning_tokens")
    if reasoning is None:
        reasoning = _count(usage, "reasoning_tokens", "thoughts_token_count", "completion_reasoning_tokens")
    cost = usage.get("cost")
    extra = {"cost": cost} if isinstance(cost, (int, float)) and not isinstance(cost, bool) else None
    return UsageDetails(given, made, total, cached, reasoning, extra)


def _details(usage: Mapping[str, Any], *kinds: str) -> Mapping[str, Any]:
    for kind in kinds:
        for name in (f"{kind}_tokens_details", f"{kind}_token_details"):
            if isinstance(found := usage.get(name), dict):
                return found
    return {}


def _count(usage: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = usage.get(name)
        if isinstance(value, bool):
            continue
        if isinstance(value, (int, float)) and value == value and value not in (float("inf"), float("-inf")):
            return int(value)
        if isinstance(value, str) and value.isdigit():
            return int(value)
    return None
