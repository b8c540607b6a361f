"""What endpoints refuse in a request: one small question for each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

Json = dict[str, Any]


def broken(constraint: Mapping[str, Any], body: Json) -> str | None:
    """The name of the first rule that a request breaks, or None."""
    return next((name for name, value in constraint.items() if RULES[name](body, value)), None)


def _messages(body: Json, *roles: str) -> list[Json]:
    return [message for message in body["messages"] if not roles or message["role"] in roles]


def _calls(message: Json) -> list[Json]:
    return message.get("tool_calls") or []


def _functions(body: Json) -> list[Json]:
    return [tool["function"] for tool in body.get("tools") or ()]


def _parts(body: Json, *roles: str) -> list[Json]:
    lists = [m["content"] for m in _messages(body, *roles) if isinstance(m.get("content"), list)]
    return [part for parts in lists for part in parts]


def _ids(body: Json) -> list[str]:
    made = [call["id"] for message in _messages(body) for call in _calls(message)]
    return made + [message["tool_call_id"] for message in _messages(body, "tool")]


def _nodes(value: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        yield value
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _nodes(inner)


def _schema_nodes(body: Json) -> Iterator[Mapping[str, Any]]:
    return (node for function in _functions(body) for node in _nodes(function["parameters"]))


def _roles_repeat(body: Json, _: object) -> bool:
    roles = [m["role"] for m in _messages(body, "user", "assistant")]
    return any(one == other for one, other in pairwise(roles)) or roles[:1] not in ([], ["user"])


def _results_missing(body: Json, _: object) -> bool:
    due: set[str] = set()
    for message in _messages(body):
        if message["role"] == "tool":
            due.discard(message["tool_call_id"])
        elif due:
            return True
        else:
            due = {call["id"] for call in _calls(message)}
    return bool(due)


def _orphans(body: Json, _: object) -> bool:
    known: set[str] = set()
    for message in _messages(body):
        if message["role"] == "tool" and message["tool_call_id"] not in known:
            return True
        if message["role"] != "tool":
            known = {call["id"] for call in _calls(message)}
    return False


def _arguments_wrong(body: Json, _: object) -> bool:
    texts = [call["function"]["arguments"] for message in _messages(body) for call in _calls(message)]
    return any(not isinstance(text, str) or not isinstance(json.loads(text), dict) for text in texts)


def _bad_characters(body: Json, _: object) -> bool:
    return bool(re.search("[\ud800-\udfff\x00]", json.dumps(body, ensure_ascii=False).replace("\\u0000", "\x00")))


def _empty_content(body: Json, _: object) -> bool:
    return any(m.get("content") == "" for m in _messages(body)) or any(p.get("text") == "" for p in _parts(body))


def _history_without_tools(body: Json, _: object) -> bool:
    return not body.get("tools") and any(_calls(m) or m["role"] == "tool" for m in _messages(body))


RULES: dict[str, Callable[[Json, Any], bool]] = {
    "alternate": _roles_repeat,
    "args_json_object": _arguments_wrong,
    "args_string": _arguments_wrong,
    "content_string": lambda body, _: bool(_parts(body)),
    "forbid_message_key": lambda body, keys: any(key in m for m in _messages(body) for key in keys),
    "forbid_param": lambda body, names: any(name in body for name in names),
    "forbid_role": lambda body, roles: bool(_messages(body, *roles)),
    "forbid_tool_key": lambda body, keys: any(key in function for function in _functions(body) for key in keys),
    "image_url_object": lambda body, _: any(not isinstance(p.get("image_url", {}), dict) for p in _parts(body)),
    "last_role": lambda body, roles: body["messages"][-1]["role"] not in roles,
    "no_bad_chars": _bad_characters,
    "no_empty_content": _empty_content,
    "no_empty_tool_calls": lambda body, _: any(m.get("tool_calls") == [] for m in _messages(body)),
    "no_empty_tools": lambda body, _: body.get("tools") == [],
    "no_null_content": lambda body, _: any(m.get("content") is None for m in _messages(body)),
    "no_orphan_tool": _orphans,
    "no_tool_image": lambda body, _: any(p.get("type") == "image_url" for p in _parts(body, "tool")),
    "no_user_after_tool": lambda body, _: ("tool", "user") in pairwise(m["role"] for m in _messages(body)),
    "reasoning_content_required": lambda body, _: any(
        "reasoning_content" not in m for m in _messages(body, "assistant")
    ),
    "require_call_key": lambda body, key: any(key not in call for m in _messages(body) for call in _calls(m)),
    "require_tools_for": lambda body, names: not body.get("tools") and any(name in body for name in names),
    "schema_forbid": lambda body, keys: any(key in node for node in _schema_nodes(body) for key in keys),
    "schema_ref_defs_only": lambda body, _: any(
        not str(node["$ref"]).startswith("#/$defs/") for node in _schema_nodes(body) if "$ref" in node
    ),
    "schema_require_properties": lambda body, _: any(
        not isinstance(function["parameters"].get("properties"), dict) for function in _functions(body)
    ),
    "single_leading_system": lambda body, _: any(m["role"] in ("system", "developer") for m in body["messages"][1:]),
    "strict_uniform": lambda body, _: len({function.get("strict", False) for function in _functions(body)}) > 1,
    "tool_choice_allowed": lambda body, values: "tool_choice" in body and body["tool_choice"] not in values,
    "tool_id_equals": lambda body, value: set(_ids(body)) != {value},
    "tool_id_pattern": lambda body, pattern: (
        not all(re.fullmatch(pattern, call_id) for call_id in _ids(body)) or len(set(_ids(body))) * 2 != len(_ids(body))
    ),
    "tool_name_pattern": lambda body, pattern: not all(re.fullmatch(pattern, f["name"]) for f in _functions(body)),
    "tool_results_complete": _results_missing,
    "tools_if_history": _history_without_tools,
}
