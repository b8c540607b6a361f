"""OpenAI's own JSON form of messages and tools, in and out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpipe import FunctionTool, HostedTool
from agentpipe.openai import dump_messages, load_messages, load_tools

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi", "name": "Ada"},
    {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "d", "extra_content": {"x": 1}}]},
    {"role": "tool", "tool_call_id": "c", "content": "one"},
    {"role": "tool", "tool_call_id": "d", "content": "two"},
    {"role": "assistant", "content": "Done.", "reasoning_content": "hm"},
    {"role": "user", "content": [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "https://x.test/a.png", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aW1hZ2U="}},
        {"type": "input_audio", "input_audio": {"data": "c291bmQ=", "format": "mp3"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERg==", "filename": "a.pdf"}},
        {"type": "something_new", "x": 1},
    ]},
]  # fmt: skip


def test_a_conversation_there_and_back() -> None:
    """What was loaded dumps to what it was."""
    assert dump_messages(load_messages(CONVERSATION)) == CONVERSATION


def test_results_of_one_turn_are_one_message() -> None:
    """Results that stand side by side make one tool message, and know the names of their tools."""
    loaded = load_messages(CONVERSATION)
    assert [message.role for message in loaded] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert [content.name for content in loaded[3].contents] == ["f", "f"]  # type: ignore[attr-defined]


def test_older_and_odd_forms() -> None:
    """Developer messages, the old function form, arguments as an object, an image as a text."""
    loaded = load_messages([
        {"role": "developer", "content": "Be brief."},
        {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": {"a": 1}}},
        {"role": "function", "name": "f", "content": "one"},
        {"role": "user", "content": [{"type": "image_url", "image_url": "https://x.test/a.png"}]},
    ])  # fmt: skip
    dumped = dump_messages(loaded)
    assert dumped[0] == {"role": "system", "content": "Be brief."}
    assert dumped[1]["tool_calls"][0]["function"] == CALL["function"]
    assert dumped[2]["tool_call_id"] == dumped[1]["tool_calls"][0]["id"]
    assert dumped[3]["content"][0]["image_url"] == {"url": "https://x.test/a.png"}


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
rounds = st.lists(st.tuples(texts, st.dictionaries(texts, st.integers(), max_size=2), texts), max_size=5)


@given(rounds)
def test_any_conversation_there_and_back(rounds: list[tuple[str, dict[str, int], str]]) -> None:
    """Loading what was dumped gives the same messages."""
    messages: list[dict[str, Any]] = []
    for number, (said, arguments, result) in enumerate(rounds):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "f", "arguments": arguments}}
        messages.append({"role": "user", "content": said})
        messages.append({"role": "assistant", "content": said, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": result})
    dumped = dump_messages(load_messages(messages))
    assert dump_messages(load_messages(dumped)) == dumped


def test_tools() -> None:
    """Functions become declarations that cannot be run here, all else hosted tools."""
    function = {"name": "f", "description": "Does.", "parameters": {"type": "object", "properties": {}}, "strict": True}
    loaded = load_tools([{"type": "function", "function": function}, {"type": "web_search", "depth": 2}])
    assert isinstance(loaded[0], FunctionTool)
    assert (loaded[0].name, loaded[0].description, loaded[0].strict) == ("f", "Does.", True)
    assert isinstance(loaded[1], HostedTool)


@pytest.mark.parametrize(
    ("messages", "what"),
    [
        ([{"role": "root", "content": "x"}], "message 0 has the role 'root'"),
        ([{"role": "user", "content": 5}], "content of message 0"),
        (["x"], "message 0 must be an object"),
        ([{"role": "tool", "content": "x"}], "message 0 is a result and needs a 'tool_call_id'"),
        ([{"role": "assistant", "tool_calls": [{}]}], "a call of message 0 needs a 'function'"),
    ],
)
def test_wrong_messages_say_which_and_what(messages: Any, what: str) -> None:
    """An error names the message and what is wrong with it."""
    with pytest.raises(ValueError, match=what):
        load_messages(messages)


@pytest.mark.parametrize("tools", [["x"], [{}], [{"type": "function"}], [{"type": "function", "function": {}}]])
def test_wrong_tools_say_which(tools: Any) -> None:
    """An error names the tool."""
    with pytest.raises(ValueError, match="tool 0"):
        load_tools(tools)
