"""Reading the arguments of a function call, and writing them: the one place where that is done.

Endpoints send arguments as the text of a JSON object, mostly. What else they send is read where it can mean one thing
only; everything else is kept, and the call is invalid. Nothing is repaired before a strict reading has failed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

#: Levels of lists and objects; what is deeper could be read, but no longer written, compared or validated safely.
_MAX_NESTING = 200


class _Unreadable(ValueError):
    """The text says what is wrong with the arguments."""


def _refuse_constant(name: str) -> Any:
    raise _Unreadable(f"the arguments hold {name}, which JSON does not have")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _Unreadable(f"the arguments hold a number that is too large: {text[:40]}")
    return value


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_LENIENT = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, strict=False)


def read_arguments(raw: object, parameters: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], str, str | None]:
    """Read the arguments of a call.

    Args:
        raw: What the endpoint sent: a text, an object, or nothing.
        parameters: The JSON schema of the arguments. By it, and only by it, a text where an array or an object is due
            is decoded, and "10" for an integer is 10.

    Returns:
        The arguments ({} where they cannot be read), the raw text, and what is wrong (None where nothing is).
        It raises nothing: whatever an endpoint sends, there is an answer to it.
    """
    text = raw if isinstance(raw, str) else _text_of(raw)
    try:
        arguments = _read_text(text) if isinstance(raw, str) else _shallow(_read_value(raw), text)
    except _Unreadable as error:
        return {}, text, str(error)
    return _fitted(arguments, parameters) if parameters else arguments, text, None


def _read_text(text: str, *, encoded: bool = False) -> dict[str, Any]:
    try:
        value = _STRICT.decode(text)
    except (ValueError, RecursionError):
        value = _read_leniently(text)
    if isinstance(value, dict):
        return _shallow(value, text)
    if isinstance(value, str) and not encoded:
        return _read_text(value, encoded=True)
    return _nothing(value)


def _nothing(value: object) -> dict[str, Any]:
    """No arguments, if null stands where an object is due; nothing else may."""
    if value is None:
        return {}
    raise _Unreadable(f"the arguments must be a JSON object, not {_kind(value)}")


def _read_leniently(text: str) -> Any:
    """The first value of a text that is not strictly JSON, if nothing after it could be meant as well."""
    text = text.strip().lstrip("\ufeff").lstrip()
    if not text:
        return None
    try:
        value, end = _LENIENT.raw_decode(text)
        _check_rest(value, text, end)
    except _Unreadable:
        raise
    except RecursionError:
        raise _Unreadable("the arguments are nested too deeply") from None
    except ValueError as error:
        raise _Unreadable(f"the arguments are not a complete JSON object: {error}") from None
    return value


_MAX_TRIES = 50  # objects looked for in what follows; it bounds the work on a text made of braces


def _check_rest(value: object, text: str, end: int) -> None:
    """Refuse a text in which a second, different value follows; rubbish and prose may."""
    rest = text[end:].strip()
    start = 0
    for _ in range(_MAX_TRIES):
        try:
            other, stop = _LENIENT.raw_decode(rest, start)
        except json.JSONDecodeError as error:
            _check_cut_off(rest, start, error)
            stop = start + 1
        else:
            # "3 results" begins with JSON as well, so a scalar counts only where nothing follows it.
            if (isinstance(other, (dict, list)) or stop == len(rest)) and not _same(other, value):
                raise _Unreadable("the arguments are two different JSON values, one after the other")
        start = rest.find("{", stop)
        if start < 0:
            return


def _check_cut_off(rest: str, start: int, error: json.JSONDecodeError) -> None:
    ends_open = error.pos >= len(rest) or error.msg.startswith("Unterminated string")
    if ends_open and re.match(r'\{\s*"', rest[start : start + 100]):
        raise _Unreadable("the arguments are followed by a second JSON object, which is cut off")


def _same(one: object, other: object) -> bool:
    """Equal as JSON, where 1 and true are not."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _text_of(raw: object) -> str:
    if raw is None:
        return ""
    try:
        return json.dumps(dict(raw) if isinstance(raw, Mapping) else raw, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return ""


def _read_value(raw: object) -> dict[str, Any]:
    if not isinstance(raw, Mapping):
        return _nothing(raw)
    arguments = raw if isinstance(raw, dict) else dict(raw)
    try:
        json.dumps(arguments, allow_nan=False, default=str)
    except RecursionError:
        raise _Unreadable("the arguments are nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise _Unreadable(f"the arguments are not JSON: {error}") from None
    return arguments


def _shallow(arguments: dict[str, Any], text: str) -> dict[str, Any]:
    if text.count("{") + text.count("[") > _MAX_NESTING and _too_deep(arguments):
        raise _Unreadable("the arguments are nested too deeply")
    return arguments


def _too_deep(value: object) -> bool:
    level = [value]
    for _ in range(_MAX_NESTING):
        level = [inner for item in level for inner in _inside(item)]
        if not level:
            return False
    return True


def _inside(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _kind(value: object) -> str:
    return {bool: "a boolean", list: "a list", str: "a text", int: "a number", float: "a number"}.get(
        type(value), f"a Python {type(value).__name__}"
    )


# --------------------------------------------------------------------------------------------- by the schema

_Schema = Mapping[str, Any]
_MAX_DEPTH = 32  # references followed and values descended into


def _fitted(arguments: dict[str, Any], parameters: _Schema) -> dict[str, Any]:
    for value in arguments.values():
        # Most values fit as they are: only a text, or what may hold one, is looked at any closer.
        if isinstance(value, (str, dict, list)):
            fitted = _fit(arguments, parameters, parameters, 0)
            return fitted if isinstance(fitted, dict) else arguments
    return arguments


def _fit(value: Any, schema: Any, root: _Schema, depth: int) -> Any:
    """The value as the schema wants it; the very same object where there is nothing to change."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return value
    if isinstance(value, str):
        return value if schema.get("type") == "string" else _fit_text(value, schema, root, depth)
    if isinstance(value, dict):
        return _fit_object(value, _only(schema, "object", root), root, depth + 1)
    if isinstance(value, list):
        return _fit_list(value, _only(schema, "array", root), root, depth + 1)
    return value


def _fit_object(value: dict[str, Any], schema: _Schema, root: _Schema, depth: int) -> dict[str, Any]:
    properties = schema.get("properties")
    known: _Schema = properties if isinstance(properties, Mapping) else {}
    others = schema.get("additionalProperties")
    fitted = {key: _fit(item, known.get(key, others), root, depth) for key, item in value.items()}
    return fitted if any(fitted[key] is not item for key, item in value.items()) else value


def _fit_list(value: list[Any], schema: _Schema, root: _Schema, depth: int) -> list[Any]:
    first = schema.get("prefixItems")
    kinds: list[Any] = first if isinstance(first, list) else []
    others = schema.get("items")
    fitted = [
        _fit(item, kinds[index] if index < len(kinds) else others, root, depth) for index, item in enumerate(value)
    ]
    return fitted if any(new is not old for new, old in zip(fitted, value, strict=True)) else value


def _fit_text(value: str, schema: _Schema, root: _Schema, depth: int) -> Any:
    types = _types(schema, root)
    if "string" in types:
        return value
    text = value.strip()
    for kind, read in _READERS.items():
        if kind in types and (found := read(text)) is not _NOTHING:
            return _fit(found, schema, root, depth + 1)
    return value


def _types(schema: _Schema, root: _Schema) -> set[str]:
    """The JSON types that a schema allows; every one where it does not say."""
    found: set[str] = set()
    for choice in _choices(schema, root, 0):
        told = _told(choice)
        if not told:
            return {"string"}
        found |= told
    return found


def _told(schema: _Schema) -> set[str]:
    kind = schema.get("type")
    if isinstance(kind, str):
        return {kind}
    if isinstance(kind, list):
        return {name for name in kind if isinstance(name, str)}
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        return {_JSON_TYPES.get(type(value), "string") for value in values}
    return {"object"} if "properties" in schema else {"array"} if "items" in schema else set()


_JSON_TYPES: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    list: "array",
    dict: "object",
}


def _only(schema: _Schema, kind: str, root: _Schema) -> _Schema:
    """The one choice of a schema that allows this type; an empty schema where there are several, or none."""
    found = [choice for choice in _choices(schema, root, 0) if kind in _told(choice)]
    return found[0] if len(found) == 1 else {}


def _choices(schema: _Schema, root: _Schema, depth: int) -> list[_Schema]:
    """What a schema comes down to, behind its references and its "any of"."""
    if depth > _MAX_DEPTH:
        return [{}]
    if isinstance(reference := schema.get("$ref"), str):
        return _choices(_target(reference, root), root, depth + 1)
    inner = _alternatives(schema)
    if "type" in schema or not inner:
        return [schema]
    return [choice for part in inner for choice in _choices(part, root, depth + 1)]


def _alternatives(schema: _Schema) -> list[_Schema]:
    found = schema.get("anyOf") or schema.get("oneOf")
    if not found and isinstance(every := schema.get("allOf"), list) and len(every) == 1:
        found = every  # how a description is put beside a reference
    return [part for part in found if isinstance(part, Mapping)] if isinstance(found, list) else []


def _target(reference: str, root: _Schema) -> _Schema:
    found: Any = root
    for part in reference.removeprefix("#").strip("/").split("/") if reference.startswith("#") else [reference]:
        if part:
            name = part.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


_NOTHING = object()
_INTEGER = re.compile(r"([+-]?[0-9]{1,4000})(\.0*)?")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def _read_integer(text: str) -> Any:
    found = _INTEGER.fullmatch(text)
    return int(found.group(1)) if found else _NOTHING


def _read_number(text: str) -> Any:
    if not _NUMBER.fullmatch(text):
        return _NOTHING
    value = float(text)
    if math.isinf(value):
        return _NOTHING
    return value if _INTEGER.fullmatch(text) is None or "." in text else int(text)


def _read_boolean(text: str) -> Any:
    return {"true": True, "false": False}.get(text.lower(), _NOTHING)


def _read_null(text: str) -> Any:
    return None if text == "null" else _NOTHING


def _reader_of(kind: type) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            value = _LENIENT.decode(text)
        except (ValueError, RecursionError):
            return _NOTHING
        return value if isinstance(value, kind) and not _too_deep(value) else _NOTHING

    return read


#: In the order in which a text is tried.
_READERS: dict[str, Callable[[str], Any]] = {
    "integer": _read_integer,
    "number": _read_number,
    "boolean": _read_boolean,
    "null": _read_null,
    "array": _reader_of(list),
    "object": _reader_of(dict),
}


# ------------------------------------------------------------------------------------------------- writing

_SURROGATES = re.compile("[\ud800-\udfff]")


def sendable(text: str) -> str:
    """``text`` without what no endpoint takes: NUL is left out, a lone surrogate becomes the replacement character."""
    if "\0" in text:
        text = text.replace("\0", "")
    if text.isascii() or not _SURROGATES.search(text):
        return text
    # Two halves that found each other when pieces of a stream were joined are one character again.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def arguments_json(arguments: Mapping[str, Any]) -> str:
    """The arguments as the text of a JSON object, compact, as every endpoint takes it.

    NUL is left out, lone surrogates are replaced, a number that JSON does not have (NaN, Infinity) becomes null, and
    what is no JSON value is written as pydantic would, or else as its ``str``.
    """
    arguments = arguments if isinstance(arguments, dict) else dict(arguments)
    try:
        text = _write(arguments)
    except ValueError:  # NaN or Infinity
        text = _write(_cleaned(arguments))
    if "\\u0000" in text:
        text = _write(_cleaned(arguments))
    return sendable(text)


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return sendable(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(item) for key, item in value.items()}
    return [_cleaned(item) for item in value] if isinstance(value, (list, tuple)) else value


def _plain(value: object) -> Any:
    from pydantic_core import to_jsonable_python

    return _cleaned(to_jsonable_python(value, fallback=str))


_write = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain).encode
