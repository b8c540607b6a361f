from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import socket
import subprocess
import sys
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, Optional, TypeVar, Union
from uuid import UUID

import docstring_parser
import pytest
import typing_extensions
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter

from agentpipe._schema import (
    FunctionSchema,
    InvalidArguments,
    OutputType,
    _plain_schema,
    _read_docstring,
    _without_titles,
    function_schema,
    output_type,
)

if TYPE_CHECKING:
    from somewhere import Unknown  # type: ignore[import-not-found]

T = TypeVar("T")


class Context(Generic[T]):
    pass


class Color(Enum):
    """What it looks like."""

    RED = "red"
    BLUE = "blue"


class City(BaseModel):
    name: str
    people: int = Field(0, ge=0)


class Node(BaseModel):
    value: int
    children: list[Node] = []


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    day: date
    pair: tuple[int, int]


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Trip(typing.TypedDict):
    """A trip."""

    to: str
    days: typing.NotRequired[int]


class Portable(typing_extensions.TypedDict, total=False):
    to: str


class Recursive(typing.TypedDict):
    inner: list[Recursive]


@dataclasses.dataclass
class HoldsDict:
    trip: Trip


def is_context(annotation: object) -> bool:
    return annotation is Context or typing.get_origin(annotation) is Context


def schema_of(function: Callable[..., object]) -> FunctionSchema:
    return function_schema(function, is_context=is_context)


def with_parameter(annotation: object, *default: object) -> Callable[..., object]:
    def function(x):  # type: ignore[no-untyped-def]
        return x

    function.__annotations__ = {"x": annotation}
    function.__defaults__ = default or None
    return function


def call(function: Callable[..., Any], /, context: object = None, **arguments: object) -> Any:
    args, kwargs = schema_of(function).bind(arguments, context)
    return function(*args, **kwargs)


def complaint(function: Callable[..., object], /, **arguments: object) -> str:
    with pytest.raises(InvalidArguments) as caught:
        schema_of(function).bind(arguments)
    return str(caught.value)


# ------------------------------------------------------------------------------------------------------ schemas


def test_a_plain_function() -> None:
    """Types, defaults and descriptions of a plain function are told, and nothing else is."""

    async def search(
        query: str, limit: int = 10, tags: list[str] | None = None, mode: Literal["fast", "slow"] = "fast"
    ) -> str:
        """Search for something.

        Be quick.

        Args:
            query: What to search for.
            limit (int): How many hits
                to return.
        """
        return query

    schema = schema_of(search)
    assert (schema.name, schema.context_parameter) == ("search", None)
    assert schema.description == "Search for something.\n\nBe quick."
    assert schema.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What to search for."},
            "limit": {"type": "integer", "description": "How many hits to return.", "default": 10},
            "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}], "default": None},
            "mode": {"enum": ["fast", "slow"], "type": "string", "default": "fast"},
        },
        "required": ["query"],
        "additionalProperties": False,
    }


def test_no_parameters() -> None:
    """A function without parameters still has properties, which some endpoints insist on."""
    assert schema_of(lambda: 1).parameters == {"type": "object", "properties": {}, "additionalProperties": False}


_leaves = st.sampled_from([str, int, float, bool, None, list, dict, Any, object])
_literals = st.lists(
    st.one_of(st.text(max_size=3), st.integers(), st.booleans(), st.none()), min_size=1, max_size=3, unique=True
).map(lambda values: Literal[tuple(values)])


def _larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner.map(lambda t: list[t]),  # type: ignore[valid-type]
        inner.map(lambda t: typing.List[t]),  # type: ignore[valid-type]  # noqa: UP006
        inner.map(lambda t: dict[str, t]),  # type: ignore[valid-type]
        inner.map(lambda t: Optional[t]),  # noqa: UP045
        inner.map(lambda t: Annotated[t, "text"]),
        st.lists(inner, min_size=1, max_size=3).map(lambda ts: Union[tuple(ts)]),
    )


