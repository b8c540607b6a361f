"""Reading the arguments of a function call, and writing them: the one place where that is done.

Endpoints send arguments as the text of a JSON object, mostly. What else they send is read where it can mean one thing
only; everything else is kept, and the call is invalid. Nothing is repaired before a strict reading has failed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_DECODER = json.JSONDecoder()
_LENIENT = json.JSONDecoder(strict=False)  # lets control characters inside strings through


def read_arguments(raw: object, parameters: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], str, str | None]:
    """Read the arguments of a call.

    Args:
        raw: What the endpoint sent: a text, an object, or nothing.
        parameters: The JSON schema of the arguments. By it, and only by it, a text where an array or an object is due
            is decoded, and "10" for an integer is 10.

    Returns:
        The arguments ({} where they cannot be read), the raw text, and what is wrong (None where nothing is).
    """
    if raw is None or isinstance(raw, str):
        text = raw or ""
        value, wrong = _read_text(text) if text and not text.isspace() else ({}, None)
    else:
        value, wrong = raw, None
        try:
            text = json.dumps(raw, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            text = ""
    if wrong is None and not isinstance(value, dict):
        wrong = f"the arguments must be a JSON object, not {_kind(value)}"
    if wrong is not None:
        return {}, text, wrong
    return _fitted(value, parameters) if parameters else value, text, None


def _read_text(text: str) -> tuple[Any, str | None]:
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError):
        value, wrong = _read_leniently(text)
        if wrong is not None:
            return None, wrong
    if isinstance(value, str):  # encoded twice
        return _read_inner(value)
    return (None, "the arguments hold a number that JSON has not") if _has_no_number(text, value) else (value, None)


def _read_inner(text: str) -> tuple[Any, str | None]:
    try:
        value = _LENIENT.decode(text.strip())
    except (ValueError, RecursionError):
        return None, "the arguments must be a JSON object, not a text"
    if isinstance(value, str):
        return None, "the arguments must be a JSON object, not a text"
    return value, None


def _read_leniently(text: str) -> tuple[Any, str | None]:
    """The first value, where what follows it is no other."""
    stripped = text.strip().lstrip("\ufeff")
    try:
        value, end = _LENIENT.raw_decode(stripped)
    except RecursionError:
        return None, "the arguments are nested too deeply"
    except ValueError as error:
        return None, f"the arguments are not complete JSON: {error}"
    rest = stripped[end:].strip()
    while rest:
        try:
            other, end = _LENIENT.raw_decode(rest)
        except (ValueError, RecursionError):
            cut = rest.find("{", 1)
            if cut < 0:
                break
            rest = rest[cut:]
            continue
        if isinstance(other, (dict, list)) and other != value:
            return None, "the arguments are two different JSON values"
        rest = rest[end:].strip()
    return value, None


def _has_no_number(text: str, value: object) -> bool:
    """Whether the text says NaN or Infinity outside of its strings, which Python's reader takes and JSON has not."""
    if "NaN" not in text and "Infinity" not in text:
        return False
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return True
    return False


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "a boolean"
    kinds: tuple[tuple[Any, str], ...] = ((list, "a list"), ((int, float), "a number"), (str, "a text"))
    return next(
        (name for kind, name in kinds if isinstance(value, kind)), "null" if value is None else "something else"
    )


# --------------------------------------------------------------------------------------------- by the schema


