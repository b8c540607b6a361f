"""The scenarios of spec/function_invocation.md, by their numbers there."""

from __future__ import annotations

import asyncio
import datetime
import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from agentpipe import (
    Agent,
    AgentSession,
    ChatClient,
    ChatOptions,
    ChatRequest,
    ChatResponseUpdate,
    DelegatingChatClient,
    FatalToolError,
    FunctionCallContent,
    FunctionInvokingChatClient,
    FunctionResultContent,
    FunctionTool,
    HostedTool,
    LoopLimits,
    Message,
    ProgressContent,
    SummarizingReducer,
    TextContent,
    ToolContext,
    ToolError,
    ToolLoopError,
    TransportError,
    UsageDetails,
    current_tool_context,
    pipeline,
    tool,
)
from agentpipe.testing import ScriptedChatClient, call
from tests.conftest import ask
from tests.scenes import USAGE, Run, assert_closed, played


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def echo(text: str = "") -> str:
    """Say it again."""
    return f"echo {text}"


async def wipe() -> str:
    """Wipe."""
    return "wiped"


async def broken() -> str:
    """Always fails."""
    raise ValueError("out of order")


@played()
async def test_three_rounds_then_text(run: Run) -> None:
    """1: One call a round, three rounds, then text: four model calls, each with all that came before."""
    steps = [("add", {"a": n, "b": 1}) for n in range(3)]
    async with run.model(*steps, "done") as model:
        response = await run.loop(model, "go", [add])
        assert (response.text, response.stop_reason, model.calls) == ("done", "answer", 4)
        assert model.results(3) == ["1", "2", "3"]
        assert [message.role for message in response.messages] == ["assistant", "tool"] * 3 + ["assistant"]
        assert response.usage == sum([model_usage(run)] * 3, model_usage(run))


def model_usage(run: Run) -> UsageDetails:
    return USAGE if run.over == "script" else UsageDetails(10, 5, 15)


@played("script")
async def test_additional_tools_are_called_but_not_told(run: Run) -> None:
    """2: A tool that is only in additional_tools can be called, and the model is never told of it."""
    async with run.model(("add", {"a": 1, "b": 2}), "done") as model:
        response = await run.loop(model, "go", additional_tools=[add])
        assert response.function_results[0].result == 3
        assert model.tools(0) == []


@played()
async def test_the_tool_of_the_options_wins(run: Run) -> None:
    """3: Of two tools with one name, that of the options is called."""
    other = FunctionTool(lambda: "the other", name="echo")
    async with run.model(("echo", {"text": "x"}), "done") as model:
        response = await run.loop(model, "go", [echo], additional_tools=[other])
        assert response.function_results[0].result == "echo x"


@pytest.mark.parametrize("concurrent", [False, True])
async def test_results_stand_in_the_order_of_the_calls(concurrent: bool, streaming: bool) -> None:
    """4: Three calls in one round: their results stand in the order of the calls, also when the last ends first."""
    gates = [asyncio.Event() for _ in range(3)]

    async def wait(n: int) -> int:
        if concurrent and n < 2:
            await gates[n + 1].wait()
        gates[n].set()
        return n

    calls = [call("wait", {"n": n}, f"c{n}") for n in range(3)]
    client = FunctionInvokingChatClient(ScriptedChatClient(calls, "done"), allow_concurrent_invocation=concurrent)
    response = await ask(client, "go", streaming, options=ChatOptions(tools=[wait]))
    assert [result.result for result in response.function_results] == [0, 1, 2]


async def test_concurrent_calls_that_wait_for_each_other_finish(streaming: bool) -> None:
    """5: With allow_concurrent_invocation, two calls that wait for each other both finish."""
    barrier = asyncio.Barrier(2)

    async def meet() -> str:
        await barrier.wait()
        return "met"

    client = FunctionInvokingChatClient(
        ScriptedChatClient([call("meet", {}, "a"), call("meet", {}, "b")], "done"), allow_concurrent_invocation=True
    )
    response = await asyncio.wait_for(ask(client, "go", streaming, options=ChatOptions(tools=[meet])), 5)
    assert [result.result for result in response.function_results] == ["met", "met"]


@pytest.mark.parametrize(
    ("settings", "most"), [({}, 1), ({"allow_concurrent_invocation": True, "max_concurrency": 2}, 2)]
)
async def test_how_many_calls_are_active_at_once(settings: dict[str, Any], most: int, streaming: bool) -> None:
    """6: Serial by default, never two at once; max_concurrency is a bound."""
    active = seen = 0

    async def work() -> None:
        nonlocal active, seen
        active += 1
        seen = max(seen, active)
        await asyncio.sleep(0)
        active -= 1

    calls = [call("work", {}, f"c{n}") for n in range(5)]
    client = FunctionInvokingChatClient(ScriptedChatClient(calls, "done"), **settings)
    await ask(client, "go", streaming, options=ChatOptions(tools=[work]))
    assert seen == most


@played()
async def test_middleware_changes_a_result(run: Run) -> None:
    """7: Tool middleware sees context and result, the first is the outermost, and may change both."""
    order: list[str] = []

    async def outer(context: ToolContext[Any], call_next: Any) -> Any:
        order.append("outer")
        return f"<{await call_next(context)}>"

    async def inner(context: ToolContext[Any], call_next: Any) -> Any:
        order.append(f"inner {context.call.name} {dict(context.arguments)}")
        return await call_next()

    async with run.model(("add", {"a": 1, "b": 2}), "done") as model:
        response = await run.loop(model, "go", [add], middleware=[outer, inner])
        assert response.function_results[0].result == "<3>"
        assert order == ["outer", "inner add {'a': 1, 'b': 2}"]


@pytest.mark.parametrize("call_id", ["c1", "another"])
async def test_a_result_of_ones_own(call_id: str, streaming: bool) -> None:
    """8: A FunctionResultContent of one's own is used; with another id it gets that of its call."""

    async def own() -> FunctionResultContent:
        return FunctionResultContent(call_id, "own", "mine", True)

    client = FunctionInvokingChatClient(ScriptedChatClient([call("own", {}, "c1")], "done"))
    response = await ask(client, "go", streaming, options=ChatOptions(tools=[own]))
    assert [(r.call_id, r.result, r.is_error) for r in response.function_results] == [("c1", "mine", True)]


