"""TelemetryAgent, and both telemetry layers together: ecosystem.md part 3."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from agentpipe import (
    Agent,
    AgentSession,
    ChatOptions,
    DataContent,
    FunctionInvokingChatClient,
    FunctionResultContent,
    HostedTool,
    ReasoningContent,
    TelemetryAgent,
    TelemetryChatClient,
    ToolContext,
    ToolError,
    TransportError,
    UriContent,
    UsageDetails,
    tool,
    user,
)
from agentpipe._telemetry import CAPTURE_VARIABLE
from agentpipe.testing import ScriptedChatClient, call
from tests.conftest import ask
from tests.layers.test_telemetry import TWO_CALLS, Telemetry, look

NESTED = {
    "invoke_agent Ada": None,
    "chat gpt": "invoke_agent Ada",
    "execute_tool look": "invoke_agent Ada",
    "execute_tool look#2": "invoke_agent Ada",
    "chat gpt#2": "invoke_agent Ada",
}


@pytest.fixture
def telemetry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Telemetry]:
    monkeypatch.delenv(CAPTURE_VARIABLE, raising=False)
    with Telemetry().kept() as kept:
        yield kept


def traced(telemetry: Telemetry, client: Any, *, concurrent: bool = False, **settings: Any) -> TelemetryAgent:
    """The usual set-up: a layer directly above the endpoint, and one around the agent."""
    chat = TelemetryChatClient(client, **telemetry.providers, **settings)
    loop = FunctionInvokingChatClient(chat, allow_concurrent_invocation=concurrent)
    return TelemetryAgent(Agent(loop, name="Ada", tools=[look]), **telemetry.providers, **settings)


@pytest.mark.parametrize("concurrent", [False, True], ids=["serial", "concurrent"])
async def test_spans_are_nested(telemetry: Telemetry, streaming: bool, concurrent: bool) -> None:
    """Model calls and tools stand below the run, whole and streamed, one after the other and at once."""
    agent = traced(telemetry, ScriptedChatClient(*TWO_CALLS, model="gpt"), concurrent=concurrent)
    await ask(agent, "go", streaming)
    assert telemetry.tree() == NESTED
    kinds = {span.name: span.kind for span in telemetry.spans}
    assert kinds == {
        "invoke_agent Ada": SpanKind.INTERNAL,
        "chat gpt": SpanKind.CLIENT,
        "execute_tool look": SpanKind.INTERNAL,
    }
    assert all(span.status.status_code is StatusCode.UNSET for span in telemetry.spans)


async def test_a_tool_that_runs_an_agent(telemetry: Telemetry, streaming: bool) -> None:
    """The run of a sub-agent stands below the tool that it is, and a span of the user's own below the tool."""
    tracer = telemetry.tracer_provider.get_tracer("mine")

    def measure() -> str:
        """Measure."""
        with tracer.start_as_current_span("mine"):
            return "3"

    sub_client = TelemetryChatClient(ScriptedChatClient("sub", model="small"), **telemetry.providers)
    sub = TelemetryAgent(Agent(sub_client, name="sub"), **telemetry.providers)
    client = ScriptedChatClient([call("sub", input="x"), call("measure")], "done", model="gpt")
    chat = TelemetryChatClient(client, **telemetry.providers)
    agent = TelemetryAgent(Agent(chat, name="Ada", tools=[sub.as_tool(), measure]), **telemetry.providers)
    await ask(agent, "go", streaming)
    tree = telemetry.tree()
    assert tree["invoke_agent sub"] == "execute_tool sub"
    assert tree["chat small"] == "invoke_agent sub"
    assert tree["mine"] == "execute_tool measure"


async def test_many_runs_at_once(telemetry: Telemetry) -> None:
    """Runs that go on at the same time, and streams that are read in turns, do not get into one another's spans."""
    tracer = telemetry.tracer_provider.get_tracer("mine")

    async def run(number: int) -> None:
        with tracer.start_as_current_span(f"caller {number}"):
            await ask(traced(telemetry, ScriptedChatClient(*TWO_CALLS, model="gpt")), "go", number % 2 == 0)

    await asyncio.gather(*[run(number) for number in range(6)])
    by_id = {span.context.span_id: span for span in telemetry.spans if span.context}
    for span in telemetry.spans:
        if span.parent is not None:
            assert span.context is not None
            assert by_id[span.parent.span_id].context.trace_id == span.context.trace_id
    runs = [span for span in telemetry.spans if span.name == "invoke_agent Ada"]
    assert len({span.context.trace_id for span in runs if span.context}) == 6
    assert {by_id[s.parent.span_id].name for s in runs if s.parent} == {f"caller {n}" for n in range(6)}


