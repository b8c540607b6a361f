"""What an endpoint's refusal means: the class of the error, whether to try again, and when.

Status *and* body are read, since many endpoints put the one in the other: a rate limit in a 200, an overflow of the
context in a 400 of a 502, the real cause as JSON in a text of a JSON.
"""

from __future__ import annotations

import email.utils
import json
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from agentpipe.exceptions import (
    AuthenticationError,
    BadRequestError,
    BadResponseError,
    ChatClientError,
    ContentFilterError,
    ContextLengthError,
    RateLimitError,
    TransportError,
)

#: A delay longer than this, in seconds, is no reason to wait: the error is then not retryable.
LONGEST_WAIT = 600.0

_CONTEXT = re.compile(
    r"context.{0,3}length|context.{0,3}(window|size)|maximum (context|input|prompt)|max.{0,3}(input|prompt|seq(uence)?).{0,3}len"
    r"|(prompt|input|request|messages?|conversation).{0,40}(is |are )?(too (long|large|many tokens)|exceeds?)"
    r"|exceeds? .{0,60}(context|token limit|maximum.{0,20}tokens|max(imum)?.{0,12}length)|too many (input )?tokens"
    r"|token(s| count).{0,40}exceeds?|reduce the length|string_above_max_length|exceed_context|context_overflow"
    r"|longer than the model|larger than the maximum context",
    re.I | re.S,
)
_CONTEXT_CODES = {
    "context_length_exceeded",
    "exceed_context_size_error",
    "context_window_exceeded",
    "string_above_max_length",
}
_NOT_CONTEXT = re.compile(r"rate.?limit|per.?(minute|day|hour)|\btp[md]\b|quota|max_tokens|max_completion_tokens", re.I)
_FILTER = re.compile(
    r"content.?filter|content.?policy|content management policy|responsibleaipolicy|data_inspection_failed|sensitive"
    r"|moderation|safety (system|settings|polic)|blocked by.{0,20}(safety|policy|guardrail)|inappropriate content",
    re.I,
)
_QUOTA = re.compile(
    r"insufficient.?(quota|balance|credit|funds)|exceeded your current quota|billing|credit balance|payment required"
    r"|out of credits?|arrearage|quota exceeded for this (month|year)|account.{0,20}(overdue|suspended)",
    re.I,
)
_RATE = re.compile(
    r"rate.?limit|too many requests|resource.?exhausted|resource has been exhausted|throttl|tokens per (min|day)|requests per"
    r"|quota|concurrency limit|\btpm\b|\brpm\b|engine_overloaded|at capacity",
    re.I,
)
_AUTH = re.compile(
    r"(invalid|incorrect|missing|no|expired|wrong).{0,12}(api|access|auth\w*)?.{0,3}(key|token|credential)s?\b"
    r"|unauthori[sz]ed|authentication|permission.?denied|forbidden|access denied|not authori[sz]ed",
    re.I,
)
_MODEL_FAILED = re.compile(
    r"tool_use_failed|failed to call a function|malformed.?function|tool call.{0,30}(not|did not|invalid)"
    r"|failed to parse tool call|invalid tool call|output_parse_failed|json_validate_failed",
    re.I,
)
_SERVER = re.compile(
    r"server.?error|internal|overloaded|unavailable|timed?.?out|timeout|crash|backend|bad gateway|upstream|down\b|try again",
    re.I,
)
_DELAY = re.compile(
    r"(?:try again|retry|wait|available|reset)[^.;\n]{0,40}?(?:in|after|for)?\s*[:=]?\s*(?:(\d+)\s*h(?:ours?)?)?\s*(?:(\d+)\s*m(?:in\w*)?(?!s))?\s*"
    r"(?:(\d+(?:\.\d+)?)\s*(ms|milliseconds?|s\b|secs?\b|seconds?\b))?",
    re.I,
)


