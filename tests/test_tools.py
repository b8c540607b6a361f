"""Tools: making them, their settings, sets of them, and what a tool knows while it runs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, cast

import pytest

from agentpipe import (
    ChatOptions,
    ChatRequest,
    FunctionCallContent,
    FunctionInvokingChatClient,
    FunctionTool,
    HostedTool,
    InputResponseContent,
    Message,
    ToolContext,
    UsageDetails,
    current_tool_context,
    tool,
    user,
)
from agentpipe._schema import InvalidArguments
from agentpipe._tools import (
    TOOL_CONTEXT,
    Interrupted,
    Resume,
    Tools,
    ToolSet,
    as_tool,
    as_tools,
    is_tool_context,
)
from agentpipe.testing import ScriptedChatClient, call


def add(a: int, b: Annotated[int, "the other"] = 1) -> int:
    """Add two numbers."""
    return a + b


async def later(a: int) -> int:
    """Later."""
    return a


def counted(a: int) -> Iterator[int]:
    """Counted."""
    yield a


async def streamed(a: int) -> AsyncIterator[int]:
    """Streamed."""
    yield a


class Shop:
    def __init__(self, stock: int) -> None:
        self.stock = stock

    @tool
    def count(self, item: str) -> int:
        """How many of an item are left."""
        return self.stock

    @tool(requires_approval=True, name="sell_it", timeout=5)
    def sell(self, item: str, ctx: ToolContext[Any]) -> str:
        """Sell one."""
        return f"{item} of {self.stock}"

    def __call__(self, item: str) -> int:
        """Ask the shop."""
        return self.stock


def test_a_tool_is_read_off_its_function() -> None:
    """Name, description and parameters come from the function, which stays callable as it was."""
    made = tool(add)
    assert (made.name, made.description, made.kind) == ("add", "Add two numbers.", "sync")
    assert dict(made.parameters)["required"] == ["a"]
    assert made.parameters["properties"]["b"]["description"] == "the other"
    assert made(2, b=3) == 5
    assert made.function is add
    assert (made.__doc__, made.__qualname__) == ("Add two numbers.", "add")  # type: ignore[attr-defined]
    assert repr(made) == "FunctionTool(name='add')"


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (add, "sync"),
        (later, "async"),
        (counted, "generator"),
        (streamed, "async_generator"),
        (functools.partial(later, 1), "async"),
        (functools.partial(functools.partial(add, 1), 2), "sync"),
        (Shop(1), "sync"),
        (Shop(1).count.function, "sync"),
    ],
)
def test_how_a_function_is_run(function: Any, kind: str) -> None:
    """Sync, async, or a generator of either: told through partials, methods and callable objects."""
    assert FunctionTool(function, name="x").kind == kind


def test_the_settings_of_a_tool() -> None:
    """@tool(...) takes every setting; a name and a description of its own win over the function's."""
    made = tool(
        name="plus",
        description="",
        return_directly=True,
        max_result_chars=9,
        fatal=[KeyError],
        strict=True,
        metadata={"a": 1},
    )(add)
    assert (made.name, made.description, made.return_directly, made.max_result_chars) == ("plus", "", True, 9)
    assert (made.fatal, made.strict, made.metadata) == ((KeyError,), True, {"a": 1})
    assert not made.declaration_only


@pytest.mark.parametrize("policy", [True, False, lambda call: call.arguments["a"] > 1], ids=["yes", "no", "by call"])
def test_approval_by_the_call(policy: Any) -> None:
    """Approval is needed always, never, or as a function of the call says."""
    made = FunctionTool(add, requires_approval=policy)
    expected = [policy, policy] if isinstance(policy, bool) else [False, True]
    assert [made.needs_approval(call("add", a=a)) for a in (1, 2)] == expected


@pytest.mark.parametrize(
    ("settings", "error", "what"),
    [
        ({}, ValueError, "name"),
        ({"function": 5}, TypeError, "function"),
        ({"function": add, "timeout": 0}, ValueError, "timeout"),
        ({"function": add, "max_result_chars": -1}, ValueError, "max_result_chars"),
        ({"name": "x", "parameters": {"type": "array"}}, TypeError, "'x'"),
        ({"name": "x", "parameters": 5}, TypeError, "'x'"),
    ],
)
def test_wrong_settings(settings: Any, error: type[Exception], what: str) -> None:
    """A wrong setting raises where the tool is made, and is named."""
    with pytest.raises(error, match=what):
        FunctionTool(**settings)


def test_a_tool_that_is_only_declared() -> None:
    """Without a function a tool is only declared: it has a schema, and cannot be called."""
    made = FunctionTool(name="ask_user", description="Ask.", parameters={"type": "object", "properties": {"q": {}}})
    assert (made.declaration_only, made.parameters["properties"]) == (True, {"q": {}})
    assert FunctionTool(name="x").parameters == {"type": "object", "properties": {}}
    with pytest.raises(TypeError, match="ask_user"):
        made(q="x")


