"""From types to JSON schemas and validators: of the parameters of a function, and of structured output.

pydantic does the work, one adapter a type, and is imported when the first function or type is looked at.
"""

from __future__ import annotations

import difflib
import inspect
import json
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache, partial
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin

T = TypeVar("T")
_MISSING = inspect.Parameter.empty


class InvalidArguments(ValueError):
    """Arguments that a function cannot be called with; the text says what is wrong, for the model to read."""


class FunctionSchema:
    """What a model has to know of a function, and how its arguments are made ready.

    Attributes:
        name: The function's name.
        description: Its docstring without the sections on parameters and results.
        context_parameter: The parameter that is not the model's to fill, or None.
    """

    def __init__(self, name: str, description: str, parameters: list[_Parameter], context: str | None) -> None:
        self.name = name
        self.description = description
        self.context_parameter = context
        self._parameters = parameters
        self._names = {parameter.name for parameter in parameters if parameter.name != context}

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of the arguments, an object."""
        shown = [parameter for parameter in self._parameters if parameter.name != self.context_parameter]
        defs: dict[str, Any] = {}
        properties = {parameter.name: parameter.schema(defs) for parameter in shown}
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        required = [parameter.name for parameter in shown if parameter.required]
        if required:
            schema["required"] = required
        schema["additionalProperties"] = False
        if defs:
            schema["$defs"] = defs
        return schema

    def bind(self, arguments: Mapping[str, Any], context: object = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What to call the function with: positional and keyword arguments.

        Raises InvalidArguments, which names every argument that is missing, unknown or wrong.
        """
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        wrong = [self._unknown(name) for name in arguments if name not in self._names]
        for parameter in self._parameters:
            value = context if parameter.name == self.context_parameter else parameter.take(arguments, wrong)
            if parameter.positional_only:
                args.append(parameter.default if value is _MISSING else value)
            elif value is not _MISSING:
                kwargs[parameter.name] = value
        if wrong:
            raise InvalidArguments("invalid arguments: " + "; ".join(wrong))
        return tuple(args), kwargs

    def _unknown(self, name: str) -> str:
        close = difflib.get_close_matches(name, self._names, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(map(repr, sorted(self._names)))}"
        return f"unknown argument {name!r}, {hint if self._names else 'the function takes none'}"


class _Parameter:
    """One parameter of a function."""

    __slots__ = ("adapter", "annotation", "default", "description", "name", "positional_only", "validate")

    def __init__(
        self, name: str, annotation: Any, default: Any, description: str | None, positional_only: bool, adapter: Any
    ) -> None:
        self.name = name
        self.annotation = annotation
        self.default = default
        self.description = description
        self.positional_only = positional_only
        self.adapter = adapter
        self.validate = adapter.validator.validate_python if adapter is not None else None

    @property
    def required(self) -> bool:
        return self.default is _MISSING

    def take(self, arguments: Mapping[str, Any], wrong: list[str]) -> Any:
        """The value of this parameter among ``arguments``; what is wrong with it goes into ``wrong``."""
        value = arguments.get(self.name, _MISSING)
        if value is _MISSING:
            if self.required:
                wrong.append(f"{self.name!r} is missing")
            return self.default if _is_field(self.default) else _MISSING
        if self.validate is None:
            return value
        try:
            return self.validate(value)
        except ValueError as error:
            wrong.extend(_complaints(error, self.name))
            return _MISSING

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        """The JSON schema of this parameter; what it refers to goes into ``defs``."""
        schema: dict[str, Any] = dict(_type_schema(self.annotation, self.adapter)) if self.adapter is not None else {}
        for name, definition in schema.pop("$defs", {}).items():
            _define(defs, name, definition)
        if self.description is not None:
            # A $ref may not have neighbours everywhere.
            schema = {"allOf": [schema], "description": self.description} if "$ref" in schema else schema
            schema["description"] = self.description
        if not self.required and "default" not in schema:
            schema.update(_json_default(self.default))
        return schema


def function_schema(function: Callable[..., object], *, is_context: Callable[[object], bool]) -> FunctionSchema:
    """The schema of a function; a parameter whose annotation ``is_context`` recognises is hidden from the model.

    Descriptions of parameters come from ``Annotated[..., "text"]``, pydantic's ``Field`` or the docstring (Google,
    NumPy, Sphinx).

    Raises:
        TypeError: The function cannot be described; the message names the parameter and says what to do.
    """
    name = _name_of(function)
    hints = _type_hints(function, name)
    description, described = _read_docstring(inspect.getdoc(_documented(function)))
    parameters: list[_Parameter] = []
    context: str | None = None
    for parameter in _signature(function, name).parameters.values():
        annotation = hints.get(parameter.name, Any)
        if is_context(_bare(annotation)):
            context = parameter.name
            parameters.append(_Parameter(parameter.name, None, _MISSING, None, _positional(parameter), None))
        else:
            parameters.append(_parameter(name, parameter, annotation, described.get(parameter.name)))
    return FunctionSchema(name, description, parameters, context)


