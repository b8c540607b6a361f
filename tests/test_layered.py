"""What clients and agents share: the tree, its settings and secrets, and what a layer may be."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import pytest

from agentpipe import (
    Agent,
    BaseAgent,
    ChatClient,
    ChatRequest,
    ChatResponse,
    ChatResponseUpdate,
    Context,
    DelegatingAgent,
    DelegatingChatClient,
    FunctionInvokingChatClient,
    InMemoryHistoryProvider,
    RetryingChatClient,
    pipeline,
)
from agentpipe._layered import Layered, Node, is_function, is_live, name_of
from agentpipe.testing import ScriptedChatClient


class Settled(DelegatingChatClient):
    """A layer with settings of every sort."""

    shown = ("shown",)

    def __init__(
        self, inner: ChatClient, size: int = 1, *names: str, shown: bool = True, note: str | None = None, **others: Any
    ) -> None:
        super().__init__(inner)
        self.size = size
        self.names = names
        self.shown_ = shown
        self.note = note
        self.others = others


class Keyed(DelegatingChatClient):
    """A layer that keeps its secrets under their names."""

    def __init__(
        self,
        inner: ChatClient,
        *,
        api_key: str | None = None,
        password: str = "",
        access_token: str = "",
        extra_headers: dict[str, str] | None = None,
        tokens: int = 1,
        key_size: int = 1,
    ) -> None:
        super().__init__(inner)
        self.api_key = api_key
        self.password = password
        self.access_token = access_token
        self.extra_headers = extra_headers
        self.tokens = tokens
        self.key_size = key_size


class Fork(ChatClient):
    """A client with two clients inside it."""

    def __init__(self, *clients: ChatClient) -> None:
        self.clients = clients

    def _inside(self) -> Sequence[Layered]:
        return self.clients

    def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        return self.clients[0].respond(request)


async def live(request: ChatRequest, inner: ChatClient, size: int = 1) -> AsyncIterator[ChatResponseUpdate]:
    async for update in inner.respond(request):
        yield update


async def whole(request: ChatRequest, inner: ChatClient, size: int = 1) -> ChatResponse:
    return await inner.get_response(request)


class Live:
    async def __call__(self, request: ChatRequest, inner: ChatClient, n: int = 1) -> AsyncIterator[ChatResponseUpdate]:
        async for update in inner.respond(request):
            yield update


class Methods:
    async def live(self, request: ChatRequest, inner: ChatClient) -> AsyncIterator[ChatResponseUpdate]:
        async for update in inner.respond(request):
            yield update

    async def whole(self, request: ChatRequest, inner: ChatClient) -> ChatResponse:
        return await inner.get_response(request)


@pytest.mark.parametrize(
    ("function", "expected", "name"),
    [
        (live, True, "live"),
        (whole, False, "whole"),
        (partial(live, size=2), True, "live"),
        (partial(partial(whole, size=2), size=3), False, "whole"),
        (Live(), True, "Live"),
        (partial(Live(), n=2), True, "Live"),
        (Methods().live, True, "live"),
        (partial(Methods().whole), False, "whole"),
    ],
)
def test_the_two_forms_of_middleware(function: Any, expected: bool, name: str) -> None:
    """What a function is, a partial of one, a method or a callable object, tells its form; its own name is shown."""
    assert is_function(function)
    assert is_live(function) is expected
    assert name_of(function) == name
    note = "" if expected else " (whole: a streamed answer arrives in one piece)"
    assert repr(ScriptedChatClient().wrap(function)) == name + note


@pytest.mark.parametrize("wrong", [lambda request, inner: None, print, partial(print), object, 5, None, "live"])
def test_what_is_no_middleware(wrong: Any) -> None:
    """What neither yields nor returns asynchronously is refused where it is put, with a TypeError."""
    with pytest.raises(TypeError):
        ScriptedChatClient().wrap(wrong)


def test_classes_are_no_functions() -> None:
    """A layer class, or a partial of one, is told apart from a function; a class that makes no layer is refused."""
    assert not is_function(Settled)
    assert not is_function(partial(Settled, size=2))

    class Alien:
        def __init__(self, inner: object) -> None: ...

    with pytest.raises(TypeError, match="Alien is no layer of a ChatClient"):
        ScriptedChatClient().wrap(Alien)
    with pytest.raises(TypeError, match="Alien is no layer of a BaseAgent"):
        Agent(ScriptedChatClient()).wrap(Alien)


def test_the_settings_that_are_shown() -> None:
    """Settings that differ from their default are shown, in the order of the constructor; the others are not."""
    assert repr(Settled(ScriptedChatClient())) == "Settled(shown=('shown',))"
    assert (
        repr(Settled(ScriptedChatClient(), 3, "a", note="x", other=1)) == "Settled(size=3, shown=('shown',), note='x')"
    )
    assert repr(ScriptedChatClient(piece=5)) == "ScriptedChatClient(piece=5)"


def test_secrets_are_not_shown() -> None:
    """A setting that is called like a secret is never shown with its value; what only sounds alike is."""
    secret = "sk-do-not-show"
    layer = Keyed(
        ScriptedChatClient(),
        api_key=secret,
        password=secret,
        access_token=secret,
        extra_headers={"Authorization": secret},
        tokens=5,
        key_size=2,
    )
    assert repr(layer) == "Keyed(api_key=..., password=..., access_token=..., extra_headers=..., tokens=5, key_size=2)"
    assert secret not in str(layer) + layer.to_mermaid()
    assert repr(Keyed(ScriptedChatClient())) == "Keyed()"


async def today(request: ChatRequest) -> Context:
    return Context(instructions="Today is Tuesday.")


async def redact(request: ChatRequest, inner: ChatClient) -> AsyncIterator[ChatResponseUpdate]:
    async for update in inner.respond(request):
        yield update


def get_weather(city: str) -> str:
    """The weather of a city."""
    return city


def test_the_tree_of_an_agent() -> None:
    """The tree of an agent shows its providers, and its client in the order in which a request travels."""
    client = pipeline(redact, FunctionInvokingChatClient, partial(RetryingChatClient, attempts=5), ScriptedChatClient())
    agent = Agent(
        client, name="Ada", tools=[get_weather], context_providers=[today], history_provider=InMemoryHistoryProvider()
    )
    assert str(agent) == (
        "Agent(name='Ada', tools=['get_weather'])\n"
        "├─ today\n"
        "├─ InMemoryHistoryProvider()\n"
        "└─ redact\n"
        "   └─ FunctionInvokingChatClient(max_iterations=40, max_consecutive_errors=3)\n"
        "      └─ RetryingChatClient(attempts=5)\n"
        "         └─ ScriptedChatClient()"
    )


def test_the_tree_of_a_fork() -> None:
    """Where a layer has several inside it, each is drawn under it, and the lines go on beside the first."""
    fork = Fork(Settled(ScriptedChatClient(piece=1)), ScriptedChatClient(piece=2))
    assert str(fork) == (
        "Fork()\n├─ Settled(shown=('shown',))\n│  └─ ScriptedChatClient(piece=1)\n└─ ScriptedChatClient(piece=2)"
    )


def test_the_flowchart() -> None:
    """The Mermaid flowchart has the same nodes and edges, the loop drawn, and what would break it escaped."""
    client = pipeline(
        partial(Settled, note='<"&>'), FunctionInvokingChatClient, Fork(ScriptedChatClient(), ScriptedChatClient())
    )
    assert client.to_mermaid() == (
        "flowchart TD\n"
        "    n0[\"Settled(shown=('shown',), note='&lt;&quot;&amp;&gt;')\"]\n"
        '    n1["FunctionInvokingChatClient(max_iterations=40, max_consecutive_errors=3)"]\n'
        '    n2["Fork()"]\n'
        '    n3["ScriptedChatClient()"]\n'
        '    n4["ScriptedChatClient()"]\n'
        "    n0 --> n1\n"
        '    n1 -- "calls tools, asks again" --> n1\n'
        "    n1 --> n2\n"
        "    n2 --> n3\n"
        "    n2 --> n4"
    )


def test_find_walks_every_branch() -> None:
    """find gives the outermost of a kind, looks into every branch, and takes any type, a base or one's own."""
    deep = Settled(ScriptedChatClient(), note="deep")
    fork = Fork(ScriptedChatClient(piece=1), deep)
    outer = DelegatingChatClient(fork)
    assert outer.find(Settled) is deep
    assert outer.find(ScriptedChatClient) is fork.clients[0]
    assert outer.find(ChatClient) is outer  # type: ignore[type-abstract]
    assert outer.find(Keyed) is None
    agent = DelegatingAgent(Agent(outer))
    assert agent.find(Settled) is deep
    assert isinstance(agent.find(Agent), Agent)
    assert agent.find(BaseAgent) is agent  # type: ignore[type-abstract]


def test_a_node_is_what_it_says() -> None:
    """A node is a label, and what stands below it."""
    assert Node("a") == Node("a", (), False)
