"""Options, and the table by which they merge."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpipe import ChatOptions, FunctionTool, HostedTool, LoopLimits
from agentpipe._options import _NAMES, NO_OPTIONS, merge, tools_of


def tool(name: str) -> FunctionTool:
    return FunctionTool(lambda: name, name=name)


A, B, B2 = tool("a"), tool("b"), tool("b")
SEARCH = HostedTool({"type": "web_search"})

TABLE: dict[str, tuple[Any, Any, Any]] = {
    "model": ("x", "y", "y"),
    "instructions": ("one", "two", "one\n\ntwo"),
    "temperature": (0.1, 0.0, 0.0),
    "top_p": (0.1, 0.2, 0.2),
    "max_output_tokens": (1, 2, 2),
    "stop": (("a", "b"), ("b", "c"), ("a", "b", "c")),
    "seed": (1, 0, 0),
    "frequency_penalty": (0.1, 0.2, 0.2),
    "presence_penalty": (0.1, 0.2, 0.2),
    "reasoning_effort": ("low", "high", "high"),
    "response_format": (int, str, str),
    "tools": ((A, B, SEARCH), (B2, SEARCH), (A, SEARCH, B2)),
    "tool_choice": ("auto", "none", "none"),
    "parallel_tool_calls": (True, False, False),
    "conversation_id": ("c", "d", "d"),
    "loop": (LoopLimits(max_iterations=1), LoopLimits(timeout=2), LoopLimits(timeout=2)),
    "tool_middleware": ((len,), (abs,), (len, abs)),
    "metadata": ({"a": 1, "b": 1}, {"b": 2}, {"a": 1, "b": 2}),
    "extra_body": ({"a": 1, "b": 1}, {"b": 2}, {"a": 1, "b": 2}),
    "extra_headers": ({"a": "1"}, {"b": "2"}, {"b": "2"}),
}


def test_the_table_is_whole() -> None:
    """Every option has its row."""
    assert set(TABLE) == set(_NAMES)


@pytest.mark.parametrize("name", TABLE)
def test_merging_by_the_table(name: str) -> None:
    """A8: What two opinions merge into; None is no opinion, on either side."""
    earlier, later, merged = TABLE[name]
    one, other = ChatOptions(**{name: earlier}), ChatOptions(**{name: later})
    assert getattr(merge(one, other), name) == merged
    assert getattr(merge(one, ChatOptions(seed=7) if name != "seed" else ChatOptions(top_p=1)), name) == getattr(
        one, name
    )
    assert getattr(merge(NO_OPTIONS, other, None), name) == getattr(other, name)


def test_nothing_to_merge_costs_nothing() -> None:
    """Without an opinion the options stay the very same object."""
    options = ChatOptions(temperature=0.5)
    assert merge(options, NO_OPTIONS) is options
    assert merge(NO_OPTIONS, options) is options


def test_wrong_options_are_refused() -> None:
    """Two tools of one name, and what is no tool, raise where the options are made."""
    with pytest.raises(ValueError, match="'b'"):
        ChatOptions(tools=[B, B2])
    with pytest.raises(TypeError, match="tool"):
        ChatOptions(tools=[5])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="sequence"):
        ChatOptions(tools="a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_iterations"):
        LoopLimits(max_iterations=0)
    with pytest.raises(ValueError, match="on_limit"):
        LoopLimits(on_limit="explode")  # type: ignore[arg-type]
    wrong: Any
    for wrong in (0, -1, float("nan"), "5"):
        with pytest.raises(ValueError, match="timeout"):
            LoopLimits(timeout=wrong)
    for wrong in (-1, 1.5, "3", True):
        with pytest.raises(ValueError, match="max_tool_calls"):
            LoopLimits(max_tool_calls=wrong)
    for wrong in (5, ["a", 5], b"x"):
        with pytest.raises(TypeError, match="stop"):
            ChatOptions(stop=wrong)
    with pytest.raises(TypeError, match="LoopLimits"):
        ChatOptions(loop={"max_iterations": 1})  # type: ignore[arg-type]
    assert LoopLimits(max_tool_calls=0, max_iterations=1, timeout=0.1, on_limit="return")


def test_options_are_made_of_what_was_given() -> None:
    """One stop text stands for several, a function for its tool; a list that was given may change afterwards."""
    tools, stop = [A, SEARCH], ["x"]
    options = ChatOptions(tools=tools, stop=stop)
    tools.clear()
    stop.clear()
    assert options.tools == (A, SEARCH)
    assert options.stop == ChatOptions(stop="x").stop == ("x",)
    assert [made.name for made in ChatOptions(tools=[len, {"type": "mcp"}]).tools or ()] == ["len", "mcp"]  # type: ignore[union-attr]
    assert tools_of(NO_OPTIONS) == ()
    assert tools_of(options) is options.tools


def test_options_are_frozen() -> None:
    """Options cannot be changed; replace makes others, and refuses what does not exist."""
    options = ChatOptions(seed=1)
    with pytest.raises(AttributeError):
        options.seed = 2  # type: ignore[misc]
    assert options.replace(seed=2) == ChatOptions(seed=2)
    assert options == ChatOptions(seed=1)
    with pytest.raises(TypeError, match="sead"):
        options.replace(sead=2)


def test_merging_changes_neither() -> None:
    """Merging makes new options, and leaves both, and what they hold, as they were."""
    one, other = ChatOptions(metadata={"a": 1}, tools=[A]), ChatOptions(metadata={"b": 2}, tools=[B])
    merged = merge(one, other, ChatOptions(metadata={"a": 3}))
    assert (merged.metadata, merged.tools) == ({"a": 3, "b": 2}, (A, B))
    assert (one.metadata, other.metadata, one.tools, other.tools) == ({"a": 1}, {"b": 2}, (A,), (B,))
    assert merge(one) is one
    assert merge(one, None, NO_OPTIONS, one, ChatOptions()) is one


names = st.sampled_from("abc")
options_like = st.builds(
    ChatOptions,
    model=st.none() | names,
    instructions=st.none() | names,
    stop=st.none() | st.lists(names, max_size=3),
    seed=st.none() | st.integers(0, 3),
    tools=st.none() | st.lists(st.sampled_from([A, B, SEARCH]), max_size=3, unique=True),
    metadata=st.none() | st.dictionaries(names, names, max_size=2),
    extra_headers=st.none() | st.dictionaries(names, names, max_size=2),
)


@given(options_like, options_like, options_like)
def test_merging_is_associative(a: ChatOptions, b: ChatOptions, c: ChatOptions) -> None:
    """It does not matter which two of three opinions are merged first."""
    assert merge(merge(a, b), c) == merge(a, merge(b, c)) == merge(a, b, c)


def test_options_do_not_show_headers() -> None:
    """Headers are where keys travel: their values are not in the repr."""
    assert "sk-secret" not in repr(ChatOptions(extra_headers={"Authorization": "Bearer sk-secret"}))
