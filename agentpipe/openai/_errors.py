"""What an endpoint's refusal means: the class of the error, whether to try again, and when.

Status *and* body are read, since many endpoints put the one in the other: a rate limit in a 200, an overflow of the
context in a 400 of a 502, the real cause as JSON in a text of a JSON.
"""

from __future__ import annotations

import email.utils
import json
import math
import re
import time
from collections.abc import Mapping
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

# What the servers say. Each text is one line by then, so that "." stays within one text.
_CONTEXT = re.compile(
    r"(maximum|model'?s?|available|exceed\w*|configured).{0,20}context.{0,3}(length|window|size|limit)"
    r"|context.{0,3}(length|window|size|limit).{0,30}exceed|exceed.{0,40}context"
    r"|(prompt|input|conversation)( is)? too long"
    r"|context_overflow|range of input length|input`? tokens \+|inputs` tokens|larger than the maximum context",
    re.I,
)
_PERHAPS_CONTEXT = re.compile(
    r"maximum (input|prompt)|max.{0,3}(input|prompt|seq(uence)?).{0,3}len|too many (input |prompt )?tokens"
    r"|\b(prompt|input|request|messages?|conversation)\b.{0,40}(is |are )?(too (long|large|many tokens)|exceeds?)"
    r"|exceed\w* .{0,60}(token limit|maximum.{0,20}tokens|max(imum)?.{0,12}length)|token(s| count).{0,40}exceeds?"
    r"|messages\[\d+\]\.content\S* string too long|reduce the length|longer than the model",
    re.I,
)
_CONTEXT_CODES = {"context_length_exceeded", "exceed_context_size_error", "context_window_exceeded"}
_NOT_CONTEXT = re.compile(
    r"rate.?limit|per.?(min|minute|day|hour)\b|\btp[md]\b|quota|max_tokens|max_completion_tokens|\bimage|\.(id|name)'",
    re.I,
)
_FILTER = re.compile(
    r"content.?filter|content.?policy|content management policy|responsibleaipolicy|data_inspection_failed"
    r"|sensitive (content|information|words?|topic)|content exists risk|moderation|inappropriate content|敏感|不安全"
    r"|safety (system|settings|polic)|(blocked|rejected|flagged) (by|due to).{0,30}(safety|policy|guardrail)",
    re.I,
)
_FILTER_CODES = {"content_filter", "content_policy_violation", "data_inspection_failed", "sensitive", "1301"}
_QUOTA = re.compile(
    r"insufficient.?(quota|balance|credit|funds)|exceeded your current quota|billing|credit balance|payment required"
    r"|out of credits?|more credits|arrearage|quota exceeded for this (month|year)|account.{0,20}(overdue|suspended)",
    re.I,
)
_QUOTA_CODES = {"insufficient_quota", "insufficient_balance", "billing_hard_limit_reached"}
_RATE = re.compile(
    r"rate.?limit|too many requests|resource.?exhausted|resource has been exhausted|throttl|tokens per (min|day)"
    r"|requests per|quota|concurrency limit|\btpm\b|\brpm\b|engine_overloaded|at capacity",
    re.I,
)
_TOO_LARGE_AT_ONCE = re.compile(r"request too large .{0,160}limit:? ?\d+, requested:? ?\d+", re.I)
_KEY = re.compile(
    r"(invalid|incorrect|missing|expired|wrong|no).{0,3}(api|access).{0,3}key|api.?key.{0,12}(invalid|expired)"
    r"|api.?key( is)? not valid|api_key_invalid",
    re.I,
)
_AUTH = re.compile(
    r"(invalid|incorrect|missing|expired|wrong).{0,12}(access|auth\w*).{0,3}(key|token|credential)s?\b|api secret key"
    r"|unauthori[sz]ed|authentication|permission.?denied|forbidden|access denied|not authori[sz]ed|login fail",
    re.I,
)
_MODEL_FAILED = re.compile(
    r"tool_use_failed|failed to call a function|malformed.?function|failed to parse.{0,30}(tool|function).?call"
    r"|tool call validation failed|output_parse_failed|json_validate_failed",
    re.I,
)
_SERVER = re.compile(
    r"server.?error|internal|overloaded|unavailable|timed?.?out|timeout|crash|backend|bad gateway|upstream|down\b"
    r"|try again",
    re.I,
)
_NOT_THERE = re.compile(
    r"\b(model|deployment|endpoint)\b.{0,100}(not (be )?(found|exist|supported|available)|does(n't| not) exist)"
    r"|(unknown|no such|invalid) (model|deployment)|not a valid model",
    re.I,
)
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_AMOUNT = r"(\d+(?:\.\d+)?)\s*(ms|milliseconds?|h(?:ours?|rs?)?|m(?:in(?:ute)?s?)?|s(?:ec(?:ond)?s?)?)(?![a-z])"
_DELAY = re.compile(
    rf"(?:try again|retry|wait|available|resets?)\b[^\d\n]{{0,40}}?((?:{_AMOUNT}(?:,|\s|and)*)+)",
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
    message = found.message or (f"HTTP {status}" if status else "the endpoint failed without saying why")
    after = _retry_after(headers or {}, found)
    kind, retryable = _classify(inner, found, after, in_stream or status is None or status < 400)
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


_Verdict = tuple[type[ChatClientError], bool]


def _classify(status: int | None, found: _Findings, after: float | None, lenient: bool) -> _Verdict:
    said = _by_words(found, after)
    if said is not None and _may_be(said[0], status, found.text):
        return said
    if status is not None and status not in (200, *range(500, 600)):
        return _by_status(status, found.text)
    return _of_the_server(status, found.text, lenient)


def _may_be(kind: type[ChatClientError], status: int | None, text: str) -> bool:
    """Whether words may say what a status does not."""
    if status == 429:
        return kind is RateLimitError or not _RATE.search(text)
    if kind is AuthenticationError:
        return status in (None, 200, 400)
    if status == 403:
        return kind is not BadResponseError
    return status in (None, 200, 400, 413, 422) or status >= 500


def _by_status(status: int, text: str) -> _Verdict:
    if status == 429:
        return RateLimitError, not _TOO_LARGE_AT_ONCE.search(text)
    if status in (401, 403, 407):
        return AuthenticationError, False
    if status == 402:
        return RateLimitError, False
    if status == 413:
        return ContextLengthError, False
    if status in (408, 409, 425):
        return TransportError, True
    return BadRequestError, False


def _of_the_server(status: int | None, text: str, lenient: bool) -> _Verdict:
    """What an error inside of a 200, or a 5xx, is."""
    if status is not None and status >= 500:
        return TransportError, True
    if _RATE.search(text):
        return RateLimitError, True
    if _AUTH.search(text):
        return AuthenticationError, False
    if _NOT_THERE.search(text):
        return BadRequestError, False
    if lenient and ("invalid_request" in text or "BadRequest" in text) and not _SERVER.search(text):
        return BadRequestError, False
    return TransportError, True


def _by_words(found: _Findings, after: float | None) -> _Verdict | None:
    """What the words of an error say, whatever its status is."""
    text, codes = found.text, found.codes
    perhaps = _PERHAPS_CONTEXT.search(text) and not _NOT_CONTEXT.search(text)
    if codes & _CONTEXT_CODES or _CONTEXT.search(text) or perhaps:
        return ContextLengthError, False
    if codes & _FILTER_CODES or _FILTER.search(text):
        return ContentFilterError, False
    # A quota that says when it is filled up again is a rate limit.
    if codes & _QUOTA_CODES or (_QUOTA.search(text) and after is None):
        return RateLimitError, False
    if _MODEL_FAILED.search(text):
        return BadResponseError, True
    if "invalid_api_key" in codes or _KEY.search(text):
        return AuthenticationError, False
    return None


_DELAY_KEYS = (
    "retry_after", "retryAfter", "retry_after_seconds", "retry_after_ms", "retryDelay", "retry_delay", "estimated_time",
)  # fmt: skip


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
        self.text = "\n".join([" ".join(text.split()) for text in self._texts])

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
        elif isinstance(value, dict):
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
            "status_msg",
            "base_resp",
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
                if isinstance(item, dict) and "msg" in item:
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
        for key in _DELAY_KEYS:
            told = value.get(key)
            if isinstance(told, bool) or not isinstance(told, (int, float, str)):
                continue
            seconds = _seconds(told) if isinstance(told, str) else float(told)
            if seconds is not None and math.isfinite(seconds) and seconds >= 0:
                self.delay = seconds / (1000 if key.endswith("ms") else 1)

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


def _delay_in(text: str) -> float | None:
    """A delay that is told in words: "Please try again in 1m2.5s"."""
    match = _DELAY.search(text)
    return sum(map(_length, re.finditer(_AMOUNT, match.group(1), re.I))) if match else None


def _length(amount: re.Match[str]) -> float:
    unit = amount.group(2).lower()
    return float(amount.group(1)) * _UNITS["ms" if unit.startswith(("ms", "milli")) else unit[0]]
