"""From the endpoint's JSON to responses: text, thoughts, usage, reasons; a stream folds to what the whole folds to."""

from __future__ import annotations

import base64
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpipe import (
    BadResponseError,
    ChatResponse,
    DataContent,
    EndpointProfile,
    ReasoningContent,
    RefusalContent,
    TextContent,
    TransportError,
    UriContent,
)
from agentpipe.openai._assemble import usage_of
from tests.openai.wire import (
    OFFERED,
    STOP,
    Json,
    assembler,
    calls,
    delta,
    fragment,
    read,
    sse,
    streamed,
    told,
    whole_of,
)


def contents(response: ChatResponse) -> list[Any]:
    return [content for message in response.messages for content in message.contents]


# ---------------------------------------------------------------------------------------------- content


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "hello"}, "hello"),
        ({"content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}, "hello"),
        ({"content": [{"type": "output_text", "text": "hello"}, {"type": "unheard_of"}]}, "hello"),
        ({"content": ["hel", "lo"]}, "hello"),
        ({"content": {"type": "text", "text": "hello"}}, "hello"),
        ({"content": "hello", "annotations": [{"type": "url_citation"}], "audio": None, "refusal": None}, "hello"),
        ({"content": None, "audio": {"id": "a", "transcript": "hello"}}, "hello"),
        ({"content": None}, ""),
        ({}, ""),
    ],
)
def test_content_in_its_forms(message: Json, text: str) -> None:
    """Text is text in whatever form it comes, whole or streamed."""
    assert whole_of(message).text == text
    assert streamed(delta(**message)).text == text


def test_a_whole_message_at_the_end_of_a_stream_is_not_said_twice() -> None:
    """What the final message repeats is dropped, and what it adds is not."""
    final = {"choices": [{"index": 0, "message": {"content": "hello world"}, "finish_reason": "stop"}]}
    assert streamed(delta(content="hello"), final, end=None).text == "hello world"
    refusal = {"choices": [{"index": 0, "message": {"refusal": "no"}, "finish_reason": "stop"}]}
    assert streamed(delta(refusal="no"), refusal, end=None).refusal == "no"
    parts = {
        "choices": [{"index": 0, "message": {"content": [{"type": "text", "text": "hi"}]}, "finish_reason": "stop"}]
    }
    assert streamed(delta(reasoning_content="hm"), parts, end=None).text == "hi"


@pytest.mark.parametrize(
    "extra",
    [
        {"finish_reason": "length"},
        {"usage": {"prompt_tokens": 3, "completion_tokens": 2}},
        {"message": {"content": "hello, world"}},
    ],
    ids=lambda extra: next(iter(extra)),
)
def test_a_piece_of_text_may_tell_more(extra: Json) -> None:
    """What stands beside a piece of text, in its own choice, is not missed for the text."""
    last: Json = {"choices": [{"index": 0, "delta": {"content": "llo"}, **extra}]}
    response = streamed(delta(content="he"), last, end=None)
    assert response.text == ("hello, world" if "message" in extra else "hello")
    assert response.finish_reason == extra.get("finish_reason", "stop")
    assert (response.usage is not None) is ("usage" in extra)


def test_the_first_choice_counts() -> None:
    """Further choices are left alone, in whatever order they come."""
    first, other = {"index": 0, "delta": {"content": "yes"}}, {"index": 1, "delta": {"content": "no"}}
    assert streamed({"choices": [other, first]}, {"choices": [other]}).text == "yes"


def test_pieces_that_repeat_all_before_them() -> None:
    """Where the profile says that pieces are cumulative, text is not doubled."""
    profile = EndpointProfile(cumulative_deltas=True)
    assert streamed(*[delta(content=text) for text in ("he", "hell", "hello")], profile=profile).text == "hello"


def test_images_and_sound_come_as_contents() -> None:
    """A data URI and sound in pieces become bytes; an address stays one."""
    encoded = base64.b64encode(b"0123456789").decode()
    image = delta(images=[{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}"}}])
    assert contents(streamed(image)) == [DataContent(b"0123456789", "image/png")]
    link = delta(content=[{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}])
    assert contents(streamed(link)) == [UriContent("https://example.com/a.png")]
    sound = [delta(audio={"data": encoded[:5]}), delta(audio={"data": encoded[5:]})]
    assert contents(streamed(*sound)) == [DataContent(b"0123456789", "audio/wav")]


def test_a_refusal_is_no_text() -> None:
    """A refusal is RefusalContent, and the reason is content_filter."""
    response = streamed(delta(refusal="I can"), delta(refusal="not."))
    assert contents(response) == [RefusalContent("I cannot.")]
    assert (response.text, response.finish_reason) == ("", "content_filter")


# --------------------------------------------------------------------------------------------- thoughts


@pytest.mark.parametrize(
    "message",
    [
        {"reasoning_content": "hm", "content": "yes"},
        {"reasoning": "hm", "content": "yes"},
        {"reasoning": {"content": "hm"}, "content": "yes"},
        {"reasoning": "hm", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}], "content": "yes"},
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "hm"}], "content": "yes"},
        {
            "content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                {"type": "text", "text": "yes"},
            ]
        },
        {"content": "<think>\nhm\n</think>\n\nyes"},
        {"content": "<thinking>hm</thinking>yes"},
        {"content": "hm\n</think>\n\nyes"},
    ],
)
def test_thoughts_in_their_forms(message: Json) -> None:
    """Thoughts are apart from text in whatever form they come, whole or streamed."""
    for response in (whole_of(message), streamed(delta(**message))):
        assert (response.reasoning.strip(), response.text) == ("hm", "yes")


