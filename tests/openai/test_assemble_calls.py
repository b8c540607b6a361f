"""Calls out of fragments: told apart by index and id, never by their position."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpipe import EndpointProfile
from agentpipe.openai import _calls as json_calls
from tests.openai.wire import OFFERED, Json, assembler, called, calls, delta, fragment, streamed, told, whole_of

F, G = ("f", {"a": 1}), ("g", {"a": 2})

#: What endpoints do to one call f(a=1).
ONE_CALL: dict[str, list[Json]] = {
    "as documented": [calls(fragment("", "f", "c", 0)), calls(fragment('{"a":', None, None, 0), fragment("1}", index=0))],
    "no index": [calls(fragment("", "f", "c")), calls(fragment('{"a"')), calls(fragment(":1}"))],
    "index as text, then as a number": [calls(fragment('{"a"', "f", "c", "0")), calls(fragment(":1}", index=0))],
    "index starts at seven": [calls(fragment('{"a"', "f", "c", 7)), calls(fragment(":1}", index=7))],
    "id in every fragment": [calls(fragment('{"a"', "f", "c", 0)), calls(fragment(":1}", None, "c", 0))],
    "another id in every fragment": [calls(fragment("", "f", "1", 0)), calls(fragment('{"a"', None, "2", 0)),
                                     calls(fragment(":1}", None, "3", 0))],
    "another id and the name in every fragment": [calls(fragment('{"a"', "f", "1", 0)), calls(fragment(":1}", "f", "2", 0))],
    "id late": [calls(fragment('{"a"', "f", None, 0)), calls(fragment(":1}", None, "c", 0))],
    "id empty": [calls(fragment('{"a"', "f", "", 0)), calls(fragment(":1}", None, "", 0))],
    "name late": [calls(fragment('{"a":1}', None, "c", 0)), calls(fragment(None, "f", None, 0))],
    "name in every fragment": [calls(fragment('{"a"', "f", "c", 0)), calls(fragment(":1}", "f", None, 0))],
    "an object": [calls(fragment({"a": 1}, "f", "c", 0))],
    "an object, then an empty one": [calls(fragment({"a": 1}, "f", "c", 0)), calls(fragment({}, None, None, 0))],
    "an empty object first": [calls(fragment("{}", "f", "c", 0)), calls(fragment('{"a":1}', None, None, 0))],
    "all of it once more": [calls(fragment('{"a"', "f", "c", 0)), calls(fragment(":1}", index=0)),
                            calls(fragment('{"a":1}', "f", "c", 0))],
    "all of it once more, under another index": [calls(fragment('{"a":1}', "f", "c", 0)), calls(fragment('{"a":1}', "f", "c", 1))],
    "each fragment repeats what was said": [calls(fragment('{"a"', "f", "c", 0)), calls(fragment('{"a":1}', index=0))],
    "a whole message at the end": [calls(fragment('{"a":1}', "f", "c", 0)),
        {"choices": [{"index": 0, "message": {"tool_calls": [fragment('{"a":1}', "f", "c")]}}]}],
    "the old form": [delta(function_call={"name": "f", "arguments": ""}), delta(function_call={"arguments": '{"a":1}'})],
    "the tools' own prefix": [calls(fragment('{"a":1}', "functions.f", "c", 0))],
    "text for a number, by the schema": [calls(fragment('{"a":"1"}', "f", "c", 0))],
    "a call that is no list": [delta(tool_calls=fragment('{"a":1}', "f", "c", 0))],
}  # fmt: skip

#: What endpoints do to two calls, f(a=1) and g(a=2).
TWO_CALLS: dict[str, list[Json]] = {
    "as documented": [calls(fragment('{"a":1}', "f", "c", 0)), calls(fragment('{"a":2}', "g", "d", 1))],
    "interleaved": [calls(fragment('{"a"', "f", "c", 0)), calls(fragment('{"a":', "g", "d", 1)),
                    calls(fragment(":1}", index=0), fragment("2}", index=1))],
    "interleaved by id": [calls(fragment('{"a"', "f", "c")), calls(fragment('{"a":', "g", "d")),
                          calls(fragment(":1}", None, "c"), fragment("2}", None, "d"))],
    "all at index zero": [calls(fragment('{"a":1}', "f", "c", 0)), calls(fragment('{"a":2}', "g", "d", 0))],
    "no index, no id": [calls(fragment('{"a":1}', "f")), calls(fragment('{"a":2}', "g"))],
    "no index, no id, one chunk": [calls(fragment('{"a":1}', "f"), fragment('{"a":2}', "g"))],
    "one id for both": [calls(fragment('{"a":1}', "f", "c", 0)), calls(fragment('{"a":2}', "g", "c", 1))],
}  # fmt: skip


@pytest.mark.parametrize("way", ONE_CALL)
def test_one_call(way: str) -> None:
    """However an endpoint cuts, numbers and repeats one call, it is one call."""
    assert called(streamed(*ONE_CALL[way])) == [F]


@pytest.mark.parametrize("way", TWO_CALLS)
def test_two_calls(way: str) -> None:
    """However an endpoint numbers two calls, they stay two, each with its own arguments and an id of its own."""
    response = streamed(*TWO_CALLS[way])
    assert called(response) == [F, G]
    assert len({call.call_id for call in response.function_calls}) == 2


@pytest.mark.parametrize("ids", [("c", "d"), (None, None)])
def test_the_same_call_twice_is_two_calls(ids: tuple[str | None, str | None]) -> None:
    """A model may call twice with the same arguments: only what an endpoint repeats under one id is dropped."""
    both = [fragment('{"a":1}', "f", call_id, index) for index, call_id in enumerate(ids)]
    assert called(streamed(calls(*both))) == [F, F]


@pytest.mark.parametrize("index", [None, 0])
def test_a_call_without_arguments_does_not_take_those_of_the_next(index: int | None) -> None:
    """Where neither index nor id tells two tools apart, their names do: g's arguments never run f."""
    response = streamed(calls(fragment("", "f", None, index)), calls(fragment('{"a":2}', "g", None, index)))
    assert called(response) == [("f", {}), G]


