"""Keeps what nobody else should read from the endpoint, and puts it back into the answer."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from agentpipe._client import ChatClient, DelegatingChatClient
from agentpipe._messages import (
    ApprovalRequestContent,
    ApprovalResponseContent,
    Content,
    FunctionCallContent,
    FunctionResultContent,
    InputRequestContent,
    InputResponseContent,
    Message,
    ProgressContent,
    ReasoningContent,
    RefusalContent,
    TextContent,
)
from agentpipe._request import ChatRequest
from agentpipe._responses import ChatResponseUpdate
from agentpipe._waist import closing
from agentpipe.exceptions import AgentPipeError

#: A name in `PATTERNS`, a compiled regular expression, or a function that returns the parts of a text to replace.
Pattern = str | re.Pattern[str] | Callable[[str], Iterable[str]]

#: Each takes time linear in the text. What looks like a phone number or a card may be something else.
PATTERNS: dict[str, re.Pattern[str]] = {
    "email": re.compile(r"(?<![\w.%+-])[\w.%+-]+@[\w-]+(?:\.[\w-]+)+"),
    "phone": re.compile(
        r"(?<![\w+.-])(?:(?:\+|00)[1-9](?:[ ()./-]{0,3}\d){6,14}"  # international
        r"|\(?0[1-9]\d{0,4}\)?[ /-]?\d(?:[ -]?\d){4,9}"  # with a national prefix
        r"|\(?[2-9]\d\d\)?[ .-]{1,2}\d{3}[ .-]\d{4})(?!\w)"  # North America
    ),
    "card": re.compile(r"(?<![\w-])(?:\d[ -]?){12,18}\d(?![\w-])"),
    "iban": re.compile(r"(?<!\w)[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?!\w)"),
    "ip": re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"),
    "key": re.compile(r"(?<!\w)(?:sk-|pk-|ghp_|gho_|xox[abp]-|AKIA|hf_|glpat-)[\w-]{12,}"),
}


class RedactingChatClient(DelegatingChatClient):
    """Replaces what matches by placeholders on the way out, and restores it on the way back.

    Out: texts, thoughts, arguments and results of calls, and the instructions. Back: the same, also where a stream
    cuts a placeholder in two. One value has one placeholder, in every request of this layer, so that a model's cache
    and a history agree. Images, files, names of tools and what an endpoint wants echoed (``provider_data``) go as
    they are.

    Below the FunctionInvokingChatClient, where people want it, tools get the real values, and what they return is
    redacted before the model sees it. Above it, tools get placeholders, and the model sees what they return.

    Args:
        inner: The client to ask.
        patterns: What to replace: names ("email", "phone", "card", "iban", "ip", "key"), compiled regular expressions,
            and functions that take a text and return the parts of it to replace. Of matches that overlap, the one
            that begins first counts, then the longest.
        key: What placeholders are derived with, at random by default. Give one where they have to be the same in
            several processes, for a cache on disk for example; whoever has it can guess at values.

    Raises:
        ValueError: There is no such name, or ``patterns`` is empty.
        TypeError: Something in ``patterns`` is none of these.
    """

    def __init__(self, inner: ChatClient, *, patterns: Sequence[Pattern] | Pattern, key: str | None = None) -> None:
        super().__init__(inner)
        single = isinstance(patterns, (str, re.Pattern)) or callable(patterns)
        given: Any = (patterns,) if single else tuple(patterns)  # type: ignore[arg-type]
        if not given:
            raise ValueError("patterns must name at least one thing to replace")
        self.patterns = given
        self._finders = [_finder(pattern) for pattern in given]
        self._key = key.encode() if key is not None else secrets.token_bytes(16)

    async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Ask with placeholders; the answer has the real values again."""
        hidden = _Hidden(self._finders, self._key)
        late: list[ChatResponseUpdate] = []
        down = request.replace(
            messages=[hidden.message(message) for message in request.messages],
            options=_hidden_options(request, hidden.hide),
            late=late,
        )
        restorer = _Restorer(hidden.restore)
        try:
            async with closing(self.inner.respond(down)) as updates:
                async for update in updates:
                    for restored in restorer.feed(update):
                        yield restored
            for restored in restorer.end():
                yield restored
        except AgentPipeError as error:
            if error.response is not None:
                messages = [_changed_message(message, hidden.restore) for message in error.response.messages]
                error.response = error.response.replace(messages=tuple(messages))
            raise
        finally:
            if request.late is not None:
                request.late.extend([_changed_update(update, hidden.restore) for update in late])

    def _settings(self) -> dict[str, object]:
        return {"patterns": [label for label, _ in self._finders]}