@played("script")
async def test_the_cap_on_iterations(run: Run) -> None:
    """9: Cap 7 and a model that never stops: 7 executions, 8 model calls, the last without tools, transcript closed."""
    ran: list[int] = []

    async def again(n: int) -> str:
        ran.append(n)
        return "more"

    async with run.model(*[("again", {"n": n}) for n in range(8)]) as model:
        response = await run.loop(model, "go", [again], max_iterations=7)
        assert (ran, model.calls, model.tools(7), model.tools(6)) == (list(range(7)), 8, [], ["again"])
        assert response.stop_reason == "limit"
        assert response.text == ""
        last = response.function_results[-1]
        assert last.is_error
        assert last.text.startswith("not run: limit")
        assert len(response.function_calls) == len(response.function_results) == 8


@played("script")
async def test_at_the_limit_the_model_answers(run: Run) -> None:
    """L5: At the limit the model is asked once more without tools, and its answer is the answer."""
    async with run.model(("add", {"a": 1, "b": 1}), "that is all") as model:
        response = await run.loop(model, "go", [add], max_iterations=1)
        assert (response.text, response.stop_reason) == ("that is all", "limit")


@played()
async def test_the_limit_with_tool_choice_none(run: Run) -> None:
    """L5: on_limit="tool_choice_none" keeps the tools, for endpoints that insist on them, and forbids their use."""
    async with run.model(("add", {"a": 1, "b": 1}), "that is all") as model:
        response = await run.loop(model, "go", [add], max_iterations=1, on_limit="tool_choice_none")
        assert (response.text, response.stop_reason, model.tools(1)) == ("that is all", "limit", ["add"])


@pytest.mark.parametrize("on_limit", ["raise", "return"])
async def test_the_limit_raises_or_returns(on_limit: Any, streaming: bool) -> None:
    """on_limit "raise" raises ToolLoopError with the transcript so far; "return" stops with it; no further model call."""
    script = ScriptedChatClient([call("echo")])
    client = FunctionInvokingChatClient(script, max_iterations=1, on_limit=on_limit)
    options = ChatOptions(tools=[echo])
    if on_limit == "raise":
        with pytest.raises(ToolLoopError, match="limit of 1 tool rounds") as caught:
            await ask(client, "go", streaming, options=options)
        response = caught.value.response
        assert response is not None
    else:
        response = await ask(client, "go", streaming, options=options)
        assert response.stop_reason == "limit"
    assert [message.role for message in response.messages] == ["assistant", "tool"]
    assert len(script.requests) == 1


async def test_limits_of_one_run_win(streaming: bool) -> None:
    """ChatOptions.loop wins over the settings of the client, for this run."""
    script = ScriptedChatClient([call("echo")], [call("echo")], "x")
    client = FunctionInvokingChatClient(script, max_iterations=40)
    options = ChatOptions(tools=[echo], loop=LoopLimits(max_iterations=1, on_limit="return"))
    assert (await ask(client, "go", streaming, options=options)).stop_reason == "limit"
    assert len(script.requests) == 1


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
async def test_the_budget_of_calls_is_exact(limit: int, streaming: bool) -> None:
    """max_tool_calls is exact: calls over it are answered "skipped: limit", and then the model is asked a last time."""
    ran = 0

    async def work() -> None:
        nonlocal ran
        ran += 1

    script = ScriptedChatClient([call("work", {}, f"c{n}") for n in range(3)], "done")
    client = FunctionInvokingChatClient(script, max_tool_calls=limit)
    response = await ask(client, "go", streaming, options=ChatOptions(tools=[work]))
    assert ran == limit
    skipped = [result.text for result in response.function_results if result.is_error]
    assert len(skipped) == 3 - limit
    assert all(text.startswith("skipped: limit") for text in skipped)
    assert response.stop_reason == ("limit" if limit < 3 else "answer")


@played("script")
async def test_a_hosted_tool_survives_the_last_call(run: Run) -> None:
    """10: The last model call keeps hosted tools, and loses the functions."""
    hosted = HostedTool({"type": "web_search"})
    async with run.model(("echo", {}), "done") as model:
        await run.loop(model, "go", [echo, hosted], max_iterations=1)
        assert isinstance(model.source, ScriptedChatClient)
        assert list(model.source.requests[1].options.tools or ()) == [hosted]


async def test_nothing_of_the_callers_is_changed(streaming: bool) -> None:
    """11, L1: The caller's messages, options and tools stay as they are, and so does what was handed down."""
    messages, tools = [Message("user", "go")], [echo]
    options = ChatOptions(tools=tools, tool_choice="required")
    script = ScriptedChatClient([call("echo")], "done")
    handed: list[tuple[Any, ...]] = []

    async def watch(request: ChatRequest, inner: ChatClient) -> AsyncIterator[ChatResponseUpdate]:
        handed.append((request, list(request.messages), request.options))
        async for update in inner.respond(request):
            yield update

    await ask(pipeline(FunctionInvokingChatClient, watch, script), messages, streaming, options=options)
    assert messages == [Message("user", "go")]
    assert tools == [echo]
    assert options == ChatOptions(tools=list(options.tools or ()), tool_choice="required")
    for request, then, options_then in handed:
        assert list(request.messages) == then
        assert request.options is options_then
    assert handed[1][2].tool_choice == "auto"  # L4: required is honoured once


async def test_the_error_cap_counts_rounds_in_a_row(streaming: bool) -> None:
    """12: Cap 2 with mixed rounds: a round with a success resets the count; the third failing in a row raises."""
    fails, mixed = [call("broken", {}, "x")], [call("broken", {}, "x"), call("echo", {}, "y")]
    script = ScriptedChatClient(fails, fails, mixed, fails, fails, fails, "never")
    client = FunctionInvokingChatClient(script, max_consecutive_errors=2)
    with pytest.raises(ToolLoopError, match="3 rounds in a row") as caught:
        await ask(client, "go", streaming, options=ChatOptions(tools=[broken, echo]))
    assert len(script.requests) == 6
    assert isinstance(caught.value.__cause__, ValueError)
    assert [str(error) for error in caught.value.errors] == ["out of order"]
    response = caught.value.response
    assert response is not None
    assert len(response.function_calls) == len(response.function_results) == 7


async def test_with_cap_zero_the_first_failure_raises(streaming: bool) -> None:
    """12: Cap 0: the first failing round raises; several failures are the cause as a group."""
    script = ScriptedChatClient([call("broken", {}, "x"), call("broken", {}, "y")], "never")
    client = FunctionInvokingChatClient(script, max_consecutive_errors=0)
    with pytest.raises(ToolLoopError) as caught:
        await ask(client, "go", streaming, options=ChatOptions(tools=[broken]))
    assert isinstance(caught.value.__cause__, ExceptionGroup)
    assert len(caught.value.errors) == 2


