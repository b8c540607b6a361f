"""OpenTelemetry for each call: a span and measurements, by the GenAI conventions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from agentpipe._client import ChatClient, DelegatingChatClient
from agentpipe._request import ChatRequest
from agentpipe._responses import ChatResponseUpdate
from agentpipe._telemetry import (
    Attributes,
    SpanStream,
    Telemetry,
    ToolSpans,
    endpoint_attributes,
    input_attributes,
    option_attributes,
    output_attributes,
    response_attributes,
    with_tool_spans,
)
from agentpipe._waist import closing

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider


class TelemetryChatClient(DelegatingChatClient):
    """A span ``chat {model}`` for each call, with what was asked, what came back and how long it took.

    Directly above the endpoint, where people want it, there is a span for each attempt of each model call; above a
    RetryingChatClient one for all attempts together; above the FunctionInvokingChatClient one for the whole loop, with
    the spans ``execute_tool`` of its tools below it. For spans of runs put a `TelemetryAgent` around the agent: chat
    and tool spans then stand below it. The span is the current one only while the inside works.

    Histograms: gen_ai.client.operation.duration, gen_ai.client.token.usage,
    gen_ai.client.operation.time_to_first_chunk (streamed calls). Two such layers in one pipeline measure everything
    twice, and so does an instrumentation of the openai package beside this layer: use one of them.

    Args:
        inner: The client to ask.
        tracer_provider: Where spans go; the global provider by default.
        meter_provider: Where measurements go; the global provider by default.
        capture_content: Whether messages, tools, their arguments and results are put on spans. None goes by
            OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT: SPAN_ONLY or SPAN_AND_EVENT. Events are not written.
        provider_name: ``gen_ai.provider.name``, where the host of the endpoint does not tell it.

    Raises:
        ImportError: opentelemetry-api is not installed: ``pip install 'agentpipe-chat[otel]'``.
    """

    def __init__(
        self,
        inner: ChatClient,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        capture_content: bool | None = None,
        provider_name: str | None = None,
    ) -> None:
        super().__init__(inner)
        self.capture_content = capture_content
        self.provider_name = provider_name
        self._telemetry = Telemetry(tracer_provider, meter_provider, capture_content)
        self._tool_spans = ToolSpans(self._telemetry)
        self._duration = self._telemetry.histogram("gen_ai.client.operation.duration")
        self._first_chunk = self._telemetry.histogram("gen_ai.client.operation.time_to_first_chunk")

    async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Answer as the client inside does, within a span."""
        measured = self._measured(request)
        span = self._telemetry.start(_name(measured), self._asked(request, measured), client=True)
        if self._telemetry.captures and span.is_recording():
            span.set_attributes(input_attributes(request))
        down = with_tool_spans(request, self._tool_spans)
        stream = SpanStream(self._telemetry, span, measured)

        def at_end(stream: SpanStream) -> None:
            self._complete(stream, streaming=request.streaming)

        async with closing(stream.updates(lambda: self.inner.respond(down), at_end)) as updates:
            async for update in updates:
                yield update

    def _measured(self, request: ChatRequest) -> Attributes:
        """The attributes of the measurements, which stand on the span too."""
        endpoint, model = endpoint_attributes(self.inner, self.provider_name)
        model = request.options.model or model
        return {"gen_ai.operation.name": "chat", **endpoint, **({"gen_ai.request.model": model} if model else {})}

    def _asked(self, request: ChatRequest, measured: Attributes) -> Attributes:
        attributes = {**measured, **option_attributes(request.options)}
        if request.streaming:
            attributes["gen_ai.request.stream"] = True
        if request.options.response_format is not None:
            attributes["gen_ai.output.type"] = "json"
        if request.session is not None:
            attributes["gen_ai.conversation.id"] = request.session.id
        return attributes

    def _complete(self, stream: SpanStream, *, streaming: bool) -> None:
        response, span, measured = stream.folder.response(), stream.span, stream.attributes
        span.set_attributes(response_attributes(response))
        if self._telemetry.captures and span.is_recording():
            span.set_attributes(output_attributes(response))
        if response.model is not None:
            measured["gen_ai.response.model"] = response.model
        if streaming and stream.first_after is not None:
            span.set_attribute("gen_ai.response.time_to_first_chunk", stream.first_after)
            self._first_chunk.record(stream.first_after, measured)
        if response.usage is not None:
            for kind in ("input", "output"):
                if (tokens := getattr(response.usage, f"{kind}_tokens")) is not None:
                    self._telemetry.tokens.record(tokens, {**measured, "gen_ai.token.type": kind})
        self._duration.record(stream.seconds, measured)


def _name(attributes: Attributes) -> str:
    return f"chat {attributes.get('gen_ai.request.model', '')}".rstrip()
