"""Real sockets: slow, cut, reset, stalled, huge; connections that are kept, shared and closed; several event loops."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import agentpipe
from agentpipe import Agent, ChatResponse, OpenAIChatClient
from agentpipe.openai import _pools
from tests.loopback import Loopback, Request, Wire
from tests.openai.wire import STOP, delta, sse
from tests.strict_endpoint import StrictEndpoint

HELLO = sse(delta(content="Hello"), done=False)
END = sse(STOP, done=False)

pytestmark = pytest.mark.parametrize("aiohttp", [False, True], ids=["httpx2", "aiohttp"])


class Endpoint(Loopback):
    """An endpoint that does what a function says."""

    def __init__(self, answer: Callable[[Wire], Awaitable[None]]) -> None:
        super().__init__()
        self.answer = answer

    async def handle(self, request: Request, wire: Wire) -> None:
        await self.answer(wire)


def client_of(endpoint: Loopback, aiohttp: bool, **settings: Any) -> OpenAIChatClient:
    return OpenAIChatClient("m", base_url=endpoint.url, api_key="k", aiohttp=aiohttp, **settings)


async def ask(client: OpenAIChatClient, streamed: bool = True) -> ChatResponse:
    return await (client.stream("hi").get_response() if streamed else client.get_response("hi"))


async def forever() -> None:
    await asyncio.Event().wait()


async def byte_by_byte(wire: Wire) -> None:
    await wire.begin()
    for byte in sse(delta(content="Héllo 🙂"), STOP):
        await wire.packet(bytes([byte]))
    await wire.end()


async def cut(wire: Wire) -> None:
    await wire.begin()
    await wire.packet(HELLO)
    wire.hang_up()


async def ended_early(wire: Wire) -> None:
    await wire.begin()
    await wire.packet(HELLO)
    await wire.end()


async def stalled(wire: Wire) -> None:
    await wire.begin()
    await wire.packet(HELLO)
    await forever()


async def silent(wire: Wire) -> None:
    await forever()


async def refusing(wire: Wire) -> None:
    wire.cut()


async def huge(wire: Wire) -> None:
    await wire.begin()
    await wire.packet(sse(delta(content="x" * 10_000_000), STOP))
    await wire.end()


async def cut_after_the_reason(wire: Wire) -> None:
    await wire.begin()
    await wire.packet(HELLO + END)
    wire.hang_up()


async def open_after_done(wire: Wire) -> None:
    await wire.begin()
    await wire.packet(HELLO + END + b"data: [DONE]\n\n")
    await forever()


async def test_packets_of_one_byte(aiohttp: bool) -> None:
    """An answer in packets of one byte is the answer."""
    async with Endpoint(byte_by_byte) as endpoint, client_of(endpoint, aiohttp) as client:
        assert (await ask(client)).text == "Héllo 🙂"


async def test_a_line_of_ten_megabytes(aiohttp: bool) -> None:
    """An event has no limit of its own."""
    async with Endpoint(huge) as endpoint, client_of(endpoint, aiohttp) as client:
        assert len((await ask(client)).text) == 10_000_000


@pytest.mark.parametrize("answer", [cut, ended_early, stalled], ids=lambda answer: answer.__name__)
async def test_half_an_answer_is_none(aiohttp: bool, answer: Callable[[Wire], Awaitable[None]]) -> None:
    """A stream that is cut, or falls silent, is a TransportError; what came stays readable and is marked incomplete."""
    async with Endpoint(answer) as endpoint, client_of(endpoint, aiohttp, timeout=0.2) as client:
        stream = client.stream("hi")
        with pytest.raises(agentpipe.TransportError) as caught:
            await stream.get_response()
        assert caught.value.retryable
        assert (stream.partial.text, stream.partial.incomplete) == ("Hello", True)
        with pytest.raises(agentpipe.TransportError):
            await stream.get_response()


@pytest.mark.parametrize("answer", [cut_after_the_reason, open_after_done], ids=lambda answer: answer.__name__)
async def test_what_the_connection_does_after_the_end_is_no_matter(
    aiohttp: bool, answer: Callable[[Wire], Awaitable[None]]
) -> None:
    """After the reason, or [DONE], the answer is there, however the connection ends or does not."""
    async with Endpoint(answer) as endpoint, client_of(endpoint, aiohttp) as client:
        assert (await ask(client)).text == "Hello"
        await endpoint.until_open(0)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("answer", [silent, refusing], ids=lambda answer: answer.__name__)
async def test_no_answer_at_all(aiohttp: bool, streamed: bool, answer: Callable[[Wire], Awaitable[None]]) -> None:
    """An endpoint that never answers, or drops the connection, is a TransportError."""
    async with Endpoint(answer) as endpoint, client_of(endpoint, aiohttp, timeout=0.2) as client:
        with pytest.raises(agentpipe.TransportError):
            await ask(client, streamed)


async def test_nobody_listens(aiohttp: bool) -> None:
    """A port that nobody listens at is a TransportError that names the endpoint."""
    async with Endpoint(silent) as endpoint:
        url = endpoint.url
    async with OpenAIChatClient("m", base_url=url, aiohttp=aiohttp) as client:
        with pytest.raises(agentpipe.TransportError, match="cannot be reached") as caught:
            await ask(client)
    assert url in str(caught.value)


async def test_leaving_a_stream_closes_its_connection(aiohttp: bool) -> None:
    """Who leaves early does not keep the endpoint at work."""
    async with Endpoint(stalled) as endpoint, client_of(endpoint, aiohttp) as client:
        async with client.stream("hi") as stream:
            async for update in stream:
                assert update.text == "Hello"
                break
        await endpoint.until_open(0)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_cancelling_closes_the_connection(aiohttp: bool, streamed: bool) -> None:
    """A call that is cancelled while it waits has its connection closed."""
    async with Endpoint(silent) as endpoint, client_of(endpoint, aiohttp) as client:
        task = asyncio.ensure_future(ask(client, streamed))
        await endpoint.until_open(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await endpoint.until_open(0)


async def test_connections_are_kept_and_shared(aiohttp: bool) -> None:
    """Calls one after another, streamed or not, of two clients with the same settings, take one connection."""
    async with StrictEndpoint(*["hello"] * 6) as endpoint:
        async with client_of(endpoint, aiohttp) as one:
            async with client_of(endpoint, aiohttp) as other:
                for client in (one, other):
                    assert [(await ask(client, streamed)).text for streamed in (True, False)] == ["hello"] * 2
            assert (await ask(one)).text == "hello"  # the first still has its pool when the second is closed
            assert endpoint.connections == 1
        await endpoint.until_open(0)


async def test_a_closed_client_can_be_asked_again(aiohttp: bool) -> None:
    """Closing lets go of connections; a later call opens another."""
    async with StrictEndpoint("one", "two") as endpoint:
        client = client_of(endpoint, aiohttp)
        assert (await ask(client)).text == "one"
        await client.aclose()
        assert (await ask(client)).text == "two"
        await client.aclose()
        await client.aclose()


async def test_many_at_once(aiohttp: bool) -> None:
    """Two hundred calls at once are two hundred answers."""
    async with StrictEndpoint(*["hello"] * 200) as endpoint, client_of(endpoint, aiohttp) as client:
        answers = await asyncio.gather(*[ask(client, bool(number % 2)) for number in range(200)])
        assert [answer.text for answer in answers] == ["hello"] * 200


async def test_a_proxy_of_the_environment_is_used(aiohttp: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP_PROXY has requests go to the proxy, but never what runs on this machine, whose prompts and keys stay here."""
    async with StrictEndpoint("by the proxy") as proxy, StrictEndpoint("straight") as endpoint:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/v1"))
        async with OpenAIChatClient("m", base_url="http://endpoint.test/v1", aiohttp=aiohttp) as client:
            assert (await ask(client)).text == "by the proxy"
        assert "endpoint.test" in proxy.requests[0].path + proxy.requests[0].headers["host"]
        async with client_of(endpoint, aiohttp) as client:
            assert (await ask(client)).text == "straight"