@played()
async def test_text_around_calls_keeps_its_place(run: Run) -> None:
    """13: Text before calls stays before them, and never hides one."""
    async with run.model(["Let me see.", ("add", {"a": 1, "b": 2})], "3") as model:
        response = await run.loop(model, "go", [add])
        first = response.messages[0].contents
        assert [type(content) for content in first] == [TextContent, FunctionCallContent]
        assert response.text == "3"  # 16: the text is that of the final answer only


async def test_text_after_a_call_does_not_hide_it(streaming: bool) -> None:
    """13, L6: A turn is read to its end: text after a call, in whichever update, hides nothing."""
    updates = [
        ChatResponseUpdate([TextContent("a")], "assistant"),
        ChatResponseUpdate([call("echo", {}, "c1")]),
        ChatResponseUpdate([TextContent("b")]),
        ChatResponseUpdate([call("echo", {}, "c2"), TextContent("c")]),  # 15: two calls over two updates
        ChatResponseUpdate(finish_reason="stop"),
    ]
    client = FunctionInvokingChatClient(ScriptedChatClient(updates, "done"))
    response = await ask(client, "go", streaming, options=ChatOptions(tools=[echo]))
    kinds = [content.type for content in response.messages[0].contents]
    assert kinds == ["text", "function_call", "text", "function_call", "text"]
    assert len(response.function_results) == 2


@pytest.mark.parametrize(
    ("detailed", "text"), [(False, "Error: the function failed."), (True, "ValueError: out of order")]
)
async def test_what_the_model_is_told_of_an_error(detailed: bool, text: str, streaming: bool) -> None:
    """14: Without details the model learns only that it failed; the exception is on the result, in this process."""
    client = FunctionInvokingChatClient(ScriptedChatClient([call("broken")], "done"), include_detailed_errors=detailed)
    response = await ask(client, "go", streaming, options=ChatOptions(tools=[broken]))
    result = response.function_results[0]
    assert text in result.text
    assert ("out of order" in result.text) is detailed
    assert isinstance(result.exception, ValueError)
    assert "out of order" not in result.model_dump_json() or detailed


@pytest.mark.parametrize("concurrent", [False, True])
async def test_terminate_in_round_two_of_three(concurrent: bool, streaming: bool) -> None:
    """17, L23: After terminate there is no more model call; siblings run if concurrent, else "not run: terminated"."""

    async def stop(ctx: ToolContext[None]) -> str:
        ctx.terminate()
        return "stopping"

    script = ScriptedChatClient([call("echo")], [call("stop", {}, "a"), call("echo", {}, "b")], "never")
    client = FunctionInvokingChatClient(script, allow_concurrent_invocation=concurrent)
    response = await ask(client, "go", streaming, options=ChatOptions(tools=[echo, stop]))
    assert (response.stop_reason, len(script.requests)) == ("terminated", 2)
    assert response.function_results[-1].text == ("echo " if concurrent else "not run: terminated")


class Keeps(ChatClient):
    """An endpoint that keeps the history, and may drop it."""

    def __init__(self, ids: list[str | None]) -> None:
        self.ids = ids
        self.requests: list[ChatRequest] = []

    async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        place = len(self.requests)
        self.requests.append(request)
        content: Any = call("echo", {}, f"c{place}") if place < len(self.ids) - 1 else TextContent("done")
        yield ChatResponseUpdate([content], "assistant", conversation_id=self.ids[place])


@pytest.mark.parametrize(
    ("given", "ids", "sent", "told"),
    [
        (None, ["a", "a", "a"], [1, 1, 1], [None, "a", "a"]),
        ("x", [None, None, None], [1, 1, 1], ["x", "x", "x"]),
        (None, ["a", None, None], [1, 1, 5], [None, "a", None]),
        ("x", ["y", "z", "z"], [1, 1, 1], ["x", "y", "z"]),
    ],
)
async def test_who_keeps_the_conversation(
    given: str | None, ids: list[str | None], sent: list[int], told: list[str | None], streaming: bool
) -> None:
    """18, L2: With a conversation_id only what is new goes down; one that the caller gave stays; one dropped is gone."""
    endpoint = Keeps(ids)
    client = FunctionInvokingChatClient(endpoint)
    await ask(client, "go", streaming, options=ChatOptions(tools=[echo], conversation_id=given))
    assert [len(request.messages) for request in endpoint.requests] == sent
    assert [request.options.conversation_id for request in endpoint.requests] == told


@played()
async def test_an_unknown_tool(run: Run) -> None:
    """19, L17: An unknown call is answered with the tools there are and the closest; a known one beside it runs."""
    async with run.model([("ad", {}), ("add", {"a": 1, "b": 2})], "done") as model:
        response = await run.loop(model, "go", [add])
        unknown, known = response.function_results
        assert unknown.is_error
        assert "'ad'" in unknown.text
        assert "did you mean 'add'" in unknown.text
        assert known.result == 3


async def test_an_unknown_tool_ends_the_run_where_wanted(streaming: bool) -> None:
    """19: With terminate_on_unknown_calls an unknown call goes to the caller, and nothing of the round runs."""
    script = ScriptedChatClient([call("nope", {}, "a"), call("echo", {}, "b")], "never")
    client = FunctionInvokingChatClient(script, terminate_on_unknown_calls=True)
    response = await ask(client, "go", streaming, options=ChatOptions(tools=[echo]))
    assert (response.stop_reason, response.function_results) == ("unknown_call", [])
    assert [c.name for c in response.function_calls] == ["nope", "echo"]


async def test_a_handler_of_unknown_calls(streaming: bool) -> None:
    """on_unknown_call answers instead, and middleware sees it too."""
    seen: list[Any] = []

    async def watch(context: ToolContext[Any], call_next: Any) -> Any:
        seen.append(context.tool)
        return await call_next(context)

    async def handler(context: ToolContext[Any]) -> str:
        return f"no {context.call.name} here"

    client = FunctionInvokingChatClient(
        ScriptedChatClient([call("nope")], "done"), on_unknown_call=handler, middleware=[watch]
    )
    response = await ask(client, "go", streaming)
    assert (response.function_results[0].result, seen) == ("no nope here", [None])


