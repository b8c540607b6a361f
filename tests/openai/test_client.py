"""OpenAIChatClient: how it is made, what it asks and how it fails, through the openai package and respx."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import respx
from openai import AsyncAzureOpenAI, AsyncOpenAI, OpenAI

import agentpipe
from agentpipe import ChatOptions, ChatResponse, EndpointProfile, OpenAIChatClient
from tests.openai.wire import STOP, delta, sse

KEY = "sk-very-secret-key"
URL = "https://api.test/v1"
ANSWER = {"id": "a", "model": "m", "choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]}


@pytest.fixture
def route() -> Iterator[respx.Route]:
    """The endpoint; httpx is what respx knows, so the SDK is given a client of it."""
    with respx.mock(assert_all_called=False) as mock:
        yield mock.post(url__regex=r".*/chat/completions.*").mock(return_value=httpx.Response(200, json=ANSWER))


@pytest.fixture
async def legacy() -> AsyncIterator[Any]:
    """An HTTP client that the SDK takes all the same, though its types do not say so."""
    async with httpx.AsyncClient() as http_client:
        yield http_client


@pytest.fixture
def sdk(legacy: Any) -> AsyncOpenAI:
    """The SDK's client as a user may have made it."""
    return AsyncOpenAI(base_url=URL, api_key=KEY, http_client=legacy, max_retries=5)


async def ask(client: OpenAIChatClient, streamed: bool, options: ChatOptions | None = None) -> ChatResponse:
    if streamed:
        return await client.stream("hi", options or ChatOptions()).get_response()
    return await client.get_response("hi", options or ChatOptions())


def answers(route: respx.Route, streamed: bool) -> None:
    content = sse(delta(content="hel"), delta(content="lo"), STOP)
    told = {"content-type": "text/event-stream"}
    route.mock(
        return_value=httpx.Response(200, headers=told, content=content)
        if streamed
        else httpx.Response(200, json=ANSWER)
    )


both = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])

# ---------------------------------------------------------------------------------------------- asking


@both
async def test_an_answer(route: respx.Route, sdk: AsyncOpenAI, streamed: bool) -> None:
    """A client of one's own is used as it is, and left open."""
    answers(route, streamed)
    async with OpenAIChatClient("m", client=sdk, default_headers={"x-team": "a"}, timeout=7) as client:
        options = ChatOptions(extra_headers={"x-trace": "1"})
        assert (await ask(client, streamed, options)).text == "hello"
    request = route.calls.last.request
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert (request.headers["x-team"], request.headers["x-trace"]) == ("a", "1")
    assert request.extensions["timeout"]["read"] == 7
    assert json.loads(request.content).get("stream", False) is streamed
    assert not sdk.is_closed()


@both
async def test_azure(route: respx.Route, legacy: Any, streamed: bool) -> None:
    """Azure's client finds the deployment by the model, and sends the key its own way."""
    answers(route, streamed)
    azure = AsyncAzureOpenAI(
        azure_endpoint="https://me.openai.azure.com", api_version="2024-10-21", api_key=KEY, http_client=legacy
    )
    assert (await ask(OpenAIChatClient("gpt", client=azure), streamed)).text == "hello"
    request = route.calls.last.request
    assert str(request.url) == (
        "https://me.openai.azure.com/openai/deployments/gpt/chat/completions?api-version=2024-10-21"
    )
    assert request.headers["api-key"] == KEY


async def test_the_model_of_a_call_wins(route: respx.Route, sdk: AsyncOpenAI) -> None:
    """ChatOptions.model is asked, and a guessed profile goes by that model; a given one stays."""
    official = sdk.with_options(base_url="https://api.openai.com/v1")
    options = ChatOptions(model="o3", temperature=0.5)
    for profile, sent in ((None, False), (EndpointProfile(), True)):
        client = OpenAIChatClient("gpt-4o", client=official, profile=profile)
        await client.get_response("hi", options)
        body = json.loads(route.calls.last.request.content)
        assert body["model"] == "o3"
        assert ("temperature" in body) is sent


async def test_raw_is_there_for_whoever_needs_it(route: respx.Route, sdk: AsyncOpenAI) -> None:
    """A whole answer has its JSON in raw; a streamed one has its chunks, where that was asked for."""
    assert (await ask(OpenAIChatClient("m", client=sdk), False)).raw == ANSWER
    answers(route, True)
    assert (await ask(OpenAIChatClient("m", client=sdk), True)).raw is None
    kept = (await ask(OpenAIChatClient("m", client=sdk, keep_raw=True), True)).raw
    assert kept == [delta(content="hel"), delta(content="lo"), STOP]


