"""A cooperative model for tests of code that is not theirs: the README's and the samples'."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def cooperative(body: Mapping[str, Any]) -> Any:
    """What a model would say that does as it is told: a call of the first tool, then a text; JSON where it is wanted."""
    functions = [tool["function"] for tool in body.get("tools") or () if tool.get("type") == "function"]
    wanted = (body.get("response_format") or {}).get("json_schema")
    if functions and body["messages"][-1]["role"] == "user":
        parameters = functions[0]["parameters"]
        return {"tool_calls": [(functions[0]["name"], example(parameters, parameters))]}
    if wanted:
        return json.dumps(example(wanted["schema"], wanted["schema"]))
    return "It is 11 degrees in Suzhou, so take a coat."


def example(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """A value that fits a JSON schema."""
    if "$ref" in schema:
        return example(root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root)
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return example(schema["anyOf"][0], root)
    kind = schema.get("type")
    if kind == "object":
        return {name: example(part, root) for name, part in (schema.get("properties") or {}).items()}
    if kind == "array":
        return [example(schema.get("items") or {}, root)]
    return {"integer": 3, "number": 0.5, "boolean": True, "null": None}.get(str(kind), "Suzhou")