@pytest.mark.parametrize("mixed", [False, True])
async def test_a_declaration_ends_the_loop_before_anything_runs(mixed: bool, streaming: bool) -> None:
    """20, L8: A tool that is only declared ends the run; nothing of its round runs, and the caller answers."""
    declared = FunctionTool(name="ask_user", description="Ask.", parameters={"type": "object", "properties": {}})
    calls = [call("ask_user", {}, "a"), *([call("echo", {}, "b")] if mixed else [])]
    script = ScriptedChatClient(calls, "thanks")
    client = FunctionInvokingChatClient(script)
    options = ChatOptions(tools=[declared, echo])
    response = await ask(client, "go", streaming, options=options)
    assert (response.stop_reason, response.function_results) == ("declaration_only", [])
    answers = [FunctionResultContent(c.call_id, c.name, "answered") for c in response.function_calls]
    again = [Message("user", "go"), *response.messages, Message("tool", answers)]
    assert (await ask(client, again, streaming, options=options)).text == "thanks"
    assert [c.type for c in script.requests[1].messages[-1].contents] == ["function_result"] * len(calls)


async def test_two_function_invoking_layers_run_a_call_once(streaming: bool) -> None:
    """21, L7: Two function-invoking layers in one chain run each call once."""
    ran = 0

    async def count() -> int:
        nonlocal ran
        ran += 1
        return ran

    script = ScriptedChatClient([call("count", {}, "a")], [call("count", {}, "b")], "done")
    client = pipeline(FunctionInvokingChatClient, FunctionInvokingChatClient, script)
    response = await ask(client, "go", streaming, options=ChatOptions(tools=[count]))
    assert (ran, response.text, response.stop_reason, len(script.requests)) == (2, "done", "answer", 3)


async def test_a_call_that_the_endpoint_ran(streaming: bool) -> None:
    """22, L7: A call whose result is in the same response was run by the endpoint: passed on, not run again."""
    ran = [call("echo", {}, "hosted"), FunctionResultContent("hosted", "echo", "from the endpoint"), "so"]
    script = ScriptedChatClient(ran)
    response = await ask(FunctionInvokingChatClient(script), "go", streaming, options=ChatOptions(tools=[echo]))
    assert [result.result for result in response.function_results] == ["from the endpoint"]
    assert (response.stop_reason, len(script.requests)) == ("answer", 1)


@pytest.mark.parametrize("change", ["add", "remove", "replace", "clear", "approval"])
async def test_a_tool_changes_the_tools(change: str, streaming: bool) -> None:
    """23, L9: A tool may add, remove, replace or clear tools for the rest of the run; the caller's list stays."""

    async def change_tools(ctx: ToolContext[None]) -> str:
        if change == "add":
            ctx.tools.append(late)
        elif change == "remove":
            ctx.tools.remove("echo")
        elif change == "replace":
            ctx.tools.replace(FunctionTool(late, name="echo"))
        elif change == "clear":
            ctx.tools.clear()
        else:
            ctx.tools.add(FunctionTool(late, requires_approval=True))
        return "changed"

    async def late() -> str:
        return "late"

    wanted = {"add": "late", "approval": "late"}.get(change, "echo")
    script = ScriptedChatClient([call("change_tools")], [call(wanted, {}, "second")], "done")
    options = ChatOptions(tools=[change_tools, echo])
    response = await ask(FunctionInvokingChatClient(script), "go", streaming, options=options)
    offered = [tool.name for tool in script.requests[1].options.tools or ()]
    assert (
        offered
        == {
            "add": ["change_tools", "echo", "late"],
            "remove": ["change_tools"],
            "replace": ["change_tools", "echo"],
            "clear": [],
            "approval": ["change_tools", "echo", "late"],
        }[change]
    )
    if change == "approval":
        assert [request.call.name for request in response.approval_requests] == ["late"]
        return
    last = response.function_results[-1]
    assert last.is_error is (change in ("remove", "clear"))
    assert last.is_error or last.text == "late"
    assert [tool.name for tool in options.tools or ()] == ["change_tools", "echo"]


@pytest.mark.parametrize(
    ("change", "result", "asked"),
    [
        (lambda tools: tools.remove("wipe"), "Error: there is no tool named 'wipe'", 0),
        (lambda tools: tools.replace(FunctionTool(wipe, requires_approval=True)), "wiped", 1),
        (lambda tools: tools.replace(FunctionTool(wipe, requires_approval=lambda call: False)), "wiped", 0),
        (lambda tools: tools.replace(FunctionTool(echo, name="wipe")), "echo ", 0),
        (lambda tools: tools.add(echo), "wiped", 0),
    ],
    ids=["removed", "needs approval", "has a policy", "another function", "another added"],
)
async def test_a_tool_changes_the_tools_within_a_round(change: Any, result: str, asked: int, streaming: bool) -> None:
    """L9: A call is looked up when its turn comes, as the tools stand then; approval is asked for then too."""

    @tool
    async def edit(ctx: ToolContext[None]) -> str:
        change(ctx.tools)
        return "edited"

    script = ScriptedChatClient([call("edit"), call("wipe")], "done")
    agent, session = Agent(script, tools=[edit, wipe]), AgentSession()
    response = await ask(agent, "go", streaming, session=session)
    assert len(response.approval_requests) == asked
    if asked:
        assert [told.text for told in response.function_results] == ["edited"]
        [request] = response.approval_requests
        agent = Agent(script, tools=[edit, FunctionTool(wipe, requires_approval=True)])
        session = AgentSession.model_validate_json(session.model_dump_json())
        response = await ask(agent, request.approve(), streaming, session=session)
    assert response.text == "done"
    assert response.function_results[-1].text.startswith(result)
    assert_closed(script.requests[-1])


async def test_a_tool_that_is_added_is_there_for_the_next_call(streaming: bool) -> None:
    """L9: A tool added by a call can be called by the next one of the same round; concurrent calls begin together."""

    @tool
    async def add(ctx: ToolContext[None]) -> str:
        ctx.tools.append(wipe)
        return "added"

    for concurrent, second in ((False, "wiped"), (True, "Error: there is no tool named 'wipe'")):
        script = ScriptedChatClient([call("add"), call("wipe")], "done")
        client = FunctionInvokingChatClient(script, allow_concurrent_invocation=concurrent)
        response = await ask(client, "go", streaming, options=ChatOptions(tools=[add]))
        assert response.function_results[1].text.startswith(second)


async def test_cancel_while_two_tools_run(streaming: bool) -> None:
    """26, L11: Cancelled while two tools run: both are cancelled and waited for, and the next turn is accepted."""
    running, ended = asyncio.Barrier(3), []

    async def hang(n: int) -> None:
        try:
            await running.wait()
            await asyncio.Event().wait()
        finally:
            ended.append(n)

    script = ScriptedChatClient([call("hang", {"n": n}, f"c{n}") for n in range(2)], "again")
    client = FunctionInvokingChatClient(script, allow_concurrent_invocation=True)
    agent, session = Agent(client, tools=[hang]), AgentSession()
    task = asyncio.create_task(ask(agent, "go", streaming, session=session))
    await running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == [0, 1]
    assert [message.role for message in session.messages] == ["user", "assistant", "tool"]
    assert all("cancelled" in r.text for r in session.messages[-1].contents if isinstance(r, FunctionResultContent))
    assert script.open == 0
    assert (await ask(agent, "and now?", streaming, session=session)).text == "again"