@given(st.lists(st.integers(0, 60), max_size=12))
def test_a_think_block_may_be_cut_anywhere(places: list[int]) -> None:
    """However the text is cut, a leading block is thought and what follows is text."""
    text = "<think>\nwell, a < b\n</think>\n\nSo a < b, says <b>me</b>."
    edges = sorted({0, len(text), *[min(place, len(text)) for place in places]})
    pieces = [delta(content=text[start:end]) for start, end in pairwise(edges)]
    assert told(streamed(*pieces)) == told(streamed(delta(content=text)))
    assert streamed(*pieces).text == "So a < b, says <b>me</b>."


@pytest.mark.parametrize(
    "pieces",
    [("The tag `", "</think>` closes it."), ("Write <think> first and </think> last.",), ('Say "', '</think>" then.')],
)
def test_a_tag_that_is_talked_about_is_text(pieces: tuple[str, ...]) -> None:
    """A closing tag in quotation marks, or after an opening one in mid-text, makes no thought of what was said."""
    response = streamed(*[delta(content=piece) for piece in pieces])
    assert (response.text, response.reasoning) == ("".join(pieces), "")


def test_a_thought_that_ends_in_quotation_marks_is_thought() -> None:
    """Closed quotation marks before a lone closing tag do not make it a quotation."""
    response = streamed(delta(content='They said "yes"'), delta(content="</think>yes"))
    assert (response.reasoning, response.text) == ('They said "yes"', "yes")


def test_whole_answers_tell_thoughts_from_the_start() -> None:
    """A whole answer needs no ThoughtContent: what is thought is ReasoningContent in its one update."""
    body = {"choices": [{"message": {"content": "hm</think>yes"}, "finish_reason": "stop"}]}
    first, *_ = assembler().whole(body)
    assert [type(content) for content in first.contents] == [ReasoningContent, TextContent]


def test_details_to_be_echoed_are_joined_by_index() -> None:
    """Details of thoughts that come in pieces are kept as the endpoint would have sent them whole."""
    pieces: list[Json] = [
        {"type": "reasoning.text", "text": "a", "index": 0},
        {"type": "reasoning.text", "text": "b", "index": 0, "signature": "s"},
        {"type": "reasoning.encrypted", "data": "x", "index": 1},
    ]
    whole = [{"type": "reasoning.text", "text": "ab", "index": 0, "signature": "s"}, pieces[2]]
    response = streamed(*[delta(reasoning_details=[piece]) for piece in pieces], delta(content="yes"))
    assert contents(response)[0].provider_data == {"reasoning_details": whole}
    assert told(response) == told(whole_of({"reasoning_details": whole, "content": "yes"}, finish_reason="stop"))


# ------------------------------------------------------------------------------------- reasons and usage


@pytest.mark.parametrize(
    ("given", "mapped"),
    [
        ("stop", "stop"), ("end_turn", "stop"), ("STOP", "stop"), ("eos", "stop"), ("", "stop"), (None, "stop"),
        ("length", "length"), ("max_tokens", "length"), ("MAX_TOKENS", "length"), ("model_length", "length"),
        ("content_filter", "content_filter"), ("SAFETY", "content_filter"), ("sensitive", "content_filter"),
        ("something new", "stop"), ("tool_calls", "stop"),
    ],
)  # fmt: skip
def test_finish_reasons(given: str | None, mapped: str) -> None:
    """Known words for an end are mapped, unknown ones are an end, and calls that are not there are none."""
    assert whole_of({"content": "x"}, finish_reason=given).finish_reason == mapped


@pytest.mark.parametrize("given", ["stop", "function_call", "tool_use", None, "STOP"])
def test_calls_present_mean_tool_calls(given: str | None) -> None:
    """Where there are calls, the reason is tool_calls whatever the endpoint says."""
    assert whole_of({"tool_calls": [fragment("{}", "f", "c")]}, finish_reason=given).finish_reason == "tool_calls"


