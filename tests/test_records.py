"""Records: JSON in and out, hostile JSON, and what a frozen record is good for."""

from __future__ import annotations

import contextlib
import copy
import enum
import json
import pickle
import subprocess
import sys
from dataclasses import dataclass, fields
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpipe import (
    ApprovalRequestContent,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionCallContent,
    FunctionResultContent,
    InputRequestContent,
    Message,
    TextContent,
    UnknownContent,
    UriContent,
    UsageDetails,
)
from agentpipe._messages import CONTENT_KINDS
from agentpipe._records import Record
from tests.strategies import json_values, messages, records

FAMILIES: list[type[Record]] = [Content, Message, ChatResponse, ChatResponseUpdate, UsageDetails]


def example(kind: type[Record]) -> Record:
    """A record with nothing but what it needs."""
    needed: dict[str, Any] = {"role": "user"} if kind is Message else {}
    values = {"call": FunctionCallContent("c", "f"), "approved": True, "data": b"\x00\xff"}
    for field in fields(kind):  # type: ignore[arg-type]
        if kind in CONTENT_KINDS.values() and "None" not in str(field.type) and field.name in kind.__match_args__:  # type: ignore[attr-defined]
            needed.setdefault(field.name, values.get(field.name, "x"))
    needed = {
        k: v
        for k, v in needed.items()
        if k not in ("arguments", "is_error", "contents", "media_type", "result", "payload", "state")
    }
    if kind.__name__ == "InputResponseContent":
        needed["data"] = [1]
    return kind(**needed)


KINDS: list[type[Record]] = [*CONTENT_KINDS.values(), Message, ChatResponse, ChatResponseUpdate, UsageDetails]


@given(records)
def test_every_record_survives_json(record: Record) -> None:
    """The JSON round trip of every record is exact, as text and as values; what is written is what json can write."""
    kind = type(record)
    assert kind.model_validate_json(record.model_dump_json()) == record
    assert kind.model_validate(record.model_dump()) == record
    assert json.loads(record.model_dump_json()) == record.model_dump()
    assert kind.model_validate(record) is record


@given(records)
def test_every_record_survives_pickle_and_copy(record: Record) -> None:
    """Pickled or copied, a record is equal to what it was."""
    assert pickle.loads(pickle.dumps(record)) == record
    assert copy.deepcopy(record) == record
    assert copy.copy(record) == record


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_unknown_fields_are_kept(kind: type[Record]) -> None:
    """A field that this version does not know comes back out as it went in."""
    told = {**example(kind).model_dump(), "from_the_future": {"a": [1, None]}}
    assert kind.model_validate_json(json.dumps(told)).model_dump() == told


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_record_is_a_field_and_an_adapter(kind: type[Record]) -> None:
    """Each record is known to TypeAdapter, and as a field of a pydantic model, in Python and in JSON."""
    record = example(kind)
    adapter = pydantic.TypeAdapter(dict[str, kind])  # type: ignore[valid-type]
    assert adapter.validate_json(adapter.dump_json({"a": record})) == {"a": record}
    assert adapter.dump_python({"a": record}) == {"a": record.model_dump()}
    row: Any = pydantic.create_model("Row", one=(kind, ...), other=(kind | None, None))  # type: ignore[arg-type]
    assert row.model_validate_json(row(one=record, other=record).model_dump_json()) == row(one=record, other=record)


def test_the_tag_has_to_be_right() -> None:
    """A content read as one kind is refused where its tag tells of another; a 'type' means nothing to a message."""
    with pytest.raises(ValueError, match="'text', not 'reasoning'"):
        TextContent.model_validate({"type": "reasoning", "text": "x"})
    with pytest.raises(ValueError, match="function_call"):
        ApprovalRequestContent.model_validate({"id": "1", "call": {"type": "text", "call_id": "c", "name": "f"}})
    assert TextContent.model_validate({"text": "x"}) == TextContent("x")
    told = {"type": "message", "role": "user"}
    assert Message.model_validate(told).model_dump() == told


def test_unknown_contents() -> None:
    """An unknown content needs a tag of its own, since without one it could not be read back."""
    told = {"type": "hologram", "x": 1}
    assert UnknownContent.model_validate_json(json.dumps(told)) == UnknownContent(told)
    for wrong in ({}, {"type": 5}, {"type": "text"}):
        with pytest.raises(ValueError, match="'type'"):
            UnknownContent(wrong)
        with pytest.raises(ValueError, match="'type'"):
            UnknownContent.model_validate(wrong)
    with pytest.raises(ValueError, match="object"):
        UnknownContent.model_validate(5)


def test_what_lives_in_the_process_cannot_be_set_from_outside() -> None:
    """JSON cannot set a field that lives in the process only: it is kept as an unknown field."""
    result = FunctionResultContent.model_validate({"call_id": "c", "exception": "x"})
    message = Message.model_validate({"role": "user", "origin": "history"})
    response = ChatResponse.model_validate({"raw": {"a": 1}})
    assert (result.exception, message.origin, response.raw) == (None, None, None)
    assert message.model_dump() == {"role": "user", "origin": "history"}


def test_raw_is_not_written_nor_compared() -> None:
    """The endpoint's own JSON stays in the process: responses with and without it are the same response."""
    assert ChatResponse(raw={"key": "secret"}) == ChatResponse()
    assert ChatResponseUpdate(raw={"key": "secret"}) == ChatResponseUpdate()
    assert "secret" not in ChatResponse(raw={"key": "secret"}).model_dump_json() + repr(ChatResponse(raw="secret"))


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclass
class Point:
    x: int
    at: date