# ------------------------------------------------------------------------------------------- what to hide


Finder = tuple[str, Callable[[str], Iterator[tuple[int, int]]]]


def _finder(pattern: object) -> Finder:
    """The name of a pattern, and what finds its matches in a text."""
    if isinstance(pattern, str):
        if pattern not in PATTERNS:
            raise ValueError(
                f"patterns has no {pattern!r}; there are {', '.join(PATTERNS)}, and re.compile({pattern!r}) is one too"
            )
        found = _passes_luhn if pattern == "card" else None
        return pattern, _of_regex(PATTERNS[pattern], found)
    if isinstance(pattern, re.Pattern):
        return "secret", _of_regex(pattern)
    if callable(pattern):
        name = re.sub(r"[^A-Za-z0-9]", "", getattr(pattern, "__name__", "")) or "secret"
        return name, _of_function(cast("Callable[[str], Iterable[str]]", pattern))
    raise TypeError(f"patterns takes names, compiled regular expressions and functions, not {type(pattern).__name__}")


def _of_regex(
    regex: re.Pattern[str], accepts: Callable[[str], bool] | None = None
) -> Callable[[str], Iterator[tuple[int, int]]]:
    def find(text: str) -> Iterator[tuple[int, int]]:
        for match in regex.finditer(text):
            if match.group() and (accepts is None or accepts(match.group())):
                yield match.span()

    return find


def _of_function(function: Callable[[str], Iterable[str]]) -> Callable[[str], Iterator[tuple[int, int]]]:
    def find(text: str) -> Iterator[tuple[int, int]]:
        parts = sorted({part for part in function(text) if part}, key=len, reverse=True)
        if parts:
            for match in re.finditer("|".join(map(re.escape, parts)), text):
                yield match.span()

    return find


def _passes_luhn(text: str) -> bool:
    digits = [int(char) for char in reversed(text) if char.isdigit()]
    return sum(digits[0::2]) % 10 == -sum(sum(divmod(2 * digit, 10)) for digit in digits[1::2]) % 10