async def test_the_consumer_of_a_stream_is_not_within_the_span(telemetry: Telemetry) -> None:
    """While the consumer works the current context is its own, and two streams may be read in turns."""
    first, second = [
        traced(telemetry, ScriptedChatClient(*TWO_CALLS, model="gpt")).stream("go") for _ in range(2)
    ]  # fmt: skip
    before = otel_context.get_current()
    async for _ in first:
        assert otel_context.get_current() is before
        await anext(second, None)
        assert otel_context.get_current() is before
    await second.get_response()
    runs = [span for span in telemetry.spans if span.name == "invoke_agent Ada"]
    assert len(runs) == 2
    for run in runs:
        below = [s for s in telemetry.spans if s.parent and run.context and s.parent.span_id == run.context.span_id]
        assert len(below) == 4


async def test_each_piece_may_be_asked_for_in_another_task(telemetry: Telemetry) -> None:
    """A server that takes each piece in a task of its own gets the same spans."""
    stream = traced(telemetry, ScriptedChatClient(*TWO_CALLS, model="gpt")).stream("go")

    async def step() -> bool:
        return await anext(stream, None) is not None

    while await asyncio.create_task(step()):
        pass
    assert telemetry.tree() == NESTED


async def test_under_asgi(telemetry: Telemetry) -> None:
    """Below the span of a server's request, also where the response is streamed by a task of its own."""
    tracer = telemetry.tracer_provider.get_tracer("server")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        agent = traced(telemetry, ScriptedChatClient(*TWO_CALLS, model="gpt"))

        async def body() -> None:
            async with agent.stream("go") as stream:
                async for text in stream.text_deltas():
                    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        await send({"type": "http.response.start", "status": 200, "headers": []})
        async with asyncio.TaskGroup() as group:
            group.create_task(body())

    async def server(app: Any) -> bytes:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        with tracer.start_as_current_span("POST /chat", kind=SpanKind.SERVER):
            await app({"type": "http"}, None, send)
            assert trace.get_current_span().get_span_context().is_valid
        return b"".join([message.get("body", b"") for message in sent])

    bodies = await asyncio.gather(server(app), server(app))
    assert list(bodies) == [b"a secret", b"a secret"]
    tree = telemetry.tree()
    assert tree["invoke_agent Ada"] is not None
    assert tree["invoke_agent Ada"].startswith("POST /chat")
    assert {tree["invoke_agent Ada"], tree["invoke_agent Ada#2"]} == {"POST /chat", "POST /chat#2"}


async def test_attributes(telemetry: Telemetry, streaming: bool) -> None:
    """What was asked and what came back, by the names of the conventions; nothing of the content."""
    usage = UsageDetails(12, 34, 46, cached_input_tokens=5, reasoning_tokens=7)
    client = ScriptedChatClient(call("look", place="secret"), "secret", usage=usage, model="gpt-1")
    session = AgentSession("s1")
    options = ChatOptions(
        model="gpt", temperature=0.5, top_p=0.9, max_output_tokens=100, seed=3, stop=["END"], frequency_penalty=0.1
    )
    await ask(traced(telemetry, client), "a secret", streaming, session=session, options=options)
    first = dict(telemetry.spans[1].attributes or {})
    if streaming:
        assert first.pop("gen_ai.request.stream") is True
        assert first.pop("gen_ai.response.time_to_first_chunk") >= 0  # type: ignore[operator]
    assert first == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "agentpipe",
        "gen_ai.request.model": "gpt",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.max_tokens": 100,
        "gen_ai.request.seed": 3,
        "gen_ai.request.frequency_penalty": 0.1,
        "gen_ai.request.stop_sequences": ("END",),
        "gen_ai.conversation.id": "s1",
        "gen_ai.response.id": "response_0",
        "gen_ai.response.model": "gpt-1",
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 34,
        "gen_ai.usage.cache_read.input_tokens": 5,
        "gen_ai.usage.reasoning.output_tokens": 7,
    }
    assert dict(telemetry.span("execute_tool look").attributes or {}) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "call_look",
        "gen_ai.tool.description": "Look at a place.",
    }
    run = dict(telemetry.span("invoke_agent Ada").attributes or {})
    assert run["gen_ai.agent.name"] == "Ada"
    assert run["gen_ai.conversation.id"] == "s1"
    assert run["gen_ai.usage.output_tokens"] == 68
    assert run["gen_ai.response.finish_reasons"] == ("stop",)
    assert "secret" not in "".join([span.to_json() for span in telemetry.spans])


