# PLACEHOLDER by the lead until the real module lands: overwrite this file.
from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any


class InvalidArguments(ValueError):
    pass


class FunctionSchema:
    def __init__(self, f: Any, is_context: Any) -> None:
        self.f = f
        self.name = f.__name__
        self.description = inspect.getdoc(f) or ""
        hints = typing.get_type_hints(f)
        self.context_parameter = None
        props = {}
        req = []
        for n, p in inspect.signature(f).parameters.items():
            if is_context(hints.get(n)):
                self.context_parameter = n
                continue
            props[n] = {
                "type": {int: "integer", str: "string", float: "number", bool: "boolean"}.get(hints.get(n), "object")
            }
            if p.default is p.empty:
                req.append(n)
        self.parameters = {"type": "object", "properties": props, "required": req, "additionalProperties": False}

    def bind(self, arguments: Mapping[str, Any], context: object = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        un = set(arguments) - set(self.parameters["properties"])
        if un:
            raise InvalidArguments(f"invalid arguments: unknown argument {un}")
        mi = set(self.parameters["required"]) - set(arguments)
        if mi:
            raise InvalidArguments(f"invalid arguments: {mi} is missing")
        k = dict(arguments)
        if self.context_parameter:
            k[self.context_parameter] = context
        return (), k


def function_schema(function: Callable[..., object], *, is_context: Callable[[object], bool]) -> FunctionSchema:
    return FunctionSchema(function, is_context)


class _O:
    def __init__(self, t: Any) -> None:
        from pydantic import TypeAdapter

        self.a = TypeAdapter(t)
        self.schema = self.a.json_schema()
        self.name = "output"

    def parse(self, text: str) -> Any:
        return self.a.validate_json(text)

    def parse_partial(self, text: str) -> Any:
        return None


def output_type(t: Any) -> Any:
    return _O(t)
