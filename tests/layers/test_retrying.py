"""RetryingChatClient."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import httpx
import pytest
import respx

from agentpipe import (
    Agent,
    ApprovalError,
    AuthenticationError,
    ChatClient,
    ChatClientError,
    ChatRequest,
    ChatResponse,
    ChatResponseUpdate,
    FunctionInvokingChatClient,
    OpenAIChatClient,
    RateLimitError,
    RetryingChatClient,
    TextContent,
    ToolError,
    ToolLoopError,
    TransportError,
    UsageLimitError,
    pipeline,
)
from agentpipe.exceptions import HistoryError
from agentpipe.testing import ScriptedChatClient, call
from tests.conftest import ask

DOWN = TransportError("the endpoint is down", status=503)


class Waits(list[float]):
    """A sleep that only remembers how long it should have been."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


def retrying(inner: ChatClient, **settings: Any) -> RetryingChatClient:
    return RetryingChatClient(inner, **{"jitter": 0, "sleep": Waits(), **settings})


def waits(client: RetryingChatClient) -> Any:
    return client._sleep


async def test_it_asks_again_until_there_is_an_answer(streaming: bool) -> None:
    """Two failures and an answer are an answer; the waits double."""
    endpoint = ScriptedChatClient(DOWN, DOWN, "Hello.")
    client = retrying(endpoint, wait_initial=1)
    assert (await ask(client, "Hi", streaming)).text == "Hello."
    assert waits(client) == [1, 2]
    assert endpoint.open == 0


async def test_the_last_error_is_raised_as_it_was(streaming: bool) -> None:
    """When the attempts are used up, the very error of the last one is raised, without a wrapper or a context."""
    last = RateLimitError("slow down")
    endpoint = ScriptedChatClient(DOWN, DOWN, last)
    with pytest.raises(RateLimitError) as caught:
        await ask(retrying(endpoint), "Hi", streaming)
    assert caught.value is last
    assert last.__cause__ is None
    assert last.__context__ is None
    assert len(endpoint.requests) == 3
    assert endpoint.open == 0


async def test_one_attempt_never_asks_again(streaming: bool) -> None:
    """attempts=1 is a layer that does nothing."""
    endpoint = ScriptedChatClient(DOWN, "Hello.")
    with pytest.raises(TransportError):
        await ask(retrying(endpoint, attempts=1), "Hi", streaming)
    assert len(endpoint.requests) == 1


async def test_what_the_endpoint_asks_for_is_waited(streaming: bool) -> None:
    """retry_after is waited, also where it is longer than wait_max."""
    client = retrying(ScriptedChatClient(RateLimitError("wait", retry_after=45), "Hello."), wait_max=10)
    await ask(client, "Hi", streaming)
    assert waits(client) == [45]


async def test_a_wait_that_takes_too_long_is_given_up_at_once(streaming: bool) -> None:
    """Where the endpoint asks for more than there is time, nothing is waited for."""
    endpoint = ScriptedChatClient(RateLimitError("wait", retry_after=45), "Hello.")
    client = retrying(endpoint, max_time=30)
    with pytest.raises(RateLimitError):
        await ask(client, "Hi", streaming)
    assert waits(client) == []
    assert len(endpoint.requests) == 1


async def test_waits_are_capped_and_jittered() -> None:
    """No wait is longer than wait_max and the jitter together, and two are not alike."""
    client = retrying(ScriptedChatClient(*[DOWN] * 7, "Hello."), attempts=8, wait_initial=1, wait_max=4, jitter=0.5)
    await client.get_response("Hi")
    assert [int(wait) for wait in waits(client)] == [1, 2, 4, 4, 4, 4, 4]
    assert len({wait % 1 for wait in waits(client)}) > 1
    assert all(wait % 1 <= 0.5 for wait in waits(client))


@pytest.mark.parametrize(
    "error",
    [ApprovalError("no"), ToolError("no"), ToolLoopError("no"), UsageLimitError("no"), HistoryError("no")],
    ids=lambda error: type(error).__name__,
)
async def test_what_is_no_trouble_of_the_endpoint_is_never_retried(error: Exception, streaming: bool) -> None:
    """Approvals, tools, limits, the loop and the store are not retried, even where ``on`` says everything is."""
    endpoint = ScriptedChatClient(error, "Hello.")
    with pytest.raises(type(error)):
        await ask(retrying(endpoint, on=Exception), "Hi", streaming)
    assert len(endpoint.requests) == 1