def error_of(
    status: int | None, headers: Mapping[str, str] | None, body: object, *, in_stream: bool = False
) -> ChatClientError:
    """The error that an answer stands for.

    Args:
        status: Its HTTP status; of an error inside of a 200, 200.
        headers: Its headers.
        body: Its body: JSON values, or text.
        in_stream: Whether it came in the middle of a stream, where nothing is known to be the request's fault.
    """
    found = _Findings(body)
    inner = found.status(status)
    text = found.text
    message = found.message or (f"HTTP {status}" if status else "the endpoint failed without saying why")
    kind, retryable = _classify(inner, text, found.codes, in_stream or status is None or status < 400)
    after = _retry_after(headers or {}, found)
    if after is not None and after > LONGEST_WAIT:
        retryable = False
    if (told := (headers or {}).get("x-should-retry")) in ("true", "false"):
        retryable = told == "true"
    shown = f"{message} (HTTP {inner})" if inner and inner != 200 and f"{inner}" not in message else message
    return kind(
        shown,
        status=inner if inner is not None else status,
        code=found.code,
        retryable=retryable,
        retry_after=after,
        request_id=request_id_of(headers or {}),
    )


def request_id_of(headers: Mapping[str, str]) -> str | None:
    """What to quote to the operator of the endpoint."""
    for name in ("x-request-id", "request-id", "x-amzn-requestid", "apim-request-id", "cf-ray"):
        if value := headers.get(name):
            return value
    return None


def _classify(
    status: int | None, text: str, codes: set[str], lenient: bool
) -> tuple[type[ChatClientError], bool | None]:
    by_text = _by_text(text, codes)
    if by_text is not None and (
        status in (None, 200, 400, 413, 422, 429)
        or (status == 403 and by_text[0] is not BadResponseError)
        or status >= 500
    ):
        if not (status == 429 and by_text[0] is not RateLimitError and _RATE.search(text)):
            return by_text
    if status == 429:
        return RateLimitError, True
    if status in (401, 403, 407):
        return AuthenticationError, False
    if status == 402:
        return RateLimitError, False
    if status == 413:
        return ContextLengthError, False
    if status in (408, 409, 425) or (status is not None and status >= 500):
        return TransportError, True
    if status is not None and 400 <= status < 500:
        return BadRequestError, False
    if _RATE.search(text):
        return RateLimitError, True
    if _AUTH.search(text):
        return AuthenticationError, False
    if lenient and ("invalid_request" in text or "BadRequest" in text) and not _SERVER.search(text):
        return BadRequestError, False
    return TransportError, True


def _by_text(text: str, codes: set[str]) -> tuple[type[ChatClientError], bool | None] | None:
    """What the words of an error say, whatever its status is."""
    if codes & _CONTEXT_CODES or (_CONTEXT.search(text) and not _NOT_CONTEXT.search(text)):
        return ContextLengthError, False
    if codes & {"content_filter", "content_policy_violation", "data_inspection_failed"} or _FILTER.search(text):
        return ContentFilterError, False
    if codes & {"insufficient_quota", "insufficient_balance", "billing_hard_limit_reached"} or _QUOTA.search(text):
        return RateLimitError, False
    if _MODEL_FAILED.search(text):
        return BadResponseError, True
    return None


