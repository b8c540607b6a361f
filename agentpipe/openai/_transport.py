"""The openai package as the transport: authentication, URL, headers, pools, Azure; not its models of what is sent.

Pools belong to an event loop, since their connections do. Clients with the same settings share one, so that the second
costs no new TLS context, and its connections are there already. A pool ends with its last user, or with its loop.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from agentpipe._responses import close
from agentpipe.exceptions import ChatClientError, TransportError
from agentpipe.openai._body import as_values
from agentpipe.openai._errors import error_of

if TYPE_CHECKING:
    from openai import AsyncOpenAI

#: Seconds to reach the endpoint, and seconds between two packets of its answer.
CONNECT_TIMEOUT, READ_TIMEOUT = 10.0, 600.0
#: Seconds that an idle connection is kept: longer than most tools take, so that the next round finds it open.
KEEPALIVE = 120.0
#: Seconds that the end of a stream may take after its [DONE], before the connection is given up.
_DRAIN = 0.1


class _Pool:
    """An HTTP client that several chat clients use."""

    def __init__(self, http_client: Any, pools: dict[tuple[object, ...], _Pool], key: tuple[object, ...]) -> None:
        self.http_client = http_client
        self.users = 0
        self._pools = pools
        self._key = key
        self._guard = self._until_the_loop_ends()

    async def open(self) -> None:
        """Let others find it, and tell the running loop of it."""
        self._pools[self._key] = self
        await self._guard.__anext__()

    async def _until_the_loop_ends(self) -> AsyncGenerator[None, None]:
        # A loop that shuts down closes the generators that it knows, while it can still close connections.
        try:
            yield
        finally:
            if self._pools.get(self._key) is self:
                del self._pools[self._key]
            await self.http_client.aclose()

    async def aclose(self) -> None:
        """Close its connections."""
        await self._guard.aclose()


_POOLS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[object, ...], _Pool]] = WeakKeyDictionary()


class Answer:
    """An answer that comes in packets: iterate over it. Raises ChatClientError where the connection fails.

    Attributes:
        headers: Its headers.
        broken: Whether the connection failed.
    """

    def __init__(self, transport: Transport, response: Any) -> None:
        self._transport = transport
        self._response = response
        self.headers: Mapping[str, str] = response.headers
        self.broken = False
        encoded = self.headers.get("content-encoding")
        # The stream itself is what aiter_raw would give, at half the price.
        self._packets: AsyncIterator[bytes] = response.aiter_bytes() if encoded else aiter(response.stream)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await self._packets.__anext__()
        except StopAsyncIteration:
            raise
        except Exception as error:
            self.broken = True
            failure = self._transport.translated(error)
            if failure is None:
                raise
        raise failure[0] from failure[1]

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
        self._aiohttp = aiohttp
        self._given = client
        self._given_once: AsyncOpenAI | None = None
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[AsyncOpenAI, _Pool]] = WeakKeyDictionary()

    async def send(self, body: bytes, headers: Mapping[str, str] | None) -> tuple[bytes, Mapping[str, str]]:
        """Send a request; the bytes and the headers of the whole answer. Raises ChatClientError."""
        response = await self._post(body, headers, stream=False)
        return response.content, response.headers

    @asynccontextmanager
    async def stream(self, body: bytes, headers: Mapping[str, str] | None) -> AsyncIterator[Answer]:
        """Send a request; the answer in packets. The connection is closed on leaving. Raises ChatClientError."""
        answer = Answer(self, await self._post(body, headers, stream=True))
        try:
            yield answer
        finally:
            await answer.aclose()

    async def _post(self, body: bytes, headers: Mapping[str, str] | None, *, stream: bool) -> Any:
        client = await self._client()
        import httpx2

        options: Any = {"headers": dict(headers)} if headers else {}
        content: Any = {"body": as_values(body)} if self._looks_inside(client) else {"content": body}
        try:
            return await client.post(
                "/chat/completions", cast_to=httpx2.Response, options=options, stream=stream, **content
            )
        except Exception as error:
            failure = self.translated(error)
            if failure is None:
                raise
        # Raised out here, since an error that is raised while another is handled carries that one with it.
        raise failure[0] from failure[1]

    @staticmethod
    def _looks_inside(client: AsyncOpenAI) -> bool:
        """Whether the SDK's client has to read the body: Azure's takes the deployment from it."""
        import openai

        return isinstance(client, openai.AsyncAzureOpenAI)

    # ------------------------------------------------------------------------------------------- clients

    async def _client(self) -> AsyncOpenAI:
        if self._given is not None:
            if self._given_once is None:
                self._given_once = self._adapted(self._given)
            return self._given_once
        loop = asyncio.get_running_loop()
        entry = self._clients.get(loop)
        if entry is None:
            for ended in [known for known in self._clients if known.is_closed()]:
                del self._clients[ended]
            pool = await self._pool(loop)
            entry = self._clients[loop] = (self._make(pool), pool)
        return entry[0]

    def _adapted(self, given: AsyncOpenAI) -> AsyncOpenAI:
        """The caller's client with our settings; the client itself stays as it is."""
        settings: dict[str, Any] = {"max_retries": 0}  # one owner of retries: a layer, if anybody
        if self._headers:
            settings["default_headers"] = self._headers
        if self._timeout is not None:
            settings["timeout"] = self._timeout
        return given.with_options(**settings)

    async def _pool(self, loop: asyncio.AbstractEventLoop) -> _Pool:
        for ended in [known for known in _POOLS if known.is_closed()]:
            del _POOLS[ended]  # one that did not shut down in order, and took its connections with it
        pools = _POOLS.setdefault(loop, {})
        secure = urlsplit(self.base_url or "https:").scheme == "https"
        key = (self._timeout, self._aiohttp, secure, self._is_loopback)
        pool = pools.get(key)
        if pool is None:
            pool = _Pool(self._http_client(secure), pools, key)
            await pool.open()
        pool.users += 1
        return pool

    def _make(self, pool: _Pool) -> AsyncOpenAI:
        import openai

        return openai.AsyncOpenAI(
            base_url=self.base_url,
            api_key=self._api_key,
            default_headers=self._headers or None,
            max_retries=0,
            http_client=pool.http_client,
        )

    @property
    def _is_loopback(self) -> bool:
        host = urlsplit(self.base_url or "").hostname or ""
        return host in ("localhost", "::1") or host.startswith("127.")

    def _http_client(self, secure: bool) -> Any:
        from urllib.request import getproxies

        import httpx2
        import openai

        silence = self._timeout or READ_TIMEOUT
        settings: dict[str, Any] = {"timeout": httpx2.Timeout(silence, connect=min(CONNECT_TIMEOUT, silence))}
        # "no" alone is none; and what runs on this machine is asked without one, or prompt and key would leave it.
        proxies = not self._is_loopback and bool(getproxies().keys() & {"http", "https", "all"})
        # At http there is nothing to verify, and loading certificates takes 30 ms. Without any, nothing passes.
        bare = not secure and not proxies
        verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if bare else httpx2.create_ssl_context()
        if self._aiohttp:
            # None would be aiohttp's own limit of 100, zero is no limit.
            limits = httpx2.Limits(max_connections=0, keepalive_expiry=KEEPALIVE)
            return openai.DefaultAioHttpClient(verify=verify, limits=limits, trust_env=proxies, **settings)
        if proxies:
            limits = httpx2.Limits(max_connections=None, keepalive_expiry=KEEPALIVE)
            return openai.DefaultAsyncHttpx2Client(verify=verify, limits=limits, **settings)
        from agentpipe.openai._spread import SpreadTransport

        return openai.DefaultAsyncHttpx2Client(transport=SpreadTransport(verify, KEEPALIVE), **settings)

    async def aclose(self) -> None:
        """Let go of the pool of the running event loop; its last user closes it. A later request opens another."""
        loop = asyncio.get_running_loop()
        entry = self._clients.pop(loop, None)
        if entry is None:
            return
        pool = entry[1]
        pool.users -= 1
        if pool.users == 0:
            await pool.aclose()

    # -------------------------------------------------------------------------------------------- errors

    def translated(self, error: Exception) -> tuple[ChatClientError, Exception | None] | None:
        """The error that a failure of the transport is to the user, and its cause; None where it is no such failure."""
        if isinstance(error, ChatClientError):
            return None
        kind = self._kind(error)
        return None if kind is None else (self.without_secrets(kind), self._cause(error))

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
        """The error with no key in its text, should the endpoint have repeated one."""
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
