"""The openai package as the transport: authentication, URL, headers, pools, Azure; not its models of what is sent.

On a client of ours the package makes the first request; those after it are that one with another body, and go to the
HTTP client that the package was given. That leaves out what it does anew for each request though it never changes,
which is half of the CPU of a call. A client of the caller's own is asked for each request, since it may change any.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from agentpipe._responses import close
from agentpipe.exceptions import ChatClientError, TransportError
from agentpipe.openai._body import as_values
from agentpipe.openai._errors import error_of
from agentpipe.openai._pools import Pool, PoolSettings, pool_for

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

#: Seconds that the end of a stream may take after its [DONE], before the connection is given up.
_DRAIN = 0.1


class Answer:
    """An answer that comes in packets: iterate over it.

    Attributes:
        headers: Its headers.
    """

    def __init__(self, response: Any) -> None:
        self._response = response
        self.headers: Mapping[str, str] = response.headers
        encoded = self.headers.get("content-encoding")
        # The stream itself is what aiter_raw would give, at half the price.
        self._packets: AsyncIterator[bytes] = response.aiter_bytes() if encoded else aiter(response.stream)

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The packets as they come; what the connection raises is what `Transport.stream` makes of it."""
        return self._packets

    async def drain(self) -> None:
        """Read what is left, so that the connection can serve the next request; not for long, and whatever it is."""
        with suppress(Exception):
            async with asyncio.timeout(_DRAIN):
                async for _ in self._packets:
                    pass

    async def aclose(self) -> None:
        """Close the connection, unless the answer was read to its end."""
        await close(self._packets)
        await self._response.aclose()


