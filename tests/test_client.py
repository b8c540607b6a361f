"""The waist and its comfort: chat clients, delegating layers, middleware functions, closing, and what comes late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentpipe import (
    Agent,
    AgentPipeError,
    AgentSession,
    ChatClient,
    ChatOptions,
    ChatRequest,
    ChatResponse,
    ChatResponseUpdate,
    DelegatingChatClient,
    Message,
    TextContent,
    TransportError,
    UsageDetails,
    assistant,
    closing,
    user,
)
from agentpipe._options import NO_OPTIONS
from agentpipe.testing import ScriptedChatClient
from tests.conftest import ask


async def whole(request: ChatRequest, inner: ChatClient) -> ChatResponse:
    return await inner.get_response(request)


async def live(request: ChatRequest, inner: ChatClient) -> AsyncIterator[ChatResponseUpdate]:
    async with closing(inner.respond(request)) as updates:
        async for update in updates:
            yield update


async def careless(request: ChatRequest, inner: ChatClient) -> AsyncIterator[ChatResponseUpdate]:
    async for update in inner.respond(request):
        yield update


async def test_what_a_request_is_made_of(streaming: bool) -> None:
    """Messages, options, session and deps arrive in the request as they were given."""
    client = ScriptedChatClient("hi")
    options, session, deps = ChatOptions(seed=1), AgentSession(), object()
    given = [user("a"), "b"]
    await ask(client, given, streaming, options=options, session=session, deps=deps)
    request = client.requests[0]
    assert list(request.messages) == [user("a"), user("b")]
    assert (request.options, request.session, request.deps) == (options, session, deps)
    assert request.options is options
    assert request.streaming is streaming
    assert given == [user("a"), "b"]


async def test_a_request_that_is_made_already(streaming: bool) -> None:
    """A ChatRequest is taken as it is, may be used again, and takes nothing beside it; NO_OPTIONS is nothing."""
    client = ScriptedChatClient("one", "two", "three")
    request = ChatRequest([user("go")], ChatOptions(seed=1), not streaming)
    assert (await ask(client, request, streaming)).text == "one"
    assert (await ask(client, request, streaming)).text == "two"
    assert (await ask(client, request, streaming, options=NO_OPTIONS)).text == "three"
    assert [sent.streaming for sent in client.requests] == [streaming] * 3
    assert len({id(sent.run) for sent in client.requests}) == 3
    for beside in ({"options": ChatOptions(seed=2)}, {"session": AgentSession()}, {"deps": 1}):
        with pytest.raises(TypeError, match=r"request\.replace"):
            await ask(client, request, streaming, **beside)


@pytest.mark.parametrize("wrong", [None, 5, b"bytes", {"role": "user"}, [5], [None], [["nested"]], object()])
async def test_what_cannot_be_asked(wrong: Any, streaming: bool) -> None:
    """What is no text, content or message raises TypeError that says what came, before anything is asked."""
    client = ScriptedChatClient("hi")
    with pytest.raises(TypeError, match=r"not (NoneType|int|bytes|dict|list|object)"):
        await ask(client, wrong, streaming)
    assert client.requests == []


async def test_wrong_options_and_sessions(streaming: bool) -> None:
    """A dict for the options, or an id for the session, raises TypeError that names the argument."""
    client = ScriptedChatClient("hi")
    with pytest.raises(TypeError, match="options must be ChatOptions, not dict"):
        await ask(client, "go", streaming, options={"seed": 1})
    with pytest.raises(TypeError, match="session must be an AgentSession, not str"):
        await ask(Agent(client), "go", streaming, session="session_1")
    assert client.requests == []


async def test_one_run_has_one_mark(streaming: bool) -> None:
    """All requests of one outermost call carry the same mark, also behind a middleware that asks twice."""
    client = ScriptedChatClient("no", "yes")

    async def twice(request: ChatRequest, inner: ChatClient) -> ChatResponse:
        await inner.get_response(request)
        return await inner.get_response(request)

    assert (await ask(client.wrap(twice), "go", streaming)).text == "yes"
    assert client.requests[0].run is client.requests[1].run is not None


async def test_nothing_is_sent_before_it_is_read() -> None:
    """stream() alone asks nothing; neither does leaving it unread, or closing it twice."""
    client = ScriptedChatClient("hi")
    async with client.stream("go") as stream:
        assert client.requests == []
    await stream.aclose()
    assert (client.requests, client.open) == ([], 0)


@pytest.mark.parametrize("layer", [live, DelegatingChatClient, None])
async def test_leaving_closes_at_once(layer: Any) -> None:
    """Leaving a stream closes what is under it before the next line, through layers that use `closing`."""
    client = ScriptedChatClient("a long story")
    outer = client.wrap(layer) if layer else client
    async with outer.stream("go") as stream:
        await anext(stream)
        assert client.open == 1
    assert client.open == 0


async def test_a_careless_layer_is_closed_soon() -> None:
    """Without `closing` a layer's inner stream is closed by the event loop, a moment later."""
    client = ScriptedChatClient("a long story")
    async with client.wrap(careless).stream("go") as stream:
        await anext(stream)
    for _ in range(10):  # turns of the event loop
        await asyncio.sleep(0)
    assert client.open == 0


