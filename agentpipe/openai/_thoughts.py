"""Telling thoughts from text, where a model writes both into one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentpipe._messages import Content, ReasoningContent, TextContent, ThoughtContent

_OPEN, _CLOSE = "<think>", "</think>"
_TAGS = ((_OPEN, _CLOSE), ("<thinking>", "</thinking>"), ("<thought>", "</thought>"))
_BLOCK = "<tool_call>"


class TextSplitter:
    """Tells thoughts from text where a model writes both into one: a leading <think> block, a lone </think>.

    It holds back only what may be the beginning of a tag, and the white space around one. ``said`` is all the text that
    came so far.
    """

    def __init__(self, recovers: bool, said: Sequence[str]) -> None:
        self._said = said
        self.plain = False  # nothing is held back, and only a "<" could change that
        self.block: str | None = None  # a message that may be nothing but calls written as text
        self._recovers = recovers
        self._state = "start"
        self._held = ""
        self._close = _CLOSE
        self._opened = True  # nothing was thought yet but white space
        self._lone = True  # a lone closing tag may still come
        self._blocks: list[str] = []

    def feed(self, text: str) -> Iterator[Content]:
        if self._state == "block":
            self._blocks.append(text)
            return
        held = self._held + text
        self._held = ""
        if self._state == "start":
            held = self._at_start(held)
        if self._state == "thinking":
            yield from self._thinking(held)
        elif self._state == "after":
            yield from self._after(held)
        elif self._state == "text":
            yield from self._text(held)

    def _at_start(self, text: str) -> str:
        lead = text.lstrip()
        for opening, closing in _TAGS:
            if lead.startswith(opening):
                self._state, self._close, self._lone = "thinking", closing, False
                return lead[len(opening) :]
        tags = [opening for opening, _ in _TAGS] + ([_BLOCK] if self._recovers else [])
        if self._recovers and lead.startswith(_BLOCK):
            self._state = "block"
            self._blocks = [text]
            return ""
        if any(tag.startswith(lead) for tag in tags):
            self._held = text
            return ""
        self._state = "text"
        return text

    def _thinking(self, text: str) -> Iterator[Content]:
        if self._opened:
            text = text.lstrip()
            self._opened = not text
        place = text.find(self._close)
        if place >= 0:
            if thought := text[:place].rstrip():
                yield ReasoningContent(thought)
            self._state = "after"
            yield from self._after(text[place + len(self._close) :])
            return
        keep = _tail_of(text, self._close)
        ready = text[: len(text) - keep]
        stripped = ready.rstrip()
        self._held = text[len(stripped) :]
        if stripped:
            yield ReasoningContent(stripped)

    def _after(self, text: str) -> Iterator[Content]:
        text = text.lstrip()
        if text:
            self._state = "text"
            yield from self._text(text)

    def _text(self, text: str) -> Iterator[Content]:
        if not self._lone:
            self.plain = True
            if text:
                yield TextContent(text)
            return
        place = text.find(_CLOSE)
        if place >= 0:
            self._lone = False
            if self._is_mention():
                yield from self._text(text)
                return
            if thought := text[:place].rstrip():
                yield TextContent(thought)
            yield ThoughtContent()
            self._state = "after"
            yield from self._after(text[place + len(_CLOSE) :])
            return
        keep = _tail_of(text, _CLOSE)
        self._held = text[len(text) - keep :]
        self.plain = not keep
        if ready := text[: len(text) - keep]:
            yield TextContent(ready)

    def _is_mention(self) -> bool:
        """Whether the first closing tag is only talked about: quoted, or after an opening one that is no beginning."""
        before = "".join(self._said).partition(_CLOSE)[0]
        in_quotes = any(before.endswith(mark) and before.count(mark) % 2 for mark in '`"')
        return in_quotes or _OPEN in before

    def end(self) -> Iterator[Content]:
        """What was held back, now that nothing follows."""
        held, self._held = self._held, ""
        if self._state == "block":
            self.block = "".join(self._blocks)
        elif self._state == "thinking":
            if thought := held.rstrip():
                yield ReasoningContent(thought)
        elif held:
            yield TextContent(held)


def _tail_of(text: str, tag: str) -> int:
    """How many characters at the end of ``text`` may be the beginning of ``tag``."""
    place = text.rfind("<", max(0, len(text) - len(tag) + 1))
    while place >= 0:
        if tag.startswith(text[place:]):
            return len(text) - place
        place = text.rfind("<", max(0, len(text) - len(tag) + 1), place)
    return 0
