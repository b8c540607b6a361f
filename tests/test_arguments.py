from __future__ import annotations

import json
import math
from datetime import date
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from agentpipe._arguments import arguments_json, read_arguments, sendable

LIMITS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "max_items": {"type": "integer"},
        "strict": {"type": "boolean"},
        "ids": {"type": "array", "items": {"type": "integer"}},
        "label": {"type": "string"},
    },
    "required": ["max_items"],
}


def parameters(schema: object, **defs: object) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}, "$defs": defs}


def fitted(value: object, schema: object, **defs: object) -> object:
    arguments, _, invalid = read_arguments(json.dumps({"x": value}), parameters(schema, **defs))
    assert invalid is None
    return arguments["x"]


@pytest.mark.parametrize("raw", ["", None, "  \n", "null", '""', "{}", {}, " {} ", '"{}"'])
def test_nothing_is_no_arguments(raw: object) -> None:
    """Nothing, blank text and null are a call without arguments."""
    assert read_arguments(raw) == ({}, raw if isinstance(raw, str) else "{}" if raw is not None else "", None)


@pytest.mark.parametrize(
    ("raw", "arguments"),
    [
        ('{"city":"Oslo"}', {"city": "Oslo"}),
        ({"city": "Oslo"}, {"city": "Oslo"}),
        ('"{\\"city\\": \\"Oslo\\"}"', {"city": "Oslo"}),
        ('{"code":"a}{b"}', {"code": "a}{b"}),
        ('{"title":"l1\nl2\tx"}', {"title": "l1\nl2\tx"}),
        ('\ufeff {"a":1}', {"a": 1}),
        ('{"a":1,"a":2}', {"a": 2}),
        ('{"a":1}<|end|>', {"a": 1}),
        ('{"a":1}}', {"a": 1}),
        ('{"a":1}{', {"a": 1}),
        ('{"a":1} and that was all {of it}', {"a": 1}),
        ('{"a":1} 3 results', {"a": 1}),
        ('{"a":1}{"a":1}', {"a": 1}),
        ('{"a":1,"b":2}\n{"b":2,"a":1}', {"a": 1, "b": 2}),
        ('{"a":"\\ud800"}', {"a": "\ud800"}),
        ('{"a":1}' + "{" * 100_000, {"a": 1}),
    ],
)
def test_what_can_mean_one_thing_only_is_read(raw: object, arguments: object) -> None:
    """An object is read as text, as an object, encoded twice, with control characters and with rubbish behind it."""
    assert read_arguments(raw)[0] == arguments
    assert read_arguments(raw)[2] is None


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("city=Oslo", "not a complete JSON object"),
        ('{"city":"Os', "not a complete JSON object"),
        ('{"city":', "not a complete JSON object"),
        ("{'city': 'Oslo'}", "not a complete JSON object"),
        ('"Oslo"', "not a complete JSON object"),
        ('"\\"{}\\""', "not a text"),
        ("[1]", "not a list"),
        ([1], "not a list"),
        ("5", "not a number"),
        (5.0, "not a number"),
        (True, "not a boolean"),
        (b"{}", "not a Python bytes"),
        ('{"a":1}{"b":2}', "two different"),
        ('{"a":1}{"a":true}', "two different"),
        ('{"a":1} or else {"b":2}', "two different"),
        ('{"a":1}[1]', "two different"),
        ('{"a":1}2', "two different"),
        ('null{"a":1}', "two different"),
        ('{"a":1}{"b":', "cut off"),
        ('{"a":1}{"b":"x', "cut off"),
        ('{"a":NaN}', "NaN"),
        ('{"a":-Infinity}', "Infinity"),
        ('{"a":1e999}', "too large"),
        ('"{\\"a\\":NaN}"', "NaN"),
        ({"a": math.nan}, "not JSON"),
        ({(1, 2): 3}, "not JSON"),
        ('{"a":' + "9" * 5000 + "}", "digits"),
        ("[" * 100_000, "too deeply"),
        ('{"a":' * 100_000, "too deeply"),
        ('{"a":' + "[" * 300 + "]" * 300 + "}", "too deeply"),
        ('{"a":1}' + '{"a":' * 100_000, "too deeply"),
        (json.dumps('{"a":' + "[" * 300 + "]" * 300 + "}"), "too deeply"),
    ],
)
def test_what_cannot_be_read_is_invalid(raw: object, text: str) -> None:
    """Prose, lists, cut-off text, two objects and numbers that JSON has not make a call invalid, which says why."""
    arguments, received, invalid = read_arguments(raw, LIMITS)
    assert arguments == {}
    assert invalid is not None
    assert text in invalid
    assert not isinstance(raw, str) or received == raw