@pytest.mark.parametrize(("reason", "kind"), [("network_error", TransportError), ("error", BadResponseError)])
def test_an_end_that_is_a_failure_is_an_error(reason: str, kind: type[Exception]) -> None:
    """A reason that says that the answer failed never looks like an answer."""
    with pytest.raises(kind):
        whole_of({"content": "half"}, finish_reason=reason)


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}, (3, 2, 5, None, None)),
        ({"prompt_tokens": 3, "completion_tokens": 2}, (3, 2, 5, None, None)),
        ({"input_tokens": 3, "output_tokens": 2}, (3, 2, 5, None, None)),
        ({"promptTokens": 3, "completionTokens": 2, "totalTokens": 5}, (3, 2, 5, None, None)),
        ({"prompt_tokens": 3, "total_tokens": 5}, (3, 2, 5, None, None)),
        ({"prompt_tokens": 3, "completion_tokens": None, "total_tokens": None}, (3, 0, 3, None, None)),
        ({"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}, (3, 2, 5, 1, None)),
        ({"prompt_tokens": 3, "completion_tokens": 2, "prompt_cache_hit_tokens": 1}, (3, 2, 5, 1, None)),
        ({"prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 1}, (3, 2, 5, 1, None)),
        ({"prompt_tokens": 3, "completion_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 1}},
         (3, 2, 5, None, 1)),
        ({"prompt_tokens": 3, "completion_tokens": 2, "reasoning_tokens": 1, "prompt_tokens_details": None},
         (3, 2, 5, None, 1)),
    ],
)  # fmt: skip
def test_usage_under_its_names(usage: Json, counts: tuple[int | None, ...]) -> None:
    """Counts are found under the names that endpoints have for them; the total is computed where it is missing."""
    found = usage_of(usage)
    assert found is not None
    got = (found.input_tokens, found.output_tokens, found.total_tokens)
    assert (*got, found.cached_input_tokens, found.reasoning_tokens) == counts


@pytest.mark.parametrize("usage", [{}, {"prompt_tokens": None, "completion_tokens": None}, {"cost": 1}])
def test_no_usage_is_none(usage: Json) -> None:
    """A usage that tells no count is none, not zeros."""
    assert usage_of(usage) is None


@pytest.mark.parametrize(
    "chunks",
    [
        [STOP, {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}],
        [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": {"prompt_tokens": 3, "completion_tokens": 2}}]}],
        [{**STOP, "x_groq": {"usage": {"prompt_tokens": 3, "completion_tokens": 2}}}],
        [{**STOP, "usage": {"prompt_tokens": 3, "completion_tokens": 1}}, {"usage": {"prompt_tokens": 3, "completion_tokens": 2}}],
        [{**STOP, "usage": {"prompt_tokens": 3, "completion_tokens": 2}}, {"choices": [], "usage": {"prompt_tokens": 3}}],
    ],
    ids=["last chunk", "choice", "x_groq", "cumulative", "an incomplete one last"],
)  # fmt: skip
def test_usage_where_it_stands(chunks: list[Json]) -> None:
    """The last complete usage counts, wherever in a stream it stands, and it counts once."""
    usage = streamed(delta(content="x"), *chunks, end=None).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (3, 2, 5)


# ---------------------------------------------------------------------------------------- whole = streamed

texts = st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=30)
messages = st.fixed_dictionaries(
    {"role": st.just("assistant")},
    optional={
        "content": st.one_of(st.none(), texts),
        "reasoning_content": texts,
        "tool_calls": st.lists(
            st.builds(
                lambda name, arguments, number: fragment(arguments, name, f"c{number}"),
                st.sampled_from(sorted(OFFERED)),
                st.sampled_from(["", "{}", '{"a": 1}', '{"a": "2"}', "[]", "{"]),
                st.integers(0, 10**9),
            ),
            max_size=3,
            unique_by=lambda call: call["id"],
        ),
    },
)


@given(messages, st.randoms())
def test_a_stream_folds_to_what_the_whole_folds_to(message: Json, random: Any) -> None:
    """The same message, whole or cut into deltas, gives the same response."""
    pieces: list[Json] = []
    for field in ("reasoning_content", "content"):
        text = message.get(field) or ""
        while text:
            size = random.randint(1, len(text))
            pieces.append(delta(**{field: text[:size]}))
            text = text[size:]
    for index, call in enumerate(message.get("tool_calls") or ()):
        pieces.append(calls({**call, "index": index}))
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    end = {**STOP, "id": "answer-1", "model": "m"}
    got = told(streamed(*pieces, end, {"choices": [], "usage": usage}, end=None))
    want = told(whole_of(message, finish_reason="stop", usage=usage))
    assert got == want


def test_a_stream_that_was_cut_is_an_error() -> None:
    """Without a reason or [DONE], what came is no answer."""
    with pytest.raises(TransportError, match="cut off"):
        read([sse(delta(content="half"), done=False)])


def test_done_or_a_reason_is_an_end() -> None:
    """Each of the two alone ends a stream."""
    assert read([sse(delta(content="all"))]).finish_reason == "stop"
    assert read([sse(delta(content="all"), STOP, done=False)]).text == "all"


def test_raw_is_kept_where_asked_for() -> None:
    """A whole answer keeps its JSON; a stream keeps its chunks only where asked."""
    assert whole_of({"content": "x"}).raw["choices"][0]["message"] == {"content": "x"}
    assert streamed(delta(content="x")).raw is None
