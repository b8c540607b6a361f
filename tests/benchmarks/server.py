"""A fake endpoint, in a process of its own; what it answers is in the name of the model, and ready before it is asked.

"echo" answers; "tool-3" asks for ``add`` three times first; "parallel-8" for eight calls at once; "stream-2000" answers in
2,000 chunks; "args-1000" asks for ``write`` with arguments in 1,000 fragments; "@50" at the end waits 50 ms.
"""

from __future__ import annotations

import asyncio
import json
from functools import cache
from typing import Any

FINAL = "The answer is 5."
USAGE = {"prompt_tokens": 57, "completion_tokens": 17, "total_tokens": 74}


@cache
def whole(message: str, reason: str) -> bytes:
    choice = {"index": 0, "message": json.loads(message), "finish_reason": reason}
    return json.dumps({"id": "c1", "created": 1, "model": "m", "choices": [choice], "usage": USAGE}).encode()


def calls(names: list[tuple[str, dict[str, Any]]], done: int) -> str:
    made = [
        {"id": f"call_{done}_{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for n, (name, arguments) in enumerate(names)
    ]
    return json.dumps({"role": "assistant", "content": None, "tool_calls": made})


@cache
def stream(kind: str, count: int) -> tuple[bytes, ...]:
    """The events of a stream, each with the head of its HTTP chunk."""
    if kind == "stream":
        deltas: list[Any] = [{"content": f"tok{n % 10} "} for n in range(count)]
    else:
        text = json.dumps({"text": "x" * count * 4})
        size = -(-len(text) // count)
        first = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "write", "arguments": ""}}
        pieces = [{"index": 0, "function": {"arguments": text[n : n + size]}} for n in range(0, len(text), size)]
        deltas = [{"tool_calls": [piece]} for piece in [first, *pieces]]
    reason = "stop" if kind == "stream" else "tool_calls"
    events = [chunk({"role": "assistant"}), *[chunk(delta) for delta in deltas], chunk({}, reason)]
    events.append({"id": "c1", "choices": [], "usage": USAGE})
    lines = [f"data: {json.dumps(event)}\n\n".encode() for event in events] + [b"data: [DONE]\n\n"]
    return tuple(b"%x\r\n%b\r\n" % (len(line), line) for line in lines)


def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"id": "c1", "created": 1, "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def answer(body: dict[str, Any]) -> bytes | tuple[bytes, ...]:
    """What the model says: whole, or the chunks of a stream."""
    model = body["model"].partition("@")[0]
    kind, _, number = model.partition("-")
    done = sum(message["role"] == "tool" for message in body["messages"])
    if kind == "tool" and done < int(number):
        return whole(calls([("add", {"a": done, "b": 1})], done), "tool_calls")
    if kind == "parallel" and not done:
        return whole(calls([("add", {"a": n, "b": 1}) for n in range(int(number))], 0), "tool_calls")
    if kind == "stream" or (kind == "args" and not done):
        return stream(kind, int(number))
    if body.get("stream"):
        return stream("stream", 1)
    return whole(json.dumps({"role": "assistant", "content": FINAL}), "stop")


class Connection(asyncio.Protocol):
    """One connection; requests come one after the other."""

    def __init__(self) -> None:
        self.data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        while (end := self.data.find(b"\r\n\r\n")) >= 0:
            head = self.data[:end].lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            if len(self.data) < end + 4 + length:
                return
            body = json.loads(self.data[end + 4 : end + 4 + length])
            self.data = self.data[end + 4 + length :]
            wait = float(body["model"].partition("@")[2] or 0) / 1000
            asyncio.get_running_loop().call_later(wait, self.send, answer(body)) if wait else self.send(answer(body))

    def send(self, said: bytes | tuple[bytes, ...]) -> None:
        if isinstance(said, bytes):
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(said)
            self.transport.write(head + said)
            return
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        self.transport.writelines([*said, b"0\r\n\r\n"])


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