def test_binding_by_the_signature() -> None:
    """Arguments are validated and converted by the signature; what does not fit is named, in words for the model."""
    assert FunctionTool(add).bind({"a": 1}) in (((1,), {}), ((), {"a": 1}), ((1, 1), {}), ((), {"a": 1, "b": 1}))
    for wrong, what in (({}, "a"), ({"a": "x"}, "a"), ({"a": 1, "zzz": 1}, "zzz")):
        with pytest.raises(InvalidArguments, match=what):
            FunctionTool(add).bind(wrong)


def test_binding_by_a_schema() -> None:
    """With a schema of its own a tool gets the arguments as keywords; missing and unknown ones are named."""
    made = FunctionTool(lambda **kw: kw, name="x", parameters={"properties": {"a": {}, "b": {}}, "required": ["a"]})
    assert made.bind({"a": 1, "b": 2}) == ((), {"a": 1, "b": 2})
    with pytest.raises(InvalidArguments, match="'a' is missing; unknown argument 'c'"):
        made.bind({"c": 1})
    free = FunctionTool(lambda **kw: kw, name="x", parameters={"additionalProperties": True})
    assert free.bind({"c": 1}) == ((), {"c": 1})


def test_methods_are_tools_of_their_instance() -> None:
    """A tool made from a method is, on an instance, the tool of the bound method, with all its settings."""
    shop = Shop(7)
    assert shop.count("pear") == 7
    assert set(shop.count.parameters["properties"]) == {"item"}
    sell = shop.sell
    assert isinstance(sell, FunctionTool)
    assert (sell.name, sell.requires_approval, sell.timeout) == ("sell_it", True, 5)
    assert set(sell.parameters["properties"]) == {"item"}
    args, kwargs = sell.bind({"item": "pear"}, object())
    assert sell(*args, **kwargs) == "pear of 7"
    assert Shop.count is Shop.__dict__["count"]


def test_what_stands_for_a_tool() -> None:
    """A function stands for its tool, an endpoint's own declaration for a hosted one; anything else raises."""
    assert as_tool(add).name == "add"
    hosted = as_tool({"type": "web_search", "depth": 2})
    assert isinstance(hosted, HostedTool)
    assert (hosted.name, hosted.definition) == ("web_search", {"type": "web_search", "depth": 2})
    assert as_tool(hosted) is hosted
    with pytest.raises(TypeError, match="int"):
        as_tool(5)  # type: ignore[arg-type]
    for wrong in ({}, {"type": 5}, {"type": ""}):
        with pytest.raises(ValueError, match="'type'"):
            HostedTool(wrong)


def test_hosted_tools_are_equal_by_what_they_declare() -> None:
    """Two hosted tools of one declaration are equal, and a declaration that was given is copied."""
    told = {"type": "web_search"}
    hosted = HostedTool(told)
    told["depth"] = "2"
    assert hosted == HostedTool({"type": "web_search"})
    assert hosted != HostedTool(told)
    assert len({hosted, HostedTool({"type": "web_search"})}) == 1


def test_tools_have_distinct_names() -> None:
    """Two functions of one name raise; hosted tools may share theirs; tools that are normalised stay as they are."""
    with pytest.raises(ValueError, match="'add'"):
        as_tools([add, FunctionTool(later, name="add")])
    tools = as_tools([add, {"type": "mcp", "a": 1}, {"type": "mcp", "a": 2}])
    assert (type(tools), len(tools)) == (Tools, 3)
    assert as_tools(tools) is tools
    assert len(as_tools(each for each in (add, FunctionTool(later)))) == 2
    for wrong in (5, "text", {"type": "mcp"}, None, add):
        with pytest.raises(TypeError, match="sequence of tools"):
            as_tools(wrong)  # type: ignore[arg-type]


def test_a_set_of_tools_changes() -> None:
    """The tools of a run can be added to, removed by name, tool or function, replaced and cleared; each is counted."""
    given = [add]
    tools = ToolSet(given)
    tools.append(later)  # type: ignore[arg-type]
    tools.add(counted, streamed)
    assert [each.name for each in tools] == ["add", "later", "counted", "streamed"]
    tools.remove("counted")
    tools.remove(streamed)
    tools.remove(tools["later"])
    assert [name in tools for name in ("add", "later", tools["add"])] == [True, False, True]
    replacement = FunctionTool(later, name="add")
    tools.replace(replacement, counted)
    assert list(tools) == [replacement, tools["counted"]]
    tools[0] = add
    tools[1:] = []
    assert repr(tools) == "ToolSet(['add'])"
    assert tools.version == 8
    tools.clear()
    assert (len(tools), given) == (0, [add])


