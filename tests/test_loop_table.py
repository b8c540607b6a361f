"""The loop without I/O, as a table: what it is told, and what it says to do next. No event loop, no clock, no tool."""

from __future__ import annotations

from typing import Any

import pytest

from agentpipe import (
    ApprovalRequestContent,
    ChatOptions,
    ChatRequest,
    ChatResponseUpdate,
    FunctionCallContent,
    FunctionResultContent,
    FunctionTool,
    InputRequestContent,
    Message,
    TextContent,
    ToolLoopError,
)
from agentpipe._tool_loop import CallModel, Fail, LoopSettings, PlannedCall, Prepare, RunCalls, Stop, ToolLoop


def f(x: int = 0) -> int:
    """A tool."""
    return x


TOOLS = [
    FunctionTool(f, name="f"),
    FunctionTool(f, name="careful", requires_approval=True),
    FunctionTool(f, name="direct", return_directly=True),
    FunctionTool(name="declared"),
]


def turn(*contents: str, reason: Any = None) -> tuple[str, Any]:
    """The model says this: words that name a tool are calls."""
    names = {tool.name for tool in TOOLS} | {"unknown"}
    made = [
        FunctionCallContent(f"c{place}", word, {"x": place}, f'{{"x": {place}}}')
        if word in names
        else TextContent(word)
        for place, word in enumerate(contents)
    ]
    return "turn", (made, reason)


def results(*outcomes: str) -> tuple[str, Any]:
    """The calls that were to be run come to this: "ok", "error", "asks"."""
    return "results", outcomes


GO = "model"  # the loop asks the model
ROUND = "run"  # ... has calls run

TABLE: dict[str, tuple[dict[str, Any], list[tuple[str, Any]], list[str]]] = {
    "an answer": ({}, [turn("hi")], [GO, "stop answer"]),
    "a round": ({}, [turn("f"), results("ok"), turn("hi")], [GO, ROUND, GO, "stop answer"]),
    "text around a call": ({}, [turn("a", "f", "b"), results("ok"), turn("hi")], [GO, ROUND, GO, "stop answer"]),
    "approval": ({}, [turn("careful")], [GO, "stop approval"]),
    "approval beside another": ({}, [turn("f", "careful"), results("ok")], [GO, ROUND, "stop approval"]),
    "a question of a tool": ({}, [turn("f"), results("asks")], [GO, ROUND, "stop approval"]),
    "a declaration": ({}, [turn("declared", "f")], [GO, "stop declaration_only"]),
    "an unknown call": ({}, [turn("unknown"), results(), turn("hi")], [GO, ROUND, GO, "stop answer"]),
    "an unknown call that ends it": (
        {"terminate_on_unknown_calls": True}, [turn("unknown", "f")], [GO, "stop unknown_call"],
    ),
    "a direct return": ({}, [turn("direct"), results("ok")], [GO, ROUND, "stop return_directly"]),
    "a direct return that fails": ({}, [turn("direct"), results("error"), turn("hi")], [GO, ROUND, GO, "stop answer"]),
    "the first failure": ({"max_consecutive_errors": 0}, [turn("f"), results("error")], [GO, ROUND, "fail"]),
    "a failure beside a call that waits": (
        {"max_consecutive_errors": 0}, [turn("f", "careful"), results("error")], [GO, ROUND, "stop approval"],
    ),
    "a failure beside a success": (
        {"max_consecutive_errors": 0}, [turn("f", "f"), results("error", "ok"), turn("hi")], [GO, ROUND, GO, "stop answer"],
    ),
    "the cap on rounds": (
        {"max_iterations": 1}, [turn("f"), results("ok"), turn("hi")], [GO, ROUND, "last", "stop limit"],
    ),
    "the cap on rounds, and the model does not stop": (
        {"max_iterations": 1}, [turn("f"), results("ok"), turn("f"), results()], [GO, ROUND, "last", ROUND, "stop limit"],
    ),
    "the cap on rounds, raised": ({"max_iterations": 1, "on_limit": "raise"}, [turn("f"), results("ok")], [GO, ROUND, "fail"]),
    "the cap on rounds, returned": (
        {"max_iterations": 1, "on_limit": "return"}, [turn("f"), results("ok")], [GO, ROUND, "stop limit"],
    ),
    "the cap on calls": (
        {"max_tool_calls": 1}, [turn("f", "f"), results("ok"), turn("hi")], [GO, ROUND, "last", "stop limit"],
    ),
    "cut off": ({}, [turn("f", reason="length"), results(), turn("hi")], [GO, ROUND, GO, "stop answer"]),
}  # fmt: skip


