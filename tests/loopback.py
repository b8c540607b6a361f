"""A small HTTP server on loopback, for tests that need real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Request:
    """What came in."""

    path: str
    headers: dict[str, str]
    content: bytes

    @property
    def body(self) -> dict[str, Any]:
        """The body as JSON."""
        body: dict[str, Any] = json.loads(self.content)
        return body


@dataclass
class Wire:
    """The way back to the client, for one answer: whole with `answer`, or in packets with `begin` and `packet`."""

    writer: asyncio.StreamWriter
    closes: bool = False

    async def answer(self, status: int, body: object, headers: Mapping[str, str] | None = None) -> None:
        """A whole answer; ``body`` is text, bytes or a JSON value."""
        content = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
        told = {"content-type": "application/json", **(headers or {}), "content-length": str(len(content))}
        await self._write(self._head(status, told) + content)

    async def begin(self, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """The head of an answer in packets."""
        told = {"content-type": "text/event-stream", **(headers or {}), "transfer-encoding": "chunked"}
        await self._write(self._head(status, told))

    async def packet(self, content: bytes) -> None:
        """One packet."""
        if content:
            await self._write(f"{len(content):x}\r\n".encode() + content + b"\r\n")

    async def end(self) -> None:
        """The end of an answer in packets."""
        await self._write(b"0\r\n\r\n")

    async def events(self, *values: object, done: bool = True) -> None:
        """A whole event stream, one packet an event."""
        await self.begin()
        for value in values:
            await self.packet(b"data: %b\n\n" % json.dumps(value).encode())
        if done:
            await self.packet(b"data: [DONE]\n\n")
        await self.end()

    def cut(self) -> None:
        """Drop the connection here."""
        self.closes = True
        self.writer.transport.abort()

    def hang_up(self) -> None:
        """Close the connection once what was written has left, in the middle of the answer."""
        self.closes = True
        self.writer.close()

    async def left(self) -> None:
        """Wait until the client has closed the connection."""
        await asyncio.shield(self.writer.wait_closed())

    async def _write(self, content: bytes) -> None:
        self.writer.write(content)
        await self.writer.drain()

    def _head(self, status: int, headers: Mapping[str, str]) -> bytes:
        lines = [f"HTTP/1.1 {status} Status", *[f"{name}: {value}" for name, value in headers.items()]]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


class _Protocol(asyncio.StreamReaderProtocol):
    def eof_received(self) -> bool:
        """A client that has nothing more to say is gone: close our end too."""
        super().eof_received()
        return False


@dataclass
class Loopback:
    """The server; a test says in `handle` what each request is answered with.

    Attributes:
        requests: What came in, in order.
        open: How many connections are open at this moment.
        connections: How many connections there were.
    """

    requests: list[Request] = field(default_factory=list, init=False)
    open: int = field(default=0, init=False)
    connections: int = field(default=0, init=False)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition, init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    async def handle(self, request: Request, wire: Wire) -> None:
        """Answer one request."""
        raise NotImplementedError

    async def __aenter__(self) -> Any:
        self._server = await asyncio.get_running_loop().create_server(self._protocol, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        """What to give as base_url."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def until_open(self, count: int) -> None:
        """Wait until so many connections are open."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.open == count)

    async def _count(self, change: int) -> None:
        async with self._changed:
            self.open += change
            self.connections += change > 0
            self._changed.notify_all()

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        return _Protocol(asyncio.StreamReader(limit=64 * 1024 * 1024), self._connected)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._count(+1)
        wire = Wire(writer)
        try:
            while not wire.closes and (request := await self._read(reader)) is not None:
                self.requests.append(request)
                await self._answered(request, wire, reader)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            await self._count(-1)

    async def _answered(self, request: Request, wire: Wire, reader: asyncio.StreamReader) -> None:
        """Answer, unless the client goes away meanwhile."""
        answer = asyncio.ensure_future(self.handle(request, wire))
        gone = asyncio.ensure_future(wire.left())
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                wire.closes = True
                return
            answer.result()
        finally:
            for task in (answer, gone):
                task.cancel()
            await asyncio.gather(answer, gone, return_exceptions=True)

    @staticmethod
    async def _read(reader: asyncio.StreamReader) -> Request | None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.decode("latin-1").strip().split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        content = await reader.readexactly(int(headers.get("content-length") or 0))
        return Request(first.split(" ")[1], headers, content)