def test_an_object_that_contains_itself() -> None:
    """A Python object that is no JSON is invalid, not a crash."""
    raw: dict[str, Any] = {}
    raw["a"] = raw
    assert read_arguments(raw)[:2] == ({}, "")


def test_the_schema_decides() -> None:
    """Texts become numbers, booleans and lists where the schema wants them, and stay texts where it wants those."""
    raw = '{"max_items": "10", "strict": "true", "ids": "[\\"1\\", 2]", "label": "7", "other": "8"}'
    expected = {"max_items": 10, "strict": True, "ids": [1, 2], "label": "7", "other": "8"}
    assert read_arguments(raw, LIMITS) == (expected, raw, None)
    assert read_arguments(json.loads(raw), LIMITS)[0] == expected
    assert read_arguments(raw)[0] == json.loads(raw)


def test_what_was_given_is_not_changed() -> None:
    """An object that an endpoint sent is left as it was."""
    raw = {"max_items": "10", "ids": ["1"]}
    assert read_arguments(raw, LIMITS)[0] == {"max_items": 10, "ids": [1]}
    assert raw == {"max_items": "10", "ids": ["1"]}


_POINT = {"type": "object", "properties": {"a": {"type": "integer"}}}
_TREE = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "null"}]}},
}


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        ("10", {"type": "integer"}, 10),
        (" -3 ", {"type": "integer"}, -3),
        ("10.0", {"type": "integer"}, 10),
        ("10.5", {"type": "integer"}, "10.5"),
        ("ten", {"type": "integer"}, "ten"),
        ("10", {"type": "number"}, 10),
        ("1.5e3", {"type": "number"}, 1500.0),
        ("1e999", {"type": "number"}, "1e999"),
        ("NaN", {"type": "number"}, "NaN"),
        ("False", {"type": "boolean"}, False),
        ("yes", {"type": "boolean"}, "yes"),
        ("null", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, None),
        ("5", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 5),
        ("5", {"type": ["integer", "null"]}, 5),
        ("5", {"type": ["integer", "string"]}, "5"),
        ("5", {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "5"),
        ("null", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "null"),
        ("2", {"enum": [1, 2]}, 2),
        ("2", {"enum": ["1", "2"]}, "2"),
        ("2", {"const": 2}, 2),
        ("2", {}, "2"),
        ("2", True, "2"),
        ("[1]", {"type": "string"}, "[1]"),
        ("[1]", {"type": "array"}, [1]),
        ("[1", {"type": "array"}, "[1"),
        ("a,b", {"type": "array"}, "a,b"),
        ("[1]", {"type": "object"}, "[1]"),
        ('{"a":"1"}', {"type": "object"}, {"a": "1"}),
        ('{"a":"1"}', _POINT, {"a": 1}),
        ('{"a":"1"}', {"$ref": "#/$defs/Point"}, {"a": 1}),
        ({"a": "1"}, {"allOf": [{"$ref": "#/$defs/Point"}], "description": "it"}, {"a": 1}),
        ({"a": "1"}, {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]}, {"a": 1}),
        ({"a": "1"}, {"anyOf": [_POINT, {"type": "object"}]}, {"a": "1"}),
        ({"k": "1"}, {"type": "object", "additionalProperties": {"type": "integer"}}, {"k": 1}),
        ({"k": "1"}, {"type": "object", "additionalProperties": False}, {"k": "1"}),
        (["1", "2"], {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}, [1, "2"]),
        (["1"], {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "string"}]}, [1]),
        (
            {"n": "1", "next": {"n": "2", "next": None}},
            {"$ref": "#/$defs/Tree"},
            {"n": 1, "next": {"n": 2, "next": None}},
        ),
        ("1", {"$ref": "#/$defs/Nowhere"}, "1"),
        ("1", {"$ref": "elsewhere.json"}, "1"),
        ("1", {"$ref": "#/$defs/Loop"}, "1"),
        ("1", {"type": 5, "anyOf": "?"}, "1"),
    ],
)
def test_fitting_by_schema(value: object, schema: object, expected: object) -> None:
    """References, choices, nested properties and items are followed; where the schema leaves a choice, text stays."""
    result = fitted(value, schema, Point=_POINT, Tree=_TREE, Loop={"$ref": "#/$defs/Loop"})
    assert result == expected
    assert type(result) is type(expected)


