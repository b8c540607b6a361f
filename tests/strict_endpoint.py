"""An endpoint on loopback that answers from a script, and refuses (400) what strict endpoints refuse.

    async with StrictEndpoint({"tool_calls": [("add", {"a": 1, "b": 2})]}, "3") as endpoint:
        client = OpenAIChatClient("m", base_url=endpoint.url, api_key="k")

A transcript is refused in which a call lacks its result, a result its call, something stands between a call and its
results, arguments are not the text of a JSON object, ids repeat within a turn, or there are calls but no tools.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.loopback import Loopback, Request, Wire

#: One answer: text; an assistant message ({"content": ..., "tool_calls": [("name", {...}), ...]}, whatever else it
#: holds goes out as it is); a status to refuse with; an exception, for which the connection is cut; or a function of the
#: request's body that returns one of these.
Step = str | Mapping[str, Any] | int | BaseException | Callable[[dict[str, Any]], Any]

USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


class StrictEndpoint(Loopback):
    """The endpoint; one step a request, whole or streamed as the request wants it.

    Args:
        steps: The answers, in order; see `Step`. A request past the last one is refused with 400.
        piece: How many characters of text or of arguments there are in each chunk of a streamed answer.

    Attributes:
        bodies: The bodies of the requests, in order; those that were refused too.
        refused: Why requests were refused, in order.
        open: How many connections are open at this moment.
    """

    def __init__(self, *steps: Step, piece: int = 4) -> None:
        super().__init__()
        self.steps = list(steps)
        self.piece = piece
        self.refused: list[str] = []
        self._answered_steps = 0

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request.body for request in self.requests]

    async def handle(self, request: Request, wire: Wire) -> None:
        body = request.body
        if (fault := next(faults(body), None)) is not None:
            self.refused.append(fault)
            await wire.answer(400, {"error": {"message": fault, "type": "invalid_request_error"}})
            return
        place = self._answered_steps
        self._answered_steps += 1
        step: Any = self.steps[place] if place < len(self.steps) else 400
        if callable(step):
            step = step(body)
        if isinstance(step, BaseException):
            wire.cut()
        elif isinstance(step, int):
            await wire.answer(step, {"error": {"message": f"the script says {step}"}})
        else:
            await self._say(_message(step, place), place, wire, body)

    async def _say(self, message: dict[str, Any], place: int, wire: Wire, body: Mapping[str, Any]) -> None:
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        head = {"id": f"answer-{place}", "model": body.get("model"), "created": 1}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            await wire.answer(200, {**head, "choices": [choice], "usage": USAGE})
            return
        chunks = [{**head, "choices": [{"index": 0, "delta": delta}]} for delta in self._deltas(message)]
        chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        if (body.get("stream_options") or {}).get("include_usage"):
            chunks.append({**head, "choices": [], "usage": USAGE})
        await wire.events(*chunks)

    def _deltas(self, message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        others = {key: value for key, value in message.items() if key not in ("content", "tool_calls")}
        yield {**others, "content": ""}
        for piece in self._pieces(message.get("content") or ""):
            yield {"content": piece}
        for index, call in enumerate(message.get("tool_calls") or ()):
            function = {"name": call["function"]["name"], "arguments": ""}
            yield {"tool_calls": [{**call, "index": index, "function": function}]}
            for piece in self._pieces(call["function"]["arguments"]):
                yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}

    def _pieces(self, text: str) -> list[str]:
        return [text[start : start + self.piece] for start in range(0, len(text), self.piece)]


def _message(step: str | Mapping[str, Any], place: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    message.update({"content": step} if isinstance(step, str) else step)
    if calls := message.get("tool_calls"):
        message["tool_calls"] = [_call(call, f"call_{place}_{number}") for number, call in enumerate(calls)]
    return message


def _call(call: Any, call_id: str) -> dict[str, Any]:
    if isinstance(call, Mapping):
        return dict(call)
    name, arguments = call
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def faults(body: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a request, first things first."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        yield "messages must be a list that is not empty"
        return
    due: list[str] = []
    for place, message in enumerate(messages):
        if message["role"] == "tool":
            if (call_id := message.get("tool_call_id")) not in due:
                yield f"messages[{place}]: there is no open call {call_id!r} directly before this result"
            else:
                due.remove(call_id)
            continue
        if due:
            yield f"messages[{place}]: the calls {due} have no result before it"
        due = [call["id"] for call in message.get("tool_calls") or ()]
        yield from _faults_of(message, place, due)
    if due:
        yield f"the calls {due} have no result"
    if not body.get("tools") and any(m["role"] == "tool" or m.get("tool_calls") for m in messages):
        yield "there are calls in the history, but no tools"


def _faults_of(message: Mapping[str, Any], place: int, call_ids: list[str]) -> Iterator[str]:
    if len(set(call_ids)) < len(call_ids) or not all(call_ids):
        yield f"messages[{place}]: the ids of its calls repeat, or one is empty"
    if message.get("content") is None and not call_ids:
        yield f"messages[{place}]: content is missing"
    for call in message.get("tool_calls") or ():
        arguments = call["function"]["arguments"]
        try:
            sound = isinstance(arguments, str) and isinstance(json.loads(arguments), dict)
        except ValueError:
            sound = False
        if not sound:
            yield f"messages[{place}]: the arguments {arguments!r} are not the text of a JSON object"
