"""What a caller wants of a model, and the one rule for who has the last word.

====================================================  ============================================
instructions                                          joined with a blank line, the earlier first
tools, stop, extra_body, metadata                     united; of one name, the later wins
tool_middleware                                       one around the other, the earlier outside
everything else                                       the later wins
====================================================  ============================================

None is no opinion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from agentpipe._tools import FunctionTool, Tool, ToolLike, ToolMiddleware, Tools, as_middleware, as_tools

OnLimit = Literal["final_answer", "tool_choice_none", "raise", "return"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]

_put = object.__setattr__


@dataclass(frozen=True, slots=True)
class LoopLimits:
    """Limits of the tool loop for one run; they win over the settings of the FunctionInvokingChatClient.

    Args:
        max_iterations: Tool rounds; at least 1.
        on_limit: What to do then, see FunctionInvokingChatClient.
        timeout: Seconds for the whole run.
        max_tool_calls: Calls, exactly; at least 0.
    """

    max_iterations: int | None = None
    on_limit: OnLimit | None = None
    timeout: float | None = None
    max_tool_calls: int | None = None

    def __post_init__(self) -> None:
        _at_least("max_iterations", self.max_iterations, 1)
        _at_least("max_tool_calls", self.max_tool_calls, 0)
        if self.on_limit is not None and self.on_limit not in get_args(OnLimit):
            raise ValueError(f"on_limit must be one of {', '.join(get_args(OnLimit))}, not {self.on_limit!r}")
        if self.timeout is not None and not (isinstance(self.timeout, (int, float)) and self.timeout > 0):
            raise ValueError(f"timeout must be greater than 0 seconds, not {self.timeout!r}")


def _at_least(name: str, value: int | None, least: int) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")


@dataclass(frozen=True, slots=True, init=True)
class ChatOptions:
    """What a caller wants of a model; None is no opinion.

    ``tools`` takes functions, `FunctionTool` and `HostedTool`; ``tool_choice`` "auto", "none", "required" or the name
    of a tool; ``response_format`` a type (pydantic model, dataclass, TypedDict, list, enum, scalar) or an endpoint's
    own dict; ``stop`` a text or several. ``loop`` limits the tool loop of this run, and ``tool_middleware`` stands
    around its tool calls, inside the middleware of the FunctionInvokingChatClient. ``metadata`` stays in the process;
    ``extra_body`` goes into the request as it is and wins.

    Raises ValueError where two tools have one name, TypeError for what is no tool, stop text, middleware or LoopLimits.
    """

    model: str | None = None
    instructions: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    stop: str | Sequence[str] | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    reasoning_effort: ReasoningEffort | str | None = None
    response_format: Any = None
    tools: Sequence[ToolLike] | None = None
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    conversation_id: str | None = None
    loop: LoopLimits | None = None
    tool_middleware: Sequence[ToolMiddleware] | None = None
    metadata: Mapping[str, Any] | None = None
    extra_body: Mapping[str, Any] | None = None
    extra_headers: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if self.tools is not None and type(self.tools) is not Tools:
            _put(self, "tools", as_tools(self.tools))
        if self.stop is not None:
            _put(self, "stop", _texts(self.stop))
        if self.tool_middleware is not None:
            _put(self, "tool_middleware", as_middleware(self.tool_middleware))
        if self.loop is not None and not isinstance(self.loop, LoopLimits):
            raise TypeError(f"loop must be a LoopLimits, not {type(self.loop).__name__}")

    def replace(self, **changes: Any) -> ChatOptions:
        """The same options with other fields."""
        return replace(self, **changes)

    def __repr__(self) -> str:
        given = [(name, value) for name in _NAMES if (value := getattr(self, name)) is not None]
        told = [f"{name}=..." if name in _MAY_HOLD_KEYS else f"{name}={value!r}" for name, value in given]
        return f"ChatOptions({', '.join(told)})"


def _texts(stop: str | Sequence[str]) -> tuple[str, ...]:
    texts = (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, Sequence) else (stop,)
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"stop must be a text or several, not {type(text).__name__}")
    return texts


_MAY_HOLD_KEYS = ("extra_body", "extra_headers")
NO_OPTIONS = ChatOptions()
_NAMES = tuple(field.name for field in fields(ChatOptions))


def tools_of(options: ChatOptions) -> Tools:
    """The tools of ``options``, normalised; empty where there are none."""
    tools = options.tools
    return tools if isinstance(tools, Tools) else as_tools(tools or ())


def merge(first: ChatOptions, *others: ChatOptions | None) -> ChatOptions:
    """One set of options from several; of two opinions the later one counts, by the table above."""
    merged = first
    for other in others:
        merged = _merge_two(merged, other)
    return merged


def _merge_two(earlier: ChatOptions, later: ChatOptions | None) -> ChatOptions:
    if later is None or later is NO_OPTIONS or later is earlier:
        return earlier
    if earlier is NO_OPTIONS:
        return later
    changes: dict[str, Any] = {}
    for name in _NAMES:
        new = getattr(later, name)
        if new is not None:
            old = getattr(earlier, name)
            join = _JOINS.get(name)
            changes[name] = new if join is None or old is None else join(old, new)
    return replace(earlier, **changes) if changes else earlier


def _join_text(old: str, new: str) -> str:
    return f"{old}\n\n{new}" if old and new else old or new


def _unite_tools(old: Tools, new: Tools) -> Tools:
    names = {tool.name for tool in new if isinstance(tool, FunctionTool)}
    kept: list[Tool] = [tool for tool in old if not (isinstance(tool, FunctionTool) and tool.name in names)]
    kept += [tool for tool in new if tool not in kept]
    return Tools(kept)


def _unite_texts(old: Sequence[str], new: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*old, *new]))


def _unite_middleware(old: Sequence[ToolMiddleware], new: Sequence[ToolMiddleware]) -> Sequence[ToolMiddleware]:
    return (*old, *new)


def _unite_mappings(old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**old, **new}


_JOINS: dict[str, Callable[[Any, Any], Any]] = {
    "instructions": _join_text,
    "tools": _unite_tools,
    "stop": _unite_texts,
    "tool_middleware": _unite_middleware,
    "extra_body": _unite_mappings,
    "metadata": _unite_mappings,
}
