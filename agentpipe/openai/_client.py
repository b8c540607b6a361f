"""OpenAIChatClient: any endpoint that speaks Chat Completions."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from agentpipe._client import ChatClient
from agentpipe._request import ChatRequest
from agentpipe._responses import ChatResponseUpdate
from agentpipe.exceptions import ChatClientError
from agentpipe.openai._assemble import Assembler
from agentpipe.openai._body import BodyBuilder
from agentpipe.openai._errors import request_id_of
from agentpipe.openai._headers import checked_headers, checked_key
from agentpipe.openai._profiles import EndpointProfile, profile_of
from agentpipe.openai._reading import Reading, whole
from agentpipe.openai._transport import Transport, without_secrets_in_url

if TYPE_CHECKING:
    from openai import AsyncOpenAI


@dataclass
class _Answered:
    """What is known of an answer before it is read."""

    headers: Mapping[str, str] = field(default_factory=dict)


class OpenAIChatClient(ChatClient):
    """Chat Completions, whole and streamed, of any OpenAI-compatible endpoint.

    Nothing is sent, and the openai package is not imported, before the first request.

    Args:
        model: The model; OPENAI_MODEL by default. ``ChatOptions.model`` wins.
        base_url: The endpoint; OPENAI_BASE_URL by default, else OpenAI's own.
        api_key: The key; OPENAI_API_KEY by default. An endpoint that is named needs none.
        client: An ``AsyncOpenAI`` (or ``AsyncAzureOpenAI``) of your own, instead of the two above. It is not closed,
            and its retries are not used: one owner of retries, see `RetryingChatClient`.
        profile: What is different about the endpoint: an `EndpointProfile`, the name of one, or None to go by the host
            and the model.
        default_headers: Headers to send with each request.
        timeout: Seconds that the endpoint may be silent; ten minutes by default.
        aiohttp: Let aiohttp carry the requests, which takes less CPU; needs the extra ``agentpipe-chat[aiohttp]``.
        keep_raw: Keep the chunks of a streamed answer as a list in ``response.raw``; a whole answer's JSON always is.

    Raises:
        ValueError: There is no endpoint and no key, the URL is none, there is no such profile, or a header or the key
            holds what no header can.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        client: AsyncOpenAI | None = None,
        profile: EndpointProfile | str | None = None,
        default_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        aiohttp: bool = False,
        keep_raw: bool = False,
    ) -> None:
        if client is not None and (base_url is not None or api_key is not None):
            raise ValueError("client has its own base_url and api_key: give either the client, or these")
        if client is not None and aiohttp:
            raise ValueError("client has its own transport: give it a DefaultAioHttpClient instead of aiohttp=True")
        if model is not None and not isinstance(model, str):
            raise TypeError(f"model must be the name of a model, not {type(model).__name__}")
        if timeout is not None and not (isinstance(timeout, (int, float)) and timeout > 0):
            raise ValueError(f"timeout must be a number of seconds greater than 0, not {timeout!r}")
        self.model = model or os.environ.get("OPENAI_MODEL") or None
        self._url = url = _url_of(base_url, client)
        self.base_url = without_secrets_in_url(url) if url else None
        self.profile = profile_of(profile, url, self.model)
        self._shows_profile = profile
        self._keep_raw = keep_raw
        self._transport = Transport(
            base_url=None if client is not None else url,
            api_key=None if client is not None else _key_of(api_key, url),
            headers=checked_headers("default_headers", default_headers),
            timeout=timeout,
            aiohttp=aiohttp,
            client=client,
        )
        self._bodies = BodyBuilder(self.profile)
        self._others: dict[EndpointProfile, BodyBuilder] = {}

    def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Ask the endpoint. Raises ChatClientError in its kinds, see `agentpipe.exceptions`."""
        return request.watched(self._streamed(request) if request.streaming else self._whole(request))

    def _begin(self, request: ChatRequest) -> tuple[bytes, Assembler]:
        """The body to send, and what will read the answer to it."""
        model = request.options.model or self.model
        if model is None:
            raise ValueError("no model is given: OpenAIChatClient(model), ChatOptions(model=...) or OPENAI_MODEL")
        bodies = self._bodies_for(model)
        body, tools = bodies.build(request, model)
        return body, Assembler(bodies.profile, tools.schemas, tools.to_own, keep_raw=self._keep_raw)

    async def _whole(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        with self._telling() as answered:
            body, assembler = self._begin(request)
            content, answered.headers = await self._transport.send(body, self._headers_of(request))
            for update in whole(content, assembler):
                yield update

    async def _streamed(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        with self._telling() as answered:
            body, assembler = self._begin(request)
            reading = Reading(assembler)
            async with self._transport.stream(body, self._headers_of(request)) as answer:
                answered.headers = answer.headers
                try:
                    async for packet in answer:
                        for update in reading.feed(packet):
                            yield update
                        if reading.done:
                            await answer.drain()
                            break
                except Exception as error:
                    if not (reading.finished and self._transport.broke(error)):
                        for update in reading.rest():
                            yield update
                        raise
                for update in reading.end():
                    yield update

    @staticmethod
    def _headers_of(request: ChatRequest) -> Mapping[str, str]:
        return checked_headers("extra_headers", request.options.extra_headers)

    @contextmanager
    def _telling(self) -> Iterator[_Answered]:
        """An error tells the id of the request, and no key."""
        answered = _Answered()
        try:
            yield answered
        except ChatClientError as error:
            error.request_id = error.request_id or request_id_of(answered.headers)
            raise self._transport.without_secrets(error)  # noqa: B904

    def _bodies_for(self, model: str) -> BodyBuilder:
        """The builder for a model: where the profile is a guess, it goes by the model that is asked."""
        if model == self.model or self._shows_profile is not None:
            return self._bodies
        profile = profile_of(None, self._url, model)
        return self._others.setdefault(profile, BodyBuilder(profile)) if profile != self.profile else self._bodies

    async def aclose(self) -> None:
        """Close the connections of the running event loop. A client of your own is left open."""
        await self._transport.aclose()

    async def _leave_loop(self) -> None:
        await self._transport.aclose()

    def _settings(self) -> dict[str, object]:
        told: dict[str, object] = {"model": self.model, "base_url": self.base_url}
        if self._shows_profile is not None:
            told["profile"] = self._shows_profile
        return {name: value for name, value in told.items() if value is not None}


def _url_of(base_url: str | None, client: AsyncOpenAI | None) -> str | None:
    if client is not None:
        import openai

        if not isinstance(client, openai.AsyncOpenAI):
            raise TypeError(f"client must be an AsyncOpenAI, not {type(client).__name__}")
        return str(client.base_url)
    url = base_url if base_url is not None else os.environ.get("OPENAI_BASE_URL") or None
    if url is None:
        return None
    if not _is_endpoint(url):
        raise ValueError(
            f"base_url must be the URL of an endpoint, like http://127.0.0.1:8000/v1, not {without_query(str(url))!r}"
        )
    return url


def _is_endpoint(url: object) -> bool:
    if not isinstance(url, str):
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # a port that is no number, or brackets that do not close
        return False


def without_query(url: str) -> str:
    """A text that was meant as a URL, without what may be secret in it."""
    return url.partition("?")[0].rpartition("@")[2][:100]


def _key_of(api_key: str | None, url: str | None) -> str:
    key = checked_key(api_key or os.environ.get("OPENAI_API_KEY") or "")
    if key:
        return key
    if url is None:
        raise ValueError(
            "there is no key and no endpoint: set OPENAI_API_KEY (for OpenAI), or base_url=/OPENAI_BASE_URL (for any "
            "other endpoint); a model that runs here needs neither: agentpipe.local.LocalChatClient()"
        )
    return "none"  # many servers of one's own want no key, and the openai package wants one