@pytest.mark.parametrize("row", TABLE)
def test_the_table_of_transitions(row: str) -> None:
    """Told this, the loop wants that; at its end every call has one result or waits for a decision."""
    settings, events, expected = TABLE[row]
    loop = ToolLoop(ChatRequest([Message("user", "go")], ChatOptions(tools=TOOLS)), LoopSettings(**settings))
    loop.start()
    steps = [said(loop)]
    for kind, event in events:
        told_turn(loop, *event) if kind == "turn" else told_results(loop, event)
        steps.append(said(loop))
    assert steps == expected
    contents = [content for message in loop.produced for content in message.contents]
    calls = [content.call_id for content in contents if isinstance(content, FunctionCallContent)]
    closed = [content.call_id for content in contents if isinstance(content, FunctionResultContent)]
    closed += [content.call.call_id for content in contents if isinstance(content, InputRequestContent)]
    assert (
        expected[-1] == "stop declaration_only"
        or expected[-1] == "stop unknown_call"
        or sorted(calls) == sorted(closed)
    )


def told_turn(loop: ToolLoop, contents: list[Any], reason: Any) -> None:
    assert isinstance(loop.step, CallModel)
    for content in contents:
        loop.receive(ChatResponseUpdate([content], "assistant"))
    loop.receive(ChatResponseUpdate(finish_reason=reason))
    loop.turn_ended()
    if isinstance(loop.step, Prepare):
        loop.plan(loop.step.calls)


def told_results(loop: ToolLoop, outcomes: tuple[str, ...]) -> None:
    assert isinstance(loop.step, RunCalls)
    told = list(outcomes)
    for planned in loop.step.calls:
        loop.record(planned, planned.settled if planned.settled is not None else outcome(planned, told.pop(0)))
    assert not told
    loop.round_ended()


def outcome(planned: PlannedCall, kind: str) -> Any:
    call = planned.call
    if kind == "asks":
        return (InputRequestContent("q", call),)
    return FunctionResultContent(call.call_id, call.name, kind, kind == "error")


def said(loop: ToolLoop) -> str:
    step = loop.step
    if isinstance(step, CallModel):
        return GO if step.options.tools else "last"
    if isinstance(step, RunCalls):
        return ROUND
    if isinstance(step, Fail):
        assert isinstance(step.error, ToolLoopError)
        return "fail"
    assert isinstance(step, Stop)
    return f"stop {step.reason}"


def test_a_call_is_passed_on_at_once_and_one_that_may_ask_waits() -> None:
    """L6: Text and calls are passed on as they come; from a call that may need approval on, the turn waits for its end."""
    loop = ToolLoop(ChatRequest([Message("user", "go")], ChatOptions(tools=TOOLS)), LoopSettings())
    loop.start()
    contents: list[Any] = turn("text", "f", "careful", "more")[1][0]
    passed = [loop.receive(ChatResponseUpdate([content], "assistant")) for content in contents]
    assert [update is not None for update in passed] == [True, True, False, False]
    loop.turn_ended()
    assert isinstance(loop.step, Prepare)
    loop.plan(loop.step.calls)
    released = [content for update in loop.outbox for content in update.contents]
    assert [type(content) for content in released] == [ApprovalRequestContent, TextContent]
    kinds = [content.type for content in loop.produced[0].contents]
    assert kinds == ["text", "function_call", "approval_request", "text"]