def test_a_change_that_cannot_be_made_changes_nothing() -> None:
    """A name that is taken, or not there, raises and leaves the tools as they were."""
    tools = ToolSet([add, later])
    version = tools.version
    with pytest.raises(ValueError, match="'add'"):
        tools.add(FunctionTool(counted, name="add"))
    with pytest.raises(ValueError, match=r"no tool 'nobody'.*'add', 'later'"):
        tools.remove("nobody")
    with pytest.raises(KeyError):
        tools["nobody"]
    with pytest.raises(TypeError, match="int"):
        tools.append(5)  # type: ignore[arg-type]
    assert (tools.version, len(tools)) == (version, 2)


def test_a_set_may_change_while_it_is_walked() -> None:
    """Walking the tools while some are removed sees all that were there."""
    tools = ToolSet([add, later, counted])
    for each in tools:
        tools.remove(each)
    assert len(tools) == 0


class Run:
    """What a tool asked of its run."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def terminate(self) -> None:
        self.asked.append("terminate")

    def return_directly(self, call_id: str) -> None:
        self.asked.append(call_id)

    def progress(self, call: FunctionCallContent, text: str) -> None:
        self.asked.append((call.call_id, text))


def context(resume: Resume | None = None, run: Run | None = None) -> ToolContext[str]:
    made = FunctionTool(add)
    request = ChatRequest([user("go")], deps="sk-secret")
    return ToolContext(
        call("add", {"a": 1}), made, {"a": 1}, lambda: list[Message](request.messages), request, None, "deps", 1, 0, 1,
        ToolSet([made]), resume, _run=run,
    )  # fmt: skip


def test_what_a_tool_asks_of_its_run() -> None:
    """terminate, return_directly and progress reach the run; outside of one they do nothing."""
    run = Run()
    ctx = context(run=run)
    ctx.terminate()
    ctx.return_directly()
    ctx.progress("half")
    assert run.asked == ["terminate", "call_add", ("call_add", "half")]
    alone = context()
    alone.terminate()
    alone.return_directly()
    alone.progress("half")
    assert alone.messages == (user("go"),)
    assert "sk-secret" not in repr(alone)


def test_a_tool_adds_its_own_usage() -> None:
    """Usage that a tool reports adds up; None is nothing."""
    ctx = context()
    ctx.add_usage(None)
    assert ctx.usage is None
    ctx.add_usage(UsageDetails(1))
    ctx.add_usage(UsageDetails(2, 3))
    assert ctx.usage == UsageDetails(3, 3)


def test_interrupting() -> None:
    """interrupt leaves the tool with its question, past `except Exception`; run again it gives the answers in order."""

    def asks() -> None:
        with contextlib.suppress(Exception):
            context().interrupt({"q": 1}, {"s": 2})

    with pytest.raises(Interrupted) as caught:
        asks()
    (question,) = caught.value.requests
    assert (question.payload, question.state, question.call.name) == ({"q": 1}, {"s": 2}, "add")
    answers = (InputResponseContent("1", "red"), InputResponseContent("2", "blue"))
    again = context(Resume("red", None, answers))
    assert [again.interrupt("colour?"), again.interrupt("and?")] == ["red", "blue"]
    with pytest.raises(Interrupted):
        again.interrupt("and now?")


def test_the_context_is_known_by_its_annotation() -> None:
    """ToolContext, with or without its type, is a context; nothing else is. Outside of tools there is none."""
    assert is_tool_context(ToolContext)
    assert is_tool_context(ToolContext[int])
    assert not is_tool_context(int)
    assert current_tool_context() is None
    token = TOOL_CONTEXT.set(ctx := context())
    assert current_tool_context() is ctx
    TOOL_CONTEXT.reset(token)


async def async_policy(call: object) -> bool:
    return False


class AsyncPolicy:
    async def __call__(self, call: object) -> bool:
        return False


@pytest.mark.parametrize("policy", [async_policy, functools.partial(async_policy), AsyncPolicy()])
def test_an_async_policy_is_refused(policy: Any) -> None:
    """A policy that would have to be awaited is refused where the tool is made: it would ask about every call."""
    with pytest.raises(TypeError, match="requires_approval must be a plain function"):
        FunctionTool(lambda: None, name="f", requires_approval=policy)


def test_what_is_no_middleware_is_refused() -> None:
    """Tool middleware that cannot be called is refused where it is given."""
    for give in (
        lambda: FunctionInvokingChatClient(ScriptedChatClient(), middleware=cast("Any", [3])),
        lambda: ChatOptions(tool_middleware=cast("Any", [3])),
    ):
        with pytest.raises(TypeError, match="tool middleware must be an async function"):
            give()


def test_no_secret_is_shown() -> None:
    """What may hold keys is in no repr: the caller's own object, and what goes into the request as it is."""
    options = ChatOptions(temperature=0.5, extra_body={"key": "sk-1"}, extra_headers={"Authorization": "sk-2"})
    assert repr(options) == "ChatOptions(temperature=0.5, extra_body=..., extra_headers=...)"
    request = ChatRequest([], options, deps="sk-3")
    made = ToolContext(call("f"), None, {}, list, request, None, "sk-4", 1, 0, 1, ToolSet())
    assert "sk-" not in repr(made) + repr(made.request)
