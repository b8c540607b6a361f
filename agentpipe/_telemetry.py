"""OpenTelemetry for both towers: the GenAI conventions, one span around a stream, and the histograms.

The names are written out here, since the conventions have left the packages of OpenTelemetry and are not stable yet:
github.com/open-telemetry/semantic-conventions-genai. opentelemetry is imported when a layer is made.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agentpipe._layered import Layered
from agentpipe._messages import (
    Content,
    DataContent,
    FunctionCallContent,
    FunctionResultContent,
    Message,
    ReasoningContent,
    TextContent,
    UriContent,
)
from agentpipe._options import ChatOptions, merge, tools_of
from agentpipe._records import to_json
from agentpipe._request import ChatRequest
from agentpipe._responses import ChatResponse, ChatResponseUpdate, ResponseFolder, close
from agentpipe._tools import FunctionTool, HostedTool, Interrupted, ToolContext

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

CAPTURE_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

# The buckets that the conventions lay down.
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)

Attributes = dict[str, Any]


class Telemetry:
    """The tracer and the histograms of one layer, and whether content is captured.

    Providers are the global ones by default. ``capture_content=None`` goes by the environment, see `captures_content`.

    Raises ImportError where opentelemetry-api is not installed.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
        capture_content: bool | None,
    ) -> None:
        try:
            from opentelemetry import context, metrics, trace
        except ImportError as error:
            raise ImportError("telemetry needs opentelemetry-api: pip install 'agentpipe-chat[otel]'") from error
        self.captures = captures_content() if capture_content is None else capture_content
        self._context, self._trace = context, trace
        self._tracer = trace.get_tracer("agentpipe", tracer_provider=tracer_provider)
        self._meter = metrics.get_meter("agentpipe", meter_provider=meter_provider)
        self.tokens = self.histogram("gen_ai.client.token.usage", "{token}", _TOKENS)

    def histogram(self, name: str, unit: str = "s", buckets: Sequence[float] = _SECONDS) -> Any:
        """The histogram of this name."""
        return self._meter.create_histogram(name, unit=unit, explicit_bucket_boundaries_advisory=buckets)

    def start(self, name: str, attributes: Attributes, *, client: bool = False) -> Span:
        """A span below the current one; it is not made the current one."""
        kind = self._trace.SpanKind.CLIENT if client else self._trace.SpanKind.INTERNAL
        return self._tracer.start_span(name, kind=kind, attributes=attributes)

    def within(self, span: Span) -> Context:
        """The current context with ``span`` as the current span."""
        return self._trace.set_span_in_context(span)

    @contextmanager
    def current(self, context: Context) -> Iterator[None]:
        """Make ``context`` the current one. Never around a ``yield``: who asks next may be in another task."""
        token = self._context.attach(context)
        try:
            yield
        finally:
            self._context.detach(token)

    def fail(self, span: Span, error: BaseException) -> str:
        """Mark the span as failed; the text, which may quote content, only where content is. Returns the type."""
        kind = error_type(error)
        span.set_attribute("error.type", kind)
        text = str(error) if self.captures else None
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, text))
        return kind


class SpanStream:
    """The updates of one call, with a span around it that ends when they end, however they end.

    The span is the current one whenever the inside works, and never while the consumer does. So what the inside starts
    stands below it, and no token is held over a ``yield``.
    """

    def __init__(self, telemetry: Telemetry, span: Span, attributes: Attributes) -> None:
        self.telemetry = telemetry
        self.span = span
        self.attributes = attributes  # of the measurements
        self.folder = ResponseFolder()
        self.started = time.perf_counter()
        self.first_after: float | None = None  # seconds

    async def updates(
        self, ask: Callable[[], AsyncIterator[ChatResponseUpdate]], at_end: Callable[[SpanStream], None]
    ) -> AsyncIterator[ChatResponseUpdate]:
        """Pass on what ``ask()`` gives; ``at_end`` completes the span and measures before it ends."""
        telemetry, within = self.telemetry, self.telemetry.within(self.span)
        inner: AsyncIterator[ChatResponseUpdate] | None = None
        try:
            with telemetry.current(within):
                inner = ask()
            while True:
                with telemetry.current(within):
                    try:
                        update = await anext(inner)
                    except StopAsyncIteration:
                        break
                if self.first_after is None:
                    self.first_after = time.perf_counter() - self.started
                self.folder.add(update)
                yield update
        except BaseException as error:
            if not isinstance(error, GeneratorExit):  # who asked did not want the rest: no failure
                self.attributes["error.type"] = telemetry.fail(self.span, error)
            raise
        finally:
            try:
                if inner is not None:
                    with telemetry.current(within):
                        await close(inner)
            finally:
                at_end(self)
                self.span.end()

    @property
    def seconds(self) -> float:
        """How long it took so far."""
        return time.perf_counter() - self.started


