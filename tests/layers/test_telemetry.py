"""TelemetryChatClient: ecosystem.md part 3, tested with the in-memory exporters."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from agentpipe import (
    Agent,
    ChatOptions,
    FallbackChatClient,
    FunctionInvokingChatClient,
    RetryingChatClient,
    TelemetryAgent,
    TelemetryChatClient,
    TransportError,
    pipeline,
)
from agentpipe._telemetry import CAPTURE_VARIABLE
from agentpipe.testing import ScriptedChatClient, call
from tests.conftest import ask


class Telemetry:
    """Providers that keep what they are given."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracer_provider = TracerProvider(shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meter_provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.providers: dict[str, Any] = {
            "tracer_provider": self.tracer_provider,
            "meter_provider": self.meter_provider,
        }

    @contextmanager
    def kept(self) -> Iterator[Telemetry]:
        """Itself, shut down in the end."""
        yield self
        self.tracer_provider.shutdown()
        self.meter_provider.shutdown()

    @property
    def spans(self) -> list[ReadableSpan]:
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def span(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def tree(self) -> dict[str, str | None]:
        """The name of each span's parent; spans of one name are numbered in the order of their start."""
        names: dict[int, str] = {}
        for span in self.spans:
            same = sum(1 for name in names.values() if name.split("#")[0] == span.name)
            names[span.context.span_id] = f"{span.name}#{same + 1}" if same else span.name
        parents = {names[s.context.span_id]: s.parent for s in self.spans}
        return {name: names[parent.span_id] if parent else None for name, parent in parents.items()}

    def points(self, name: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        assert data is not None
        metrics = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics]
        return [point for metric in metrics if metric.name == name for point in metric.data.data_points]


@pytest.fixture
def telemetry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Telemetry]:
    monkeypatch.delenv(CAPTURE_VARIABLE, raising=False)
    with Telemetry().kept() as kept:
        yield kept


async def look(place: str) -> str:
    """Look at a place."""
    await asyncio.sleep(0)
    return f"{place} is secret"


TWO_CALLS: list[Any] = [[call("look", {"place": "a"}, "c1"), call("look", {"place": "b"}, "c2")], "a secret"]


async def test_the_endpoint_is_named(telemetry: Telemetry) -> None:
    """Host, port and provider come from the endpoint inside, the provider by the constructor if need be."""

    class Endpoint(ScriptedChatClient):
        base_url: str | None = None

    for url, provider, address, port in (
        (None, "openai", "api.openai.com", 443),
        ("https://api.deepseek.com/v1", "deepseek", "api.deepseek.com", 443),
        ("http://127.0.0.1:8000/v1", "openai", "127.0.0.1", 8000),
        ("http://vllm/v1", "openai", "vllm", 80),
    ):
        client = Endpoint("hi")
        client.base_url = url
        await TelemetryChatClient(client, **telemetry.providers).get_response("hi")
        attributes = telemetry.spans[-1].attributes or {}
        told = [attributes[name] for name in ("gen_ai.provider.name", "server.address", "server.port")]
        assert told == [provider, address, port]
    await TelemetryChatClient(Endpoint("hi"), provider_name="mine", **telemetry.providers).get_response("hi")
    assert (telemetry.spans[-1].attributes or {})["gen_ai.provider.name"] == "mine"


@pytest.mark.parametrize(
    ("value", "captured"),
    [("SPAN_ONLY", True), ("span_and_event", True), ("true", True), ("EVENT_ONLY", False), ("NO_CONTENT", False)],
)
async def test_the_environment_asks_for_content(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, value: str, captured: bool
) -> None:
    """The variable of OpenTelemetry counts where the constructor does not say; the constructor wins."""
    monkeypatch.setenv(CAPTURE_VARIABLE, value)
    await TelemetryChatClient(ScriptedChatClient("hi"), **telemetry.providers).get_response("hi")
    assert ("gen_ai.input.messages" in (telemetry.spans[-1].attributes or {})) is captured
    off = TelemetryChatClient(ScriptedChatClient("hi"), capture_content=False, **telemetry.providers)
    await off.get_response("hi")
    assert "gen_ai.input.messages" not in (telemetry.spans[-1].attributes or {})


async def test_several_endpoints(telemetry: Telemetry) -> None:
    """Where there are several below, the span does not guess which: the answer tells its model."""
    stack = FallbackChatClient(ScriptedChatClient("hi", model="a"), ScriptedChatClient(model="b"))
    await TelemetryChatClient(stack, **telemetry.providers).get_response("hi")
    assert telemetry.spans[0].name == "chat"
    assert (telemetry.spans[0].attributes or {})["gen_ai.response.model"] == "a"


async def test_nothing_is_captured_that_is_not_sampled(telemetry: Telemetry) -> None:
    """A span that is not recorded costs no content, and the measurements are made all the same."""
    unsampled = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    layer = TelemetryChatClient(
        ScriptedChatClient("hi"),
        tracer_provider=unsampled,
        meter_provider=telemetry.meter_provider,
        capture_content=True,
    )
    assert (await layer.get_response("hi")).text == "hi"
    assert telemetry.points("gen_ai.client.operation.duration")[0].count == 1


async def test_above_and_below_a_retry(telemetry: Telemetry, streaming: bool) -> None:
    """Below the retries, where people want it, each attempt has a span; above them there is one for all."""
    layer = partial(TelemetryChatClient, **telemetry.providers)
    retry = partial(RetryingChatClient, wait_initial=0.0)
    stacks: list[tuple[list[Any], int]] = [([retry, layer], 2), ([layer, retry], 1)]
    for stack, expected in stacks:
        telemetry.exporter.clear()
        client = ScriptedChatClient(TransportError("down"), "up", model="gpt")
        await ask(pipeline(*stack, client), "go", streaming)
        assert [span.name for span in telemetry.spans] == ["chat gpt"] * expected


async def test_above_the_loop_and_twice(telemetry: Telemetry, streaming: bool) -> None:
    """Above the loop one span has the tools below it; with one below too, no tool is told of twice."""
    layer = partial(TelemetryChatClient, **telemetry.providers)
    stack = pipeline(layer, FunctionInvokingChatClient, layer, ScriptedChatClient(*TWO_CALLS, model="gpt"))
    await ask(stack, "go", streaming, options=ChatOptions(tools=[look]))
    assert telemetry.tree() == {
        "chat gpt": None,
        "chat gpt#2": "chat gpt",
        "execute_tool look": "chat gpt",
        "execute_tool look#2": "chat gpt",
        "chat gpt#3": "chat gpt",
    }


def test_settings_and_the_missing_package() -> None:
    """The layers print what differs from the default; without opentelemetry-api the error says what to install."""
    client = TelemetryChatClient(ScriptedChatClient(), capture_content=True, provider_name="mine")
    assert repr(client) == "TelemetryChatClient(capture_content=True, provider_name='mine')"
    assert repr(TelemetryAgent(Agent(client, name="Ada"))) == "TelemetryAgent()"
    assert TelemetryAgent(Agent(client, name="Ada")).name == "Ada"
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from agentpipe import TelemetryChatClient\n"
        "from agentpipe.testing import ScriptedChatClient\n"
        "try: TelemetryChatClient(ScriptedChatClient())\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "telemetry needs opentelemetry-api: pip install 'agentpipe-chat[otel]'"