class _OwnClient:
    """A client of the openai package that we made, on the pool of one event loop."""

    def __init__(self, client: AsyncOpenAI, pool: Pool) -> None:
        self.client = client
        self.pool = pool
        self._pattern: dict[str, Any] | None = None  # what all requests have in common
        self._cookies: Any = None  # those that this client was given, if any

    async def post(self, body: bytes, headers: Mapping[str, str] | None, *, stream: bool) -> Any:
        """The response to a request. Raises what the openai package raises."""
        if self._pattern is not None and not headers:
            response = await self._send(self._pattern, body, stream=stream)
        else:
            response = await _post(self.client, body, self._with_cookies(headers), stream=stream)
            if not headers:
                self._pattern = _pattern_of((response.history or [response])[0].request)
        if "set-cookie" in response.headers:
            self._keep_cookies(response)
        return response

    def _keep_cookies(self, response: Any) -> None:
        """They may say which of its machines an endpoint wants to be asked again."""
        import httpx2

        if self._cookies is None:
            self._cookies = httpx2.Cookies()
        self._cookies.extract_cookies(response)

    def _with_cookies(self, headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
        if self._cookies is None:
            return headers
        import httpx2

        asked = httpx2.Request("POST", str(self.client.base_url), cookies=self._cookies)
        return {"Cookie": asked.headers.get("cookie", ""), **(headers or {})}

    async def _send(self, pattern: dict[str, Any], body: bytes, *, stream: bool) -> Any:
        import httpx2
        import openai

        request = httpx2.Request("POST", content=body, cookies=self._cookies, **pattern)
        try:
            response = await self.pool.http_client.send(request, stream=stream)
            if not response.is_success:
                await _read(response)
        except httpx2.TimeoutException as error:
            raise openai.APITimeoutError(request=request) from error
        except httpx2.RequestError as error:
            raise openai.APIConnectionError(request=request) from error
        if not response.is_success:
            raise _status_error(response)
        return response


def _pattern_of(request: Any) -> dict[str, Any]:
    """What requests like this one are made of, besides their bodies and cookies."""
    headers = request.headers.copy()
    for own in ("content-length", "cookie"):
        headers.pop(own, None)
    return {"url": request.url, "headers": headers, "extensions": request.extensions}


async def _read(response: Any) -> None:
    try:
        await response.aread()
    finally:
        await response.aclose()


async def _post(client: AsyncOpenAI, body: bytes, headers: Mapping[str, str] | None, *, stream: bool) -> Any:
    import httpx2
    import openai

    options: Any = {"headers": dict(headers)} if headers else {}
    # Azure's client looks into the body: it takes the deployment from it.
    looks_inside = isinstance(client, openai.AsyncAzureOpenAI)
    content: Any = {"body": as_values(body)} if looks_inside else {"content": body}
    return await client.post("/chat/completions", cast_to=httpx2.Response, options=options, stream=stream, **content)


def _status_error(response: Any) -> APIStatusError:
    """The error that the openai package has for a status."""
    import openai

    kinds: tuple[Any, ...] = (
        openai.BadRequestError,
        openai.AuthenticationError,
        openai.PermissionDeniedError,
        openai.NotFoundError,
        openai.ConflictError,
        openai.UnprocessableEntityError,
        openai.RateLimitError,
    )
    status = response.status_code
    other = openai.InternalServerError if status >= 500 else openai.APIStatusError
    kind = {kind.status_code: kind for kind in kinds}.get(status, other)
    try:
        body = json.loads(response.content)
    except (ValueError, RecursionError):
        body = response.text
    told = body.get("error", body) if isinstance(body, dict) else body
    error: APIStatusError = kind(f"Error code: {status}", response=response, body=told)
    return error


class Transport:
    """Sends bodies to one endpoint and gives back what comes.

    Args:
        base_url: The endpoint's URL; None for that of the openai package.
        api_key: The key.
        headers: Headers to send with each request.
        timeout: Seconds between two packets; None for ten minutes.
        aiohttp: Whether aiohttp carries the requests; needs the extra of that name.
        client: An AsyncOpenAI of the caller's own, which is used as it is and not closed.
    """

    def __init__(
        self,
        *,
        base_url: str | None,
        api_key: str | None,
        headers: Mapping[str, str] | None,
        timeout: float | None,
        aiohttp: bool,
        client: AsyncOpenAI | None,
    ) -> None:
        self.base_url = base_url
        self._api_key = api_key
        self._headers = dict(headers or {})
        self._timeout = timeout
        self._pool_settings = PoolSettings.of(base_url, timeout, aiohttp, (api_key, *sorted(self._headers.items())))
        self._given = client
        self._given_once: AsyncOpenAI | None = None
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, _OwnClient] = WeakKeyDictionary()

    async def send(self, body: bytes, headers: Mapping[str, str] | None) -> tuple[bytes, Mapping[str, str]]:
        """Send a request; the bytes and the headers of the whole answer. Raises ChatClientError."""
        response = await self._post(body, headers, stream=False)
        return response.content, response.headers

    @asynccontextmanager
    async def stream(self, body: bytes, headers: Mapping[str, str] | None) -> AsyncIterator[Answer]:
        """Send a request; the answer in packets. The connection is closed on leaving.

        Raises ChatClientError, also for a connection that fails meanwhile.
        """
        answer = Answer(await self._post(body, headers, stream=True))
        try:
            yield answer
            return
        except Exception as error:
            failure = self.translated(error)
            if failure is None:
                raise
        finally:
            await answer.aclose()
        raise failure[0] from failure[1]

    async def _post(self, body: bytes, headers: Mapping[str, str] | None, *, stream: bool) -> Any:
        try:
            if self._given is not None:
                return await _post(self._adapted(self._given), body, headers, stream=stream)
            return await (await self._own_client()).post(body, headers, stream=stream)
        except Exception as error:
            failure = self.translated(error)
            if failure is None:
                raise
        # Raised out here, since an error that is raised while another is handled carries that one with it.
        raise failure[0] from failure[1]

    # ------------------------------------------------------------------------------------------- clients

    def _adapted(self, given: AsyncOpenAI) -> AsyncOpenAI:
        """The caller's client with our settings; the client itself stays as it is."""
        if self._given_once is None:
            settings: dict[str, Any] = {"max_retries": 0}  # one owner of retries: a layer, if anybody
            if self._headers:
                settings["default_headers"] = self._headers
            if self._timeout is not None:
                settings["timeout"] = self._timeout
            self._given_once = given.with_options(**settings)
        return self._given_once

    async def _own_client(self) -> _OwnClient:
        loop = asyncio.get_running_loop()
        own = self._clients.get(loop)
        if own is None:
            for ended in [known for known in self._clients if known.is_closed()]:
                del self._clients[ended]
            pool = await pool_for(self._pool_settings)
            own = self._clients[loop] = _OwnClient(self._make(pool), pool)
        return own

    def _make(self, pool: Pool) -> AsyncOpenAI:
        import openai

        return openai.AsyncOpenAI(
            base_url=self.base_url,
            api_key=self._api_key,
            default_headers=self._headers or None,
            max_retries=0,
            http_client=pool.http_client,
        )

    async def aclose(self) -> None:
        """Let go of the pool of the running event loop; its last user closes it. A later request opens another."""
        own = self._clients.pop(asyncio.get_running_loop(), None)
        if own is not None:
            await own.pool.release()

    # -------------------------------------------------------------------------------------------- errors

    def translated(self, error: Exception) -> tuple[ChatClientError, Exception | None] | None:
        """The error that a failure of the transport is to the user, and its cause; None where it is no such failure."""
        if isinstance(error, ChatClientError):
            return None
        kind = self._kind(error)
        return None if kind is None else (self.without_secrets(kind), self._cause(error))

    def broke(self, error: Exception) -> bool:
        """Whether an error is that of a connection."""
        return self.translated(error) is not None

    def _kind(self, error: Exception) -> ChatClientError | None:
        import openai

        if isinstance(error, openai.APIStatusError):
            response = error.response
            return error_of(response.status_code, response.headers, _body_of(response))
        if _is_timeout(error):
            return TransportError("the endpoint did not answer in time", code="timeout")
        if isinstance(error, openai.APIConnectionError) or _is_transport_error(error):
            return TransportError(f"the endpoint at {self.shown_url} {_why(error)}")
        return None

    def _cause(self, error: Exception) -> Exception | None:
        """The error itself, unless it, or what it came of, would tell a secret."""
        chain: list[BaseException] = []
        link: BaseException | None = error
        while link is not None and link not in chain:
            chain.append(link)
            link = link.__cause__ or link.__context__
        texts = [text for link in chain for text in (str(link), repr(link))]
        return None if any(secret in text for secret in self._secrets() for text in texts) else error

    def without_secrets(self, error: ChatClientError) -> ChatClientError:
        """The error with no key in its text, should the endpoint have repeated one, nor in what it came of."""
        if error.__cause__ is None:
            error.__context__ = None
        text = str(error.args[0]) if error.args else ""
        for secret in self._secrets():
            text = text.replace(secret, "***")
        error.args = (text,)
        return error

    def _secrets(self) -> list[str]:
        key = self._given.api_key if self._given is not None else self._api_key
        told = [key, *[value for name, value in self._headers.items() if _is_secret(name)]]
        return [secret for secret in told if isinstance(secret, str) and len(secret) >= 6]

    @property
    def shown_url(self) -> str:
        """The URL without what may be secret in it."""
        url = str(self._given.base_url) if self._given is not None else self.base_url or "https://api.openai.com/v1"
        return without_secrets_in_url(url)


