"""Composing layers, looking through them, and printing them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from agentpipe import (
    Agent,
    ChatClient,
    ChatRequest,
    ChatResponse,
    ChatResponseUpdate,
    DelegatingAgent,
    DelegatingChatClient,
    FunctionInvokingChatClient,
    Message,
    pipeline,
)
from agentpipe.testing import ScriptedChatClient
from tests.conftest import ask


class Tag(DelegatingChatClient):
    """A layer with settings."""

    def __init__(self, inner: ChatClient, *, tag: str, api_key: str = "sk-secret", times: int = 1) -> None:
        super().__init__(inner)
        self.tag = tag
        self.times = times

    async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        messages = [*request.messages, Message("user", self.tag)]
        async for update in self.inner.respond(request.replace(messages=messages)):
            yield update


async def live(request: ChatRequest, inner: ChatClient) -> AsyncIterator[ChatResponseUpdate]:
    async for update in inner.respond(request.replace(messages=[*request.messages, Message("user", "live")])):
        yield update


async def whole(request: ChatRequest, inner: ChatClient) -> ChatResponse:
    return await inner.get_response(request.replace(messages=[*request.messages, Message("user", "whole")]))


class Callable:
    async def __call__(self, request: ChatRequest, inner: ChatClient) -> ChatResponse:
        return await inner.get_response(request)


async def test_the_first_layer_is_the_outermost(streaming: bool) -> None:
    """A request travels through the layers in the order in which they are written: classes, partials, functions."""
    client = ScriptedChatClient("hi")
    stack = pipeline(live, partial(Tag, tag="one"), whole, partial(Tag, tag="two"), Callable(), client)
    response = await ask(stack, "go", streaming)
    assert response.text == "hi"
    assert [message.text for message in client.requests[0].messages] == ["go", "live", "one", "whole", "two"]


def test_the_printed_tree() -> None:
    """The tree shows the layers in that order, with the settings that differ from their defaults, and no secret."""
    stack = pipeline(live, partial(Tag, tag="one", times=2), FunctionInvokingChatClient, whole, ScriptedChatClient())
    assert str(stack).split("\n") == [
        "live",
        "└─ Tag(tag='one', times=2)",
        "   └─ FunctionInvokingChatClient(max_iterations=40, max_consecutive_errors=3)",
        "      └─ whole (whole: a streamed answer arrives in one piece)",
        "         └─ ScriptedChatClient()",
    ]
    assert "secret" not in str(stack)
    mermaid = stack.to_mermaid()
    assert mermaid.startswith("flowchart TD")
    assert 'n2 -- "calls tools, asks again" --> n2' in mermaid


def test_find_asks_the_outermost_first() -> None:
    """find gives the outermost layer of a kind, or None."""
    inner = Tag(ScriptedChatClient(), tag="inner")
    outer = Tag(inner, tag="outer")
    assert outer.find(Tag) is outer
    assert outer.find(ScriptedChatClient) is inner.inner
    assert outer.find(FunctionInvokingChatClient) is None


@pytest.mark.parametrize(
    ("layer", "what"),
    [
        (lambda request, inner: None, "no middleware"),
        (5, "class or a middleware function"),
        (repr, "no middleware"),
        (DelegatingAgent, "agent inside"),
        (Tag, "tag"),
    ],
)
def test_what_is_no_layer(layer: Any, what: str) -> None:
    """What is no layer, or lacks a setting, raises TypeError that says so, where the pipeline is made."""
    with pytest.raises(TypeError, match=what):
        pipeline(layer, ScriptedChatClient())


def test_the_last_must_be_a_client_or_an_agent() -> None:
    """A pipeline without a client raises; so does a layer around a class, or a chat layer around an agent."""
    with pytest.raises(TypeError, match="last argument"):
        pipeline(live)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="last argument"):
        pipeline()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="the class ScriptedChatClient"):
        DelegatingChatClient(ScriptedChatClient)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="ChatClient inside"):
        pipeline(FunctionInvokingChatClient, Agent(ScriptedChatClient()))  # type: ignore[arg-type]


def test_wrap_puts_one_layer_around() -> None:
    """client.wrap(Layer, setting=...) is the same as a pipeline of one; functions take no settings."""
    client = ScriptedChatClient()
    wrapped = client.wrap(Tag, tag="x")
    assert isinstance(wrapped, Tag)
    assert wrapped.inner is client
    with pytest.raises(TypeError, match="no settings"):
        client.wrap(live, tag="x")


async def test_a_whole_middleware_must_return_a_response(streaming: bool) -> None:
    """A middleware function that returns something else raises TypeError with its name."""

    async def forgetful(request: ChatRequest, inner: ChatClient) -> Any:
        await inner.get_response(request)

    with pytest.raises(TypeError, match="forgetful"):
        await ask(pipeline(forgetful, ScriptedChatClient("x")), "go", streaming)


async def test_a_request_has_its_own_options() -> None:
    """get_response(request) takes no options beside; replace refuses a field that does not exist."""
    request = ChatRequest([Message("user", "go")])
    with pytest.raises(TypeError, match="request.replace"):
        await ScriptedChatClient("x").get_response(request, deps=5)
    with pytest.raises(TypeError):
        request.replace(nonsense=1)