async def test_closing_what_cannot_be_closed() -> None:
    """`closing` takes an iterator that has no aclose, too."""

    class Once:
        def __init__(self) -> None:
            self.left = [ChatResponseUpdate([TextContent("x")], "assistant")]

        def __aiter__(self) -> Once:
            return self

        async def __anext__(self) -> ChatResponseUpdate:
            if not self.left:
                raise StopAsyncIteration
            return self.left.pop()

    class Plain(ChatClient):
        def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
            return Once()

    async with closing(Once()) as updates:
        assert [update.text async for update in updates] == ["x"]
    assert (await Plain().wrap(live).get_response("go")).text == "x"
    async with Plain().stream("go") as stream:
        await anext(stream)


async def test_closing_a_client_closes_all_of_it() -> None:
    """aclose, and leaving `async with`, reach every layer's inside."""
    closed: list[str] = []

    class Held(DelegatingChatClient):
        def __init__(self, inner: ChatClient, name: str) -> None:
            super().__init__(inner)
            self.name = name

        async def aclose(self) -> None:
            closed.append(self.name)
            await super().aclose()

    client = ScriptedChatClient("hi").wrap(Held, name="inner").wrap(live).wrap(Held, name="outer")
    async with client as entered:
        assert entered is client
        await client.get_response("go")
    assert closed == ["outer", "inner"]


async def test_errors_pass_as_they_are(streaming: bool) -> None:
    """What an endpoint or a middleware raises is what the caller gets: the same object, through every form of layer."""
    error = KeyError("mine")
    client = ScriptedChatClient(error).wrap(whole).wrap(live).wrap(DelegatingChatClient).wrap(careless)
    with pytest.raises(KeyError) as caught:
        await ask(client, "go", streaming)
    assert caught.value is error


async def test_what_came_is_with_the_error(streaming: bool) -> None:
    """An AgentPipeError that breaks an answer off has what came until then, incomplete."""
    error = TransportError("cut")
    client = ScriptedChatClient([ChatResponseUpdate([TextContent("half")], "assistant", "m"), error])
    with pytest.raises(TransportError):
        await ask(client.wrap(whole).wrap(live), "go", streaming)
    assert error.response is not None
    assert (error.response.text, error.response.incomplete) == ("half", True)


class Worker(DelegatingChatClient):
    """Does something that must not be forgotten, passes on one update, and leaves the rest when it is stopped."""

    def __init__(self, inner: ChatClient, *, error: BaseException | None = None) -> None:
        super().__init__(inner)
        self.error = error
        self.working = asyncio.Event()

    async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        try:
            yield ChatResponseUpdate([TextContent("seen, ")], "assistant", "m", usage=UsageDetails(1))
            self.working.set()
            await asyncio.Event().wait() if self.error is None else None
            raise self.error or AssertionError
        finally:
            if request.late is not None:
                request.late.append(ChatResponseUpdate([TextContent("late")], message_id="m", usage=UsageDetails(10)))


LAYERS = [[], [whole], [live], [whole, live], [live, whole], [whole, whole]]
IDS = ["none", "whole", "live", "whole in live", "live in whole", "whole in whole"]


@pytest.mark.parametrize("layers", LAYERS, ids=IDS)
async def test_what_comes_late_is_not_lost(layers: list[Any], streaming: bool) -> None:
    """What a layer could not yield any more when it failed is in the error's response, once, whatever is around it."""
    client: ChatClient = Worker(ScriptedChatClient(), error=TransportError("cut"))
    for layer in layers:
        client = client.wrap(layer)
    stream = client.stream("go") if streaming else client._open_stream("go", None, None, None, False)
    with pytest.raises(TransportError):
        await stream.get_response()
    assert (stream.partial.text, stream.partial.usage) == ("seen, late", UsageDetails(11))
    assert stream.partial.incomplete