def _parameter(function: str, parameter: inspect.Parameter, annotation: Any, described: str | None) -> _Parameter:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
        raise TypeError(
            f"{function}: the parameter {stars}{parameter.name} cannot be described to a model; "
            "name each argument, or take one list or dict"
        )
    default = parameter.default
    if _is_field(default):
        annotation = Annotated[annotation, default]
        default = _MISSING if default.is_required() else default.get_default(call_default_factory=True)
    try:
        adapter = _adapter(annotation)
        _type_schema(annotation, adapter)
    except Exception as error:
        raise TypeError(
            f"{function}: the parameter {parameter.name!r} cannot be described to a model, since its type "
            f"{_type_name(annotation)} has no JSON schema ({_first_line(error)})"
        ) from error
    text = _annotated_text(annotation) or described
    own = _type_schema(annotation, adapter).get("description")
    keeps_own = own is not None and any(_is_field(part) for part in get_args(annotation)[1:])
    return _Parameter(parameter.name, annotation, default, None if keeps_own else text, _positional(parameter), adapter)


def _positional(parameter: inspect.Parameter) -> bool:
    return parameter.kind is inspect.Parameter.POSITIONAL_ONLY


def _bare(annotation: Any) -> Any:
    """The annotation without ``Annotated`` and without ``| None``."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    others = [part for part in get_args(annotation) if part is not type(None)]
    return others[0] if _is_union(annotation) and len(others) == 1 else annotation


def _is_union(annotation: Any) -> bool:
    import types

    return get_origin(annotation) in (typing.Union, types.UnionType)


def _is_field(value: object) -> bool:
    return type(value).__name__ == "FieldInfo" and type(value).__module__.startswith("pydantic")


def _annotated_text(annotation: Any) -> str | None:
    if get_origin(annotation) is not Annotated:
        return None
    return next((part for part in get_args(annotation)[1:] if isinstance(part, str)), None)


# ------------------------------------------------------------------------------------------------ functions


def _name_of(function: Any) -> str:
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", None) or type(function).__name__)


def _signature(function: Callable[..., object], name: str) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except ValueError as error:
        raise TypeError(f"{name}: the function has no signature that could be read; wrap it in one that has") from error


def _documented(function: Any) -> Any:
    """What holds the annotations and the docstring: the function under wrappers and partials."""
    while True:
        if isinstance(function, partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif inspect.isroutine(function) or isinstance(function, type):
            return function
        elif inspect.getdoc(type(function)) and not hasattr(function, "__annotations__"):
            return type(function).__call__
        else:
            return getattr(function, "__call__", function)  # noqa: B004


def _type_hints(function: Callable[..., object], name: str) -> dict[str, Any]:
    target = _documented(function)
    try:
        return typing.get_type_hints(target, include_extras=True)
    except NameError:
        pass
    try:
        # The name belongs to the function that this one is defined in, which is still running.
        return typing.get_type_hints(target, localns=_names_of_callers(), include_extras=True)
    except NameError as error:
        raise TypeError(
            f"{name}: the annotation {error.name!r} cannot be resolved; define or import it at the top of the module"
        ) from error


def _names_of_callers() -> dict[str, Any]:
    frames = []
    frame = sys._getframe(1)
    while frame is not None:
        frames.append(frame)
        frame = typing.cast("Any", frame.f_back)
    names: dict[str, Any] = {}
    for outer in reversed(frames):
        if outer.f_code.co_name != "<module>":
            names.update(outer.f_locals)
    return names


_SECTION = re.compile(r"^\s*(:param|:return|:raises|:type|Args:|Arguments:|Parameters\s*$|Returns?:|Raises:)", re.M)


def _read_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """The description in a docstring, and what it says of each parameter."""
    if not text:
        return "", {}
    if not _SECTION.search(text):
        return text.strip(), {}
    from docstring_parser import parse

    parsed = parse(text)
    described = {param.arg_name: " ".join(param.description.split()) for param in parsed.params if param.description}
    return (parsed.description or "").strip(), described


# ------------------------------------------------------------------------------------------------- types


def _adapter(annotation: Any) -> Any:
    try:
        return _cached_adapter(annotation)
    except TypeError:  # an annotation that cannot be hashed
        return _new_adapter(annotation)


def _new_adapter(annotation: Any) -> Any:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        return TypeAdapter(annotation)
    except PydanticUserError as error:
        if error.code != "typed-dict-version":
            raise
        raise ValueError("take TypedDict from typing_extensions on Python 3.11") from error


_cached_adapter = lru_cache(maxsize=2048)(_new_adapter)


def _type_schema(annotation: Any, adapter: Any) -> dict[str, Any]:
    try:
        return _cached_schema(annotation)
    except TypeError:
        return _new_schema(adapter)


def _new_schema(adapter: Any) -> dict[str, Any]:
    schema: dict[str, Any] = _without_titles(adapter.json_schema())
    return schema


@lru_cache(maxsize=2048)
def _cached_schema(annotation: Any) -> dict[str, Any]:
    return _new_schema(_cached_adapter(annotation))


_NAMED = ("properties", "$defs", "definitions", "patternProperties")


def _without_titles(schema: Any) -> Any:
    """The schema without the titles that pydantic derives from names, which tell a model nothing."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _without_titles(part) for name, part in value.items()}
        if key in _NAMED and isinstance(value, dict)
        else value
        if key in ("default", "enum", "const", "examples")
        else _without_titles(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
    }