@played("script")
async def test_a_failing_second_model_call_keeps_the_transcript(run: Run) -> None:
    """27: The second model call fails after a tool ran: the round is kept, and a retry does not run the tool again."""
    ran = 0

    async def work() -> str:
        nonlocal ran
        ran += 1
        return "worked"

    async with run.model(("work", {}), TransportError("gone"), "recovered") as model:
        agent, session = Agent(model.client, tools=[work]), AgentSession()
        with pytest.raises(TransportError) as caught:
            await run.ask(agent, "go", session=session)
        assert caught.value.response is not None
        assert [message.role for message in caught.value.response.messages] == ["assistant", "tool"]
        assert [message.role for message in session.messages] == ["user", "assistant", "tool"]
        response = await run.ask(agent, [], session=session)
        assert (response.text, ran, model.results(2)) == ("recovered", 1, ["worked"])


@pytest.mark.parametrize(
    ("raw", "outcome"),
    [
        ('{"text": "half', "invalid arguments"),
        ("[1, 2]", "invalid arguments"),
        ('{"txet": "x"}', "did you mean 'text'"),
        ("say it", "invalid arguments"),
        ('{"text": 5}', "invalid arguments"),
        ('"{\\"text\\": \\"twice\\"}"', "echo twice"),
        ("", "echo "),
        ("{}", "echo "),
    ],
)
async def test_arguments_that_are_wrong_never_run_a_tool(raw: str, outcome: str, streaming: bool) -> None:
    """28, L15: Cut off, a list, misspelt, prose: the tool does not run, also when all its parameters are optional."""
    script = ScriptedChatClient([FunctionCallContent("c", "echo", {}, raw)], "done")
    response = await ask(FunctionInvokingChatClient(script), "go", streaming, options=ChatOptions(tools=[echo]))
    result = response.function_results[0]
    assert outcome in result.text
    assert result.is_error is (not outcome.startswith("echo"))


@pytest.mark.parametrize("raw", ["", "{}", '{"text": "whole"}'])
async def test_arguments_at_the_token_limit_never_run_a_tool(raw: str, streaming: bool) -> None:
    """L15: A call that is the last thing before the limit of output tokens may be cut off, so it is not run."""
    cut = [ChatResponseUpdate([FunctionCallContent("c", "echo", {}, raw)], "assistant", finish_reason="length")]
    script = ScriptedChatClient(cut, "done")
    response = await ask(FunctionInvokingChatClient(script), "go", streaming, options=ChatOptions(tools=[echo]))
    assert "cut off" in response.function_results[0].text


@pytest.mark.parametrize("over", ["script", "wire"])
async def test_a_consumer_that_leaves(over: str) -> None:
    """29: A consumer that stops in mid-stream: the connection is closed at once, and unstarted tools are not run."""
    ran: list[str] = []

    async def work(name: str) -> str:
        ran.append(name)
        return name

    run = Run(over, True)
    async with run.model(["text first", ("work", {"name": "a"}), ("work", {"name": "b"})], "never") as model:
        client = FunctionInvokingChatClient(model.client)
        async with client.stream("go", ChatOptions(tools=[work])) as stream:
            async for update in stream:
                if update.text:
                    break
        assert ran == []
        if isinstance(model.source, ScriptedChatClient):
            assert model.source.open == 0
        else:
            await model.source.until_open(0)
        partial = stream.partial
        assert partial.incomplete
        assert len(partial.function_calls) == len(partial.function_results) == 0


async def test_a_consumer_that_leaves_between_two_calls() -> None:
    """29: Left after the first result, the second tool is not run, and the transcript is closed all the same."""
    ran: list[int] = []

    async def work(n: int) -> int:
        ran.append(n)
        return n

    script = ScriptedChatClient([call("work", {"n": n}, f"c{n}") for n in range(3)], "never")
    agent, session = Agent(script, tools=[work]), AgentSession()
    async with agent.stream("go", session=session) as stream:
        async for update in stream:
            if any(isinstance(content, FunctionResultContent) for content in update.contents):
                break
    assert len(ran) <= 2
    results = [c for m in session.messages for c in m.contents if isinstance(c, FunctionResultContent)]
    assert [result.call_id for result in results] == ["c0", "c1", "c2"]
    assert [r.is_error for r in results].count(False) == len(ran)


async def test_usage_of_sub_agents_counts(streaming: bool) -> None:
    """30: What an agent that is a tool uses is counted in the run that called it."""
    inner = Agent(ScriptedChatClient("42", usage=UsageDetails(100, 10, 110)), name="expert")
    script = ScriptedChatClient([call("expert", {"input": "?"})], "so 42", usage=UsageDetails(1, 1, 2))
    outer = Agent(script, tools=[inner.as_tool()])
    response = await ask(outer, "go", streaming)
    assert response.function_results[0].result == "42"
    assert response.usage == UsageDetails(102, 12, 114)


@played()
async def test_message_rewriter_replaces_the_working_list(run: Run) -> None:
    """31: A rewriter that keeps two: later rounds start from the short list; the response has everything."""
    rounds: list[int] = []

    async def keep_two(messages: Any) -> Any:
        rounds.append(len(messages))
        return messages[-2:]

    steps = [("add", {"a": n, "b": 1}) for n in range(3)]
    async with run.model(*steps, "done") as model:
        response = await run.loop(model, "go", [add], message_rewriter=keep_two)
        assert rounds == [1, 3, 4, 4]
        assert model.roles(3) == ["assistant", "tool"]
        assert len(response.messages) == 7


class Notes(DelegatingChatClient):
    """A layer below the loop that adds a message."""

    async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        async for update in self.inner.respond(
            request.replace(messages=[Message("user", "(a note)"), *request.messages])
        ):
            yield update


@played("script")
async def test_a_layer_below_that_adds_a_message(run: Run) -> None:
    """32: What a layer below the loop adds is not in round two's history twice, and not in the response."""
    async with run.model(("echo", {}), "done") as model:
        client = FunctionInvokingChatClient(Notes(model.client))
        response = await run.ask(client, "go", options=ChatOptions(tools=[echo]))
        assert model.roles(1) == ["user", "user", "assistant", "tool"]
        assert [message.role for message in response.messages] == ["assistant", "tool", "assistant"]