async def test_what_will_not_help_is_not_retried(streaming: bool) -> None:
    """An error that is not retryable, and one that is none of agentpipe's, are raised at once."""
    for error in (AuthenticationError("no such key"), RateLimitError("no money left", retryable=False), OSError("no")):
        endpoint = ScriptedChatClient(error, "Hello.")
        with pytest.raises(type(error)):
            await ask(retrying(endpoint), "Hi", streaming)
        assert len(endpoint.requests) == 1


@pytest.mark.parametrize(
    ("on", "error", "asked"),
    [
        (OSError, OSError(), 2),
        ((OSError, RateLimitError), DOWN, 1),
        (RateLimitError, RateLimitError("no money left", retryable=False), 1),
        (lambda error: error.status == 401, AuthenticationError("a moment", status=401), 2),
    ],
)
async def test_on_says_which_errors(on: Any, error: Exception, asked: int) -> None:
    """Types of errors as far as they may be retried, or a function that has the last word."""
    endpoint = ScriptedChatClient(error, "Hello.")
    client = retrying(endpoint, on=on)
    if asked == 1:
        with pytest.raises(type(error)):
            await client.get_response("Hi")
    else:
        await client.get_response("Hi")
    assert len(endpoint.requests) == asked


async def test_nothing_is_said_twice(streaming: bool) -> None:
    """An answer that breaks off after its first update is not begun again: what was seen stays what was said."""
    pieces: Any = [ChatResponseUpdate((TextContent("Hel"),), "assistant", "m"), DOWN]
    endpoint = ScriptedChatClient(pieces, "Hello.")
    with pytest.raises(TransportError):
        await ask(retrying(endpoint), "Hi", streaming)
    assert len(endpoint.requests) == 1
    assert endpoint.open == 0


async def test_a_hidden_answer_is_an_answer_too(streaming: bool) -> None:
    """Where a middleware function below hides that tools ran, the run is not begun again."""
    ran: list[str] = []

    def work() -> str:
        ran.append("work")
        return "done"

    async def whole(request: ChatRequest, inner: ChatClient) -> ChatResponse:
        return await inner.get_response(request)

    endpoint = ScriptedChatClient(call("work"), DOWN, "Done.")
    client = pipeline(partial(RetryingChatClient, jitter=0, sleep=Waits()), whole, FunctionInvokingChatClient, endpoint)
    with pytest.raises(TransportError):
        await ask(Agent(client, tools=[work]), "Work", streaming)
    assert ran == ["work"]


async def test_a_consumer_that_leaves_or_raises_is_not_asked_again() -> None:
    """An error thrown into the stream by its reader goes through, and what is below is closed."""
    endpoint = ScriptedChatClient("Hello.", "Hello.")
    updates: Any = retrying(endpoint, on=Exception).respond(ChatRequest((), streaming=True))
    await updates.__anext__()
    with pytest.raises(OSError, match="mine"):
        await updates.athrow(OSError("mine"))
    assert len(endpoint.requests) == 1
    assert endpoint.open == 0