class _Findings:
    """What can be found in the body of an error, however deep it is buried."""

    def __init__(self, body: object) -> None:
        self.message = ""
        self.code: str | None = None
        self.codes: set[str] = set()
        self.statuses: list[int] = []
        self.delay: float | None = None
        self._texts: list[str] = []
        if isinstance(body, (bytes, bytearray)):
            body = bytes(body).decode("utf-8", "replace")
        self._look(body, 0)
        self.text = " ".join(self._texts)

    def status(self, outer: int | None) -> int | None:
        """The status that counts: the one inside, where the outer one only says that something failed."""
        for status in reversed(self.statuses):
            if outer is None or outer == 200 or (outer in (400, 500, 502) and status in (401, 403, 429)):
                return status
        return outer

    def _look(self, value: object, depth: int) -> None:
        if depth > 12:
            return
        if isinstance(value, str):
            self._look_at_text(value, depth)
        elif isinstance(value, Mapping):
            self._look_at_object(value, depth)
        elif isinstance(value, list):
            for item in value[:20]:
                self._look(item, depth + 1)

    def _look_at_text(self, text: str, depth: int) -> None:
        stripped = text.strip()
        if stripped[:1] in "{[" and stripped:
            try:
                self._look(json.loads(stripped), depth + 1)
                return
            except (ValueError, RecursionError):
                pass
        if stripped[:1] == "<":
            title = re.search(r"<(?:title|h1)[^>]*>([^<]{1,200})</", stripped, re.I)
            stripped = f"an HTML page{f' ({title.group(1).strip()})' if title else ''} instead of JSON"
        self._say(stripped)

    def _look_at_object(self, value: Mapping[str, Any], depth: int) -> None:
        for key in ("code", "status", "status_code", "http_status", "error_code"):
            self._take_code(value.get(key))
        for key in ("type", "error_type", "reason"):
            if isinstance(kind := value.get(key), str):
                self.codes.add(kind.lower())
                self._texts.append(kind)
                self.code = self.code or (kind if key == "type" and kind != "error" else None)
        self._take_delay(value)
        for key in (
            "message",
            "error",
            "errors",
            "detail",
            "msg",
            "error_message",
            "metadata",
            "raw",
            "details",
            "innererror",
        ):
            if key in value:
                self._look_at_detail(value, key, depth)

    def _look_at_detail(self, value: Mapping[str, Any], key: str, depth: int) -> None:
        inner = value[key]
        if key == "detail" and isinstance(inner, list):
            for item in inner[:5]:
                if isinstance(item, Mapping) and "msg" in item:
                    place = ".".join(str(part) for part in item.get("loc") or ())
                    self._say(f"{place}: {item['msg']}" if place else str(item["msg"]))
        else:
            self._look(inner, depth + 1)

    def _take_code(self, value: object) -> None:
        if isinstance(value, bool) or value is None:
            return
        if isinstance(value, int) or (isinstance(value, str) and value.isdigit()):
            if 100 <= int(value) <= 599:
                self.statuses.append(int(value))
        elif isinstance(value, str):
            self.codes.add(value.lower())
            self._texts.append(value)
            self.code = value

    def _take_delay(self, value: Mapping[str, Any]) -> None:
        for key in ("retry_after", "retryAfter", "retry_after_seconds", "retryDelay", "retry_delay"):
            told = value.get(key)
            if isinstance(told, (int, float)) and not isinstance(told, bool):
                self.delay = float(told)
            elif isinstance(told, str) and (match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s)?\s*", told)):
                self.delay = float(match.group(1)) / (1000 if match.group(2) == "ms" else 1)

    def _say(self, text: str) -> None:
        if text:
            self._texts.append(text)
            if not self.message or self.message == "Provider returned error":
                self.message = text if len(text) <= 500 else f"{text[:500]}..."


def _retry_after(headers: Mapping[str, str], found: _Findings) -> float | None:
    for name, scale in (("retry-after-ms", 0.001), ("x-ms-retry-after-ms", 0.001), ("retry-after", 1.0)):
        if (value := headers.get(name)) is not None and (seconds := _seconds(value)) is not None:
            return seconds * scale if scale != 1.0 else seconds
    if found.delay is not None:
        return found.delay
    return _delay_in(found.text)


def _seconds(value: str) -> float | None:
    """Seconds from a number, a number with its unit, or an HTTP date."""
    value = value.strip()
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s)?", value):
        return float(match.group(1)) / (1000 if match.group(2) == "ms" else 1)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def _delays(text: str) -> Iterator[float]:
    for hours, minutes, amount, unit in _DELAY.findall(text):
        seconds = float(amount) / (1000 if unit.lower().startswith("m") else 1) if amount else 0.0
        total = int(hours or 0) * 3600 + int(minutes or 0) * 60 + seconds
        if total:
            yield total


def _delay_in(text: str) -> float | None:
    """A delay that is told in words: "Please try again in 1m2.5s"."""
    return next(_delays(text), None)