# --------------------------------------------------------------------------------------------- failing


@both
async def test_a_refusal_is_told_once(route: respx.Route, sdk: AsyncOpenAI, streamed: bool) -> None:
    """A refusal has its class, status, code, delay and request id; the SDK's error is its cause; nobody tried again."""
    body = {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}
    headers = {"retry-after": "3", "x-request-id": "req-1"}
    route.mock(return_value=httpx.Response(429, json=body, headers=headers))
    with pytest.raises(agentpipe.RateLimitError, match="slow down") as caught:
        await ask(OpenAIChatClient("m", client=sdk), streamed)
    error = caught.value
    assert (error.status, error.code, error.retryable, error.retry_after) == (429, "rate_limit_exceeded", True, 3.0)
    assert error.request_id == "req-1"
    assert type(error.__cause__).__name__ == "RateLimitError"
    assert route.call_count == 1


@both
@pytest.mark.parametrize(
    ("failure", "code"),
    [(httpx.ConnectError("refused"), None), (httpx.ReadTimeout("slow"), "timeout"), (httpx.ReadError("reset"), None)],
    ids=["connect", "timeout", "read"],
)
async def test_trouble_with_the_connection(
    route: respx.Route, sdk: AsyncOpenAI, streamed: bool, failure: Exception, code: str | None
) -> None:
    """An endpoint that cannot be reached or does not answer is a TransportError, worth another try."""
    route.mock(side_effect=failure)
    with pytest.raises(agentpipe.TransportError) as caught:
        await ask(OpenAIChatClient("m", client=sdk), streamed)
    assert (caught.value.retryable, caught.value.code) == (True, code)


@both
async def test_a_200_that_is_no_answer_tells_its_request_id(
    route: respx.Route, sdk: AsyncOpenAI, streamed: bool
) -> None:
    """A page instead of an answer can be asked about."""
    route.mock(return_value=httpx.Response(200, text="<html></html>", headers={"x-request-id": "req-2"}))
    with pytest.raises(agentpipe.BadResponseError, match="HTML") as caught:
        await ask(OpenAIChatClient("m", client=sdk), streamed)
    assert caught.value.request_id == "req-2"


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@both
@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(401, json={"error": {"message": f"Incorrect API key provided: {KEY}"}}),
        httpx.Response(500, text=f"<html><title>{KEY}</title>"),
        httpx.Response(200, json={"error": {"message": f"bad key {KEY} or token hidden-token", "code": 401}}),
        httpx.Response(403, json={"error": {"message": "bad token hidden-token"}}),
        httpx.ConnectError(f"cannot reach https://user:{KEY}@api.test"),
    ],
)
async def test_no_secret_is_told(route: respx.Route, sdk: AsyncOpenAI, streamed: bool, response: Any) -> None:
    """A key, or a header that is one, that the endpoint repeats is in no text of the error or of what it came of."""
    route.mock(**({"side_effect": response} if isinstance(response, Exception) else {"return_value": response}))
    client = OpenAIChatClient("m", client=sdk, default_headers={"x-auth-token": "hidden-token"})
    with pytest.raises(agentpipe.ChatClientError) as caught:
        await ask(client, streamed)
    texts = ["".join(traceback.format_exception(caught.value)), repr(client), str(client)]
    texts += [text for link in chain(caught.value) for text in (str(link), repr(link))]
    assert not any(secret in text for text in texts for secret in (KEY, "hidden-token"))


