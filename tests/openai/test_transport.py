"""The first request of a client of ours goes through the openai package; those after it must be no different."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import agentpipe
from agentpipe import ChatOptions, ChatResponse, OpenAIChatClient
from tests.loopback import Loopback, Request, Wire

ANSWER = {"choices": [{"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}]}
STATUSES = [300, 400, 401, 403, 404, 408, 409, 418, 422, 429, 500, 503]

pytestmark = [
    pytest.mark.parametrize("aiohttp", [False, True], ids=["httpx2", "aiohttp"]),
    pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"]),
]


class Endpoint(Loopback):
    """An endpoint that answers, unless a function has something else in mind for a request."""

    def __init__(self, answer: Callable[[Request, Wire, int], Awaitable[bool]] | None = None) -> None:
        super().__init__()
        self.answer = answer

    async def handle(self, request: Request, wire: Wire) -> None:
        if self.answer is None or not await self.answer(request, wire, len(self.requests)):
            await wire.answer(200, ANSWER)


def client_of(endpoint: Loopback, aiohttp: bool, **settings: Any) -> OpenAIChatClient:
    return OpenAIChatClient("m", base_url=endpoint.url, api_key="sk-secret-key", aiohttp=aiohttp, **settings)


async def ask(client: OpenAIChatClient, streamed: bool, options: ChatOptions | None = None) -> ChatResponse:
    if streamed:
        return await client.stream("hi", options).get_response()
    return await client.get_response("hi", options)


async def test_later_requests_are_like_the_first(aiohttp: bool, streamed: bool) -> None:
    """Headers and path of every request are those that the openai package made for the first."""
    async with Endpoint() as endpoint, client_of(endpoint, aiohttp, default_headers={"X-Team": "blue"}) as client:
        for _ in range(3):
            assert (await ask(client, streamed)).text == "hello"
        first, *later = endpoint.requests
        assert first.headers["authorization"] == "Bearer sk-secret-key"
        assert (first.headers["x-team"], first.path) == ("blue", "/v1/chat/completions")
        assert [(request.path, request.headers, request.content) for request in later] == [
            (first.path, first.headers, first.content)
        ] * 2


async def test_headers_of_one_request_stay_with_it(aiohttp: bool, streamed: bool) -> None:
    """extra_headers go with the request that has them, be it the first or a later one, and with no other."""
    own = ChatOptions(extra_headers={"X-Trace": "7", "Authorization": "Bearer other"})
    async with Endpoint() as endpoint, client_of(endpoint, aiohttp) as client:
        for options in (own, None, own, None):
            await ask(client, streamed, options)
        told = [(r.headers.get("x-trace"), r.headers["authorization"]) for r in endpoint.requests]
        assert told == [("7", "Bearer other"), (None, "Bearer sk-secret-key")] * 2


async def test_bodies_of_any_size(aiohttp: bool, streamed: bool) -> None:
    """Each request tells the length of its own body."""
    async with Endpoint() as endpoint, client_of(endpoint, aiohttp) as client:
        for text in ("a", "b" * 1000, "é" * 10):
            await client.get_response(text)
        assert [r.body["messages"][0]["content"] for r in endpoint.requests] == ["a", "b" * 1000, "é" * 10]


async def test_cookies_are_kept(aiohttp: bool, streamed: bool) -> None:
    """A cookie of the endpoint, which may say which of its machines to go back to, comes back with later requests."""

    async def answer(request: Request, wire: Wire, number: int) -> bool:
        await wire.answer(200, ANSWER, {"set-cookie": f"machine={number}; Path=/"})
        return True

    async with Endpoint(answer) as endpoint, client_of(endpoint, aiohttp) as client:
        for options in (None, None, ChatOptions(extra_headers={"X-Trace": "7"}), None):
            await ask(client, streamed, options)
        told = [r.headers.get("cookie") for r in endpoint.requests]
        assert told == [None, "machine=1", "machine=2", "machine=3"]


async def test_cookies_are_not_shared(aiohttp: bool, streamed: bool) -> None:
    """Clients with different keys do not share cookies, though with httpx2 they share connections."""

    async def answer(request: Request, wire: Wire, number: int) -> bool:
        await wire.answer(200, ANSWER, {"set-cookie": f"of={request.headers['authorization'][7:]}; Path=/"})
        return True

    async with Endpoint(answer) as endpoint:
        url = endpoint.url.replace("127.0.0.1", "localhost")  # aiohttp takes no cookies from a bare address
        clients = [OpenAIChatClient("m", base_url=url, api_key=key, aiohttp=aiohttp) for key in "ab"]
        for _ in range(2):
            for client in clients:
                await ask(client, streamed)
        told = [(r.headers["authorization"][7:], r.headers.get("cookie")) for r in endpoint.requests]
        assert told == [("a", None), ("b", None), ("a", "of=a"), ("b", "of=b")]
        assert endpoint.connections == (2 if aiohttp else 1)
        for client in clients:
            await client.aclose()


async def test_redirects_are_followed(aiohttp: bool, streamed: bool) -> None:
    """An endpoint that sends a request elsewhere has it sent elsewhere, each time anew."""

    async def answer(request: Request, wire: Wire, number: int) -> bool:
        if request.path == "/v1/chat/completions":
            await wire.answer(307, "", {"location": "/v2/chat/completions"})
            return True
        return False

    async with Endpoint(answer) as endpoint, client_of(endpoint, aiohttp) as client:
        for _ in range(2):
            assert (await ask(client, streamed)).text == "hello"
        assert [r.path for r in endpoint.requests] == ["/v1/chat/completions", "/v2/chat/completions"] * 2
        assert endpoint.requests[3].content == endpoint.requests[0].content


@pytest.mark.parametrize("status", STATUSES)
async def test_refusals_are_told_alike(aiohttp: bool, streamed: bool, status: int) -> None:
    """A refusal is the same error, with the same error of the openai package as its cause, first or later."""
    refusals = 0

    async def answer(request: Request, wire: Wire, number: int) -> bool:
        nonlocal refusals
        if number == 2:
            return False
        refusals += 1
        body = {"error": {"message": "no, not with sk-secret-key", "code": "some_code"}}
        await wire.answer(status, body, {"retry-after": "3", "x-request-id": "req-1"})
        return True

    async with Endpoint(answer) as endpoint, client_of(endpoint, aiohttp) as client:
        first = await failure_of(client, streamed)
        assert (await ask(client, streamed)).text == "hello"
        later = await failure_of(client, streamed)
        assert [type(first), str(first), vars(first).keys()] == [type(later), str(later), vars(later).keys()]
        told = ("status", "code", "retryable", "retry_after", "request_id")
        assert [getattr(first, name) for name in told] == [getattr(later, name) for name in told]
        assert "sk-secret-key" not in f"{first!s}{later!s}{later.__cause__}"
        assert (refusals, len(endpoint.requests)) == (2, 3)


@pytest.mark.parametrize("status", STATUSES)
async def test_causes_are_the_errors_of_the_openai_package(aiohttp: bool, streamed: bool, status: int) -> None:
    """Whoever looks at the cause of a later refusal finds what the openai package would have raised."""

    async def answer(request: Request, wire: Wire, number: int) -> bool:
        if number != 2:
            await wire.answer(status, {"error": {"message": "no", "code": "some_code"}})
        return number != 2

    async with Endpoint(answer) as endpoint, client_of(endpoint, aiohttp) as client:
        first: Any = (await failure_of(client, streamed)).__cause__
        await ask(client, streamed)
        later: Any = (await failure_of(client, streamed)).__cause__
        assert type(first) is type(later)
        assert type(first).__module__.startswith("openai")
        for name in ("status_code", "code", "body", "request_id"):
            assert getattr(first, name) == getattr(later, name)


async def test_trouble_is_told_alike(aiohttp: bool, streamed: bool) -> None:
    """A connection that breaks off is the same error, with the same cause, first or later."""

    async def answer(request: Request, wire: Wire, number: int) -> bool:
        if number != 2:
            wire.cut()
        return number != 2

    async with Endpoint(answer) as endpoint, client_of(endpoint, aiohttp) as client:
        first = await failure_of(client, streamed)
        await ask(client, streamed)
        later = await failure_of(client, streamed)
        assert isinstance(first, agentpipe.TransportError)
        assert [type(later), str(later), type(later.__cause__)] == [type(first), str(first), type(first.__cause__)]


async def test_silence_is_told_alike(aiohttp: bool, streamed: bool) -> None:
    """An endpoint that says nothing in time is the same error, with the same cause, first or later."""

    async def answer(request: Request, wire: Wire, number: int) -> bool:
        if number != 2:
            await wire.left()
        return number != 2

    async with Endpoint(answer) as endpoint, client_of(endpoint, aiohttp, timeout=0.3) as client:
        first = await failure_of(client, streamed)
        await ask(client, streamed)
        later = await failure_of(client, streamed)
        assert (type(first), first.code) == (agentpipe.TransportError, "timeout")
        assert [type(later), str(later), type(later.__cause__)] == [type(first), str(first), type(first.__cause__)]


async def failure_of(client: OpenAIChatClient, streamed: bool) -> agentpipe.ChatClientError:
    with pytest.raises(agentpipe.ChatClientError) as caught:
        await ask(client, streamed)
    return caught.value