def test_a_name_in_pieces_is_joined() -> None:
    """A name that comes in pieces is one name."""
    chunks = [calls(fragment(None, "get_", "c", 0)), calls(fragment("{}", "weather", None, 0))]
    assert called(streamed(*chunks)) == [("get_weather", {})]


def test_ids_are_kept_verbatim() -> None:
    """The endpoint's own id is what its result will carry, odd as it may look."""
    response = streamed(calls(fragment("{}", "f", "functions.f:0", 0)))
    assert response.function_calls[0].call_id == "functions.f:0"


def test_what_the_endpoint_wants_back_is_kept_with_the_call() -> None:
    """Fields beside a call, a thought's signature say, are kept to be echoed."""
    extra = {"google": {"thought_signature": "abc"}}
    response = streamed(calls({**fragment("{}", "f", "c", 0), "extra_content": extra}))
    assert response.function_calls[0].provider_data == {"extra_content": extra}


@pytest.mark.parametrize(
    "arguments", ['{"a": 1', "[1]", "five", '{"a":1}{"a":2}', "12", '{"a": NaN}'], ids=lambda text: repr(text)
)
def test_arguments_that_are_no_object_make_the_call_invalid(arguments: str) -> None:
    """A call whose arguments cannot mean one object is kept, says what is wrong, and keeps the text as it came."""
    (call,) = streamed(calls(fragment(arguments, "f", "c", 0))).function_calls
    assert call.invalid
    assert call.arguments == {}
    assert call.raw_arguments == arguments


def test_a_call_that_was_cut_off_by_the_limit_is_invalid() -> None:
    """An answer that ended at the limit of tokens inside a call says length, and the call is not to be run."""
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
    response = streamed(calls(fragment("", "f", "c", 0)), end=end)
    assert response.function_calls[0].invalid
    assert response.finish_reason == "length"