async def test_idle_connections_cost_nothing(aiohttp: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """After many calls at once their connections are kept, and a single call does not look at each of them."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")  # which is no proxy
    async with StrictEndpoint(*["hello"] * 400) as endpoint, client_of(endpoint, aiohttp) as client:
        await ask(client, False)
        before = await events_of(lambda: ask(client, False))
        await asyncio.gather(*[ask(client, False) for _ in range(150)])
        assert endpoint.open == endpoint.connections > 100
        await ask(client, False)  # beside it what is left of the many comes to its end
        events_of_one_call = await events_of(lambda: ask(client, False))
        assert events_of_one_call < 1.5 * before
        assert endpoint.open == endpoint.connections


async def events_of(function: Callable[[], Awaitable[object]]) -> int:
    """How many calls of functions an awaitable makes, those of the endpoint beside it included."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        await function()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_an_agent_with_tools(aiohttp: bool, streamed: bool) -> None:
    """A loop of calls and results goes over the wire as a strict endpoint wants it, on one connection."""

    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    steps = ({"tool_calls": [("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4})]}, "It is 3 and 7.")
    async with StrictEndpoint(*steps) as endpoint, client_of(endpoint, aiohttp) as client:
        agent = Agent(client, tools=[add])
        response = await (agent.stream("go").get_response() if streamed else agent.run("go"))
        assert response.text == "It is 3 and 7."
        assert [message["content"] for message in endpoint.bodies[1]["messages"][-2:]] == ["3", "7"]
        assert (endpoint.connections, endpoint.refused) == (1, [])
        assert response.usage is not None
        assert response.usage.total_tokens == 30


# ---------------------------------------------------------------------------------------- event loops


@pytest.fixture
def elsewhere() -> Iterator[StrictEndpoint]:
    """An endpoint in a thread of its own, for tests that start and end event loops."""
    ready, done = threading.Event(), asyncio.Event()
    found: list[Any] = []

    async def serve() -> None:
        async with StrictEndpoint(*["hello"] * 20) as endpoint:
            found.extend([endpoint, asyncio.get_running_loop()])
            ready.set()
            await done.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    ready.wait()
    yield found[0]
    found[1].call_soon_threadsafe(done.set)
    thread.join()


def until_open(endpoint: StrictEndpoint, count: int) -> None:
    """Wait, from outside of its loop, until so many connections of an endpoint are open."""
    loop = endpoint._server.get_loop()
    asyncio.run_coroutine_threadsafe(endpoint.until_open(count), loop).result(timeout=30)


def test_one_client_in_several_loops(aiohttp: bool, elsewhere: StrictEndpoint) -> None:
    """A client works in loop after loop, and leaves no connection open in one that has ended."""
    client = client_of(elsewhere, aiohttp)
    for _ in range(3):
        assert asyncio.run(ask(client)).text == "hello"
        until_open(elsewhere, 0)
    assert elsewhere.connections == 3
    gc.collect()
    assert not [loop for loop in _pools._POOLS if loop.is_closed() and _pools._POOLS[loop]]


def test_run_sync_again_and_again(aiohttp: bool, elsewhere: StrictEndpoint) -> None:
    """An agent that is run without a loop of one's own leaves no connection behind."""
    agent = Agent(client_of(elsewhere, aiohttp))
    assert [agent.run_sync("hi").text for _ in range(3)] == ["hello"] * 3
    until_open(elsewhere, 0)


def test_loops_in_several_threads(aiohttp: bool, elsewhere: StrictEndpoint) -> None:
    """A client may be used in the loops of several threads at once."""
    client = client_of(elsewhere, aiohttp)
    texts: list[str] = []
    threads = [threading.Thread(target=lambda: texts.append(asyncio.run(ask(client)).text)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == ["hello"] * 8
    until_open(elsewhere, 0)


async def test_whole_and_streamed_are_the_same_on_the_wire(aiohttp: bool) -> None:
    """A streamed request says so and asks for its usage; nothing else differs."""
    async with StrictEndpoint("a", "a") as endpoint, client_of(endpoint, aiohttp) as client:
        whole, streamed = await ask(client, False), await ask(client, True)
        first, second = endpoint.bodies
        assert second == {**first, "stream": True, "stream_options": {"include_usage": True}}
        assert json.loads(endpoint.requests[0].content) == first
        assert (whole.text, whole.usage, whole.finish_reason) == (streamed.text, streamed.usage, streamed.finish_reason)
