"""Random stacks of layers over random scripts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentpipe import (
    Agent,
    AgentSession,
    CachingChatClient,
    ChatClient,
    ChatOptions,
    ChatRequest,
    ChatResponse,
    ChatResponseUpdate,
    ConfigureOptionsChatClient,
    FallbackChatClient,
    FunctionInvokingChatClient,
    LoggingChatClient,
    RateLimitingChatClient,
    ReasoningContent,
    RecordingChatClient,
    RedactingChatClient,
    ReducingChatClient,
    RetryingChatClient,
    RoutingChatClient,
    StructuredOutputChatClient,
    TelemetryChatClient,
    TextContent,
    TransportError,
    UsageDetails,
    UsageLimitChatClient,
    closing,
)
from agentpipe.testing import ScriptedChatClient, call
from tests.conftest import ask, shape


async def no_sleep(seconds: float) -> None:
    pass


async def as_they_are(messages: Any) -> Any:
    return messages


async def live(request: ChatRequest, inner: ChatClient) -> AsyncIterator[ChatResponseUpdate]:
    async with closing(inner.respond(request)) as updates:
        async for update in updates:
            yield update


async def whole(request: ChatRequest, inner: ChatClient) -> ChatResponse:
    return await inner.get_response(request)


def fallback(inner: ChatClient) -> ChatClient:
    return FallbackChatClient(inner, ScriptedChatClient())


def routing(inner: ChatClient) -> ChatClient:
    return RoutingChatClient(lambda request: "it", {"it": inner})


#: Layers that change nothing of what is said, as long as nothing fails.
TRANSPARENT: dict[str, Any] = {
    "retrying": partial(RetryingChatClient, sleep=no_sleep),
    "fallback": fallback,
    "routing": routing,
    "configure": partial(ConfigureOptionsChatClient, options=ChatOptions(temperature=0)),
    "rate": partial(RateLimitingChatClient, requests_per_minute=10_000, max_concurrent=10),
    "usage": partial(UsageLimitChatClient, tokens=10_000_000),
    "usage per run": partial(UsageLimitChatClient, requests=1000, per="run"),
    "caching": CachingChatClient,
    "redacting": partial(RedactingChatClient, patterns=["email", re.compile("s[a-f]cret")]),
    "reducing": partial(ReducingChatClient, reducer=as_they_are),
    "structured": StructuredOutputChatClient,
    "logging": LoggingChatClient,
    "telemetry": TelemetryChatClient,
    "live": live,
    "whole": whole,
}

STACKS = st.lists(st.sampled_from(sorted(TRANSPARENT)), max_size=5)
TEXTS = st.text("abc secret@x.org [](){}\N{SNOWMAN}", min_size=1, max_size=40)
ANSWERS = st.one_of(TEXTS, st.tuples(TEXTS, TEXTS).map(lambda pair: [ReasoningContent(pair[0]), TextContent(pair[1])]))
CALLS = st.lists(st.tuples(st.sampled_from(["echo", "missing"]), TEXTS), min_size=1, max_size=3)
SCRIPTS = st.tuples(st.lists(CALLS, max_size=3), ANSWERS)


def echo(text: str) -> str:
    """Say it again."""
    return text.upper()


def endpoint(script: Any) -> ScriptedChatClient:
    rounds, answer = script
    steps = [
        [call(name, {"text": text}, f"call_{place}_{i}") for i, (name, text) in enumerate(calls)]
        for place, calls in enumerate(rounds)
    ]
    return ScriptedChatClient(*steps, answer, usage=UsageDetails(input_tokens=2, output_tokens=3, total_tokens=5))


def around(names: list[str], inner: ChatClient) -> ChatClient:
    """These layers around a client, the first outermost."""
    for name in reversed(names):
        layer = TRANSPARENT[name]
        inner = layer(inner) if layer in (fallback, routing) else inner.wrap(layer)
    return inner


def looped(above: list[str], below: list[str], inner: ChatClient) -> ChatClient:
    return around(above, FunctionInvokingChatClient(around(below, inner)))


async def run(client: ChatClient, streaming: bool) -> ChatResponse:
    # A missing tool ends no run, so the loop goes on to the answer.
    return await ask(Agent(client, tools=[echo]), "Say it.", streaming, session=AgentSession())


def told(response: ChatResponse) -> Any:
    return shape(response.messages), response.usage, response.finish_reason, response.stop_reason, response.text


@settings(max_examples=150, deadline=None)
@given(STACKS, STACKS, SCRIPTS)
def test_layers_that_should_not_matter_do_not(above: list[str], below: list[str], script: Any) -> None:
    """Any stack above and below the loop gives the transcript of the bare client, whole and streamed, and closes all."""

    async def scene() -> None:
        plain = await run(endpoint(script), False)
        for streaming in (False, True):
            inside = endpoint(script)
            client = looped(above, below, inside)
            assert told(await run(client, streaming)) == told(plain)
            assert inside.open == 0
            assert len(inside.requests) == len(script[0]) + 1

    asyncio.run(scene())


@settings(max_examples=75, deadline=None)
@given(STACKS, STACKS, SCRIPTS, st.integers(0, 12))
def test_who_leaves_early_leaves_nothing_open(above: list[str], below: list[str], script: Any, taken: int) -> None:
    """However many pieces a reader takes, all that is inside is closed when it leaves."""

    async def scene() -> None:
        inside = endpoint(script)
        client = looped(above, below, inside)
        async with Agent(client, tools=[echo]).stream("Say it.") as stream:
            for _ in range(taken):
                if await anext(stream, None) is None:
                    break
        assert inside.open == 0

    asyncio.run(scene())


@settings(max_examples=75, deadline=None)
@given(STACKS, SCRIPTS, st.booleans())
def test_an_error_comes_through_as_it_was(names: list[str], script: Any, after_a_piece: bool) -> None:
    """What the endpoint raises is what the caller gets, the very same, whole and streamed; nothing stays open."""

    async def scene() -> None:
        for streaming in (False, True):
            error = TransportError("broken", retryable=False)
            failing: Any = (
                [ChatResponseUpdate((TextContent("so"),), "assistant", "m"), error] if after_a_piece else error
            )
            inside = ScriptedChatClient(failing)
            without_fallback = [name for name in names if name != "fallback"]
            client = around(without_fallback, inside)
            with pytest.raises(TransportError) as caught:
                await ask(client, "Say it.", streaming)
            assert caught.value is error
            assert inside.open == 0

    asyncio.run(scene())


@settings(max_examples=75, deadline=None)
@given(STACKS, SCRIPTS)
def test_what_was_recorded_is_replayed_through_any_stack(names: list[str], script: Any) -> None:
    """A run that was recorded at the endpoint is the same run in a replay, whole and streamed."""

    async def scene(path: Path) -> None:
        plain = await run(RecordingChatClient(endpoint(script), path), False)
        stack = [name for name in names if name not in ("configure", "redacting")]  # these change what is asked
        for streaming in (False, True):
            client = around(stack, RecordingChatClient(None, path))
            assert told(await run(client, streaming)) == told(plain)

    with TemporaryDirectory() as folder:
        asyncio.run(scene(Path(folder) / "run.json"))


@settings(max_examples=50, deadline=None)
@given(STACKS)
def test_every_layer_is_printed_and_found(names: list[str]) -> None:
    """A stack prints one line a layer, in order, and each kind of layer in it is found."""
    client = around(names, ScriptedChatClient())
    chain = [layer for layer in client._walk() if not isinstance(layer, ScriptedChatClient)]
    lines = [re.sub(r"^[ │├└─]*(it: )?", "", line) for line in str(client).split("\n")]
    lines = [line for line in lines if not line.startswith("ScriptedChatClient")]
    assert lines == [repr(layer) for layer in chain]
    for layer in chain:
        assert client.find(type(layer)) is not None