def test_arguments_are_written_compactly() -> None:
    """Arguments go out as one compact object, readable, and without what endpoints refuse."""
    assert arguments_json({"a": [1, "é"], "b": None}) == '{"a":[1,"é"],"b":null}'
    assert arguments_json({}) == "{}"
    assert arguments_json({"a\0": "x\0y", "b": "\ud800z"}) == '{"a":"xy","b":"\ufffdz"}'
    assert arguments_json({"a": math.nan, "b": [math.inf]}) == '{"a":null,"b":[null]}'
    assert json.loads(arguments_json({"a": r"\u0000"})) == {"a": r"\u0000"}


def test_python_values_are_written_as_pydantic_would() -> None:
    """What is no JSON value, as a person who edits a call may give it, is written all the same."""

    class City(BaseModel):
        name: str
        area: float = math.nan

    assert arguments_json({"day": date(2026, 1, 2), "city": City(name="O")}) == (
        '{"day":"2026-01-02","city":{"name":"O","area":null}}'
    )
    assert json.loads(arguments_json({"x": object}))["x"].startswith("<class")


def test_sendable_joins_halves() -> None:
    """The halves of a character that came in two pieces are one again; a lone half is replaced, and nothing else."""
    assert sendable("a\ud83d\ude00b\ud83dc\0") == "a\U0001f600b\ufffdc"
    assert sendable("\ude00") == "\ufffd"


_texts = st.text(st.characters(exclude_categories=()), max_size=8)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=8,
)
_objects = st.dictionaries(_texts, _json, max_size=4)


@given(_objects, st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_object_is_read_back(arguments: dict[str, Any], ascii_only: bool) -> None:
    """Every JSON object is read back exactly, as it is, as text, and as text that was encoded twice."""
    text = json.dumps(arguments, ensure_ascii=ascii_only)
    plain = json.loads(text)
    assert read_arguments(text) == (plain, text, None)
    assert read_arguments(json.dumps(text))[0] == plain
    assert read_arguments(plain)[0] == plain
    assert read_arguments(text + "<|end|>")[0] == plain


@given(_objects)
@settings(max_examples=150, deadline=None)
def test_what_is_written_can_be_sent_and_read(arguments: dict[str, Any]) -> None:
    """What is written is UTF-8 without NUL, is strict JSON of an object, and is stable from then on."""
    text = arguments_json(arguments)
    text.encode()
    written = json.loads(text, parse_constant=pytest.fail)
    assert "\0" not in json.dumps(written, ensure_ascii=False)
    assert arguments_json(written) == text
    assert read_arguments(text) == (written, text, None)


@given(_objects, st.data())
@settings(max_examples=100, deadline=None)
def test_a_cut_off_object_is_never_read(arguments: dict[str, Any], data: st.DataObject) -> None:
    """No beginning of an object counts as an object."""
    text = json.dumps(arguments)
    cut = data.draw(st.integers(1, len(text) - 1))
    assert read_arguments(text[:cut], LIMITS)[2] is not None


_schemas = st.recursive(
    st.sampled_from(
        [{"type": name} for name in ("string", "integer", "number", "boolean", "null", "array", "object")]
        + [{}, True, {"$ref": "#"}, {"$ref": "#/properties/a"}, {"enum": [1, "a"]}, {"type": ["integer", 5]}, 7]
    ),
    lambda inner: st.one_of(
        inner.map(lambda schema: {"type": "array", "items": schema}),
        inner.map(lambda schema: {"type": "object", "additionalProperties": schema}),
        st.lists(inner, max_size=3).map(lambda schemas: {"anyOf": schemas}),
        st.dictionaries(st.sampled_from("abx"), inner).map(lambda found: {"type": "object", "properties": found}),
    ),
    max_leaves=6,
)
_wire = st.one_of(
    _texts,
    _json,
    _objects.map(json.dumps),
    st.text('{}[]",:a1\\ \n', max_size=20),
    st.dictionaries(st.sampled_from("abx"), _json | _json.map(json.dumps)).map(json.dumps),
)


@given(_wire, st.dictionaries(st.sampled_from("abx"), _schemas).map(lambda found: {"properties": found}))
@settings(max_examples=300, deadline=None)
def test_reading_never_breaks(raw: object, schema: dict[str, Any]) -> None:
    """Whatever comes, under whatever schema, is arguments or an invalid call, and arguments can be sent again."""
    arguments, text, invalid = read_arguments(raw, schema)
    assert isinstance(text, str)
    assert invalid is None or arguments == {}
    arguments_json(arguments).encode()