def without_secrets_in_url(url: str) -> str:
    """A URL without user, password and query."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{host}{port}{parts.path}"


def _is_secret(header: str) -> bool:
    return any(word in header.lower() for word in ("auth", "key", "token", "secret", "cookie"))


def _body_of(response: Any) -> object:
    with suppress(Exception):
        return bytes(response.content)
    return ""


def _kinds(error: BaseException | None) -> list[str]:
    return [f"{kind.__module__}.{kind.__name__}" for kind in type(error).__mro__]


def _is_transport_error(error: BaseException) -> bool:
    """Whether an error is one of httpx's, httpx2's or the socket's."""
    if isinstance(error, OSError):
        return True
    names = _kinds(error)
    return any(name.startswith(("httpx", "httpcore", "aiohttp", "h11")) for name in names)


def _is_timeout(error: BaseException) -> bool:
    said = ("TimeoutException", "APITimeoutError")
    if not isinstance(error, TimeoutError) and not any(name.endswith(said) for name in _kinds(error)):
        return False
    # Some transports call every failure to connect a timeout.
    root = _root(error)
    return not isinstance(root, ConnectionError) and "Disconnected" not in type(root).__name__


def _root(error: BaseException) -> BaseException:
    """The innermost failure that an error came of."""
    root, link = error, error.__cause__ or error.__context__
    while link is not None and _is_transport_error(link):
        root, link = link, link.__cause__ or link.__context__
    return root


def _why(error: BaseException) -> str:
    root = _root(error)
    name = type(root).__name__
    if "Connect" in name or isinstance(root, (ConnectionRefusedError, socket.gaierror)):
        return f"cannot be reached ({root or name})"
    return f"broke off the connection ({name}{f': {root}' if str(root) else ''})"