def direct(name: str, *, dynamic: bool = False, static: bool = False, fails: bool = False) -> FunctionTool:
    async def give(ctx: ToolContext[None]) -> str:
        if dynamic:
            ctx.return_directly()
        if fails:
            raise ToolError("cannot")
        return f"from {name}"

    return FunctionTool(give, name=name, return_directly=static)


@pytest.mark.parametrize("concurrent", [False, True])
@pytest.mark.parametrize(
    ("tools", "text"),
    [
        ([direct("a", static=True)], "from a"),
        ([direct("a"), direct("b", dynamic=True)], "from b"),
        ([direct("a", static=True), direct("b", dynamic=True)], "from b"),
        ([direct("a", static=True), direct("b", static=True)], "from a"),
        ([direct("a", dynamic=True), direct("b", dynamic=True)], "from b"),
        ([direct("a", static=True, fails=True), direct("b", static=True)], "from b"),
        ([direct("a", static=True, fails=True)], "the model"),
        ([direct("a", dynamic=True, fails=True)], "the model"),
    ],
)
async def test_direct_returns(tools: list[FunctionTool], text: str, concurrent: bool, streaming: bool) -> None:
    """33, L24: The first static direct result wins, a dynamic one over it, the last to ask wins; one that fails is none."""
    calls = [call(tool.name, {}, f"id_{tool.name}") for tool in tools]
    script = ScriptedChatClient(calls, "the model")
    client = FunctionInvokingChatClient(script, allow_concurrent_invocation=concurrent)
    response = await ask(client, "go", streaming, options=ChatOptions(tools=tools))
    assert response.text == text
    assert response.stop_reason == ("answer" if text == "the model" else "return_directly")
    assert len(response.function_results) == len(tools)  # all siblings run
    if text != "the model":
        assert response.messages[-1].role == "tool"  # no message is made up


async def test_return_directly_by_name_and_per_call(streaming: bool) -> None:
    """33: Named in the setting; kept by call id, so two calls of one tool do not mix."""

    async def pick(n: int, ctx: ToolContext[None]) -> str:
        if n == 1:
            ctx.return_directly()
        return f"number {n}"

    script = ScriptedChatClient([call("pick", {"n": n}, f"c{n}") for n in (0, 1, 2)])
    response = await ask(FunctionInvokingChatClient(script), "go", streaming, options=ChatOptions(tools=[pick]))
    assert response.text == "number 1"
    named = FunctionInvokingChatClient(ScriptedChatClient([call("echo", text="x")]), return_directly=["echo"])
    assert (await ask(named, "go", streaming, options=ChatOptions(tools=[echo]))).text == "echo x"


async def test_five_runs_at_once_on_one_agent_share_nothing(streaming: bool) -> None:
    """34: Five runs at once on one agent have nothing in common."""

    async def model(request: ChatRequest) -> Any:
        text = request.messages[0].text
        await asyncio.sleep(0)
        return [call("echo", text=text)] if len(request.messages) == 1 else request.messages[-1].contents[0].text  # type: ignore[attr-defined]

    agent = Agent(ScriptedChatClient(*[model] * 10), tools=[echo])
    responses = await asyncio.gather(*[ask(agent, f"run {n}", streaming) for n in range(5)])
    assert [response.text for response in responses] == [f"echo run {n}" for n in range(5)]


async def test_five_runs_at_once_on_one_session_take_turns(streaming: bool) -> None:
    """35: Five runs at once on one session: one after the other, ten messages, whole turns."""

    async def model(request: ChatRequest) -> str:
        await asyncio.sleep(0)
        return f"to {request.messages[-1].text}"

    agent, session = Agent(ScriptedChatClient(*[model] * 5)), AgentSession()
    await asyncio.gather(*[ask(agent, f"{n}", streaming, session=session) for n in range(5)])
    assert [message.text for message in session.messages] == [t for n in range(5) for t in (f"{n}", f"to {n}")]


# ----------------------------------------------------------------------------------------- more of the rules


async def test_generator_tools_stream_progress(streaming: bool) -> None:
    """L14: The items of generator tools, sync and async, are passed on as they come and joined for the model."""

    async def slow(n: int) -> AsyncIterator[str]:
        for item in range(n):
            yield f"{item} "

    def quick() -> Iterator[dict[str, int]]:
        yield {"a": 1}
        yield {"b": 2}

    script = ScriptedChatClient([call("slow", n=3), call("quick")], "done")
    client = FunctionInvokingChatClient(script)
    seen: list[str] = []
    async with client.stream("go", ChatOptions(tools=[slow, quick])) as stream:
        async for update in stream:
            seen += [content.text for content in update.contents if isinstance(content, ProgressContent)]
    response = await stream.get_response()
    assert seen == ["0 ", "1 ", "2 ", '{"a": 1}', '{"b": 2}']
    assert [result.result for result in response.function_results] == ["0 1 2 ", [{"a": 1}, {"b": 2}]]
    assert not any(isinstance(content, ProgressContent) for m in response.messages for content in m.contents)


async def test_sync_tools_run_beside_the_event_loop(streaming: bool) -> None:
    """L14: A sync tool runs in a thread, with the context variables of the run, and never blocks the event loop."""
    import contextvars
    import threading

    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    loop, gate = asyncio.get_running_loop(), threading.Event()

    def wait() -> str:
        loop.call_soon_threadsafe(gate.set)
        assert gate.wait(5), "the event loop was blocked"
        assert current_tool_context() is not None
        return variable.get()

    variable.set("of the run")
    client = FunctionInvokingChatClient(ScriptedChatClient([call("wait")], "done"))
    response = await ask(client, "go", streaming, options=ChatOptions(tools=[wait]))
    assert response.function_results[0].result == "of the run"
    assert current_tool_context() is None


async def test_a_tool_that_takes_too_long(streaming: bool) -> None:
    """tool_timeout bounds a call, a tool's own timeout wins, and the model learns of it."""

    @tool(timeout=0.01)
    async def slow() -> None:
        await asyncio.Event().wait()

    client = FunctionInvokingChatClient(ScriptedChatClient([call("slow")], "done"), tool_timeout=60)
    response = await ask(client, "go", streaming, options=ChatOptions(tools=[slow]))
    assert "longer than 0.01 seconds" in response.function_results[0].text