class ToolSpans:
    """Tool middleware that puts a span ``execute_tool {name}`` around each call.

    `TelemetryAgent` and `TelemetryChatClient` bring it along; a loop without them takes it as
    ``FunctionInvokingChatClient(middleware=[ToolSpans(...)])``.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._duration = telemetry.histogram("gen_ai.execute_tool.duration")

    async def __call__(self, context: ToolContext[Any], call_next: Callable[..., Any]) -> Any:
        """Run the call within its span."""
        telemetry, started = self._telemetry, time.perf_counter()
        measured: Attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": context.call.name}
        span = telemetry.start(f"execute_tool {context.call.name}", self._attributes(context, measured))
        try:
            with telemetry.current(telemetry.within(span)):
                result = await call_next(context)
            if telemetry.captures:
                span.set_attribute("gen_ai.tool.call.result", json_text(_result_of(result)))
            if isinstance(result, FunctionResultContent) and result.is_error:
                span.set_attribute("error.type", "tool_error")
            return result
        except BaseException as error:
            if not isinstance(error, Interrupted):  # it waits for an answer
                measured["error.type"] = telemetry.fail(span, error)
            raise
        finally:
            self._duration.record(time.perf_counter() - started, measured)
            span.end()

    def _attributes(self, context: ToolContext[Any], measured: Attributes) -> Attributes:
        attributes = {**measured, "gen_ai.tool.type": "function", "gen_ai.tool.call.id": context.call.call_id}
        if context.tool is not None and context.tool.description:
            attributes["gen_ai.tool.description"] = context.tool.description
        if self._telemetry.captures:
            attributes["gen_ai.tool.call.arguments"] = json_text(context.arguments)
        return attributes


def with_tool_spans(request: ChatRequest, spans: ToolSpans) -> ChatRequest:
    """The request with spans around its tool calls, unless a layer further out has seen to that."""
    if any(isinstance(middleware, ToolSpans) for middleware in request.options.tool_middleware or ()):
        return request
    return request.replace(options=merge(request.options, ChatOptions(tool_middleware=(spans,))))


def captures_content() -> bool:
    """Whether the environment asks for content on spans; events are not written."""
    return os.environ.get(CAPTURE_VARIABLE, "").strip().upper() in ("SPAN_ONLY", "SPAN_AND_EVENT", "TRUE")


def error_type(error: BaseException) -> str:
    """The name of an error, for ``error.type``."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# ------------------------------------------------------------------------------------------ attributes


def endpoint_attributes(layered: Layered, provider_name: str | None) -> tuple[Attributes, str | None]:
    """What is known of the endpoint below, where there is but one: its attributes, and the model that it asks."""
    endpoints = [layer for layer in layered._walk() if hasattr(layer, "model")]
    endpoint = endpoints[0] if len(endpoints) == 1 else None
    attributes: Attributes = {"gen_ai.provider.name": provider_name or "agentpipe"}
    if endpoint is not None and hasattr(endpoint, "base_url"):
        url = urlsplit(getattr(endpoint, "base_url", None) or "https://api.openai.com/v1")
        attributes["gen_ai.provider.name"] = provider_name or _provider(url.hostname or "")
        attributes["server.address"] = url.hostname or ""
        attributes["server.port"] = url.port or (80 if url.scheme == "http" else 443)
    return attributes, getattr(endpoint, "model", None)


