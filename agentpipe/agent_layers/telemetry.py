"""OpenTelemetry for each run of an agent: a span that those of its model calls and tools stand below."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from agentpipe._base_agent import BaseAgent, DelegatingAgent
from agentpipe._request import ChatRequest
from agentpipe._responses import ChatResponseUpdate
from agentpipe._telemetry import (
    Attributes,
    SpanStream,
    Telemetry,
    ToolSpans,
    endpoint_attributes,
    input_attributes,
    output_attributes,
    response_attributes,
    with_tool_spans,
)
from agentpipe._waist import closing

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider


class TelemetryAgent(DelegatingAgent):
    """A span ``invoke_agent {name}`` for each run, and below it a span ``execute_tool {name}`` for each tool call.

    The spans of the model calls come from a `TelemetryChatClient`; the usual set-up is both:

        client = pipeline(TelemetryChatClient, OpenAIChatClient())
        agent = TelemetryAgent(Agent(client, "Answer in one sentence."))

    The span is the current one only while the agent works, never while the consumer of its stream does. Histograms:
    gen_ai.invoke_agent.duration, gen_ai.execute_tool.duration.

    Args:
        inner: The agent to run.
        tracer_provider: Where spans go; the global provider by default.
        meter_provider: Where measurements go; the global provider by default.
        capture_content: Whether messages, arguments and results are put on spans; see `TelemetryChatClient`.

    Raises:
        ImportError: opentelemetry-api is not installed: ``pip install 'agentpipe-chat[otel]'``.
    """

    def __init__(
        self,
        inner: BaseAgent,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        capture_content: bool | None = None,
    ) -> None:
        super().__init__(inner)
        self.capture_content = capture_content
        self._telemetry = Telemetry(tracer_provider, meter_provider, capture_content)
        self._tool_spans = ToolSpans(self._telemetry)
        self._duration = self._telemetry.histogram("gen_ai.invoke_agent.duration")

    async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Run as the agent inside does, within a span."""
        measured = self._measured()
        span = self._telemetry.start(f"invoke_agent {self.name or ''}".rstrip(), self._asked(request, measured))
        if self._telemetry.captures and span.is_recording():
            span.set_attributes(input_attributes(request))
        down = with_tool_spans(request, self._tool_spans)
        stream = SpanStream(self._telemetry, span, measured)
        async with closing(stream.updates(lambda: self.inner.respond(down), self._complete)) as updates:
            async for update in updates:
                yield update

    def _measured(self) -> Attributes:
        """The attributes of the measurements, which stand on the span too."""
        endpoint, _ = endpoint_attributes(self.inner, None)
        measured = {"gen_ai.operation.name": "invoke_agent", "gen_ai.provider.name": endpoint["gen_ai.provider.name"]}
        return {**measured, "gen_ai.agent.name": self.name} if self.name else measured

    def _asked(self, request: ChatRequest, measured: Attributes) -> Attributes:
        attributes = dict(measured)
        if self.description:
            attributes["gen_ai.agent.description"] = self.description
        if request.session is not None:
            attributes["gen_ai.conversation.id"] = request.session.id
        return attributes

    def _complete(self, stream: SpanStream) -> None:
        response = stream.folder.response()
        stream.span.set_attributes(response_attributes(response))
        if self._telemetry.captures and stream.span.is_recording():
            stream.span.set_attributes(output_attributes(response))
        self._duration.record(stream.seconds, stream.attributes)