async def test_cancelling_ends_a_wait() -> None:
    """A run that is cancelled while it waits ends as cancelled, and asks no more."""
    waiting = asyncio.Event()

    async def forever(seconds: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    endpoint = ScriptedChatClient(DOWN, "Hello.")
    task = asyncio.create_task(retrying(endpoint, sleep=forever).get_response("Hi"))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(endpoint.requests) == 1


async def test_cancellation_of_what_is_below_is_not_retried() -> None:
    """CancelledError is no trouble of an endpoint."""
    endpoint = ScriptedChatClient(asyncio.CancelledError(), "Hello.")
    with pytest.raises(asyncio.CancelledError):
        await retrying(endpoint, on=lambda error: True).get_response("Hi")
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize(("place", "asked"), [("below", 4), ("above", 3)])
async def test_below_the_loop_a_call_is_repeated_and_above_it_a_run(place: str, asked: int, streaming: bool) -> None:
    """Below the loop the second model call is repeated; above it the run has answered by then, and fails."""
    layer: Any = partial(RetryingChatClient, jitter=0, sleep=Waits())
    endpoint = ScriptedChatClient(DOWN, call("work"), DOWN, "Done.")
    layers = [FunctionInvokingChatClient, layer] if place == "below" else [layer, FunctionInvokingChatClient]
    agent = Agent(pipeline(*layers, endpoint), tools=[work])
    if place == "below":
        assert (await ask(agent, "Work", streaming)).text == "Done."
    else:
        with pytest.raises(TransportError):
            await ask(agent, "Work", streaming)
    assert len(endpoint.requests) == asked


def work() -> str:
    """Work."""
    return "done"


@pytest.fixture
def wire() -> Iterator[respx.MockRouter]:
    with respx.mock(base_url="http://endpoint.test/v1") as router:
        yield router


@pytest.mark.parametrize("attempts", [1, 2, 4])
async def test_there_is_one_owner_of_retries(wire: respx.MockRouter, attempts: int, streaming: bool) -> None:
    """As many requests go over the wire as there are attempts, though the openai package can retry too."""
    from openai import AsyncOpenAI

    route = wire.post("/chat/completions").mock(
        return_value=httpx.Response(503, json={"error": {"message": "busy"}}, headers={"retry-after": "7"})
    )
    async with httpx.AsyncClient() as transport:
        sdk = AsyncOpenAI(base_url="http://endpoint.test/v1", api_key="k", http_client=transport, max_retries=5)  # type: ignore[arg-type]
        client = retrying(OpenAIChatClient("m", client=sdk), attempts=attempts)
        with pytest.raises(TransportError):
            await ask(client, "Hi", streaming)
    assert route.call_count == attempts
    assert waits(client) == [7] * (attempts - 1)


def test_who_has_no_trouble_does_not_import_tenacity() -> None:
    """tenacity is loaded with the first failure, and not before."""
    code = (
        "import asyncio, sys\n"
        "from agentpipe import RetryingChatClient\n"
        "from agentpipe.testing import ScriptedChatClient\n"
        "asyncio.run(RetryingChatClient(ScriptedChatClient('Hello.')).get_response('Hi'))\n"
        "assert 'tenacity' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"attempts": 0}, "attempts"),
        ({"attempts": 1.5}, "attempts"),
        ({"wait_initial": -1}, "wait_initial"),
        ({"wait_max": -1}, "wait_max"),
        ({"jitter": -1}, "jitter"),
        ({"max_time": 0}, "max_time"),
        ({"on": 3}, "on"),
        ({"on": ()}, "on"),
        ({"on": (OSError, 3)}, "on"),
        ({"on": asyncio.CancelledError}, "on"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], name: str) -> None:
    """A bad setting raises where the layer is made, and the message names it."""
    with pytest.raises((ValueError, TypeError), match=f"^{name} "):
        RetryingChatClient(ScriptedChatClient(), **settings)


def test_it_prints_its_settings_and_is_found() -> None:
    """The tree shows what was set."""
    client = pipeline(
        partial(RetryingChatClient, attempts=5, on=(OSError, ChatClientError)),
        partial(RetryingChatClient, wait_max=1.0, on=is_odd),
        ScriptedChatClient(),
    )
    assert str(client).split("\n")[:2] == [
        "RetryingChatClient(attempts=5, on=OSError | ChatClientError)",
        "└─ RetryingChatClient(attempts=3, on=is_odd, wait_max=1.0)",
    ]
    found = client.find(RetryingChatClient)
    assert found is not None
    assert found.attempts == 5


def is_odd(error: Exception) -> bool:
    return True


async def test_two_of_them_multiply(streaming: bool) -> None:
    """Two layers are two owners of retries: the attempts multiply, as the tree shows."""
    endpoint = ScriptedChatClient(*[DOWN] * 6)
    with pytest.raises(TransportError):
        await ask(retrying(retrying(endpoint, attempts=3), attempts=2), "Hi", streaming)
    assert len(endpoint.requests) == 6


async def test_an_inner_client_without_aclose_will_do() -> None:
    """What is inside may return any async iterator."""

    class Once:
        def __aiter__(self) -> AsyncIterator[ChatResponseUpdate]:
            return self

        async def __anext__(self) -> ChatResponseUpdate:
            raise StopAsyncIteration

    class Plain(ChatClient):
        def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
            return Once()

    assert (await retrying(Plain()).get_response("Hi")).messages == ()