def test_calls_written_as_text_are_read_where_the_profile_says_so() -> None:
    """A message that is nothing but a <tool_call> block is a call, if the profile has it and the tool was offered."""
    text = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    profile = EndpointProfile(recover_text_tool_calls=True)
    assert called(streamed(delta(content=text), profile=profile)) == [F]
    assert called(whole_of({"content": text}, profile)) == [F]
    assert streamed(delta(content=text)).text == text
    unknown = text.replace('"f"', '"h"')
    assert streamed(delta(content=unknown), profile=profile).text == unknown


def test_names_come_back_as_the_tools_own() -> None:
    """A tool that has another name on the wire is called by its own name here."""
    reader = assembler(names={"f": "the function f!"})
    reader.feed(calls(fragment("{}", "f", "c", 0)))
    contents = [content for update in reader.end(done=True) for content in update.contents]
    assert [content.name for content in contents] == ["the function f!"]  # type: ignore[attr-defined]


# ----------------------------------------------------------------------------------------- properties

values = st.dictionaries(st.text(max_size=4), st.one_of(st.integers(), st.text(max_size=8), st.booleans()), max_size=3)
asked = st.lists(st.tuples(st.sampled_from(sorted(OFFERED)), values), min_size=1, max_size=4)


def message_of(wanted: list[tuple[str, Any]]) -> Json:
    texts = [json.dumps(arguments, ensure_ascii=False) for _, arguments in wanted]
    made = [
        fragment(text, name, f"c{place}") for place, ((name, _), text) in enumerate(zip(wanted, texts, strict=True))
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


@given(asked, st.randoms(), st.sampled_from(["index", "id", "both"]))
def test_any_interleaving_of_fragments_gives_the_whole_message(
    wanted: list[tuple[str, Any]], random: Any, by: str
) -> None:
    """Calls in fragments, in any order that keeps each call's own, fold to what the whole message folds to."""
    message = message_of(wanted)
    queues: list[list[Json]] = []
    for place, call in enumerate(message["tool_calls"]):
        text, function = call["function"]["arguments"], call["function"]
        key = {"index": place} if by == "index" else {"id": call["id"]}
        if by == "both":
            key["index"] = place
        cuts = sorted(random.sample(range(len(text)), min(len(text), random.randint(0, 3))))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        first = {"index": place, "id": call["id"], "function": {"name": function["name"], "arguments": ""}}
        if by == "id":
            del first["index"]
        queues.append([first, *[{**key, "function": {"arguments": piece}} for piece in pieces]])
    chunks = [calls(queue.pop(0)) for queue in queues]
    while queues := [queue for queue in queues if queue]:
        chunks.append(calls(random.choice(queues).pop(0)))
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    assert told(streamed(*chunks, end=end)) == told(whole_of(message, finish_reason="tool_calls"))


# ------------------------------------------------------------------------------------------- linear


def events_of(function: Callable[[], object]) -> int:
    """How many calls, of Python and of C functions, a function makes."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", [None, "f"], ids=["plain", "the name in every fragment"])
@pytest.mark.parametrize("piece", [',"k%s":{}', "{%s}"], ids=["one object", "object after object"])
def test_fragments_cost_the_same_each(piece: str, name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the fragments are twice the work, also where each of them could be the end of the arguments."""

    def fold(count: int) -> Callable[[], object]:
        pieces = [piece.replace("%s", str(number)) for number in range(count)]
        chunks = [calls(fragment(piece, name, None, 0)) for piece in pieces]

        def run() -> None:
            reader = assembler()
            reader.feed(calls(fragment('{"k":{}' if piece.startswith(",") else "", "f", "c", 0)))
            for chunk in chunks:
                reader.feed(chunk)
            reader.feed(calls(fragment("}", None, None, 0)))
            list(reader.end(done=True))

        return run

    once, twice = events_of(fold(400)), events_of(fold(800))
    assert twice < 2.2 * once

    read: list[int] = []
    reader_of = json_calls._object_of

    def noted(text: str) -> dict[str, Any] | None:
        read.append(len(text))
        return reader_of(text)

    monkeypatch.setattr(json_calls, "_object_of", noted)
    fold(400)()
    # How many characters were parsed in all, the same ones over and over included.
    assert sum(read) < 4 * sum(len(piece.replace("%s", str(number))) for number in range(400))
