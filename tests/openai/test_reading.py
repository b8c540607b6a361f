"""From bytes to responses: any cut into packets, and whatever comes with a 200 instead of a stream."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentpipe import (
    AuthenticationError,
    BadResponseError,
    ChatClientError,
    EndpointProfile,
    RateLimitError,
    TransportError,
)
from agentpipe.openai._reading import whole
from tests.endpoints.replay import CASES
from tests.openai.wire import STOP, Json, assembler, delta, fragment, read, sse, streamed, told

STREAMS = [
    pytest.param(case, id=name)
    for name, case in CASES.items()
    if case["kind"] == "stream" and "tool" not in name and case.get("sse_close") != "abort"
]


def outcome(packets: list[bytes], profile: EndpointProfile) -> object:
    """The response, or the class and the words of the error."""
    try:
        response = told(read(packets, profile))
    except ChatClientError as error:
        return type(error), str(error)
    calls = [
        content for message in response.get("messages", ()) for content in message["contents"] if "call_id" in content
    ]
    for call in calls:
        if call["call_id"].startswith("call_") and len(call["call_id"]) == 25:
            call["call_id"] = "made up"
    return response


@pytest.mark.parametrize("case", STREAMS)
@settings(max_examples=12)
@given(places=st.lists(st.integers(0, 10**6), max_size=30))
def test_any_cut_into_packets_gives_the_same(case: Json, places: list[int]) -> None:
    """The stream of a real endpoint, cut anywhere, in the middle of a character too, gives the same response or error."""
    content = "".join(case["sse"]).encode()
    fields = dict(case.get("profile") or {})
    if case.get("opt_in"):
        fields[case["opt_in"]] = True
    profile = EndpointProfile(**fields)
    edges = sorted({0, len(content), *[place % (len(content) + 1) for place in places]})
    packets = [content[start:end] for start, end in pairwise(edges)]
    assert outcome(packets, profile) == outcome([content], profile)


def test_a_chunk_a_line_without_framing_is_read_to_its_end() -> None:
    """Chunks that come one a line, with no "data:", are all of the answer, not its first piece."""
    lines = [json.dumps(chunk).encode() for chunk in (delta(content="hel"), delta(content="lo"), STOP)]
    assert read([b"\n".join(lines)]).text == "hello"
    with pytest.raises(TransportError, match="cut off"):
        read([b"\n".join(lines[:2])])


@pytest.mark.parametrize(
    "between",
    [b"data: ping\n\n", b"data: [done]\n\n", b": keep-alive\n\n", b"event: ping\ndata: {}\n\n", b"data: null\n\n",
     b'data: {"type": "ping"}\n\n', b"data:\n\n"],
)  # fmt: skip
def test_what_only_keeps_the_connection_alive_is_passed_over(between: bytes) -> None:
    """Between two chunks there may be all sorts of signs of life."""
    content = sse(delta(content="hel"), done=False) + between + sse(delta(content="lo"), STOP, done=False)
    if b"done" in between:
        assert read([content]).text == "hel"  # after [DONE], in whatever case, nothing counts
    else:
        assert read([content]).text == "hello"


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"error": {"message": "Rate limit reached", "code": 429}}\n\n',
        b'event: error\ndata: {"message": "Rate limit reached", "type": "rate_limit"}\n\n',
        b"event: error\ndata: Rate limit reached\n\n",
        b'data: "Rate limit reached"\n\n',
        b'{"error": {"message": "Rate limit reached"}}\n\n',
        b'data: {"choices": null, "base_resp": {"status_code": 1002, "status_msg": "rate limit"}}\n\n',
    ],
)
def test_an_error_in_mid_stream_is_of_its_class(event: bytes) -> None:
    """An error that comes after text, however it is put, is a rate limit, and no end of an answer."""
    with pytest.raises(RateLimitError):
        read([sse(delta(content="hel"), done=False) + event + b"data: [DONE]\n\n"])


def test_a_json_or_html_body_where_a_stream_was_due() -> None:
    """A whole answer is an answer, an error object an error of its class, a page no answer at all."""
    body = {"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]}
    assert read([json.dumps(body, indent=2).encode()]).text == "hello"
    with pytest.raises(AuthenticationError):
        read([b'{"error": {"message": "Unauthorized", "code": 401}}'])
    with pytest.raises(BadResponseError, match="HTML"):
        read([b"<!doctype html><html></html>"])
    with pytest.raises(BadResponseError, match="nothing"):
        list(whole(b"  \n", assembler()))


@pytest.mark.parametrize("text", ['{"a": "x\u2028y"}', '{"a": "\U0001f600"}'])
def test_odd_characters_in_arguments_stay(text: str) -> None:
    """Separators and characters beyond the first plane are kept as they are."""
    (call,) = streamed(
        {"choices": [{"index": 0, "delta": {"tool_calls": [fragment(text, "h", "c", 0)]}}]}
    ).function_calls
    assert call.arguments == json.loads(text)
