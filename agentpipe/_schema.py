"""From types to JSON schemas and validators: of the parameters of a function, and of structured output.

The schemas of plain types are written here, as pydantic would write them; pydantic describes everything else and
validates everything. It is imported when it is needed first: for most tools, when the first of them is called.
"""

from __future__ import annotations

import difflib
import inspect
import json
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin

T = TypeVar("T")
_MISSING = inspect.Parameter.empty
_Schema = dict[str, Any]


class InvalidArguments(ValueError):
    """Arguments that a function cannot be called with; the text says what is wrong, for the model to read."""


# ------------------------------------------------------------------------------------- parameters of a function


class FunctionSchema:
    """What a model has to know of a function, and how its arguments are made ready.

    Attributes:
        name: The function's name.
        description: Its docstring without the sections on parameters and results.
        parameters: The JSON schema of the arguments, an object; it always has ``properties``.
        context_parameter: The parameter that is not the model's to fill, or None.
    """

    __slots__ = ("_names", "_parameters", "context_parameter", "description", "name", "parameters")

    def __init__(self, name: str, description: str, parameters: Sequence[_Parameter], schema: _Schema) -> None:
        self.name = name
        self.description = description
        self.parameters = schema
        self.context_parameter = next((each.name for each in parameters if each.is_context), None)
        self._parameters = tuple(parameters)
        self._names = [each.name for each in parameters if not each.is_context]

    def __repr__(self) -> str:
        return f"FunctionSchema({self.name!r}, {self._names})"

    def bind(self, arguments: Mapping[str, Any], context: object = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What to call the function with: positional and keyword arguments.

        An argument that is not given is left out, so that the function's own default applies.

        Raises InvalidArguments, which names every argument that is missing, unknown or wrong.
        """
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        wrong: list[str] = []
        given = 0
        for parameter in self._parameters:
            name = parameter.name
            if parameter.is_context:
                value = context
            elif name in arguments:
                given += 1
                value = parameter.read(arguments[name], wrong)
            else:
                value = parameter.absent(wrong)
            if parameter.positional_only:
                args.append(value)
            elif value is not _MISSING:
                kwargs[name] = value
        if wrong or given < len(arguments):
            raise InvalidArguments(_sentence(wrong + self._unknown(arguments)))
        return tuple(args), kwargs

    def _unknown(self, arguments: Mapping[str, Any]) -> list[str]:
        free = [name for name in self._names if name not in arguments]
        return [f"unknown argument {name!r}, {self._hint(name, free)}" for name in arguments if name not in self._names]

    def _hint(self, name: str, free: list[str]) -> str:
        if close := difflib.get_close_matches(name, free, 1):
            return f"did you mean {close[0]!r}?"
        if not self._names:
            return "the function takes no arguments"
        return f"the arguments are {', '.join(map(repr, self._names))}"


_MAX_COMPLAINTS = 10


def _sentence(wrong: list[str]) -> str:
    more = len(wrong) - _MAX_COMPLAINTS
    told = wrong[:_MAX_COMPLAINTS] + ([f"and {more} more"] if more > 0 else [])
    return "invalid arguments: " + "; ".join(told)


class _Parameter:
    """One parameter of a function."""

    __slots__ = ("annotation", "default", "field", "is_context", "name", "positional_only", "validate")

    def __init__(
        self, name: str, annotation: Any, default: Any, *, positional_only: bool = False, is_context: bool = False
    ) -> None:
        self.name = name
        self.annotation, self.field = _with_field(annotation, default)
        self.default = _MISSING if _is_field(default) else default
        self.positional_only = positional_only
        self.is_context = is_context
        self.validate: Callable[[Any], Any] | None = None

    @property
    def required(self) -> bool:
        return self.default is _MISSING and self.field is None and not self.is_context

    def read(self, value: Any, wrong: list[str]) -> Any:
        """The value as the function takes it; what is wrong with it goes into ``wrong``."""
        try:
            if self.validate is None:
                self.validate = _validator(self.annotation)
            taken = self.validate(value)
        except Exception as error:  # a validator of the user's may raise anything, about what the model wrote
            wrong.extend(_complaints(error, self.name, value))
            return _MISSING
        if type(value) is bool and type(taken) in (int, float):
            kind = "an integer" if type(taken) is int else "a number"  # pydantic takes True for 1
            wrong.append(f"{self.name!r} must be {kind} (got {_short(value)})")
        return taken

    def absent(self, wrong: list[str]) -> Any:
        """What stands in for a value that was not given."""
        if self.required:
            wrong.append(f"{self.name!r} is missing")
        if self.field is not None and self.default is _MISSING:
            return self.field.get_default(call_default_factory=True, validated_data={})
        # Something has to stand in a place that the next argument counts on.
        return self.default if self.positional_only else _MISSING


def function_schema(function: Callable[..., object], *, is_context: Callable[[object], bool]) -> FunctionSchema:
    """The schema of a function; a parameter whose annotation ``is_context`` recognises is hidden from the model.

    Descriptions of parameters come from ``Annotated[..., "text"]``, pydantic's ``Field`` or the docstring (Google,
    NumPy, Sphinx). What a ``functools.partial`` has bound is not the model's to fill either.

    Raises:
        TypeError: The function cannot be described; the message names the parameter and says what to do.
    """
    name = _name_of(function)
    description, described = _read_docstring(_docstring(function))
    scope = _Scope(function, name)
    parameters = [_parameter(each, name, scope, is_context) for each in _open_parameters(function, name)]
    if len(contexts := [each.name for each in parameters if each.is_context]) > 1:
        raise TypeError(f"{name}: only one parameter can take the context, not {' and '.join(map(repr, contexts))}")
    return FunctionSchema(name, description, parameters, _object_schema(name, parameters, described))


def _parameter(
    parameter: inspect.Parameter, function: str, scope: _Scope, is_context: Callable[[object], bool]
) -> _Parameter:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
        raise TypeError(
            f"{function}: the parameter {stars}{parameter.name} cannot be described to a model; "
            "name each argument, or take one list or dict"
        )
    annotation = Any if parameter.annotation is _MISSING else scope.resolve(parameter.annotation, parameter.name)
    return _Parameter(
        parameter.name,
        annotation,
        parameter.default,
        positional_only=parameter.kind is parameter.POSITIONAL_ONLY,
        is_context=is_context(_bare(annotation)),
    )


def _bare(annotation: Any) -> Any:
    """The annotation without ``Annotated`` and without ``| None``."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation
    others = [part for part in get_args(annotation) if part is not type(None)]
    return others[0] if len(others) == 1 else annotation


