"""The same contents with other texts, wherever a content holds text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

from agentpipe._messages import (
    ApprovalRequestContent,
    ApprovalResponseContent,
    Content,
    FunctionCallContent,
    FunctionResultContent,
    InputRequestContent,
    InputResponseContent,
    Message,
    ProgressContent,
    ReasoningContent,
    RefusalContent,
    TextContent,
)
from agentpipe._responses import ChatResponseUpdate

Change = Callable[[str], str]
ContentT = TypeVar("ContentT", bound=Content)


def changed_message(message: Message, change: Change) -> Message:
    """The message with other texts; the very same where ``change`` changes none."""
    contents = tuple([changed_content(content, change) for content in message.contents])
    author = change(message.author_name) if message.author_name else message.author_name
    if author == message.author_name and all(a is b for a, b in zip(contents, message.contents, strict=True)):
        return message
    return message.replace(contents=contents, author_name=author)


def changed_update(update: ChatResponseUpdate, change: Change) -> ChatResponseUpdate:
    """The update with other texts."""
    return update.replace(contents=tuple([changed_content(content, change) for content in update.contents]))


def changed_content(content: Content, change: Change) -> Content:
    """The content with other texts; the very same where ``change`` changes none."""
    if isinstance(content, (TextContent, ReasoningContent, RefusalContent, ProgressContent)):
        return _with(content, text=change(content.text))
    if isinstance(content, FunctionCallContent):
        return _changed_call(content, change)
    if isinstance(content, FunctionResultContent):
        inner = tuple([changed_content(part, change) for part in content.contents])
        return _with(content, result=_changed_value(content.result, change), contents=inner)
    if isinstance(content, (ApprovalRequestContent, InputRequestContent)):
        call = _changed_call(content.call, change)
        parent = _changed_call(content.parent_call, change) if content.parent_call else None
        asked = _with(content, call=call, parent_call=parent, state=_changed_value(content.state, change))
        return _with_value(asked, "payload", change) if isinstance(asked, InputRequestContent) else asked
    if isinstance(content, ApprovalResponseContent):
        reason = change(content.reason) if content.reason else content.reason
        return _with(_with_value(content, "arguments", change), reason=reason)
    return _with_value(content, "data", change) if isinstance(content, InputResponseContent) else content


def _changed_call(call: FunctionCallContent, change: Change) -> FunctionCallContent:
    return _with(
        call,
        arguments=_changed_value(call.arguments, change),
        raw_arguments=_changed_json(call.raw_arguments, change),
        invalid=change(call.invalid) if call.invalid else call.invalid,
    )


def _changed_json(text: str | None, change: Change) -> str | None:
    """A JSON text with other texts in it: JSON spells some with escapes, so it is read and written again."""
    if not text:
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return change(text)
    changed = _changed_value(value, change)
    return text if changed == value else json.dumps(changed, ensure_ascii=False)


def _with_value(content: ContentT, name: str, change: Change) -> ContentT:
    return _with(content, **{name: _changed_value(getattr(content, name), change)})


def _with(content: ContentT, **fields: Any) -> ContentT:
    if all(getattr(content, name) == value for name, value in fields.items()):
        return content
    changed: Any = content
    return cast("ContentT", replace(changed, **fields))


def _changed_value(value: Any, change: Change) -> Any:
    """A JSON value with other texts. A whole number that has to be hidden becomes a text."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(str(key)): _changed_value(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_changed_value(item, change) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        changed = change(text := str(value))
        return value if changed == text else changed
    return value