def _define(defs: dict[str, Any], name: str, definition: Any) -> None:
    if defs.setdefault(name, definition) != definition:
        raise TypeError(f"two different types are named {name!r}; give one of them another name")


def _json_default(default: object) -> dict[str, Any]:
    from pydantic_core import to_jsonable_python

    try:
        return {"default": to_jsonable_python(default)}
    except ValueError:
        return {}


def _type_name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0].rstrip(".")


def _complaints(error: ValueError, name: str) -> Iterator[str]:
    """What a validation error says, without the library's own trimmings."""
    details: Iterable[Mapping[str, Any]] = getattr(error, "errors", lambda **_: [{"loc": (), "msg": str(error)}])(
        include_url=False
    )
    for detail in details:
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in detail["loc"])
        place = f"{name}{path}" if name else path.removeprefix(".")
        got = f" (got {_short(detail['input'])})" if "input" in detail and detail.get("type") != "missing" else ""
        yield f"{place!r}: {detail['msg']}{got}" if place else f"{detail['msg']}{got}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# ---------------------------------------------------------------------------------------- structured output


class OutputType(Generic[T]):
    """A type that a model's answer is to have.

    ``schema`` is the JSON schema of an object; a type that is none (a list, an enum, a scalar, a union) is wrapped in
    one as ``value``, and unwrapped by `parse`.
    """

    def __init__(self, kind: Any) -> None:
        try:
            self._adapter = _adapter(kind)
            schema = _type_schema(kind, self._adapter)
        except Exception as error:
            raise TypeError(f"{_type_name(kind)} cannot be a response_format: {_first_line(error)}") from error
        self.name = re.sub(r"[^a-zA-Z0-9_-]+", "_", _type_name(kind)).strip("_")[:64] or "output"
        self.wrapped = not (schema.get("type") == "object" and "properties" in schema)
        self.schema: dict[str, Any] = _wrapped(schema) if self.wrapped else schema

    def parse(self, text: str) -> T:
        """The value that the JSON ``text`` holds; ValueError that says what is wrong with it."""
        try:
            data = json.loads(_without_fence(text), strict=False)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the text is not JSON: {error} ({_short(text)})") from None
        return self.validate(data)

    def validate(self, data: object) -> T:
        """The value that JSON values stand for; ValueError that says what is wrong with them."""
        if self.wrapped and isinstance(data, dict) and set(data) == {"value"}:
            data = data["value"]
        try:
            value: T = self._adapter.validate_python(data)
        except ValueError as error:
            raise ValueError("; ".join(_complaints(error, ""))) from None
        return value

    def parse_partial(self, text: str) -> Any:
        """The JSON values of a text that has not come to its end yet; None while there are none."""
        from pydantic_core import from_json

        try:
            data = from_json(_without_fence(text), allow_partial="trailing-strings")
        except ValueError:
            return None
        return data.get("value") if self.wrapped and isinstance(data, dict) else data


def output_type(kind: Any) -> OutputType[Any]:
    """The `OutputType` of a type; TypeError where it has no JSON schema."""
    try:
        return _cached_output_type(kind)
    except TypeError:
        return OutputType(kind)


_cached_output_type: Callable[[Any], OutputType[Any]] = lru_cache(maxsize=256)(OutputType)


def _wrapped(schema: Mapping[str, Any]) -> dict[str, Any]:
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    outer = {"type": "object", "properties": {"value": inner}, "required": ["value"], "additionalProperties": False}
    return {**outer, "$defs": schema["$defs"]} if "$defs" in schema else outer


_FENCE = re.compile(r"^\s*```[a-zA-Z]*\s*\n(.*?)(\n\s*```\s*)?$", re.S)


def _without_fence(text: str) -> str:
    fenced = _FENCE.match(text)
    return fenced.group(1) if fenced else text.strip()