async def test_no_secret_is_told_in_mid_stream(route: respx.Route, sdk: AsyncOpenAI) -> None:
    """A connection that fails after the first piece, with a key in its error, tells nothing of it either."""

    class Failing(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield sse(delta(content="hel"), done=False)
            raise httpx.ReadError(f"lost https://user:{KEY}@api.test")

    route.mock(return_value=httpx.Response(200, stream=Failing()))
    with pytest.raises(agentpipe.TransportError) as caught:
        await ask(OpenAIChatClient("m", client=sdk), True)
    texts = ["".join(traceback.format_exception(caught.value))]
    texts += [text for link in chain(caught.value) for text in (str(link), repr(link))]
    assert not any(KEY in text for text in texts)
    assert caught.value.response is not None
    assert caught.value.response.text == "hel"


# --------------------------------------------------------------------------------------- construction


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that says nothing."""
    for name in ("OPENAI_MODEL", "OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_the_environment_says_what_is_not_given(bare: pytest.MonkeyPatch) -> None:
    """Model, URL and key come from OPENAI_MODEL, OPENAI_BASE_URL and OPENAI_API_KEY."""
    bare.setenv("OPENAI_MODEL", "m")
    bare.setenv("OPENAI_BASE_URL", URL)
    bare.setenv("OPENAI_API_KEY", KEY)
    assert repr(OpenAIChatClient()) == f"OpenAIChatClient(model='m', base_url='{URL}')"
    assert repr(OpenAIChatClient("n", base_url="http://a/v1")) == "OpenAIChatClient(model='n', base_url='http://a/v1')"


def test_neither_key_nor_endpoint(bare: pytest.MonkeyPatch) -> None:
    """With nothing to ask, the error says what to set; an endpoint of one's own needs no key."""
    with pytest.raises(ValueError, match="OPENAI_API_KEY .*base_url="):
        OpenAIChatClient("m")
    OpenAIChatClient("m", base_url="http://127.0.0.1:8000/v1")


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x/v1", "", "http://", f"//user:{KEY}@host"])
def test_a_bad_url_is_refused(bare: pytest.MonkeyPatch, url: str) -> None:
    """What is no URL of an endpoint is refused at once, without telling what may be secret in it."""
    with pytest.raises(ValueError, match="base_url must be the URL") as caught:
        OpenAIChatClient("m", base_url=url)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"client": True, "base_url": URL}, "client has its own base_url"),
        ({"client": True, "api_key": KEY}, "client has its own base_url"),
        ({"client": True, "aiohttp": True}, "client has its own transport"),
        ({"base_url": URL, "timeout": 0}, "timeout must be a number of seconds greater than 0"),
    ],
)
def test_settings_that_cannot_be(sdk: AsyncOpenAI, settings: dict[str, Any], what: str) -> None:
    """Settings that contradict each other, or are none, are refused at once."""
    if "client" in settings:
        settings = {**settings, "client": sdk}
    with pytest.raises(ValueError, match=what):
        OpenAIChatClient("m", **settings)


async def test_no_model_is_said_when_asked(bare: pytest.MonkeyPatch) -> None:
    """A client may be made without a model, but not asked without one."""
    with pytest.raises(ValueError, match="no model is given"):
        await OpenAIChatClient(base_url=URL).get_response("hi")


def test_repr_tells_no_secret() -> None:
    """User, password, query and key are not shown."""
    client = OpenAIChatClient("m", base_url=f"https://user:{KEY}@host:1/v1?key={KEY}", api_key=KEY, profile="vllm")
    assert repr(client) == "OpenAIChatClient(model='m', base_url='https://host:1/v1', profile='vllm')"


def test_nothing_heavy_is_imported_before_the_first_request() -> None:
    """Importing and making a client loads neither the openai package nor pydantic."""
    code = (
        "import sys; from agentpipe import Agent, OpenAIChatClient\n"
        "OpenAIChatClient('m', base_url='https://x.test/v1', api_key='k')\n"
        "print(sorted({'openai', 'pydantic', 'httpx', 'httpx2', 'jiter', 'tenacity'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("settings", "kind", "told"),
    [
        ({"model": 5}, TypeError, "model must be the name of a model, not int"),
        ({"timeout": "5"}, ValueError, "timeout must be a number of seconds greater than 0, not '5'"),
        ({"base_url": "http://localhost:abc/v1"}, ValueError, "base_url must be the URL of an endpoint"),
        ({"base_url": "http://[::1/v1"}, ValueError, "base_url must be the URL of an endpoint"),
        ({"base_url": 5}, ValueError, "base_url must be the URL of an endpoint"),
        ({"base_url": None, "client": 5}, TypeError, "client must be an AsyncOpenAI, not int"),
        ({"base_url": None, "client": OpenAI(api_key="k")}, TypeError, "client must be an AsyncOpenAI, not OpenAI"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], kind: type[Exception], told: str) -> None:
    """A setting of the wrong kind is told of at once, by its name."""
    with pytest.raises(kind, match=re.escape(told)):
        OpenAIChatClient(**{"model": "m", "base_url": "http://localhost/v1", **settings})