class City(pydantic.BaseModel):
    name: str


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (datetime(2026, 12, 1, tzinfo=timezone.utc), "2026-12-01T00:00:00+00:00"),
        (date(2026, 12, 1), "2026-12-01"),
        (b"\x00\xff", "AP8="),
        (Color.RED, "red"),
        (Level.HIGH, 3),
        (Point(1, date(2026, 12, 1)), {"x": 1, "at": "2026-12-01"}),
        (City(name="Suzhou"), {"name": "Suzhou"}),
        ({"a": (1, {2})}, {"a": [1, [2]]}),
        ({1: TextContent("a")}, {"1": {"type": "text", "text": "a"}}),
        (timedelta(seconds=5), "PT5S"),
    ],
)
def test_what_is_no_json_is_written_as_json(value: object, written: object) -> None:
    """Dates, bytes, enums, dataclasses and models in a result are written as JSON values."""
    result = FunctionResultContent("c", result=value)
    assert json.loads(result.model_dump_json())["result"] == written
    assert json.loads(TextContent("a", extra={"result": value}).model_dump_json())["result"] == written


def test_what_cannot_be_written() -> None:
    """A value that JSON has no form for raises ValueError that names its type."""
    with pytest.raises(ValueError, match="object"):
        FunctionResultContent("c", result=object()).model_dump_json()


@given(st.sampled_from(FAMILIES), json_values)
def test_any_json_is_read_or_refused(family: type[Record], value: object) -> None:
    """Whatever JSON comes, reading gives a record or ValueError, nothing else."""
    with contextlib.suppress(ValueError):
        assert isinstance(family.model_validate(value), family)


@given(messages.filter(lambda message: message.contents), st.randoms(use_true_random=False), json_values)
def test_a_field_of_the_wrong_kind(message: Message, random: Any, value: object) -> None:
    """Any value in the place of any field is read or refused with ValueError, and what was read can be written."""
    told = message.model_dump()
    place: Any = random.choice([told, *told["contents"]])
    place[random.choice(list(place))] = value
    try:
        read = Message.model_validate_json(json.dumps(told))
    except ValueError:
        return
    assert Message.model_validate_json(read.model_dump_json()) == read


@pytest.mark.parametrize("depth", [600, 5000, 100_000])
@pytest.mark.parametrize("as_text", [True, False])
def test_nesting_without_end_is_refused(depth: int, as_text: bool) -> None:
    """Contents nested too deeply raise ValueError, never RecursionError."""
    text = '{"type":"function_result","call_id":"c","contents":[' * depth + '{"type":"text","text":""}' + "]}" * depth
    value: Any = {"type": "text", "text": ""}
    for _ in range(depth):
        value = {"type": "function_result", "call_id": "c", "contents": [value]}
    with pytest.raises(ValueError, match=r"too deeply|recursion|recursive"):
        Content.model_validate_json(text) if as_text else Content.model_validate(value)


@pytest.mark.parametrize("text", ["", "{", "nonsense", b"\xff", '{"role":', "[" * 100_000, "null", "5", '"text"'])
def test_what_is_no_json(text: Any) -> None:
    """What is no JSON, or no object, raises ValueError."""
    for family in FAMILIES:
        with pytest.raises(ValueError):
            family.model_validate_json(text)


def test_equality_and_hashes() -> None:
    """Records of equal fields are equal, of different kinds never; they hash where they hold no objects."""
    assert TextContent("a") == TextContent("a")
    assert len({TextContent("a"), TextContent("a"), Message("user", "a"), Message("user", "a")}) == 2
    kinds: list[object] = [UriContent("a", "b"), InputRequestContent("a", FunctionCallContent("a", "b"))]
    assert TextContent("a") not in kinds
    assert FunctionResultContent("c", exception=ValueError()) == FunctionResultContent("c")
    assert Message("user", "a", origin="history") == Message("user", "a")
    with pytest.raises(TypeError, match="unhashable"):
        hash(FunctionCallContent("c", "f", {"a": 1}))


def test_sequences_become_tuples() -> None:
    """A list that was given to a record is copied, so that nobody changes it from outside."""
    said, shown = [Message("assistant", "a")], [TextContent("a")]
    response, result = ChatResponse(said), FunctionResultContent("c", contents=shown)  # type: ignore[arg-type]
    said.clear()
    shown.clear()
    assert (response.text, result.contents) == ("a", (TextContent("a"),))
    assert ChatResponse.model_validate_json(response.model_dump_json()) == response


def test_writing_needs_no_pydantic() -> None:
    """Making and writing records loads no pydantic; only reading does."""
    code = (
        "import sys; from agentpipe import Message, TextContent; Message('user', 'a').model_dump_json();"
        "assert 'pydantic' not in sys.modules; Message.model_validate({'role': 'user'}); assert 'pydantic' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_first_reading_in_many_threads() -> None:
    """Readers are made on first use, in whatever thread that is, while other threads make models with such fields."""
    code = """
import threading, pydantic
from agentpipe import Message, ChatResponse, TextContent
text = ChatResponse((Message("user", "a"),)).model_dump_json()
start = threading.Barrier(8)
done = []
def read(n):
    start.wait()
    if n % 2:
        row = pydantic.create_model("Row", a=(ChatResponse, ...), b=(Message, ...), c=(TextContent, ...))
        done.append(row.model_validate_json('{"a": %s, "b": {"role": "user"}, "c": {"text": "x"}}' % text).a)
    else:
        done.append(ChatResponse.model_validate_json(text))
threads = [threading.Thread(target=read, args=(n,)) for n in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(done) == 8 and all(one.text == "" and one.messages[0].text == "a" for one in done), done
"""
    subprocess.run([sys.executable, "-c", code], check=True)
