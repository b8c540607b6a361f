"""JSON schemas in the forms that endpoints take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentpipe.openai._profiles import EndpointProfile

Json = dict[str, Any]

# ai.google.dev/api/caching#Schema: the fields of a schema; everything else is refused by name.
_GEMINI = {
    "type", "format", "title", "description", "nullable", "enum", "maxItems", "minItems", "properties", "required",
    "minProperties", "maxProperties", "minLength", "maxLength", "pattern", "example", "anyOf", "propertyOrdering",
    "default", "items", "minimum", "maximum",
}  # fmt: skip
# platform.openai.com/docs/guides/structured-outputs#supported-schemas
_STRICT_REFUSES = {"default", "patternProperties", "unevaluatedProperties", "propertyNames", "contains", "allOf", "not"}
_MAX_DEPTH = 24


def schema_for(schema: Mapping[str, Any], profile: EndpointProfile, strict: bool) -> tuple[Json, bool]:
    """The schema of an object as the endpoint takes it, and whether it can be adhered to strictly."""
    whole = _whole(schema)
    if profile.schema == "gemini":
        return _gemini(_inlined(whole, whole, 0)), False
    if profile.schema == "inline_refs":
        whole = _inlined(whole, whole, 0)
        whole.pop("$defs", None)
        whole.pop("definitions", None)
    if strict or profile.schema == "strict":
        try:
            return _strict(whole), True
        except _NotExpressible:
            return whole, False
    return whole, False


def _whole(schema: Mapping[str, Any]) -> Json:
    """Every endpoint wants an object with its properties."""
    if schema.get("type") == "object" and isinstance(schema.get("properties"), Mapping):
        return dict(schema)
    return {**schema, "type": "object", "properties": schema.get("properties") or {}}


def _inlined(node: Any, root: Mapping[str, Any], depth: int) -> Any:
    """The schema without references; one that refers to itself ends in an object of any kind."""
    if isinstance(node, list):
        return [_inlined(item, root, depth) for item in node]
    if not isinstance(node, Mapping):
        return node
    reference = node.get("$ref")
    if isinstance(reference, str):
        target = _target(reference, root)
        beside = {key: value for key, value in node.items() if key != "$ref"}
        if target is None or depth >= _MAX_DEPTH:
            return {"type": "object", **beside}
        return {**_inlined(target, root, depth + 6), **beside}
    return {key: _inlined(value, root, depth + 1) for key, value in node.items() if key not in ("$defs", "definitions")}


def _target(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any] | None:
    found: Any = root
    for part in reference.removeprefix("#").strip("/").split("/") if reference.startswith("#") else [""]:
        if part:
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) and found is not root else None


def _gemini(node: Any) -> Any:
    if isinstance(node, list):
        return [_gemini(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    schema: Json = {}
    for key, value in _gemini_equivalents(node).items():
        if key == "properties" and isinstance(value, Mapping):
            schema[key] = {name: _gemini(part) for name, part in value.items()}
        elif key in _GEMINI:
            schema[key] = value if key in ("enum", "default", "example", "required") else _gemini(value)
    return schema


def _gemini_equivalents(node: Mapping[str, Any]) -> Json:
    """The same said with the keywords that are known there."""
    same = dict(node)
    if "const" in same:
        same["enum"] = [same.pop("const")]
    for choice in ("oneOf", "allOf"):
        if isinstance(choices := same.pop(choice, None), list):
            if choice == "allOf" and len(choices) == 1 and isinstance(choices[0], Mapping):
                same = {**choices[0], **same}
            else:
                same.setdefault("anyOf", choices)
    if isinstance(kinds := same.get("type"), list):
        told = [kind for kind in kinds if kind != "null"]
        same["type"] = told[0] if told else "string"
        same["nullable"] = len(told) < len(kinds)
    if isinstance(choices := same.get("anyOf"), list):
        others = [choice for choice in choices if not (isinstance(choice, Mapping) and choice.get("type") == "null")]
        if len(others) < len(choices):
            same["nullable"] = True
            same["anyOf"] = others
        if len(others) == 1 and isinstance(others[0], Mapping):
            del same["anyOf"]
            same = {**others[0], **same}
    if "default" in same and same["default"] is None:
        del same["default"]
    if "format" in same and same["format"] not in ("enum", "date-time", "int32", "int64", "float", "double"):
        del same["format"]
    return same


class _NotExpressible(Exception):
    """The schema says what a strict one cannot say."""


def _strict(node: Any) -> Any:
    """Every field required, nothing additional, no defaults: what a strict decoder takes."""
    if isinstance(node, list):
        return [_strict(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    if any(key in node for key in _STRICT_REFUSES - {"default"}) or not node:
        raise _NotExpressible
    schema: Json = {}
    for key, value in node.items():
        if key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
            schema[key] = {name: _strict(part) for name, part in value.items()}
        elif key in ("enum", "const", "required", "examples"):
            schema[key] = value
        elif key != "default":
            schema[key] = _strict(value) if isinstance(value, (Mapping, list)) else value
    return _strict_object(schema, node) if node.get("type") == "object" else schema


def _strict_object(schema: Json, node: Mapping[str, Any]) -> Json:
    if node.get("additionalProperties") not in (None, False) or "properties" not in node:
        raise _NotExpressible
    optional = set(node["properties"]) - set(node.get("required") or ())
    for name in optional:
        schema["properties"][name] = _or_null(schema["properties"][name])
    schema["required"] = list(node["properties"])
    schema["additionalProperties"] = False
    return schema


def _or_null(schema: Json) -> Json:
    """What may be left out may be null instead; where null would mean something else, strict cannot say it."""
    if schema.get("type") == "null" or any(
        isinstance(choice, Mapping) and choice.get("type") == "null" for choice in schema.get("anyOf") or ()
    ):
        return schema
    raise _NotExpressible
