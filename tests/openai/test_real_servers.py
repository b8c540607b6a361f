"""Real servers that speak the protocol: llama.cpp's own, and LiteLLM's gateway in front of it.

Structure is asserted, never prose: so small a model may say anything.
"""

from __future__ import annotations

import socket
import subprocess
import traceback
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from agentpipe import (
    Agent,
    AuthenticationError,
    BadRequestError,
    ChatClientError,
    ChatOptions,
    OpenAIChatClient,
    tool,
)
from agentpipe.local import weights
from agentpipe.local._server import TEMPLATE, ServerSettings, acquire, release
from tests.conftest import ask, cannot_be_had
from tests.openai import gateway

BRIEF = ChatOptions(temperature=0.0, max_output_tokens=40)


@dataclass(frozen=True)
class Server:
    """A server, and what it takes to talk to it."""

    name: str
    url: str
    key: str
    model: str

    def client(self, **changes: Any) -> OpenAIChatClient:
        # llama.cpp closes the connection after a stream although it promised to keep it.
        settings: dict[str, Any] = {
            "base_url": self.url,
            "api_key": self.key,
            "default_headers": {"Connection": "close"},
        }
        return OpenAIChatClient(self.model, **{**settings, **changes})


@pytest.fixture(scope="module")
def llamacpp(local_weights: None) -> Iterator[Server]:
    running = acquire(ServerSettings(weights(), TEMPLATE, 1, 2048, 1))
    yield Server("llama.cpp", running.base_url, running.key, "local")
    release(running)


@pytest.fixture(scope="module")
def litellm(llamacpp: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    try:
        gateway.install()
    except (subprocess.CalledProcessError, OSError) as error:
        cannot_be_had(f"LiteLLM ({error})")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with gateway.running(llamacpp.url, llamacpp.key, port, tmp_path_factory.mktemp("gateway")) as url:
        yield Server("LiteLLM", url, gateway.KEY, "small")


@pytest.fixture(params=["llamacpp", "litellm"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def client(server: Server) -> AsyncIterator[OpenAIChatClient]:
    async with server.client() as client:
        yield client


async def test_an_answer(client: OpenAIChatClient, streaming: bool) -> None:
    """A real answer has text, usage, an id and a reason."""
    response = await ask(client, "Say hello.", streaming, options=BRIEF)
    assert response.text
    assert response.finish_reason in ("stop", "length")
    assert response.response_id
    assert response.usage is not None
    assert response.usage.input_tokens
    assert response.usage.output_tokens
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


async def test_an_answer_that_is_cut_short(client: OpenAIChatClient, streaming: bool) -> None:
    """At the limit of output tokens the reason is "length"."""
    response = await ask(client, "Count to a hundred.", streaming, options=BRIEF.replace(max_output_tokens=3))
    assert response.finish_reason == "length"


async def test_the_loop(client: OpenAIChatClient, streaming: bool) -> None:
    """A real model calls a tool, is told the result, and answers: the server takes the transcript."""

    @tool
    def get_weather(place: str) -> str:
        """Get the weather of a city."""
        return f"{place}: 11 degrees, light rain"

    options = BRIEF.replace(tool_choice="required")
    response = await ask(Agent(client, tools=[get_weather], options=options), "Weather in Suzhou?", streaming)
    call, result = response.function_calls[0], response.function_results[0]
    assert (call.name, call.call_id) == ("get_weather", result.call_id)
    assert call.invalid is not None or get_weather.bind(call.arguments)
    assert response.stop_reason == "answer"


async def test_a_wrong_key(server: Server, streaming: bool) -> None:
    """A wrong key is an error that is not worth a retry, and stands nowhere in it."""
    # Without a database LiteLLM looks no key up, and answers 400.
    kind = AuthenticationError if server.name == "llama.cpp" else BadRequestError
    async with server.client(api_key="sk-wrong-and-secret-key") as client:
        with pytest.raises(kind) as caught:
            await ask(client, "hi", streaming, options=BRIEF)
    assert not caught.value.retryable
    assert "sk-wrong-and-secret-key" not in "".join(traceback.format_exception(caught.value))


async def test_too_long_a_prompt(client: OpenAIChatClient, streaming: bool) -> None:
    """A prompt that does not fit is the request's fault, as each server says it, and not worth a retry."""
    with pytest.raises(BadRequestError) as caught:
        await ask(client, "word " * 4000, streaming, options=BRIEF)
    assert not caught.value.retryable


async def test_a_model_that_is_not_there(litellm: Server, streaming: bool) -> None:
    """A model that the gateway does not know is the request's fault."""
    async with litellm.client() as client:
        with pytest.raises(ChatClientError) as caught:
            await ask(client, "hi", streaming, options=BRIEF.replace(model="nonsense"))
    assert not caught.value.retryable
    assert caught.value.status in (400, 404)


async def test_a_stream_that_is_left(client: OpenAIChatClient) -> None:
    """A stream that is left early leaves the server free for the next request."""
    async with client.stream("Tell me a long story.", BRIEF.replace(max_output_tokens=400)) as stream:
        async for update in stream:
            if update.text:
                break
    assert (await client.get_response("Say hello.", BRIEF)).text