class _Hidden:
    """The values of one request and their placeholders."""

    def __init__(self, finders: Sequence[Finder], key: bytes) -> None:
        self._finders = finders
        self._key = key
        self._values: dict[str, str] = {}  # by placeholder

    def hide(self, text: str) -> str:
        """The text with placeholders."""
        found = [(start, -end, label) for label, find in self._finders for start, end in find(text)]
        if not found:
            return text
        pieces: list[str] = []
        done = 0
        for start, minus_end, label in sorted(found):
            if start >= done:
                pieces += (text[done:start], self._placeholder(label, text[start:-minus_end]))
                done = -minus_end
        return "".join([*pieces, text[done:]])

    def _placeholder(self, label: str, value: str) -> str:
        # Keyed, since the few digits of a phone number could be guessed from a plain hash.
        digest = hmac.new(self._key, value.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
        length = 8
        while self._values.setdefault(made := f"[{label.upper()[:24]}_{digest[:length]}]", value) != value:
            length += 4
        return made

    def restore(self, text: str) -> str:
        """The text with the real values."""
        return _PLACEHOLDER.sub(lambda match: self._values.get(match.group(), match.group()), text)

    def message(self, message: Message) -> Message:
        """The message with placeholders; the same one where there is nothing to hide."""
        return _changed_message(message, self.hide)


_PLACEHOLDER = re.compile(r"\[[A-Z0-9]{1,24}_[0-9a-f]{8,24}\]")
#: What may be the start of a placeholder, at the end of a text.
_START = re.compile(r"\[(?:[A-Z0-9]{1,24}(?:_[0-9a-f]{0,24})?)?\Z")


def _hidden_options(request: ChatRequest, hide: Callable[[str], str]) -> Any:
    instructions = request.options.instructions
    changed = hide(instructions) if instructions else instructions
    return request.options if changed == instructions else request.options.replace(instructions=changed)


# --------------------------------------------------------------------------------------------- the way back


class _Restorer:
    """Restores a stream, holding back only what may be the start of a placeholder."""

    def __init__(self, restore: Callable[[str], str]) -> None:
        self._restore = restore
        self._held = ""
        self._kind: Any = TextContent  # of the content that is held
        self._message_id: str | None = None  # of the message that is being told

    def feed(self, update: ChatResponseUpdate) -> list[ChatResponseUpdate]:
        """What can be passed on when ``update`` has come."""
        before = self.end() if self._begins_another(update) else []
        self._message_id = update.message_id or self._message_id
        contents: list[Content] = []
        for content in update.contents:
            contents += self._content(content)
        if update.finish_reason is not None:
            contents += self._release()  # nothing is said after the end
        return [*before, update.replace(contents=tuple(contents))]

    def end(self) -> list[ChatResponseUpdate]:
        """What was held back."""
        released = self._release()
        return [ChatResponseUpdate(tuple(released), message_id=self._message_id)] if released else []

    def _begins_another(self, update: ChatResponseUpdate) -> bool:
        told = update.message_id
        return (told is not None and told != self._message_id) or update.role in ("tool", "user")

    def _content(self, content: Content) -> list[Content]:
        if not isinstance(content, (TextContent, ReasoningContent, RefusalContent)):
            return [*self._release(), _changed(content, self._restore)]
        before = self._release() if type(content) is not self._kind else []
        self._kind = type(content)
        text = self._held + content.text
        start = _START.search(text)
        cut = start.start() if start else len(text)
        self._held = text[cut:]
        if not cut and not content.provider_data:
            return before
        return [*before, replace(content, text=self._restore(text[:cut]))]

    def _release(self) -> list[Content]:
        held, self._held = self._held, ""
        return [self._kind(held)] if held else []


# ------------------------------------------------------------------------------------------ texts in contents

Change = Callable[[str], str]
ContentT = TypeVar("ContentT", bound=Content)


def _changed_message(message: Message, change: Change) -> Message:
    contents = tuple([_changed(content, change) for content in message.contents])
    author = change(message.author_name) if message.author_name else message.author_name
    if author == message.author_name and all(a is b for a, b in zip(contents, message.contents, strict=True)):
        return message
    return message.replace(contents=contents, author_name=author)


def _changed_update(update: ChatResponseUpdate, change: Change) -> ChatResponseUpdate:
    return update.replace(contents=tuple([_changed(content, change) for content in update.contents]))


def _changed(content: Content, change: Change) -> Content:
    """The content with other texts; the very same where ``change`` changes none."""
    if isinstance(content, (TextContent, ReasoningContent, RefusalContent, ProgressContent)):
        return _with(content, text=change(content.text))
    if isinstance(content, FunctionCallContent):
        return _changed_call(content, change)
    if isinstance(content, FunctionResultContent):
        inner = tuple([_changed(part, change) for part in content.contents])
        return _with(content, result=_changed_value(content.result, change), contents=inner)
    if isinstance(content, (ApprovalRequestContent, InputRequestContent)):
        call = _changed_call(content.call, change)
        parent = _changed_call(content.parent_call, change) if content.parent_call else None
        asked = _with(content, call=call, parent_call=parent, state=_changed_value(content.state, change))
        return _with_value(asked, "payload", change) if isinstance(asked, InputRequestContent) else asked
    if isinstance(content, ApprovalResponseContent):
        reason = change(content.reason) if content.reason else content.reason
        return _with(_with_value(content, "arguments", change), reason=reason)
    return _with_value(content, "data", change) if isinstance(content, InputResponseContent) else content


def _changed_call(call: FunctionCallContent, change: Change) -> FunctionCallContent:
    return _with(
        call,
        arguments=_changed_value(call.arguments, change),
        raw_arguments=_changed_json(call.raw_arguments, change),
        invalid=change(call.invalid) if call.invalid else call.invalid,
    )


def _changed_json(text: str | None, change: Change) -> str | None:
    """A JSON text with other texts in it: JSON spells some with escapes, so it is read and written again."""
    if not text:
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return change(text)
    changed = _changed_value(value, change)
    return text if changed == value else json.dumps(changed, ensure_ascii=False)


def _with_value(content: ContentT, name: str, change: Change) -> ContentT:
    return _with(content, **{name: _changed_value(getattr(content, name), change)})


def _with(content: ContentT, **fields: Any) -> ContentT:
    if all(getattr(content, name) == value for name, value in fields.items()):
        return content
    changed: Any = content
    return cast("ContentT", replace(changed, **fields))


def _changed_value(value: Any, change: Change) -> Any:
    """A JSON value with other texts. A number that has to be hidden becomes a text."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(str(key)): _changed_value(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_changed_value(item, change) for item in value]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        changed = change(text := str(value))
        return value if changed == text else changed
    return value
