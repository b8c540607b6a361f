"""A server on loopback that answers as the endpoint of a case does."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from email.utils import formatdate
from pathlib import Path
from typing import Any

from tests.endpoints.constraints import broken
from tests.loopback import Loopback, Request, Wire

Case = dict[str, Any]
CASES: dict[str, Case] = {
    path.stem: json.loads(path.read_text("utf-8")) for path in sorted((Path(__file__).parent / "cases").glob("*.json"))
}
USAGE = {"prompt_tokens": 21, "completion_tokens": 9, "total_tokens": 30}


class Replay(Loopback):
    """The endpoint of one case."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case

    async def handle(self, request: Request, wire: Wire) -> None:
        case, body = self.case, request.body
        if case["kind"] == "stream":
            await self._stream(wire)
        elif case["kind"] == "request_constraint" and broken(case["constraint"], body) is None:
            await _agree(wire, body)
        else:
            told = case["http"]
            content = told["body"] if isinstance(told["body"], (str, bytes)) else json.dumps(told["body"])
            await wire.answer(told["status"], content, _dated(told.get("headers") or {}))

    async def _stream(self, wire: Wire) -> None:
        case = self.case
        await wire.begin(headers=case.get("sse_headers"))
        content = "".join(case["sse"]).encode("utf-8", "surrogatepass")
        size = case.get("sse_chunk_bytes")
        pieces = [content[start : start + size] for start in range(0, len(content), size)] if size else case["sse"]
        for piece in pieces:
            await wire.packet(piece if isinstance(piece, bytes) else piece.encode("utf-8", "surrogatepass"))
        if case.get("sse_close") == "abort":
            wire.hang_up()
        else:
            await wire.end()


async def _agree(wire: Wire, body: Mapping[str, Any]) -> None:
    """The answer of an endpoint that has nothing to object to."""
    head = {"id": "cc-ok", "model": "demo-model"}
    if not body.get("stream"):
        choice = {"index": 0, "message": {"role": "assistant", "content": "OK"}, "finish_reason": "stop"}
        await wire.answer(200, {**head, "choices": [choice], "usage": USAGE})
        return
    delta = {"index": 0, "delta": {"role": "assistant", "content": "OK"}}
    chunks: list[Case] = [
        {**head, "choices": [delta]},
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ]
    if (body.get("stream_options") or {}).get("include_usage"):
        chunks.append({**head, "choices": [], "usage": USAGE})
    await wire.events(*chunks)


def _dated(headers: Mapping[str, Any]) -> dict[str, str]:
    """Headers with "{{http_date:+N}}" as the HTTP date in N seconds."""
    return {
        name: re.sub(
            r"\{\{http_date:\+(\d+)\}\}", lambda m: formatdate(time.time() + int(m[1]), usegmt=True), str(value)
        )
        for name, value in headers.items()
    }