def _with_field(annotation: Any, default: Any) -> tuple[Any, Any]:
    """The annotation with the ``Field`` that stands as the default, and the ``Field`` that holds a default."""
    if _is_field(default):
        return Annotated[annotation, default], None if default.is_required() else default
    if get_origin(annotation) is not Annotated:
        return annotation, None
    fields = [part for part in get_args(annotation)[1:] if _is_field(part) and not part.is_required()]
    return annotation, fields[-1] if fields else None


def _is_field(value: object) -> bool:
    return type(value).__name__ == "FieldInfo" and type(value).__module__.startswith("pydantic")


# ------------------------------------------------------------------------------------------ reading a function


def _name_of(function: Any) -> str:
    function = _unbound(function)
    return str(getattr(function, "__name__", None) or type(function).__name__)


def _unbound(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    return function


def _docstring(function: Any) -> str | None:
    function = _unbound(function)
    if inspect.isroutine(function) or isinstance(function, type):
        return inspect.getdoc(function)
    text = getattr(type(function).__call__, "__doc__", None) or type(function).__doc__
    return inspect.cleandoc(text) if text else None


def _open_parameters(function: Any, name: str) -> list[inspect.Parameter]:
    """The parameters that a call has to fill: those that a partial has bound are not offered, nor told to a model."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError as error:
        raise TypeError(f"{name}: the function has no signature that could be read; wrap it in one that has") from error
    bound = function.keywords if isinstance(function, partial) else {}
    return [
        parameter for parameter in parameters if parameter.name not in bound or parameter.kind is parameter.VAR_KEYWORD
    ]


class _Scope:
    """Where the names in a function's annotations are looked up: as Python would, from the inside out."""

    def __init__(self, function: Any, name: str) -> None:
        self._function = function
        self._name = name
        self._names: tuple[dict[str, Any], dict[str, Any]] | None = None

    def resolve(self, annotation: Any, parameter: str) -> Any:
        """The annotation with every name in it replaced by what it stands for; TypeError where there is nothing."""
        if not _has_names(annotation):
            return annotation
        holder = types.SimpleNamespace(__annotations__={parameter: annotation})
        outer, inner = self._namespaces()
        try:
            return typing.get_type_hints(holder, outer, inner, include_extras=True)[parameter]
        except Exception as error:
            missing = error.name if isinstance(error, NameError) else None
            raise TypeError(
                f"{self._name}: the annotation of the parameter {parameter!r} cannot be resolved ({error}); "
                f"define or import {missing or 'its types'} at the top of the module, not under TYPE_CHECKING"
            ) from error

    def _namespaces(self) -> tuple[dict[str, Any], dict[str, Any]]:
        if self._names is None:
            source = _source(self._function)
            outer = getattr(source, "__globals__", None) or vars(sys.modules.get(source.__module__, typing))
            self._names = outer, _local_names(source)
        return self._names


def _has_names(annotation: Any) -> bool:
    """Whether there is text in an annotation that stands for a type."""
    if isinstance(annotation, (str, typing.ForwardRef)):
        return True
    origin = get_origin(annotation)
    if origin is None or origin is Literal:
        return False
    parts = get_args(annotation)
    return any(_has_names(part) for part in (parts[:1] if origin is Annotated else parts))


def _source(function: Any) -> Any:
    """The function in whose text the annotations stand: under partials, wrappers, methods, classes and callables."""
    while True:
        function = _unbound(function)
        if callable(inner := getattr(function, "__wrapped__", None)):
            function = inner
        elif isinstance(function, types.MethodType):
            function = function.__func__
        elif isinstance(function, type):
            return init if isinstance(init := vars(function).get("__init__"), types.FunctionType) else function
        elif isinstance(call := type(function).__call__, types.FunctionType):
            function = call
        else:
            return function


def _local_names(source: Any) -> dict[str, Any]:
    """The names around a function that is defined inside of another, or of a class."""
    names = {each.__name__: each for each in getattr(source, "__type_params__", ())}
    code = getattr(source, "__code__", None)
    if code is None:
        return names
    for frame in _enclosing_frames(code):
        names = {**frame.f_locals, **names}
    for name, cell in zip(code.co_freevars, source.__closure__ or (), strict=False):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return names


def _enclosing_frames(code: types.CodeType) -> Iterator[types.FrameType]:
    """The calls, still running, of what this code is defined in, from the inside out."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name != "<module>" and _holds(frame.f_code, code):
            yield frame
            code = frame.f_code
        frame = frame.f_back


def _holds(outer: types.CodeType, inner: types.CodeType) -> bool:
    """Whether ``inner`` is written inside of ``outer``, at any depth: a class body in between has long run."""
    within = (constant for constant in outer.co_consts if isinstance(constant, types.CodeType))
    return any(code is inner or _holds(code, inner) for code in within)


# ------------------------------------------------------------------------------------------------- docstrings

_SECTION = re.compile(
    r"^[ \t]*(?:[:@]\w|[-=]{3,}[^\S\n]*$|(?:Arguments|Args|Parameters|Params|Raises|Exceptions|Except|Attributes"
    r"|Examples?|Returns|Yields):[^\S\n]*$)",
    re.MULTILINE,
)
# What nearly every docstring with sections looks like: "Args:" at the end, "name: text" or "name (type): text" each. No
# line before begins as a field of Sphinx, Epydoc or NumPy does, not even as one that docstring_parser cannot read.
_ARGS = re.compile(
    r"(?P<text>(?:(?![:@]|\.\.).*\n)*?)Args:[ \t]*\n"
    r"(?P<args>(?: {4}\w+(?: \(\w[^()\n:]*\))?:(?: .*)?(?:\n {5,}\S.*)*(?:\n|\Z))+)\Z"
)
_ARG = re.compile(r"^ {4}(\w+)[^:\n]*:((?:.*)(?:\n {5,}.*)*)", re.MULTILINE)


def _read_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """The description in a docstring, and what it says of each parameter."""
    if not text:
        return "", {}
    sections = _SECTION.findall(text)
    if not sections:
        return text.strip(), {}
    plain = _ARGS.match(text) if len(sections) == 1 else None
    return _read_plain(plain) if plain else _parse_docstring(text)


def _read_plain(found: re.Match[str]) -> tuple[str, dict[str, str]]:
    """The same as docstring_parser makes of it, in a tenth of the time."""
    first, _, rest = found["text"].partition("\n")
    between = "\n\n" if rest.startswith("\n") else "\n"
    described = {name: told for name, text in _ARG.findall(found["args"]) if (told := " ".join(text.split()))}
    return (first + between + rest.strip()).strip(), described


def _parse_docstring(text: str) -> tuple[str, dict[str, str]]:
    from docstring_parser import parse

    try:
        parsed = parse("\n" + text)  # it takes indentation off again, unless the first line is empty
    except Exception:  # ParseError, and whatever else odd text makes of it: a docstring keeps no function from its use
        return text.strip(), {}
    described = {
        name.strip(" *`"): told
        for param in parsed.params
        if (told := " ".join((param.description or "").split()))
        for name in param.arg_name.split(",")  # NumPy's "x, y : int"
    }
    return (parsed.description or "").strip(), described


# ------------------------------------------------------------------------------------------- from type to schema


def _object_schema(function: str, parameters: Iterable[_Parameter], described: Mapping[str, str]) -> _Schema:
    shown = [parameter for parameter in parameters if not parameter.is_context]
    plain = {parameter.name: _plain_schema(parameter.annotation) for parameter in shown}
    asked, definitions = _asked(function, [parameter for parameter in shown if plain[parameter.name] is None])
    properties = {
        parameter.name: _completed(parameter, plain[parameter.name] or asked.get(parameter.name, {}), described)
        for parameter in shown
    }
    schema: _Schema = {"type": "object", "properties": properties}
    if required := [parameter.name for parameter in shown if parameter.required]:
        schema["required"] = required
    schema["additionalProperties"] = False
    if definitions:
        schema["$defs"] = definitions
    return schema


def _completed(parameter: _Parameter, schema: _Schema, described: Mapping[str, str]) -> _Schema:
    text = _own_text(parameter.annotation) or described.get(parameter.name)
    if text and not _described_by_field(parameter.annotation):
        schema["description"] = text
    if parameter.default is not _MISSING:
        schema.pop("default", None)
        schema.update(_json_default(parameter.default))
    return schema


def _own_text(annotation: Any) -> str | None:
    if get_origin(annotation) is not Annotated:
        return None
    return next((part for part in get_args(annotation)[1:] if isinstance(part, str)), None)


def _described_by_field(annotation: Any) -> bool:
    if get_origin(annotation) is not Annotated:
        return False
    return any(_is_field(part) and part.description for part in get_args(annotation)[1:])


_SCALARS: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def _plain_schema(annotation: Any) -> _Schema | None:
    """The schema of a plain type, equal to pydantic's; None for a type that pydantic has to be asked about."""
    if annotation is None or isinstance(annotation, type):
        name = _SCALARS.get(annotation if annotation is not None else type(None))
        if name is not None:
            return {"type": name}
    if annotation is Any or annotation is object:
        return {}
    write = _PLAIN.get(annotation if annotation in (list, dict) else get_origin(annotation))
    return write(get_args(annotation)) if write else None


def _plain_list(args: tuple[Any, ...]) -> _Schema | None:
    items = _plain_schema(args[0]) if args else {}
    return None if items is None else {"type": "array", "items": items}


def _plain_dict(args: tuple[Any, ...]) -> _Schema | None:
    if args and args[0] is not str:
        return None
    values = _plain_schema(args[1]) if args else {}
    return None if values is None else {"type": "object", "additionalProperties": values or True}


def _plain_literal(args: tuple[Any, ...]) -> _Schema | None:
    kinds = {type(value) for value in args}
    if len(kinds) != 1 or not kinds <= _SCALARS.keys():
        return None
    values: _Schema = {"const": args[0]} if len(args) == 1 else {"enum": list(args)}
    return {**values, "type": _SCALARS[kinds.pop()]}


def _plain_union(args: tuple[Any, ...]) -> _Schema | None:
    members: list[_Schema] = []
    for part in sorted(args, key=lambda each: each is type(None)):  # null comes last, the others as they stand
        schema = _plain_schema(part)
        if schema is None:
            return None
        inner = schema["anyOf"] if schema.keys() == {"anyOf"} else [schema]
        members += [member for member in inner if member not in members]
    return members[0] if len(members) == 1 else {"anyOf": members}


def _plain_annotated(args: tuple[Any, ...]) -> _Schema | None:
    return _plain_schema(args[0]) if all(isinstance(part, str) for part in args[1:]) else None


_PLAIN: dict[Any, Callable[[tuple[Any, ...]], _Schema | None]] = {
    list: _plain_list,
    dict: _plain_dict,
    Literal: _plain_literal,
    Union: _plain_union,
    types.UnionType: _plain_union,
    Annotated: _plain_annotated,
}


def _json_default(default: Any) -> _Schema:
    """The keyword for a default, or nothing for one that JSON does not have."""
    if default is None or type(default) in (str, int, bool):
        return {"default": default}
    if type(default) is float:
        return {"default": default} if math.isfinite(default) else {}
    from pydantic_core import to_jsonable_python

    try:
        plain = to_jsonable_python(default)
        json.dumps(plain, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return {}
    return {"default": plain}


# ----------------------------------------------------------------------------------------------- asking pydantic


def _asked(function: str, parameters: list[_Parameter]) -> tuple[dict[str, _Schema], _Schema]:
    """The schemas of parameters whose types only pydantic can describe, and the definitions that they refer to."""
    if not parameters:
        return {}, {}
    try:
        return _described([(parameter.name, parameter.annotation) for parameter in parameters])
    except Exception:
        for parameter in parameters:
            _check(function, parameter)
        raise


def _check(function: str, parameter: _Parameter) -> None:
    try:
        _described([(parameter.name, parameter.annotation)])
    except Exception as error:
        raise TypeError(
            f"{function}: the parameter {parameter.name!r} cannot be described to a model, since its type "
            f"{_type_name(parameter.annotation)} has no JSON schema ({_first_line(error)}); take a type that JSON can "
            "hold, or hide the parameter with functools.partial"
        ) from error


def _described(annotations: Iterable[tuple[str, Any]]) -> tuple[dict[str, _Schema], _Schema]:
    from pydantic import TypeAdapter

    schemas, shared = TypeAdapter.json_schemas(
        [(name, "validation", _adapter(annotation)) for name, annotation in annotations],
        schema_generator=_generator(),
    )
    definitions = {name: _without_titles(schema) for name, schema in shared.get("$defs", {}).items()}
    enums = {f"#/$defs/{name}": schema for name, schema in definitions.items() if "enum" in schema or "const" in schema}
    written = {str(key): _inlined(_without_titles(schema), enums) for (key, _), schema in schemas.items()}
    left = {name: _inlined(schema, enums) for name, schema in definitions.items() if f"#/$defs/{name}" not in enums}
    return written, left


@lru_cache(maxsize=1)
def _generator() -> Any:
    from pydantic.json_schema import GenerateJsonSchema

    class Generator(GenerateJsonSchema):
        # A default that JSON does not have is left out of the schema; there is nothing to warn of.
        ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    return Generator


_NAMED = ("properties", "$defs", "patternProperties")
_VALUES = ("default", "enum", "const", "examples")


def _without_titles(schema: Any) -> Any:
    """The schema without the titles that pydantic derives from names, which tell a model nothing."""
    return _mapped(schema, lambda node: {key: value for key, value in node.items() if key != "title"})


def _inlined(schema: Any, enums: Mapping[str, _Schema]) -> Any:
    """The schema with its enums where they are used: short enough to repeat, and every endpoint understands them."""

    def inline(node: _Schema) -> _Schema:
        found = enums.get(str(node.get("$ref")))
        return node if found is None else {**found, **{key: value for key, value in node.items() if key != "$ref"}}

    return _mapped(schema, inline) if enums else schema


def _mapped(schema: Any, change: Callable[[_Schema], _Schema]) -> Any:
    """A schema with ``change`` done to every schema in it, and not to values or to properties of such names."""
    if isinstance(schema, list):
        return [_mapped(part, change) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _mapped_value(key, value, change) for key, value in change(schema).items()}


def _mapped_value(key: str, value: Any, change: Callable[[_Schema], _Schema]) -> Any:
    if key in _VALUES:
        return value
    if key in _NAMED and isinstance(value, dict):
        return {name: _mapped(part, change) for name, part in value.items()}
    return _mapped(value, change)


# Equal types may differ in what they accept first (int | str, str | int), hence the text beside the type.
@lru_cache(maxsize=1024)
def _cached_adapter(annotation: Any, text: str) -> Any:
    return _new_adapter(annotation)


def _adapter(annotation: Any) -> Any:
    """pydantic's adapter of a type, made once."""
    try:
        hash(annotation)
    except TypeError:  # a Field cannot be hashed
        return _new_adapter(annotation)
    return _cached_adapter(annotation, repr(annotation))


def _new_adapter(annotation: Any) -> Any:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        return TypeAdapter(annotation)
    except PydanticUserError as error:
        if error.code != "typed-dict-version":
            raise
    try:
        return TypeAdapter(_with_portable_dicts(annotation))
    except (PydanticUserError, RecursionError) as error:  # inside of another type, or of itself
        raise TypeError("take TypedDict from typing_extensions on Python 3.11") from error


def _with_portable_dicts(annotation: Any) -> Any:
    """The annotation with each ``typing.TypedDict``, which pydantic refuses before Python 3.12, made anew."""
    if typing.is_typeddict(annotation):
        return _portable_dict(annotation)
    parts = get_args(annotation)
    if not parts or get_origin(annotation) is Literal:
        return annotation
    if get_origin(annotation) is Annotated:
        return Annotated[(_with_portable_dicts(parts[0]), *parts[1:])]
    changed = tuple(_with_portable_dicts(part) for part in parts)
    if isinstance(annotation, types.UnionType):
        return Union[changed]
    return annotation.copy_with(changed) if hasattr(annotation, "copy_with") else get_origin(annotation)[changed]


def _portable_dict(kind: Any) -> Any:
    from typing_extensions import TypedDict

    fields: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        inner = get_args(hint)[0] if get_origin(hint) in (typing.Required, typing.NotRequired) else hint
        optional = get_origin(hint) is typing.NotRequired or (
            get_origin(hint) is not typing.Required and name in kind.__optional_keys__
        )
        fields[name] = (typing.NotRequired if optional else typing.Required)[_with_portable_dicts(inner)]
    make: Any = TypedDict
    made = make(kind.__name__, fields)
    made.__doc__, made.__module__ = kind.__doc__, kind.__module__
    return made


# ----------------------------------------------------------------------------------------------------- validation


def _validator(annotation: Any) -> Callable[[Any], Any]:
    """A function that makes of a JSON value what the annotation promises; it raises ValidationError."""
    if annotation is Any or annotation is object:
        return _as_it_is
    if get_origin(annotation) is Annotated and all(isinstance(part, str) for part in get_args(annotation)[1:]):
        return _validator(get_args(annotation)[0])
    adapter = _adapter(annotation)
    check = adapter.validator.validate_python

    def validate(value: Any) -> Any:
        try:
            return check(value)
        except ValueError as error:
            return _validate_as_json(adapter, value, error)

    return validate


def _as_it_is(value: Any) -> Any:
    return value


def _validate_as_json(adapter: Any, value: Any, error: ValueError) -> Any:
    """What is strict about Python's types may still be right for JSON, which has no dates, tuples or enums."""
    from pydantic import ValidationError

    try:
        return adapter.validate_json(json.dumps(value))
    except ValidationError as second:  # it knows better what a model could have written, if it could read it
        raise error if second.errors(include_url=False)[0]["type"] == "json_invalid" else second from None
    except (TypeError, ValueError, RecursionError):  # no JSON value
        raise error from None


def _complaints(error: Exception, name: str, value: object) -> list[str]:
    """What is wrong with the value of ``name``, one sentence a place, without the library's own trimmings."""
    errors: Any = getattr(error, "errors", None)
    if errors is None:
        return [f"{name!r}: {type(error).__name__}: {error}" if name else f"{type(error).__name__}: {error}"]
    found: dict[str, tuple[list[str], str]] = {}
    for detail in errors(include_url=False, include_context=False):
        missing = detail["type"] in ("missing", "missing_argument")
        got = "" if missing else f" (got {_short(detail['input'])})"
        texts, _ = found.setdefault(_place(name, detail["loc"], value, missing), ([], got))
        if (text := _told_briefly(detail["type"], detail["msg"])) not in texts:
            texts.append(text)
    return [f"{place!r} {' or '.join(texts)}{got}".removeprefix("'' ") for place, (texts, got) in found.items()]


def _place(name: str, location: Sequence[int | str], value: Any, missing: bool) -> str:
    """Where it is wrong, as the model wrote it: steps that lead nowhere are pydantic's names for choices."""
    path = name
    for step in location:
        if isinstance(step, int) and isinstance(value, (list, tuple)) and step < len(value):
            path, value = f"{path}[{step}]", value[step]
        elif isinstance(value, Mapping) and step in value:
            path, value = f"{path}.{step}", value[step]
        elif missing and step is location[-1]:
            path = f"{path}.{step}"
    return path.removeprefix(".")


_BRIEFLY = {
    "missing": "is missing",
    "missing_argument": "is missing",
    "extra_forbidden": "is not known",
    "unexpected_keyword_argument": "is not known",
    "none_required": "must be null",
    "int": "must be an integer",
    "float": "must be a number",
    "string": "must be a string",
    "bool": "must be a boolean",
    "list": "must be a list",
    "tuple": "must be a list",
    "set": "must be a list",
    "dict": "must be an object",
    "model": "must be an object",
    "dataclass": "must be an object",
}


def _told_briefly(kind: str, message: str) -> str:
    brief = _BRIEFLY.get(kind) or _BRIEFLY.get(re.sub(r"_(type|parsing|from_float|attributes_type)$", "", kind))
    if brief:
        return brief
    must = re.sub(r"^(?:\w+ ){1,2}should ", "must ", message)
    return must if must != message else "is wrong: " + re.sub(r"^(Value error|Assertion failed), ", "", message)


def _short(value: object) -> str:
    """A value as the model wrote it, cut where it is long."""
    if isinstance(value, str):
        return repr(value) if len(value) <= 80 else f"{value[:80]!r}..."
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = f"a Python {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _type_name(annotation: Any) -> str:
    """The type as its reader wrote it, without the modules."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return annotation.__name__ if isinstance(annotation, type) else re.sub(r"(?:[\w<>]+\.)+", "", str(annotation))


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0].rstrip(".")


# ---------------------------------------------------------------------------------------------- structured output


class OutputType(Generic[T]):
    """A type that a model's answer is to have.

    A type that is no object (a list, an enum, a scalar, a union) is wrapped in one as ``value``, since that is what
    endpoints ask for, and unwrapped by `parse`.

    Attributes:
        name: A name for the type that every endpoint takes.
        schema: The JSON schema, of an object.
        wrapped: Whether the type is wrapped.
    """

    def __init__(self, kind: Any) -> None:
        try:
            self._adapter = _adapter(kind)
            schema = _whole_schema(self._adapter)
        except Exception as error:
            raise TypeError(f"{_type_name(kind)} cannot be a response_format: {_first_line(error)}") from error
        self.name = re.sub(r"[^a-zA-Z0-9_-]+", "_", _type_name(kind)).strip("_")[:64] or "output"
        self.wrapped = not (schema.get("type") == "object" and "properties" in schema)
        self.schema: dict[str, Any] = _wrapped(schema) if self.wrapped else schema
        self._validate = _validator(kind)

    def __repr__(self) -> str:
        return f"OutputType({self.name!r})"

    def parse(self, text: str) -> T:
        """The value that the JSON ``text`` holds, fenced or not; ValueError that says what is wrong with it."""
        try:
            data = json.loads(_without_fence(text), strict=False, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the text is not JSON: {error} (got {_short(text)})") from None
        return self.validate(data)

    def validate(self, data: object) -> T:
        """The value that JSON values stand for; ValueError that says what is wrong with them."""
        if self.wrapped and isinstance(data, Mapping) and data.keys() == {"value"}:
            return self._checked(data["value"], "value")
        return self._checked(data, "")

    def parse_partial(self, text: str) -> Any:
        """The JSON values of a text that has not come to its end yet; None while there are none."""
        from pydantic_core import from_json

        try:
            data = from_json(_without_fence(text), allow_partial="trailing-strings")
        except ValueError:
            return None
        if isinstance(data, dict):
            return data.get("value") if self.wrapped else data
        return data if self.wrapped else None

    def _checked(self, data: object, name: str) -> T:
        try:
            value: T = self._validate(data)
        except ValueError as error:
            raise ValueError("; ".join(_complaints(error, name, data))) from None
        return value


def output_type(kind: Any) -> OutputType[Any]:
    """The `OutputType` of a type, made once; TypeError where it has no JSON schema."""
    try:
        hash(kind)
    except TypeError:
        return OutputType(kind)
    return _cached_output_type(kind, repr(kind))


@lru_cache(maxsize=256)
def _cached_output_type(kind: Any, text: str) -> OutputType[Any]:
    return OutputType(kind)


def _whole_schema(adapter: Any) -> _Schema:
    schema: _Schema = _without_titles(adapter.json_schema(schema_generator=_generator()))
    target = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    # A type that contains itself is described beside its use; here it has to be the whole.
    return {**schema["$defs"][target], "$defs": schema["$defs"]} if target else schema


def _wrapped(schema: Mapping[str, Any]) -> _Schema:
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    outer = {"type": "object", "properties": {"value": inner}, "required": ["value"], "additionalProperties": False}
    return {**outer, "$defs": schema["$defs"]} if "$defs" in schema else outer


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_FENCE = re.compile(r"\s*```[a-zA-Z]*\s(.*?)(?:\s*```\s*)?\Z", re.DOTALL)


def _without_fence(text: str) -> str:
    fenced = _FENCE.match(text)
    return fenced.group(1).strip() if fenced else text.strip()