def _fitted(arguments: dict[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    properties = parameters.get("properties")
    if not isinstance(properties, Mapping):
        return arguments
    fitted = arguments
    for name, value in arguments.items():
        # Most values fit as they are: only a text, or what may hold one, is looked at any closer.
        if isinstance(value, (str, dict, list)) and isinstance(schema := properties.get(name), Mapping):
            if (new := _fit(value, schema, parameters, 0)) is not value:
                fitted = dict(arguments) if fitted is arguments else fitted
                fitted[name] = new
    return fitted


_MAX_DEPTH = 32


def _fit(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return value
    schema = _resolved(schema, root)
    if isinstance(value, str):
        return _fit_text(value, _types(schema, root), schema, root, depth)
    if isinstance(value, dict):
        return _fit_object(value, schema, root, depth)
    items = schema.get("items")
    if isinstance(value, list) and isinstance(items, Mapping):
        fitted = [_fit(item, items, root, depth + 1) for item in value]
        return fitted if any(new is not old for new, old in zip(fitted, value, strict=True)) else value
    return value


def _fit_object(value: dict[str, Any], schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return value
    fitted = {
        key: _fit(item, properties[key], root, depth + 1) if isinstance(properties.get(key), Mapping) else item
        for key, item in value.items()
    }
    return fitted if any(fitted[key] is not item for key, item in value.items()) else value


def _fit_text(value: str, types: set[str], schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    if not types or "string" in types:
        return value
    text = value.strip()
    for kind in ("integer", "number", "boolean", "null", "array", "object"):
        if kind in types:
            found = _READERS[kind](text)
            if found is not _NOTHING:
                return _fit(found, schema, root, depth + 1) if kind in ("array", "object") else found
    return value


_NOTHING = object()


def _read_integer(text: str) -> Any:
    return int(text) if re.fullmatch(r"[+-]?\d{1,4000}", text) else _NOTHING


def _read_number(text: str) -> Any:
    return float(text) if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", text) else _NOTHING


def _read_boolean(text: str) -> Any:
    return {"true": True, "false": False}.get(text.lower(), _NOTHING)


def _read_null(text: str) -> Any:
    return None if text == "null" else _NOTHING


def _reader_of(kind: type) -> Any:
    def read(text: str) -> Any:
        try:
            value = _LENIENT.decode(text)
        except (ValueError, RecursionError):
            return _NOTHING
        return value if isinstance(value, kind) else _NOTHING

    return read


_READERS: dict[str, Any] = {
    "integer": _read_integer,
    "number": _read_number,
    "boolean": _read_boolean,
    "null": _read_null,
    "array": _reader_of(list),
    "object": _reader_of(dict),
}


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema behind references, and behind an "or null" where it is the only other choice."""
    for _ in range(_MAX_DEPTH):
        reference = schema.get("$ref")
        if isinstance(reference, str):
            target = _target(reference, root)
            if target is None:
                return schema
            schema = target
            continue
        choices = _choices(schema)
        if len(choices) != 1:
            return schema
        schema = choices[0]
    return schema


def _choices(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if not isinstance(found, list):
        return []
    return [choice for choice in found if isinstance(choice, Mapping) and choice.get("type") != "null"]


def _target(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if not reference.startswith("#/"):
        return None
    found: Any = root
    for part in reference[2:].split("/"):
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else None


def _types(schema: Mapping[str, Any], root: Mapping[str, Any]) -> set[str]:
    """The JSON types that a schema allows; empty where it does not say."""
    told = schema.get("type")
    if isinstance(told, str):
        return {told}
    if isinstance(told, list):
        return {kind for kind in told if isinstance(kind, str)}
    if "enum" in schema or "const" in schema:
        values = schema.get("enum") or [schema.get("const")]
        return {"string"} if any(isinstance(value, str) for value in values) else {"integer", "number", "boolean"}
    found: set[str] = set()
    for choice in schema.get("anyOf") or schema.get("oneOf") or ():
        kinds = _types(_resolved(choice, root), root) if isinstance(choice, Mapping) else set()
        if not kinds:
            return set()
        found |= kinds
    return found


# ------------------------------------------------------------------------------------------------- writing

_UNSENDABLE = re.compile("[\ud800-\udfff\x00]")
_write = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str).encode


def sendable(text: str) -> str:
    """``text`` without what no endpoint takes: NUL is left out, a lone surrogate becomes the replacement character."""
    if text.isascii() and "\0" not in text:
        return text
    return _UNSENDABLE.sub(lambda found: "" if found.group() == "\0" else "\ufffd", text)


def arguments_json(arguments: Mapping[str, Any]) -> str:
    """The arguments as the text of a JSON object, as every endpoint takes it."""
    return sendable(_write(arguments if isinstance(arguments, dict) else dict(arguments))).replace("\\u0000", "")
