"""Keeps what nobody else should read from the endpoint, and puts it back into the answer."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from agentpipe._client import ChatClient, DelegatingChatClient
from agentpipe._messages import Content, ReasoningContent, RefusalContent, TextContent
from agentpipe._request import ChatRequest, Run
from agentpipe._responses import ChatResponseUpdate, Late
from agentpipe._waist import closing
from agentpipe.exceptions import AgentPipeError
from agentpipe.layers._patterns import Finder, Pattern, finder
from agentpipe.layers._texts import changed_content, changed_message, changed_update

#: Where a session keeps what the placeholders stand for that the endpoint has seen.
_STATE = "agentpipe.redacted"


class RedactingChatClient(DelegatingChatClient):
    """Replaces what matches by placeholders on the way out, and restores it on the way back.

    Out: texts, thoughts, arguments and results of calls, and the instructions. Back: the same, also where a stream
    cuts a placeholder in two. One value has one placeholder, in every request of this layer, so that a model's cache
    and a history agree; where the endpoint keeps the conversation, the session keeps what its placeholders stand for.
    Images, files, declarations of tools and what an endpoint wants echoed (``provider_data``) go as they are.

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
        self._finders = [finder(pattern) for pattern in given]
        self._runs: WeakKeyDictionary[Run, dict[str, str]] = WeakKeyDictionary()
        self._key = key.encode() if key is not None else secrets.token_bytes(16)

    def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Ask with placeholders; the answer has the real values again."""
        return request.watched(self._updates(request))

    async def _updates(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        hidden = _Hidden(self._finders, self._key, self._earlier(request))
        late = Late()
        down = request.replace(
            messages=[changed_message(message, hidden.hide) for message in request.messages],
            options=_hidden_options(request, hidden.hide),
            late=late,
        )
        restorer = _Restorer(hidden.restore)
        try:
            async with closing(self.inner.respond(down)) as updates:
                async for update in updates:
                    if update.conversation_id is not None:
                        self._remember(request, hidden.values)
                    for restored in restorer.feed(update):
                        yield restored
            for restored in restorer.end():
                yield restored
        except AgentPipeError as error:
            if error.response is not None:
                messages = [changed_message(message, hidden.restore) for message in error.response.messages]
                error.response = error.response.replace(messages=tuple(messages))
            raise
        finally:
            await late.close()
            if request.late is not None:
                request.late.extend([changed_update(update, hidden.restore) for update in late])

    # Where the endpoint keeps the conversation, it may use a placeholder that is in no message that we send again.

    def _earlier(self, request: ChatRequest) -> dict[str, str]:
        if request.options.conversation_id is None:
            return {}
        if request.session is None:
            return self._runs.get(request.run, {}) if request.run is not None else {}
        kept = request.session.state.get(_STATE)
        return {name: value for name, value in kept.items() if isinstance(value, str)} if isinstance(kept, dict) else {}

    def _remember(self, request: ChatRequest, values: Mapping[str, str]) -> None:
        if request.session is not None:
            request.session.state[_STATE] = dict(values)
        elif request.run is not None:
            self._runs[request.run] = dict(values)

    def _settings(self) -> dict[str, object]:
        return {"patterns": [label for label, _ in self._finders]}


class _Hidden:
    """The values of one request and their placeholders."""

    def __init__(self, finders: Sequence[Finder], key: bytes, earlier: Mapping[str, str]) -> None:
        self.values = dict(earlier)  # by placeholder
        self._finders = finders
        self._key = key

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
        while self.values.setdefault(made := f"[{label.upper()[:24]}_{digest[:length]}]", value) != value:
            length += 4
        return made

    def restore(self, text: str) -> str:
        """The text with the real values."""
        return _PLACEHOLDER.sub(lambda match: self.values.get(match.group(), match.group()), text)


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
            return [*self._release(), changed_content(content, self._restore)]
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