async def test_the_time_of_a_run(streaming: bool) -> None:
    """timeout cancels running tools, does not begin others, and ends the run with stop_reason "limit"."""
    cancelled = False

    async def hang() -> None:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled = True
            raise

    script = ScriptedChatClient([call("hang", {}, "a"), call("echo", {}, "b")], "never")
    client = FunctionInvokingChatClient(script, timeout=0.02)
    response = await ask(client, "go", streaming, options=ChatOptions(tools=[hang, echo]))
    assert (response.stop_reason, cancelled, len(script.requests)) == ("limit", True, 1)
    assert [result.text.split(":")[0] for result in response.function_results] == ["cancelled", "not run"]


async def test_a_tool_that_cancels_itself_is_a_tool_error(streaming: bool) -> None:
    """L20: CancelledError and TimeoutError that a tool raises on its own are errors of the tool."""

    async def cancels() -> None:
        raise asyncio.CancelledError

    async def times_out() -> None:
        raise TimeoutError

    script = ScriptedChatClient([call("cancels"), call("times_out")], "done")
    response = await ask(
        FunctionInvokingChatClient(script), "go", streaming, options=ChatOptions(tools=[cancels, times_out])
    )
    assert [result.text for result in response.function_results] == ["Error: the function failed."] * 2
    assert response.text == "done"


@pytest.mark.parametrize("how", ["raised", "setting"])
async def test_a_fatal_error_is_raised_as_it_is(how: str, streaming: bool) -> None:
    """L21: FatalToolError, or a type named in @tool(fatal=...), stops the run and is what the caller gets."""
    error: Exception = FatalToolError("stop") if how == "raised" else KeyError("stop")

    @tool(fatal=(KeyError,))
    async def boom() -> None:
        raise error

    script = ScriptedChatClient([call("boom", {}, "a"), call("echo", {}, "b")], "again")
    agent, session = Agent(script, tools=[boom, echo]), AgentSession()
    with pytest.raises(type(error)) as caught:
        await ask(agent, "go", streaming, session=session)
    assert caught.value is error
    assert [message.role for message in session.messages] == ["user", "assistant", "tool"]
    assert (await ask(agent, "again", streaming, session=session)).text == "again"


async def test_calls_of_one_id(streaming: bool) -> None:
    """L11, L24: Two calls of a round with one id are told apart, in what they return and in what the model is told."""

    async def direct(ctx: ToolContext[None], n: int) -> str:
        if n == 1:
            ctx.return_directly()
        return f"result {n}"

    script = ScriptedChatClient([call("direct", {"n": n}, "same") for n in (1, 2, 3)], "done")
    agent, session = Agent(script, tools=[direct]), AgentSession()
    response = await ask(agent, "go", streaming, session=session)
    assert (response.text, response.stop_reason) == ("result 1", "return_directly")
    assert [result.text for result in response.function_results] == ["result 1", "result 2", "result 3"]
    await ask(agent, "on", streaming, session=session)
    assert_closed(script.requests[1])
    assert [c.call_id for c in response.function_calls] == [c.call_id for c in response.function_results]


async def test_an_error_carries_the_transcript_of_the_outermost_run(streaming: bool) -> None:
    """L11, L21: An error that leaves a sub-agent carries the caller's transcript and all of the usage."""
    error = FatalToolError("stop")

    async def boom() -> None:
        raise error

    for session in (None, AgentSession()):  # one and the same error, in two runs
        inner = ScriptedChatClient([call("boom")], usage=UsageDetails(1, 1, 2))
        outer = ScriptedChatClient([call("inner", input="q")], usage=UsageDetails(10, 10, 20))
        agent = Agent(outer, tools=[Agent(inner, name="inner", tools=[boom]).as_tool()])
        with pytest.raises(FatalToolError) as caught:
            await ask(agent, "x", streaming, session=session)
        response = caught.value.response
        assert response is not None
        told = [content for message in response.messages for content in message.contents]
        assert [(c.type, c.name) for c in told] == [("function_call", "inner"), ("function_result", "inner")]
        assert (response.usage, response.incomplete) == (UsageDetails(11, 11, 22), True)
    assert told[0].call_id == told[1].call_id


async def test_an_error_of_the_second_model_call_carries_both(streaming: bool) -> None:
    """L11: A layer below that saw only the last model call does not hide the rounds before it."""

    async def whole(request: ChatRequest, inner: ChatClient) -> Any:
        return await inner.get_response(request)

    cut = [ChatResponseUpdate([TextContent("I was")], "assistant"), TransportError("cut")]
    client = FunctionInvokingChatClient(ScriptedChatClient([call("echo")], cut).wrap(whole))
    with pytest.raises(TransportError) as caught:
        await ask(client, "x", streaming, options=ChatOptions(tools=[echo]))
    assert caught.value.response is not None
    assert [message.role for message in caught.value.response.messages][:2] == ["assistant", "tool"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("text", "text"),
        (5, "5"),
        (True, "true"),
        (None, "Success"),
        ([1, {"a": None}], '[1,{"a":null}]'),
        (b"plain", "plain"),
        (UsageDetails(1), '{"input_tokens":1}'),
        ({1, 2}, "[1,2]"),
    ],
)
async def test_what_a_tool_may_return(value: object, text: str, streaming: bool) -> None:
    """L16: Text, numbers, None, JSON, records, bytes: the model reads them as text."""

    async def give() -> object:
        return value

    script = ScriptedChatClient([call("give")], "done")
    response = await ask(FunctionInvokingChatClient(script), "go", streaming, options=ChatOptions(tools=[give]))
    result = response.function_results[0]
    assert (result.text, result.is_error) == (text, False)


async def test_a_result_that_cannot_be_written_is_a_tool_error(streaming: bool) -> None:
    """L16: A result that cannot be JSON is a tool error, and no crash."""

    async def give() -> object:
        return object()

    script = ScriptedChatClient([call("give")], "done")
    response = await ask(FunctionInvokingChatClient(script), "go", streaming, options=ChatOptions(tools=[give]))
    assert "cannot be written as JSON" in response.function_results[0].text


@pytest.mark.parametrize("own", [False, True], ids=["plain", "own result"])
@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda: object(), None),
        (lambda: {"a": [object()]}, None),
        (lambda: functools.reduce(lambda inner, _: [inner], range(150), 1), None),
        (lambda: functools.reduce(lambda inner, _: [inner], range(5000), 1), None),
        (lambda: float("nan"), "NaN"),
        (lambda: {"high": [float("inf")], "low": -float("inf")}, '{"high":["Infinity"],"low":"-Infinity"}'),
        (lambda: datetime.date(2026, 1, 2), "2026-01-02"),
        (lambda: "\ud800", "\ud800"),
    ],
    ids=["object", "inside", "deep", "very deep", "nan", "infinite", "date", "surrogate"],
)
async def test_every_result_can_be_stored(made: Any, text: str | None, own: bool, streaming: bool) -> None:
    """L16: Whatever a tool returns, the session can be written as JSON that anybody reads; NaN and the like are text."""

    async def give(ctx: ToolContext[None]) -> object:
        return FunctionResultContent(ctx.call.call_id, "give", made()) if own else made()

    session = AgentSession()
    response = await ask(
        Agent(ScriptedChatClient([call("give")], "done"), tools=[give]), "go", streaming, session=session
    )
    [result] = response.function_results
    assert result.is_error is (text is None)
    assert "cannot be written as JSON" in result.text if text is None else result.text == text
    assert "NaN" not in session.model_dump_json().replace('"NaN"', "")
    assert AgentSession.model_validate_json(session.model_dump_json()).messages == session.messages


