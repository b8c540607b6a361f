"""Server-sent events on bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpipe.openai._sse import SSEReader

LINE_ENDS = (b"\n", b"\r\n", b"\r")


def events(*packets: bytes) -> list[bytes]:
    reader = SSEReader()
    return [data for packet in packets for data in reader.feed(packet)] + reader.end()


def cut(content: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(content), *[place % (len(content) + 1) for place in places]})
    return [content[start:end] for start, end in pairwise(edges)]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b": comment\n\ndata: a\n\n:\n\n", [b"a"]),
        (b"event: x\nid: 1\nretry: 5\ndata: a\n\n", [b"a"]),
        (b"event: ping\n\ndata: a\n\n", [b"a"]),
        (b"data:\n\ndata: a\n\n", [b"", b"a"]),
        (b"data: a", [b"a"]),
        (b"data: a\n", [b"a"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        ("data: a\u2028b\n\n".encode(), ["a\u2028b".encode()]),
        (b'data: a\n\n{"error": 1}\ndata: b\n\n', [b"a", b'{"error": 1}', b"b"]),
        (b'{"error": 1}\ndata: b\n\n', [b'{"error": 1}', b"b"]),
        (b"", []),
    ],
)
def test_grammar(content: bytes, expected: list[bytes]) -> None:
    """Fields, comments, marks and separators are told apart as the HTML standard has it, and bare JSON is let in."""
    assert events(content) == expected


lines = st.lists(
    st.one_of(
        st.just(b""),
        st.binary(max_size=8).map(lambda raw: b"data: " + raw.replace(b"\r", b"").replace(b"\n", b"")),
        st.sampled_from([b": note", b"event: x", b"id: 3", "data: é中🙂".encode()]),
    ),
    max_size=12,
)


@given(lines, st.sampled_from(LINE_ENDS), st.booleans(), st.lists(st.integers(0, 400), max_size=20))
def test_any_cut_gives_the_same_events(lines: list[bytes], end: bytes, mark: bool, places: list[int]) -> None:
    """However the bytes are cut into packets, and whatever ends the lines, the events are the same."""
    content = (b"\xef\xbb\xbf" if mark else b"") + end.join([*lines, b""])
    plain = b"\n".join([*lines, b""])
    assert events(*cut(content, places)) == events(plain)


def test_what_is_no_event_stream_is_kept() -> None:
    """The JSON that an endpoint sends instead of events is there to be read as what it is."""
    reader = SSEReader()
    assert reader.feed(b'{\n  "error": "x"\n}') == []
    assert reader.end() == []
    assert b"\n".join(reader.unframed) == b'{\n  "error": "x"\n}'