async def test_content_where_it_is_asked_for(telemetry: Telemetry, streaming: bool) -> None:
    """With capture_content, messages, instructions, tools, arguments and results are on the spans, as JSON."""
    client = ScriptedChatClient([ReasoningContent("hm"), call("look", place="a")], "it is secret", model="gpt")
    agent = traced(telemetry, client, capture_content=True)
    given = user("what?", UriContent("https://a.b/c.png"), DataContent(b"abc", "audio/wav"), author_name="Bob")
    options = ChatOptions(instructions="Be brief.", tools=[HostedTool({"type": "web_search"})])
    await ask(agent, given, streaming, options=options)
    asked = telemetry.spans[1].attributes or {}
    assert json.loads(str(asked["gen_ai.system_instructions"])) == [{"type": "text", "content": "Be brief."}]
    assert json.loads(str(asked["gen_ai.input.messages"])) == [
        {
            "role": "user",
            "parts": [
                {"type": "text", "content": "what?"},
                {"type": "uri", "modality": "image", "mime_type": "image/png", "uri": "https://a.b/c.png"},
                {"type": "blob", "modality": "audio", "mime_type": "audio/wav", "content": "3 bytes"},
            ],
            "name": "Bob",
        }
    ]
    assert json.loads(str(asked["gen_ai.output.messages"])) == [
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "content": "hm"},
                {"type": "tool_call", "id": "call_look", "name": "look", "arguments": {"place": "a"}},
            ],
            "finish_reason": "tool_calls",
        }
    ]
    definitions = json.loads(str(asked["gen_ai.tool.definitions"]))
    assert [definition["type"] for definition in definitions] == ["function", "web_search"]
    ran = telemetry.span("execute_tool look").attributes or {}
    assert json.loads(str(ran["gen_ai.tool.call.arguments"])) == {"place": "a"}
    assert json.loads(str(ran["gen_ai.tool.call.result"])) == "a is secret"
    last = json.loads(str((telemetry.spans[-1].attributes or {})["gen_ai.input.messages"]))
    assert last[2]["parts"][0] == {"type": "tool_call_response", "id": "call_look", "response": "a is secret"}
    assert "it is secret" in str((telemetry.span("invoke_agent Ada").attributes or {})["gen_ai.output.messages"])


async def test_histograms(telemetry: Telemetry, streaming: bool) -> None:
    """Durations and tokens in the buckets of the conventions; the first chunk only where there are chunks."""
    client = ScriptedChatClient(call("look", place="a"), "done", usage=UsageDetails(12, 34), model="gpt")
    await ask(traced(telemetry, client), "go", streaming)
    tokens = {point.attributes["gen_ai.token.type"]: point for point in telemetry.points("gen_ai.client.token.usage")}
    assert (tokens["input"].sum, tokens["output"].sum) == (24, 68)
    assert tokens["input"].explicit_bounds[:4] == (1, 4, 16, 64)
    (calls,) = telemetry.points("gen_ai.client.operation.duration")
    assert calls.count == 2
    assert calls.explicit_bounds == tuple(0.01 * 2**n for n in range(14))
    assert dict(calls.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "agentpipe",
        "gen_ai.request.model": "gpt",
        "gen_ai.response.model": "gpt",
    }
    first = telemetry.points("gen_ai.client.operation.time_to_first_chunk")
    assert [point.count for point in first] == ([2] if streaming else [])
    assert [point.count for point in telemetry.points("gen_ai.execute_tool.duration")] == [1]
    (run,) = telemetry.points("gen_ai.invoke_agent.duration")
    assert run.attributes["gen_ai.agent.name"] == "Ada"