_annotations = st.recursive(st.one_of(_leaves, _literals), _larger, max_leaves=5)


@given(_annotations)
@settings(max_examples=150, deadline=None)
def test_plain_types_are_described_as_pydantic_does(annotation: object) -> None:
    """The schema written without pydantic is pydantic's own, for every type that can be written so."""
    plain = _plain_schema(annotation)
    if plain is not None:
        assert plain == _without_titles(TypeAdapter(annotation).json_schema())


@given(_annotations, st.one_of(st.none(), st.integers(), st.text(), st.lists(st.integers()), st.booleans()))
@settings(max_examples=50, deadline=None)
def test_a_function_is_described_as_pydantic_does(annotation: object, default: object) -> None:
    """The whole schema of a function is pydantic's own, defaults included."""
    if typing.get_origin(annotation) is Annotated:
        return  # its text is told here, and not by pydantic
    for function in (with_parameter(annotation), with_parameter(annotation, default)):
        assert schema_of(function).parameters == _without_titles(TypeAdapter(function).json_schema())


def test_most_plain_types_need_no_pydantic() -> None:
    """What tools mostly take is described without asking pydantic."""
    for annotation in (str, list[str] | None, dict[str, list[int]], Annotated[Literal[1, 2], "x"], Any, None):
        assert _plain_schema(annotation) is not None