# The well-known names of the conventions, by a part of the host.
_PROVIDERS = (
    ("azure", "azure.ai.openai"),
    ("deepseek", "deepseek"),
    ("groq", "groq"),
    ("mistral", "mistral_ai"),
    ("anthropic", "anthropic"),
    ("api.x.ai", "x_ai"),
    ("perplexity", "perplexity"),
    ("generativelanguage", "gcp.gemini"),
    ("aiplatform", "gcp.vertex_ai"),
    ("bedrock", "aws.bedrock"),
    ("api.moonshot", "moonshot_ai"),
)


def _provider(host: str) -> str:
    return next((name for part, name in _PROVIDERS if part in host), "openai")


def option_attributes(options: ChatOptions) -> Attributes:
    """What a request asks for."""
    told = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "max_tokens": options.max_output_tokens,
        "seed": options.seed,
        "frequency_penalty": options.frequency_penalty,
        "presence_penalty": options.presence_penalty,
        "stop_sequences": options.stop,
    }
    return {f"gen_ai.request.{name}": value for name, value in told.items() if value is not None}


def response_attributes(response: ChatResponse) -> Attributes:
    """What came back."""
    usage = response.usage
    told = {
        "gen_ai.response.id": response.response_id,
        "gen_ai.response.model": response.model,
        "gen_ai.response.finish_reasons": (response.finish_reason,) if response.finish_reason else None,
        "gen_ai.usage.input_tokens": usage.input_tokens if usage else None,
        "gen_ai.usage.output_tokens": usage.output_tokens if usage else None,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_input_tokens if usage else None,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens if usage else None,
    }
    return {name: value for name, value in told.items() if value is not None}


def input_attributes(request: ChatRequest) -> Attributes:
    """The content that goes in; only where content is asked for."""
    options = request.options
    attributes = {"gen_ai.input.messages": json_text([_message(message) for message in request.messages])}
    if options.instructions:
        attributes["gen_ai.system_instructions"] = json_text([{"type": "text", "content": options.instructions}])
    if tools := tools_of(options):
        attributes["gen_ai.tool.definitions"] = json_text([_definition(tool) for tool in tools])
    return attributes


def output_attributes(response: ChatResponse) -> Attributes:
    """The content that comes out; only where content is asked for."""
    reason = response.finish_reason or "error"
    told = [{**_message(message), "finish_reason": reason} for message in response.messages]
    return {"gen_ai.output.messages": json_text(told)}


def _definition(tool: object) -> object:
    if isinstance(tool, FunctionTool):
        return {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
        }
    return tool.definition if isinstance(tool, HostedTool) else repr(tool)


def _message(message: Message) -> Attributes:
    told: Attributes = {"role": message.role, "parts": [_part(content) for content in message.contents]}
    return {**told, "name": message.author_name} if message.author_name else told


def _part(content: Content) -> Mapping[str, Any]:
    if isinstance(content, TextContent):
        return {"type": "text", "content": content.text}
    if isinstance(content, ReasoningContent):
        return {"type": "reasoning", "content": content.text}
    if isinstance(content, FunctionCallContent):
        return {"type": "tool_call", "id": content.call_id, "name": content.name, "arguments": content.arguments}
    if isinstance(content, FunctionResultContent):
        return {"type": "tool_call_response", "id": content.call_id, "response": content.result}
    if isinstance(content, (UriContent, DataContent)):
        media_type = content.media_type or ""
        told = {"modality": media_type.partition("/")[0], "mime_type": media_type}
        if isinstance(content, UriContent):
            return {"type": "uri", **told, "uri": content.uri}
        return {"type": "blob", **told, "content": f"{len(content.data)} bytes"}  # spans are no place for files
    return content.model_dump()


def _result_of(result: object) -> object:
    return result.result if isinstance(result, FunctionResultContent) else result


def json_text(value: object) -> str:
    """A value as JSON; what cannot be written, as its name."""
    import json

    try:
        return json.dumps(to_json(value), ensure_ascii=False)
    except (ValueError, TypeError, RecursionError):
        return repr(type(value))
