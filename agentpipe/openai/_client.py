"""OpenAIChatClient: any endpoint that speaks Chat Completions."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agentpipe._client import ChatClient
from agentpipe._request import ChatRequest
from agentpipe._responses import ChatResponseUpdate
from agentpipe.exceptions import BadResponseError, ChatClientError
from agentpipe.openai._assemble import Assembler
from agentpipe.openai._body import BodyBuilder
from agentpipe.openai._encode import WireTools
from agentpipe.openai._errors import error_of, request_id_of
from agentpipe.openai._profiles import EndpointProfile, profile_of
from agentpipe.openai._sse import SSEReader
from agentpipe.openai._transport import Transport, without_secrets_in_url

if TYPE_CHECKING:
    from openai import AsyncOpenAI


class OpenAIChatClient(ChatClient):
    """Chat Completions, whole and streamed, of any OpenAI-compatible endpoint.

    Nothing is sent, and the openai package is not imported, before the first request.

    Args:
        model: The model; OPENAI_MODEL by default. ``ChatOptions.model`` wins.
        base_url: The endpoint; OPENAI_BASE_URL by default, else OpenAI's own.
        api_key: The key; OPENAI_API_KEY by default. An endpoint that is named needs none.
        client: An ``AsyncOpenAI`` (or ``AsyncAzureOpenAI``) of your own, instead of the two above. It is not closed.
        profile: What is different about the endpoint: an `EndpointProfile`, the name of one, or None to go by the host
            and the model.
        default_headers: Headers to send with each request.
        timeout: Seconds that the endpoint may be silent; ten minutes by default.
        aiohttp: Let aiohttp carry the requests, which takes less CPU; needs the extra ``agentpipe-chat[aiohttp]``.
        keep_raw: Keep the last JSON of a streamed answer in ``response.raw`` too.

    Raises:
        ValueError: There is no endpoint and no key, the URL is none, or there is no such profile.
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
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout must be greater than 0 seconds, not {timeout!r}")
        self.model = model or os.environ.get("OPENAI_MODEL") or None
        url = _url_of(base_url, client)
        self.base_url = without_secrets_in_url(url) if url else None
        self.profile = profile_of(profile, url, self.model)
        self._shows_profile = profile
        self._keep_raw = keep_raw
        self._transport = Transport(
            base_url=None if client is not None else url,
            api_key=None if client is not None else _key_of(api_key, url),
            headers=default_headers,
            timeout=timeout,
            aiohttp=aiohttp,
            client=client,
        )
        self._bodies = BodyBuilder(self.profile)

    async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Ask the endpoint. Raises ChatClientError in its kinds, see `agentpipe.exceptions`."""
        model = request.options.model or self.model
        if model is None:
            raise ValueError("no model is given: OpenAIChatClient(model), ChatOptions(model=...) or OPENAI_MODEL")
        body, tools = self._bodies.build(request, model)
        updates = self._streamed if request.streaming else self._whole
        try:
            async with aclosing(updates(body, request.options.extra_headers, tools)) as answer:
                async for update in answer:
                    yield update
        except ChatClientError as error:
            raise self._transport.without_secrets(error)  # noqa: B904

    async def _whole(
        self, body: bytes, headers: Mapping[str, str] | None, tools: WireTools
    ) -> AsyncIterator[ChatResponseUpdate]:
        content, answered = await self._transport.send(body, headers)
        try:
            for update in self._read_whole(content, self._assembler(tools)):
                yield update
        except ChatClientError as error:
            error.request_id = error.request_id or request_id_of(answered)
            raise

    async def _streamed(
        self, body: bytes, headers: Mapping[str, str] | None, tools: WireTools
    ) -> AsyncIterator[ChatResponseUpdate]:
        assembler = self._assembler(tools)
        reader = SSEReader()
        feed, read = assembler.feed, reader.feed
        done = False
        async with aclosing(self._transport.stream(body, headers)) as packets:
            async for packet in packets:
                for data in read(packet):
                    if data[:6] == b"[DONE]" or done:
                        done = True
                        continue
                    for chunk in _chunks(data):
                        update = feed(chunk)
                        if update is not None:
                            yield update
        for data in reader.end():
            done = done or data.strip() == b"[DONE]"
            for chunk in () if done else _chunks(data):
                if (update := feed(chunk)) is not None:
                    yield update
        if reader.unframed:
            rest = self._read_whole(b"\n".join(reader.unframed), assembler)
        else:
            rest = assembler.end(done=done)
        for update in rest:
            yield update

    def _read_whole(self, content: bytes, assembler: Assembler) -> Any:
        text = content.strip().removeprefix(b"\xef\xbb\xbf").lstrip()
        if not text:
            raise BadResponseError("the endpoint answered 200 with nothing", status=200)
        if text[:5] == b"data:" or text[:6] == b"event:" or text[:1] == b":":
            return _folded_events(text, assembler)
        value = _first_json(text)
        return assembler.whole(value)

    def _assembler(self, tools: WireTools) -> Assembler:
        return Assembler(self.profile, tools.schemas, tools.to_own)

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
        return str(client.base_url)
    url = base_url if base_url is not None else os.environ.get("OPENAI_BASE_URL") or None
    if url is None:
        return None
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(
            f"base_url must be the URL of an endpoint, like http://127.0.0.1:8000/v1, not {without_query(url)!r}"
        )
    return url


def without_query(url: str) -> str:
    """A text that was meant as a URL, without what may be secret in it."""
    return url.partition("?")[0].rpartition("@")[2][:100]


def _key_of(api_key: str | None, url: str | None) -> str:
    key = api_key or os.environ.get("OPENAI_API_KEY")
    if key:
        return key
    if url is None:
        raise ValueError(
            "there is no key and no endpoint: set OPENAI_API_KEY (for OpenAI), or base_url=/OPENAI_BASE_URL (for any "
            "other endpoint); a model that runs here needs neither: agentpipe.local.LocalChatClient()"
        )
    return "none"  # many servers of one's own want no key, and the openai package wants one


# ------------------------------------------------------------------------------------------------ reading JSON


def _load(data: bytes) -> Any:
    """The JSON value of some bytes; ValueError where they are none."""
    try:
        return _from_json(data)
    except ValueError:
        # What a strict reader refuses (a control character in a text, half a surrogate) is let through.
        return json.loads(data.decode("utf-8", "replace"), strict=False)


def _from_json(data: bytes) -> Any:
    global _from_json
    try:
        from jiter import from_json  # comes with the openai package, and reads a chunk in a quarter of the time
    except ImportError:  # pragma: no cover
        from_json = json.loads
    _from_json = from_json  # type: ignore[assignment]
    return from_json(data)


def _chunks(data: bytes) -> Any:
    """The JSON values in the data of an event; BadResponseError where it is cut."""
    try:
        return (_load(data),)
    except ValueError:
        pass
    text = data.strip()
    if not text:
        return ()
    lines = text.split(b"\n")
    try:
        return [_load(line) for line in lines if line.strip() and line.strip() != b"[DONE]"]
    except ValueError:
        found = error_of(None, None, text.decode("utf-8", "replace")) if text[:1] == b"<" else None
        raise BadResponseError("an event of the stream is not JSON", status=200) from found


def _first_json(text: bytes) -> Any:
    """The first JSON value of a body, whatever follows it."""
    try:
        return _load(text)
    except (ValueError, RecursionError):
        pass
    try:
        return json.JSONDecoder(strict=False).raw_decode(text.decode("utf-8", "replace"))[0]
    except (ValueError, RecursionError):
        what = "an HTML page" if text[:1] == b"<" else "a text that is not JSON"
        raise BadResponseError(f"the endpoint answered 200 with {what}", status=200) from None


def _folded_events(text: bytes, assembler: Assembler) -> Any:
    reader = SSEReader()
    done = False
    for data in [*reader.feed(text), *reader.end()]:
        if data.strip() == b"[DONE]":
            done = True
        elif not done:
            for chunk in _chunks(data):
                if (update := assembler.feed(chunk)) is not None:
                    yield update
    yield from assembler.end(done=done)