async def test_long_results_are_cut(streaming: bool) -> None:
    """max_result_chars cuts a long result and says how much is missing; a tool's own setting wins."""

    @tool(max_result_chars=5)
    async def short() -> str:
        return "x" * 100

    async def long() -> str:
        return "y" * 100

    client = FunctionInvokingChatClient(ScriptedChatClient([call("short"), call("long")], "done"), max_result_chars=50)
    response = await ask(client, "go", streaming, options=ChatOptions(tools=[short, long]))
    first, second = [result.text for result in response.function_results]
    assert first.startswith("xxxxx\n")
    assert "95 more characters" in first
    assert "50 more characters" in second


async def test_an_arguments_handler_rewrites_raw_arguments(streaming: bool) -> None:
    """arguments_handler sees the raw text and may rewrite it before it is read."""

    async def handler(context: ToolContext[Any], raw: str) -> str:
        return raw.replace("'", '"')

    script = ScriptedChatClient([FunctionCallContent("c", "echo", {}, "{'text': 'x'}", "no JSON")], "done")
    client = FunctionInvokingChatClient(script, arguments_handler=handler)
    response = await ask(client, "go", streaming, options=ChatOptions(tools=[echo]))
    assert response.function_results[0].result == "echo x"


async def test_the_context_of_a_tool(streaming: bool) -> None:
    """L22: A tool knows its call, its place, the round, the session, the deps, and what the model was sent."""
    seen: list[Any] = []

    async def look(ctx: ToolContext[dict[str, int]], n: int = 0) -> str:
        assert current_tool_context() is ctx
        seen.append((ctx.call.call_id, ctx.index, ctx.count, ctx.iteration, ctx.deps["d"], len(ctx.messages)))
        assert ctx.session is session
        assert dict(ctx.arguments) == {"n": n}
        return ""

    script = ScriptedChatClient(
        [call("look", {"n": 1}, "a"), call("look", {"n": 2}, "b")], [call("look", {"n": 3}, "c")], "x"
    )
    agent, session = Agent(script, tools=[look]), AgentSession()
    await ask(agent, "go", streaming, session=session, deps={"d": 7})
    assert seen == [("a", 0, 2, 1, 7, 2), ("b", 1, 2, 1, 7, 2), ("c", 0, 1, 2, 7, 4)]


async def test_a_stream_that_breaks_off_after_a_call(streaming: bool) -> None:
    """L11: A turn that breaks off after a call was passed on: the call is answered, and the error is raised."""
    steps = [[ChatResponseUpdate([call("echo", {}, "c1")], "assistant"), TransportError("cut")], "fine"]
    agent, session = Agent(ScriptedChatClient(*steps), tools=[echo]), AgentSession()
    stream = agent.stream("go", session=session)
    with pytest.raises(TransportError):
        async for _ in stream:
            pass
    with pytest.raises(TransportError):
        await stream.get_response()
    assert [result.text for result in stream.partial.function_results] == ["not run: the answer of the model broke off"]
    assert (await ask(agent, "again", streaming, session=session)).text == "fine"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max_iterations", 0),
        ("max_iterations", True),
        ("max_consecutive_errors", -1),
        ("max_tool_calls", -1),
        ("timeout", 0),
        ("tool_timeout", -1),
        ("max_concurrency", 0),
        ("max_result_chars", 0),
        ("on_limit", "explode"),
        ("return_directly", "name"),
    ],
)
def test_bad_settings_are_named(setting: str, value: Any) -> None:
    """A setting out of range raises where the layer is made, and the message names it."""
    with pytest.raises((ValueError, TypeError), match=setting):
        FunctionInvokingChatClient(ScriptedChatClient(), **{setting: value})


def test_duplicate_names_raise_where_the_tools_are_given() -> None:
    """L10: Two tools of one name raise ValueError where they are given."""
    with pytest.raises(ValueError, match="echo"):
        ChatOptions(tools=[echo, FunctionTool(echo)])
    with pytest.raises(ValueError, match="echo"):
        FunctionInvokingChatClient(ScriptedChatClient(), additional_tools=[echo, echo])
    with pytest.raises(ValueError, match="echo"):
        Agent(ScriptedChatClient(), tools=[echo, echo])


@played("script")
async def test_a_poisoned_history_is_repaired(run: Run) -> None:
    """L12: On load an orphan call is answered, an orphan result dropped, of two results the first kept."""
    history = [
        Message("user", "hello"),
        Message("tool", [FunctionResultContent("gone", "echo", "orphan")]),
        Message("assistant", [call("echo", {}, "a"), call("echo", {}, "b")]),
        Message("tool", [FunctionResultContent("a", "echo", "first"), FunctionResultContent("a", "echo", "second")]),
        Message("user", "go on"),
    ]
    async with run.model("fine") as model:
        await run.loop(model, history)
        assert model.roles(0) == ["user", "assistant", "tool", "tool", "user"]
        assert model.results(0)[0] == "first"
        assert "not recorded" in model.results(0)[1]


async def test_a_summary_made_inside_of_the_loop_counts(streaming: bool) -> None:
    """A reducer that asks a model is a message_rewriter too: its summary is kept in the session, its usage counted."""
    writer = ScriptedChatClient("(a summary)", usage=UsageDetails(100, 1, 101))
    reducer = SummarizingReducer(writer, max_tokens=60, keep_tokens=30)
    script = ScriptedChatClient(
        [call("echo", text="x" * 200)], [call("echo", text="y")], "done", usage=UsageDetails(1, 1, 2)
    )
    agent, session = Agent(FunctionInvokingChatClient(script, message_rewriter=reducer), tools=[echo]), AgentSession()
    response = await ask(agent, "go", streaming, session=session)
    assert response.usage == UsageDetails(103, 4, 107)
    assert len(response.messages) == 5
    assert "(a summary)" in "".join(message.text for message in script.requests[-1].messages)
