"""From the bytes of an answer to updates: events, JSON, and whatever else comes with a 200."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agentpipe._responses import ChatResponseUpdate
from agentpipe.exceptions import BadResponseError
from agentpipe.openai._assemble import Assembler
from agentpipe.openai._errors import error_of
from agentpipe.openai._sse import SSEReader


class Reading:
    """Reads one answer, in the packets in which it comes.

    Attributes:
        done: Whether the endpoint has said [DONE]; what follows is of no interest.
    """

    def __init__(self, assembler: Assembler) -> None:
        self.done = False
        self._assembler = assembler
        self._events = SSEReader()

    @property
    def finished(self) -> bool:
        """Whether the answer is all there, however the connection ends."""
        return self.done or self._assembler.finished

    def feed(self, packet: bytes) -> Iterator[ChatResponseUpdate]:
        """The updates that a packet makes. Raises ChatClientError."""
        return self._read(self._events.feed(packet))

    def _read(self, events: list[bytes]) -> Iterator[ChatResponseUpdate]:
        feed = self._assembler.feed
        for data in events:
            if len(data) < 20 and _is_done(data):
                self.done = True
            if self.done:
                return
            try:
                chunk = _from_json(data)
            except ValueError:
                yield from self._read_odd(data)
            else:
                if (update := feed(chunk)) is not None:
                    yield update

    def _read_odd(self, data: bytes) -> Iterator[ChatResponseUpdate]:
        for value in _values_in(data):
            if (update := self._assembler.feed(value)) is not None:
                yield update

    def end(self) -> Iterator[ChatResponseUpdate]:
        """The updates at the end of the bytes. Raises ChatClientError, TransportError where the answer was cut off."""
        yield from self._read(self._events.end())
        if self._events.unframed:
            yield from whole(b"\n".join(self._events.unframed), self._assembler)
        else:
            yield from self._assembler.end(done=self.done)

    def rest(self) -> Iterator[ChatResponseUpdate]:
        """What was held back, where no end will come."""
        return self._assembler.rest()


def whole(content: bytes, assembler: Assembler) -> Iterator[ChatResponseUpdate]:
    """The updates that the body of an answer makes. Raises ChatClientError."""
    text = content.strip().removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text:
        raise BadResponseError("the endpoint answered 200 with nothing", status=200)
    if text[:5] == b"data:" or text[:6] == b"event:" or text[:1] == b":":
        reading = Reading(assembler)
        return _all_of(reading, text)
    values = _values_of_body(text)
    return assembler.whole(values[0]) if len(values) == 1 else _folded(values, assembler)


def _all_of(reading: Reading, text: bytes) -> Iterator[ChatResponseUpdate]:
    yield from reading.feed(text)
    yield from reading.end()


def _folded(chunks: list[Any], assembler: Assembler) -> Iterator[ChatResponseUpdate]:
    """Chunks that came one a line, without being framed as events."""
    for chunk in chunks:
        if (update := assembler.feed(chunk)) is not None:
            yield update
    yield from assembler.end(done=False)


# --------------------------------------------------------------------------------------------- JSON


def _from_json(data: bytes) -> Any:
    global _from_json
    try:
        from jiter import from_json  # comes with the openai package, and reads a chunk in a quarter of the time
    except ImportError:  # pragma: no cover
        from_json = json.loads
    _from_json = from_json  # type: ignore[assignment]
    return from_json(data)


def _load(data: bytes) -> Any:
    """The JSON value of some bytes; ValueError where they are none."""
    try:
        return _from_json(data)
    except ValueError:
        # What a strict reader refuses (a control character in a text, half a surrogate) is let through.
        return json.loads(data.decode("utf-8", "replace"), strict=False)


def _is_done(data: bytes) -> bool:
    return data.strip().strip(b'"').upper() in (b"[DONE]", b"DONE")


_ALIVE = {b"ping", b"pong", b"heartbeat", b"keep-alive", b"keepalive", b"keep alive"}


def _values_in(data: bytes) -> list[Any]:
    """The JSON values in an event that is not just one. Raises ChatClientError."""
    text = data.strip()
    lines = [line for line in text.split(b"\n") if line.strip() and not _is_done(line)]
    if text.lower() in _ALIVE or text[:1] == b":":
        return []
    try:
        return [_load(line) for line in lines] if len(lines) != 1 else [_load(text)]
    except (ValueError, RecursionError):
        pass
    if text[:1] in (b"{", b"["):
        raise BadResponseError("an event of the stream is not JSON", status=200)
    raise error_of(200, None, text, in_stream=True)


def _values_of_body(text: bytes) -> list[Any]:
    """The JSON value of a body, whatever follows it; or one value a line. Raises BadResponseError."""
    try:
        return [_load(text)]
    except (ValueError, RecursionError):
        pass
    try:
        values = [_load(line) for line in text.splitlines() if line.strip() and not _is_done(line)]
        if all(isinstance(value, dict) for value in values):
            return values
    except (ValueError, RecursionError):
        pass
    try:
        return [json.JSONDecoder(strict=False).raw_decode(text.decode("utf-8", "replace"))[0]]
    except (ValueError, RecursionError):
        what = "an HTML page" if text[:1] == b"<" else "a text that is not JSON"
        raise BadResponseError(f"the endpoint answered 200 with {what}", status=200) from None