def test_nothing_heavy_is_imported() -> None:
    """Describing plain tools loads neither pydantic nor docstring_parser; calling one does."""
    program = (
        "import sys\nfrom agentpipe._schema import function_schema\nimport agentpipe._arguments\n"
        'def f(a: int, b: list[str] | None = None) -> int:\n    """Do.\n\n    Args:\n        a: An A.\n    """\n'
        "s = function_schema(f, is_context=lambda a: False)\n"
        "assert s.parameters['properties']['a'] == {'type': 'integer', 'description': 'An A.'}, s.parameters\n"
        "assert not {'pydantic', 'pydantic_core', 'docstring_parser'} & set(sys.modules)\n"
        "assert s.bind({'a': '1'}) == ((), {'a': 1})\nassert 'pydantic' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parent.parent)


def test_descriptions_come_from_many_places() -> None:
    """A Field tells most, then a text in Annotated, then the docstring."""

    def f(
        a: Annotated[int, "annotated"],
        b: Annotated[int, Field(description="field", ge=1)],
        c: int = Field(3, description="default", le=9),
        d: Annotated[Color, "which"] = Color.RED,
        e: Annotated[City | None, "where"] = None,
        g: Annotated[int, Field(ge=1)] = 1,
    ) -> None:
        """F.

        Args:
            a: doc
            b: doc
            g: doc
        """

    properties = schema_of(f).parameters["properties"]
    assert properties["a"] == {"type": "integer", "description": "annotated"}
    assert properties["b"] == {"type": "integer", "description": "field", "minimum": 1}
    assert properties["c"] == {"type": "integer", "description": "default", "maximum": 9, "default": 3}
    assert properties["d"] == {"type": "string", "enum": ["red", "blue"], "description": "which", "default": "red"}
    assert properties["e"]["description"] == "where"
    assert properties["g"] == {"type": "integer", "description": "doc", "minimum": 1, "default": 1}


@pytest.mark.parametrize(
    "text",
    [
        "Do it.\n\nAt once.\n\nArgs:\n    x (int): The X,\n        really.\n    y: The Y.\n\nReturns:\n    Something.",
        "Do it.\n\nAt once.\n\nParameters\n----------\nx, z : int\n    The X,\n    really.\ny\n    The Y.\n",
        "Do it.\n\nAt once.\n\n:param x: The X,\n    really.\n:type x: int\n:param y: The Y.\n:returns: Something.",
        "Do it.\n\nAt once.\n\n@param x: The X,\n    really.\n@param y: The Y.",
    ],
)
def test_docstring_styles(text: str) -> None:
    """Google, NumPy, Sphinx and Epydoc docstrings are read alike."""
    description, described = _read_docstring(text)
    assert description == "Do it.\n\nAt once."
    assert (described["x"], described["y"]) == ("The X, really.", "The Y.")


def test_a_docstring_without_sections_is_kept_whole() -> None:
    """Text that only looks like a section, or a broken one, is description."""
    for text in ("Look: here.\n\n  - a: b\n", "Do it.\n\nArgs:\n    nothing here", "Args:"):
        assert _read_docstring(text) == (text.strip(), {})
    assert _read_docstring(None) == ("", {})


def test_a_docstring_that_starts_with_its_arguments() -> None:
    """Parameters are found in a docstring that has nothing else, in every style."""
    for text in ("Args:\n    x: The X.\n\nReturns:\n    It.", "Args:\n    x: The X.", ":param x: The X."):
        assert _read_docstring(text) == ("", {"x": "The X."})


def test_odd_docstrings_are_no_obstacle() -> None:
    """Text that docstring_parser breaks on is description."""
    for text in ("Do it.\n\nArgs:\n::\n    :", "Do it.\n\n: :\nArgs:\n    a: An A."):
        assert _read_docstring(text) == (text, {})


_line = st.text("ab:@() .-\t\f", min_size=1, max_size=12).map(str.strip) | st.just(".. deprecated:: 2")
_google = st.builds(
    lambda head, args: head + "Args:\n" + "\n".join(args),
    st.lists(_line | st.just(""), max_size=4).map(lambda lines: "\n".join([*lines, ""]) if lines else ""),
    st.lists(
        st.one_of(
            st.builds("    {}: {}".format, st.sampled_from(["a", "b", "c (int)", "d (a, optional)", "e ()"]), _line),
            _line.map("        {}".format),
            _line.map("    {}:".format),
            st.just("Returns:"),
            st.just(""),
        ),
        max_size=5,
    ),
)


@given(_google.map(lambda text: "Do.\n\n" + text) | _google)
@settings(max_examples=400, deadline=None)
def test_plain_docstrings_are_read_as_docstring_parser_does(text: str) -> None:
    """The short way through a Google docstring leads where docstring_parser leads."""
    text = inspect.cleandoc(text)
    try:
        parsed = docstring_parser.parse("\n" + text)
    except Exception:
        assert _read_docstring(text) == (text.strip(), {})
        return
    described = {param.arg_name: " ".join((param.description or "").split()) for param in parsed.params}
    if described:
        assert _read_docstring(text)[0] == (parsed.description or "").strip()
        names = [param.arg_name.strip() for param in parsed.params]
        for name, told in described.items():
            if name.isidentifier() and names.count(name) == 1:
                assert _read_docstring(text)[1].get(name, "") == told


def test_rich_types_arrive_as_instances() -> None:
    """Models, dataclasses, enums, dates and their like are described, and arrive as what they are."""

    def f(
        city: City,
        cities: list[City],
        point: Point,
        color: Color,
        day: date,
        at: datetime,
        id: UUID,
        cost: Decimal,
        path: Path,
        pair: tuple[int, str],
        some: set[int],
        many: dict[str, Point],
        raw: bytes,
        trip: Trip,
        other: Portable,
        maybe: City | None = None,
    ) -> dict[str, object]:
        return locals()

    parameters = schema_of(f).parameters
    assert parameters["properties"]["city"] == {"$ref": "#/$defs/City"}
    assert parameters["properties"]["day"] == {"type": "string", "format": "date"}
    assert set(parameters["$defs"]) == {"City", "Point", "Trip", "Portable"}
    assert "title" not in json.dumps(parameters)
    given = call(
        f,
        city={"name": "Oslo"},
        cities=[{"name": "Bergen", "people": "7"}],
        point={"x": 1},
        color="blue",
        day="2026-01-02",
        at="2026-01-02T03:04:05",
        id="12345678123456781234567812345678",
        cost="1.50",
        path="/tmp",
        pair=[1, "a"],
        some=[1, 1],
        many={"a": {"x": 2, "y": 3}},
        raw="abc",
        trip={"to": "Rome"},
        other={},
    )
    assert given["city"] == City(name="Oslo")
    assert given["cities"] == [City(name="Bergen", people=7)]
    assert (given["point"], given["many"]) == (Point(1), {"a": Point(2, 3)})
    assert (given["color"], given["day"], given["at"]) == (Color.BLUE, date(2026, 1, 2), datetime(2026, 1, 2, 3, 4, 5))
    assert (given["cost"], given["path"], given["pair"]) == (Decimal("1.50"), Path("/tmp"), (1, "a"))
    assert (given["some"], given["raw"], given["trip"], given["other"]) == ({1}, b"abc", {"to": "Rome"}, {})


def test_strict_models_take_what_json_has() -> None:
    """A strict model gets its date from a text and its tuple from a list, since JSON has neither."""

    def f(it: Strict) -> Strict:
        return it

    assert call(f, it={"day": "2026-01-02", "pair": [1, 2]}) == Strict(day=date(2026, 1, 2), pair=(1, 2))
    assert "'it.pair[1]'" in complaint(f, it={"day": "2026-01-02", "pair": [1, "2"]})


def test_typed_dicts_of_the_standard_library() -> None:
    """A typing.TypedDict is described on Python 3.11 as well, or the error says what to take instead."""

    def f(trips: Annotated[list[Trip] | None, Field(max_length=2)]) -> object:
        return trips

    assert schema_of(f).parameters["$defs"]["Trip"]["required"] == ["to"]
    assert call(f, trips=[{"to": "Rome"}]) == [{"to": "Rome"}]
    if sys.version_info < (3, 12):
        for kind in (Recursive, HoldsDict):
            with pytest.raises(TypeError, match="typing_extensions"):
                schema_of(with_parameter(kind))


def test_two_types_of_one_name() -> None:
    """Two different types of one name are two definitions."""

    def named(**fields: Any) -> Any:
        return type("City", (BaseModel,), {"__annotations__": fields, "__module__": f"m{len(fields)}"})

    one, other = named(a=int), named(a=int, b=int)

    def f(x, y): ...  # type: ignore[no-untyped-def]

    f.__annotations__ = {"x": one, "y": other}
    assert len(schema_of(f).parameters["$defs"]) == 2


def test_equal_unions_keep_their_order() -> None:
    """int | str and str | int are equal to Python, and still described and read as they were written."""
    assert schema_of(with_parameter(int | str)).parameters != schema_of(with_parameter(str | int)).parameters
    assert output_type(int | str).schema != output_type(str | int).schema


def test_a_parameter_without_annotation_takes_anything() -> None:
    """No annotation means any JSON value, which arrives as it is."""

    def f(x, y=1):  # type: ignore[no-untyped-def]
        return x

    assert schema_of(f).parameters["properties"] == {"x": {}, "y": {"default": 1}}
    assert call(f, x=[1, {"a": None}]) == [1, {"a": None}]


@pytest.mark.parametrize("default", [math.nan, object(), [object()], {"a": math.inf}, socket.AF_INET6.__class__])
def test_defaults_that_json_does_not_have(default: object) -> None:
    """A default that is no JSON is left out of the schema; it still makes the parameter optional."""
    schema = schema_of(with_parameter(Any, default))
    assert schema.parameters == {"type": "object", "properties": {"x": {}}, "additionalProperties": False}
    assert schema.bind({}) == ((), {})


# ------------------------------------------------------------------------------------------ what cannot be described


def test_what_cannot_be_described_is_refused() -> None:
    """Starred parameters, types without a schema and unknown names are refused, with the parameter's name."""

    def stars(*args: int) -> None: ...
    def keywords(**kwargs: int) -> None: ...
    def opens(a: int, connection: socket.socket) -> None: ...
    def calls(then: Callable[[], int]) -> None: ...
    def unknown(a: Unknown) -> None: ...
    def broken(a: "1 +") -> None: ...  # type: ignore[syntax]  # noqa: F722
    def contexts(a: Context[int], b: Context[int]) -> None: ...

    for function, text in (
        (stars, r"stars: .*\*args.* one list"),
        (keywords, r"keywords: .*\*\*kwargs"),
        (opens, "opens: the parameter 'connection' .* socket"),
        (calls, "calls: the parameter 'then' .* Callable"),
        (unknown, "unknown: .* 'a' .*Unknown.* TYPE_CHECKING"),
        (broken, "broken: .* 'a' cannot be resolved"),
        (contexts, "contexts: only one parameter .*'a' and 'b'"),
    ):
        with pytest.raises(TypeError, match=text):
            schema_of(function)
    with pytest.raises(TypeError, match="no signature"):
        schema_of(type)


def test_a_result_type_is_of_no_concern() -> None:
    """A result type that cannot be resolved keeps no function from being described."""

    def f(a: int) -> Unknown: ...

    assert schema_of(f).parameters["required"] == ["a"]


# ------------------------------------------------------------------------------------------- all kinds of functions


class Shop:
    """A shop."""

    def method(self, a: int) -> int:
        """A method."""
        return a

    @staticmethod
    def static(a: int) -> int:
        return a

    @classmethod
    def of_class(cls, a: int) -> int:
        return a

    def __call__(self, a: int) -> int:
        return a


def decorated(function: Callable[..., T]) -> Callable[..., T]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> T:
        return function(*args, **kwargs)

    return wrapper


def test_kinds_of_functions() -> None:
    """Methods, partials, callables, coroutines, generators, classes and wrapped functions are all described."""

    async def coroutine(a: int) -> int:
        return a

    def generator(a: int) -> Iterator[int]:
        yield a

    async def stream(a: int) -> AsyncIterator[int]:
        yield a

    def two(a: int, b: City) -> int:
        """Two."""
        return a

    shop = Shop()
    functions: dict[str, Any] = {
        "method": shop.method,
        "static": shop.static,
        "of_class": Shop.of_class,
        "Shop": shop,
        "coroutine": coroutine,
        "generator": generator,
        "stream": stream,
        "two": functools.partial(two, b=City(name="Oslo")),
    }
    for name, function in functions.items():
        for same in (function, decorated(function) if name != "Shop" and name != "two" else function):
            schema = schema_of(same)
            assert schema.name == name
            assert schema.parameters["properties"] == {"a": {"type": "integer"}}
            assert schema.bind({"a": "1"}) == ((), {"a": 1})
    assert schema_of(shop.method).description == "A method."
    assert schema_of(shop).description == "A shop."
    assert schema_of(functions["two"]).description == "Two."
    assert call(Point, x=1) == Point(1)


def test_what_a_partial_has_bound_is_hidden() -> None:
    """What a partial has bound is neither told to the model nor its to change."""

    def f(key: str, a: int, b: int = 2) -> tuple[object, ...]:
        return key, a, b

    for bound in (functools.partial(f, key="secret"), functools.partial(f, "secret")):
        assert "secret" not in json.dumps(schema_of(bound).parameters)
        assert call(bound, a=1) == ("secret", 1, 2)
        assert "unknown argument 'key'" in complaint(bound, a=1, key="mine")


def test_types_that_are_local() -> None:
    """Names are looked up where the function is defined, before the module, even if it does not use them itself."""

    class City(BaseModel):
        local: int

    class Holder:
        def method(self, city: City) -> City:
            return city

    def uses(city: list[City]) -> object:
        return [City, *city]

    def mentions(city: City | None) -> object:
        return city

    assert call(uses, city=[{"local": 1}])[1] == City(local=1)
    assert call(mentions, city={"local": 1}) == City(local=1)
    assert call(Holder().method, city={"local": 1}) == City(local=1)


def test_names_of_callers_are_not_taken() -> None:
    """A name that only somebody up the call stack has is not found by accident."""
    Unknown = int  # noqa: F841
    with pytest.raises(TypeError, match="Unknown"):
        schema_of(mentions_unknown)


def mentions_unknown(a: Unknown) -> None: ...


def test_a_local_type_of_a_function_that_returned() -> None:
    """A local type whose function has returned cannot be found, and the error says what to do."""

    def make() -> Callable[..., object]:
        class Gone(BaseModel):
            a: int

        def f(x: Gone) -> object:
            return x

        return f

    with pytest.raises(TypeError, match=r"Gone.* top of the module"):
        schema_of(make())


def test_context() -> None:
    """The context is recognised by its annotation, hidden from the model and handed over; None outside of a run."""

    def f(a: int, ctx: Annotated[Context[int] | None, "hidden"] = None, /, b: int = 2) -> object:
        return a, ctx, b

    schema = schema_of(f)
    assert schema.context_parameter == "ctx"
    assert set(schema.parameters["properties"]) == {"a", "b"}
    assert call(f, "it", a=1) == (1, "it", 2)
    assert "unknown argument 'ctx'" in complaint(f, a=1, ctx=2)
    assert schema_of(lambda a: a).context_parameter is None


def test_positional_only() -> None:
    """Positional-only parameters are passed by position, and gaps are filled with the defaults."""

    def f(a: int, b: int = 2, c: int = 3, /, *, d: int = 4) -> tuple[int, ...]:
        return a, b, c, d

    assert call(f, a=1, c=5) == (1, 2, 5, 4)
    assert schema_of(f).bind({"a": 1, "d": 6}) == ((1, 2, 3), {"d": 6})


def test_defaults_are_the_function_s_own() -> None:
    """An argument that is not given is not passed; a default in a Field is, anew for each call."""

    def f(
        d: Annotated[int, Field(default=4)],
        e: Annotated[list[int], Field(default=[])],
        a: int = 1,
        b: list[int] = Field(default_factory=list),  # noqa: B008
        c: int = Field(3),
        g: Annotated[int, Field(default=4)] = 5,
    ) -> None: ...

    schema = schema_of(f)
    first, second = schema.bind({})[1], schema.bind({})[1]
    assert first == {"d": 4, "e": [], "b": [], "c": 3}
    assert first["b"] is not second["b"]
    assert first["e"] is not second["e"]
    assert "required" not in schema.parameters
    told = {name: part.get("default") for name, part in schema.parameters["properties"].items()}
    assert told == {"d": 4, "e": [], "a": 1, "b": None, "c": 3, "g": 5}


# ---------------------------------------------------------------------------------------------------- validation


def trip(city: str, days: int = 1, where: City | None = None) -> None:
    """Plan a trip."""


def test_every_wrong_argument_is_named() -> None:
    """The text names each argument that is missing, wrong or unknown, and the one that was probably meant."""
    assert complaint(trip, ctiy="Oslo", days="three") == (
        "invalid arguments: 'city' is missing; 'days' must be an integer (got 'three'); "
        "unknown argument 'ctiy', did you mean 'city'?"
    )
    assert complaint(trip, city=5) == "invalid arguments: 'city' must be a string (got 5)"
    assert complaint(lambda: 1, x=1) == "invalid arguments: unknown argument 'x', the function takes no arguments"
    assert "the arguments are 'city', 'days', 'where'" in complaint(trip, city="a", zzz=1)
    assert "'where.name' is missing" in complaint(trip, city="a", where={})
    assert "'where.people' must be greater than or equal to 0 (got -1)" in complaint(
        trip, city="a", where={"name": "b", "people": -1}
    )


def test_unknown_arguments_are_refused_where_all_are_optional() -> None:
    """An unknown name is refused even if nothing is required."""
    assert "unknown argument 'y', did you mean 'x'" not in complaint(with_parameter(int, 1), y=1)
    assert "unknown argument 'xx', did you mean 'x'?" in complaint(with_parameter(int, 1), xx=1)


@pytest.mark.parametrize(
    ("annotation", "value", "text"),
    [
        (int, True, "'x' must be an integer (got true)"),
        (float, False, "'x' must be a number (got false)"),
        (int | None, True, "'x' must be an integer (got true)"),
        (int, 1.5, "'x' must be an integer (got 1.5)"),
        (str, 5, "'x' must be a string (got 5)"),
        (list[int], [1, "a"], "'x[1]' must be an integer (got 'a')"),
        (list[int], "1,2", "'x' must be a list (got '1,2')"),
        (dict[str, int], {"k": "v"}, "'x.k' must be an integer (got 'v')"),
        (int | list[str], {"a": 1}, "'x' must be an integer or must be a list (got {\"a\": 1})"),
        (Literal["a", "b"], "c", "'x' must be 'a' or 'b' (got 'c')"),
        (Color, "green", "'x' must be 'red' or 'blue' (got 'green')"),
        (City, "Oslo", "'x' must be an object (got 'Oslo')"),
        (Annotated[int, Field(ge=1)], 0, "'x' must be greater than or equal to 1 (got 0)"),
        (Annotated[str, Field(pattern="^a+$")], "b", "'x' must match pattern '^a+$' (got 'b')"),
        (Annotated[list[int], Field(max_length=1)], [1, 2], "'x' must have at most 1 item"),
        (str, None, "'x' must be a string (got null)"),
        (int, "\ud800", "unable to parse raw data as a unicode string (got '\\ud800')"),
        (date, object(), "(got a Python object)"),
    ],
)
def test_wrong_values(annotation: object, value: object, text: str) -> None:
    """A wrong value is refused with a sentence about it that a model can act on."""
    told = complaint(with_parameter(annotation), x=value)
    assert text in told
    assert "http" not in told


@pytest.mark.parametrize(
    ("annotation", "value", "taken"),
    [
        (int, "10", 10),
        (int, 10.0, 10),
        (float, 1, 1.0),
        (bool, "yes", True),
        (bool, 1, True),
        (int | str, "10", "10"),
        (int | bool, True, True),
        (int | None, None, None),
        (Color, "red", Color.RED),
    ],
)
def test_values_that_are_taken(annotation: object, value: object, taken: object) -> None:
    """What can mean one thing only is taken for it."""
    result = call(with_parameter(annotation), x=value)
    assert result == taken
    assert type(result) is type(taken)


def test_validators_of_the_user_s_own() -> None:
    """A validator that refuses, or that breaks, makes the argument invalid and says why."""

    def refuse(value: object) -> object:
        raise ValueError("not on Sundays")

    def crash(value: Any) -> object:
        return value["missing"]

    assert "'x' is wrong: not on Sundays (got 1)" in complaint(
        with_parameter(Annotated[int, BeforeValidator(refuse)]), x=1
    )
    assert "'x': KeyError: 'missing'" in complaint(with_parameter(Annotated[int, BeforeValidator(crash)]), x={})


def test_long_complaints_are_cut() -> None:
    """However much is wrong, the text stays short enough for a model."""
    assert len(complaint(with_parameter(list[int]), x=["a" * 1000] * 1000)) < 2000
    assert "and 990 more" in complaint(with_parameter(list[int]), x=["a"] * 1000)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(_json, st.sampled_from([int, str, float, City, Point, list[City], dict[str, int], Color, date, int | list[str]]))
@settings(max_examples=150, deadline=None)
def test_binding_never_breaks(value: object, annotation: object) -> None:
    """Whatever JSON a model writes, binding gives arguments or says what is wrong."""
    schema = schema_of(with_parameter(annotation))
    try:
        assert "x" in schema.bind({"x": value})[1]
    except InvalidArguments as error:
        assert str(error).startswith("invalid arguments: 'x")  # noqa: PT017


# ---------------------------------------------------------------------------------------------- structured output


@pytest.mark.parametrize(
    ("kind", "value", "name", "wrapped"),
    [
        (City, City(name="Oslo"), "City", False),
        (Node, Node(value=1, children=[Node(value=2)]), "Node", False),
        (Point, Point(1), "Point", False),
        (Trip, {"to": "Rome"}, "Trip", False),
        (Strict, Strict(day=date(2026, 1, 2), pair=(1, 2)), "Strict", False),
        (list[City], [City(name="Oslo")], "list_City", True),
        (Color, Color.RED, "Color", True),
        (Literal["a", "b"], "a", "Literal_a_b", True),
        (int, 5, "int", True),
        (str, "text", "str", True),
        (City | Point, Point(1, 2), "City_Point", True),
        (Optional[City], None, "Optional_City", True),  # noqa: UP045
        (dict[str, int], {"value": 1}, "dict_str_int", True),
    ],
)
def test_output_types(kind: Any, value: object, name: str, wrapped: bool) -> None:
    """Every type has the schema of an object, and its values come back from the JSON that it describes."""
    output = output_type(kind)
    assert isinstance(output, OutputType)
    assert (output.name, output.wrapped) == (name, wrapped)
    assert output.schema["type"] == "object"
    assert "title" not in json.dumps(output.schema)
    plain = TypeAdapter(Any).dump_python(value, mode="json")
    text = json.dumps({"value": plain} if wrapped else plain)
    for written in (text, f"  \n{text}\n", f"```json\n{text}\n```", f"\n```\n{text}\n```\n"):
        assert output.parse(written) == value
    assert output_type(kind) is output


def test_unwrapped_answers_are_taken() -> None:
    """A model that leaves the wrapping out has still answered."""
    assert output_type(list[int]).parse("[1, 2]") == [1, 2]
    assert output_type(City).validate(City(name="Oslo")) == City(name="Oslo")


@pytest.mark.parametrize(
    ("kind", "text", "error"),
    [
        (City, "Oslo", "the text is not JSON"),
        (City, '{"name": "Os', "the text is not JSON"),
        (City, "", "the text is not JSON"),
        (City, '{"name": NaN}', "NaN is not JSON"),
        (City, "{}", "'name' is missing"),
        (City, "[]", "must be an object"),
        (City, '{"name": "a", "people": "x"}', "'people' must be an integer"),
        (list[City], '{"value": [{}]}', "'value[0].name' is missing"),
        (int, "[" * 100_000, "the text is not JSON"),
    ],
)
def test_output_errors(kind: Any, text: str, error: str) -> None:
    """Text that is not what was promised raises ValueError, which says why and has no link in it."""
    with pytest.raises(ValueError) as caught:
        output_type(kind).parse(text)
    assert error in str(caught.value)
    assert "http" not in str(caught.value)


def test_output_types_without_a_schema() -> None:
    """A type without a JSON schema is refused by name."""
    with pytest.raises(TypeError, match="socket cannot be a response_format"):
        output_type(socket.socket)


def test_partial_output() -> None:
    """Text that has not come to its end gives what there is of it."""
    city = output_type(City)
    assert [city.parse_partial(text) for text in ("", "{", '{"name": "Os', '```json\n{"name": "Oslo", "peo')] == [
        None,
        {},
        {"name": "Os"},
        {"name": "Oslo"},
    ]
    assert output_type(list[int]).parse_partial('{"value": [1, 2') in ([1], [1, 2])
    assert output_type(list[int]).parse_partial("{") is None
