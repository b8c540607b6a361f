"""What a run costs grows linearly: in rounds, messages, chunks, fragments and tools. Shown by counting, not by clocks."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from agentpipe import (
    Agent,
    AgentSession,
    ChatOptions,
    ChatRequest,
    ChatResponseUpdate,
    FunctionTool,
    LoopLimits,
    Message,
    TextContent,
)
from agentpipe._responses import ResponseFolder
from agentpipe.openai import EndpointProfile
from agentpipe.openai._assemble import Assembler
from agentpipe.openai._body import BodyBuilder
from agentpipe.openai._encode import MessageEncoder
from agentpipe.openai._sse import SSEReader
from agentpipe.testing import ScriptedChatClient, call


def calls_in(work: Callable[[], object]) -> int:
    """How many functions are called, Python's own and others."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    work()  # warm: what is looked up once is not counted
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def grows_linearly(work: Callable[[int], Callable[[], object]], small: int) -> None:
    """Twice as much costs at most a little more than twice."""
    one, two, four = [calls_in(work(small * times)) for times in (1, 2, 4)]
    assert two <= one * 2.2
    assert four <= two * 2.2


async def echo(text: str) -> str:
    return text


def test_rounds() -> None:
    """A run of n rounds costs n times as much as one."""

    def work(rounds: int) -> Callable[[], object]:
        def run() -> object:
            script = ScriptedChatClient(*[call("echo", {"text": "x"}, f"c{n}") for n in range(rounds)], "done")
            options = ChatOptions(loop=LoopLimits(max_iterations=rounds))
            return asyncio.run(Agent(script, tools=[echo]).run("go", options=options))

        return run

    grows_linearly(work, 20)


def test_messages_of_a_session() -> None:
    """A turn of a session with n messages costs a little for each of them, and no more than that."""

    def work(messages: int) -> Callable[[], object]:
        def run() -> object:
            history = [Message("user" if n % 2 == 0 else "assistant", f"message {n}", f"m{n}") for n in range(messages)]
            return asyncio.run(Agent(ScriptedChatClient("hi")).run("go", session=AgentSession(messages=history)))

        return run

    grows_linearly(work, 200)


def test_chunks() -> None:
    """A stream of n chunks costs n times as much as one, read from bytes and folded."""

    def work(chunks: int) -> Callable[[], object]:
        events = [{"id": "1", "choices": [{"index": 0, "delta": {"content": f"tok{n}"}}]} for n in range(chunks)]
        packets = [f"data: {json.dumps(event)}\n\n".encode() for event in events]

        def run() -> object:
            reader, assembler, folder = SSEReader(), Assembler(EndpointProfile()), ResponseFolder()
            for packet in packets:
                for data in reader.feed(packet):
                    update = assembler.feed(json.loads(data))
                    if update is not None:
                        folder.add(update)
            return folder.response()

        return run

    grows_linearly(work, 200)


def test_fragments_of_arguments() -> None:
    """Arguments in n fragments cost n times as much as one."""

    def work(fragments: int) -> Callable[[], object]:
        text = json.dumps({"text": "x" * fragments})
        chunks: list[Any] = [{"index": 0, "id": "c", "function": {"name": "write", "arguments": ""}}]
        chunks += [{"index": 0, "function": {"arguments": piece}} for piece in text]

        def run() -> object:
            assembler = Assembler(EndpointProfile(), {"write": {}})
            for chunk in chunks:
                assembler.feed({"choices": [{"index": 0, "delta": {"tool_calls": [chunk]}}]})
            return list(assembler.end(done=True))

        return run

    grows_linearly(work, 200)


def test_tools() -> None:
    """n tools cost n times as much as one to make; to send them again costs the same however many they are."""

    def tools(count: int) -> list[FunctionTool]:
        return [FunctionTool(echo, name=f"tool_{n}") for n in range(count)]

    grows_linearly(lambda count: lambda: ChatOptions(tools=tools(count)), 20)
    builder = BodyBuilder(EndpointProfile())
    requests = [ChatRequest([Message("user", "go")], ChatOptions(tools=tools(count))) for count in (10, 200)]
    few, many = [calls_in(lambda request=request: builder.build(request, "m")) for request in requests]  # type: ignore[misc]
    assert few == many


def test_what_was_encoded_is_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each round only what is new is encoded: messages of earlier rounds are there as bytes."""
    encoded: list[Message] = []
    encode = MessageEncoder.encode

    def note(self: MessageEncoder, message: Message, tools: Any) -> Any:
        encoded.append(message)
        return encode(self, message, tools)

    monkeypatch.setattr(MessageEncoder, "encode", note)
    builder = BodyBuilder(EndpointProfile())

    def model(request: ChatRequest) -> Any:
        builder.build(request, "m")
        return [call("echo", {"text": "x"}, f"c{len(request.messages)}")] if len(request.messages) < 21 else "done"

    asyncio.run(Agent(ScriptedChatClient(*[model] * 20), tools=[echo]).run("go"))
    assert len(encoded) == 20  # ten rounds, a call and its result each
    assert len({id(message) for message in encoded}) == 20


def test_nothing_is_kept_of_a_chunk_but_its_text() -> None:
    """Once folded, an update is gone: the folder holds the text and nothing else of it."""
    import gc

    folder = ResponseFolder()
    for n in range(1000):
        folder.add(ChatResponseUpdate([TextContent(f"piece {n} ")], "assistant", "m"))
    kinds = (ChatResponseUpdate, TextContent)
    assert not [found for found in gc.get_referrers(*folder._open.pieces[:3]) if isinstance(found, kinds)]  # type: ignore[union-attr]
    assert folder.response().text.endswith("piece 999 ")
