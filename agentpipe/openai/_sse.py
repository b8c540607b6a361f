"""Server-sent events, read from bytes as they come.

The grammar is that of the HTML standard, section 9.2.6: lines end with CR LF, CR or LF (and with nothing else, so a
LINE SEPARATOR stays text), one leading byte order mark is dropped, an event without data is none. Reading is
incremental and linear: every byte is looked at a fixed number of times, however the stream is cut.
"""

from __future__ import annotations

_CR = ord("\r")
#: How much of a body that is no event stream is kept, in bytes, to be read as what it is.
_KEPT = 16 * 1024 * 1024


class SSEReader:
    """Turns the bytes of an event stream into the data of its events.

    ``unframed`` collects what is no event stream at all, while no event has come: the JSON or HTML that some endpoints
    send instead. Between events, a line of bare JSON (an error, mostly) counts as one.
    """

    def __init__(self) -> None:
        self.unframed: list[bytes] = []
        self._unframed_size = 0
        self._line: list[bytes] = []  # pieces of a line that has not ended yet
        self._data: list[bytes] = []
        self._started = False
        self._after_cr = False
        self._dispatched = False

    def feed(self, packet: bytes) -> list[bytes]:
        """The data of the events that end in this packet."""
        if not self._started:
            packet = self._without_mark(packet)
        if _CR in packet or self._after_cr:
            packet = self._with_line_feeds(packet)
        lines = packet.split(b"\n")
        last = lines.pop()
        if lines and self._line:
            lines[0] = b"".join([*self._line, lines[0]])
            self._line = []
        if last:
            self._line.append(last)
        return self._read(lines) if lines else []

    def end(self) -> list[bytes]:
        """The data of a last event that the stream did not close."""
        line = b"".join(self._line)
        self._line = []
        return self._read([line, b""])

    def _read(self, lines: list[bytes]) -> list[bytes]:
        events: list[bytes] = []
        data = self._data
        for line in lines:
            if line[:6] == b"data: ":
                data.append(line[6:])
            elif not line:
                if data:
                    events.append(data[0] if len(data) == 1 else b"\n".join(data))
                    data.clear()
            elif line[:5] == b"data:":
                data.append(line[5:])
            elif not _is_field(line):
                if not self._dispatched and not events:
                    self._keep(line)
                elif line[:1] == b"{":
                    events.append(line)
        if events and not self._dispatched:
            self._dispatched = True
            events[:0] = [line for line in self.unframed if line[:1] == b"{"]
            self.unframed.clear()
        return events

    def _keep(self, line: bytes) -> None:
        if self._unframed_size < _KEPT:
            self.unframed.append(line)
            self._unframed_size += len(line) + 1

    def _without_mark(self, packet: bytes) -> bytes:
        packet = b"".join([*self._line, packet])
        self._line = []
        if packet == b"\xef\xbb\xbf"[: len(packet)]:
            if packet:
                self._line = [packet]
            return b""
        self._started = True
        return packet.removeprefix(b"\xef\xbb\xbf")

    def _with_line_feeds(self, packet: bytes) -> bytes:
        """The packet with every line end made a line feed, also where CR and LF came in different packets."""
        if self._after_cr and packet[:1] == b"\n":
            packet = packet[1:]
            self._after_cr = False
        if packet:
            self._after_cr = packet[-1:] == b"\r"
        return packet.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _is_field(line: bytes) -> bool:
    return line[:1] == b":" or line[:6] in (b"event:", b"retry:") or line[:3] == b"id:" or line in (b"data", b"event")