@pytest.mark.parametrize("layers", LAYERS, ids=IDS)
async def test_what_comes_late_when_cancelled(layers: list[Any]) -> None:
    """The same where the reader is cancelled while the layer works; then there is no response, only what came."""
    worker = Worker(ScriptedChatClient())
    client: ChatClient = worker
    for layer in layers:
        client = client.wrap(layer)
    stream = client.stream("go")
    task = asyncio.ensure_future(stream.get_response())
    await worker.working.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (stream.partial.text, stream.partial.usage) == ("seen, late", UsageDetails(11))
    with pytest.raises(AgentPipeError, match="closed before its end") as caught:
        await stream.get_response()
    assert caught.value.response == stream.partial.replace(created_at=caught.value.response.created_at)  # type: ignore[union-attr]


async def test_what_comes_late_when_left() -> None:
    """The same where the stream is left early."""
    client = Worker(ScriptedChatClient())
    async with client.wrap(live).stream("go") as stream:
        assert (await anext(stream)).text == "seen, "
    assert (stream.partial.text, stream.partial.incomplete) == ("seen, late", True)


async def test_what_comes_late_of_a_whole_answer() -> None:
    """The same where the whole answer of a middleware is left after its first message."""

    async def worked(request: ChatRequest, inner: ChatClient) -> ChatResponse:
        return ChatResponse((assistant("one"), assistant("two")), UsageDetails(3), "stop")

    async with ScriptedChatClient().wrap(worked).wrap(live).stream("go") as stream:
        assert (await anext(stream)).text == "one"
    assert [message.text for message in stream.partial.messages] == ["one", "two"]
    assert (stream.partial.usage, stream.partial.incomplete) == (UsageDetails(3), True)


async def test_what_comes_late_survives_an_error_in_closing() -> None:
    """Where closing itself fails, that error is raised, and what came late is there all the same."""

    class Broken(ChatClient):
        async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
            try:
                yield ChatResponseUpdate([TextContent("a")], "assistant")
            finally:
                assert request.late is not None
                request.late.append(ChatResponseUpdate([TextContent("b")]))
                raise OSError("the socket is gone")

    stream = Broken().stream("go")
    await anext(stream)
    with pytest.raises(OSError, match="gone"):
        await stream.aclose()
    assert stream.partial.text == "ab"


async def test_a_whole_middleware_may_answer_by_itself(streaming: bool) -> None:
    """A middleware may answer without asking; messages without ids stay messages of their own."""
    client = ScriptedChatClient()

    async def cached(request: ChatRequest, inner: ChatClient) -> ChatResponse:
        return ChatResponse([assistant("one"), assistant("two")], finish_reason="stop")  # type: ignore[arg-type]

    response = await ask(client.wrap(cached), "go", streaming)
    assert [message.text for message in response.messages] == ["one", "two"]
    assert (response.finish_reason, client.requests) == ("stop", [])


async def test_a_whole_middleware_sees_the_answer(streaming: bool) -> None:
    """A middleware that returns gets the whole answer, also of a streamed call, and may return another."""
    seen: list[ChatResponse] = []

    async def shout(request: ChatRequest, inner: ChatClient) -> ChatResponse:
        response = await inner.get_response(request)
        seen.append(response)
        return response.replace(messages=(Message("assistant", response.text.upper()),))

    client = ScriptedChatClient("a long story", usage=UsageDetails(1, 2, 3)).wrap(shout)
    response = await ask(client, "go", streaming)
    assert (seen[0].text, response.text, response.usage) == ("a long story", "A LONG STORY", UsageDetails(1, 2, 3))
    assert (response.finish_reason, response.model) == ("stop", "scripted")


def test_requests_are_frozen() -> None:
    """A request cannot be changed, shows neither deps nor what comes late, and replace makes another."""
    request = ChatRequest([user("go")], deps="sk-secret")
    with pytest.raises(AttributeError):
        request.streaming = True  # type: ignore[misc]
    assert "sk-secret" not in repr(request)
    assert request.replace(streaming=True) == ChatRequest([user("go")], streaming=True, deps="sk-secret")
    late: list[ChatResponseUpdate] = []
    assert request.replace(late=late).replace(streaming=True).late is late
    with pytest.raises(TypeError, match="nonsense"):
        request.replace(nonsense=1)


def test_a_client_becomes_an_agent() -> None:
    """as_agent makes an Agent around the client."""
    client = ScriptedChatClient()
    agent = client.as_agent("Be brief.", name="Ada")
    assert isinstance(agent, Agent)
    assert agent.find(ScriptedChatClient) is client
    assert agent.name == "Ada"