async def test_failures(telemetry: Telemetry, streaming: bool) -> None:
    """A failed call, tool and run carry the type of the error, and its text only with content."""

    def broken() -> str:
        """Fail."""
        raise ToolError("a secret")

    def own() -> FunctionResultContent:
        """Fail in one's own words."""
        return FunctionResultContent("call_own", "own", "a secret", True)

    client = ScriptedChatClient([call("broken"), call("own")], TransportError("a secret"), model="gpt")
    agent = traced(telemetry, client)
    with pytest.raises(TransportError):
        await ask(agent, "go", streaming, options=ChatOptions(tools=[broken, own]))
    failed = {s.name: s for s in telemetry.spans if s.status.status_code is StatusCode.ERROR}
    kinds = {name: (span.attributes or {})["error.type"] for name, span in failed.items()}
    assert kinds == {
        "execute_tool broken": "agentpipe.exceptions.ToolError",
        "chat gpt": "agentpipe.exceptions.TransportError",
        "invoke_agent Ada": "agentpipe.exceptions.TransportError",
    }
    assert (telemetry.span("execute_tool own").attributes or {})["error.type"] == "tool_error"
    assert "a secret" not in "".join([span.to_json() for span in telemetry.spans])
    durations = telemetry.points("gen_ai.client.operation.duration")
    assert [p.attributes.get("error.type") for p in durations] == [None, "agentpipe.exceptions.TransportError"]
    loud = TelemetryChatClient(
        ScriptedChatClient(TransportError("a secret")), capture_content=True, **telemetry.providers
    )
    with pytest.raises(TransportError):
        await ask(loud, "go", streaming)
    assert telemetry.spans[-1].status.description == "a secret"


async def test_a_stream_that_is_left_or_cancelled_ends_its_spans(telemetry: Telemetry) -> None:
    """Leaving a stream is no failure; cancelling one is; either way every span ends and every stream is closed."""
    client = ScriptedChatClient("a long answer", model="gpt")
    async with traced(telemetry, client).stream("go") as stream:
        await anext(stream)
    assert client.open == 0
    assert [(s.name, s.status.status_code) for s in telemetry.spans] == [
        ("invoke_agent Ada", StatusCode.UNSET),
        ("chat gpt", StatusCode.UNSET),
    ]
    telemetry.exporter.clear()
    started = asyncio.Event()

    async def waits() -> str:
        """Wait."""
        started.set()
        await asyncio.Event().wait()
        return ""

    client = ScriptedChatClient(call("waits"), model="gpt")
    task = asyncio.create_task(traced(telemetry, client).run("go", options=ChatOptions(tools=[waits])))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    ended = {span.name: (span.attributes or {}).get("error.type") for span in telemetry.spans}
    cancelled = "asyncio.exceptions.CancelledError"
    assert ended == {"invoke_agent Ada": cancelled, "chat gpt": None, "execute_tool waits": cancelled}


async def test_a_tool_that_asks_is_no_failure(telemetry: Telemetry, streaming: bool) -> None:
    """A tool that waits for an answer has not failed, and its second run has a span of its own."""

    def choose(ctx: ToolContext[Any]) -> str:
        """Choose."""
        return str(ctx.interrupt("which?"))

    agent = traced(telemetry, ScriptedChatClient(call("choose"), "done", model="gpt"))
    session, options = AgentSession(), ChatOptions(tools=[choose])
    response = await ask(agent, "go", streaming, session=session, options=options)
    answer = response.input_requests[0].answer("this")
    await ask(agent, answer, streaming, session=session, options=options)
    spans = [span for span in telemetry.spans if span.name == "execute_tool choose"]
    assert [span.status.status_code for span in spans] == [StatusCode.UNSET, StatusCode.UNSET]


async def test_a_tool_with_approval(telemetry: Telemetry, streaming: bool) -> None:
    """A call that waits has no span; once approved it has one, in the trace of the run that runs it."""

    @tool(requires_approval=True)
    def delete(path: str) -> str:
        """Delete."""
        return path

    agent = traced(telemetry, ScriptedChatClient(call("delete", path="x"), "done", model="gpt"))
    session, options = AgentSession(), ChatOptions(tools=[delete])
    response = await ask(agent, "go", streaming, session=session, options=options)
    assert "execute_tool delete" not in telemetry.tree()
    await ask(agent, response.approval_requests[0].approve(), streaming, session=session, options=options)
    assert telemetry.tree()["execute_tool delete"] == "invoke_agent Ada#2"
