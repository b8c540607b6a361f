"""What is measured: agentpipe, a loop written by hand on the openai SDK, and one on nothing but sockets and json."""

from __future__ import annotations

import asyncio
import json
from typing import Any

INSTRUCTIONS, PROMPT = "You are a helpful assistant.", "What is 2 plus 3?"


async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


async def write(text: str) -> str:
    """Write a document."""
    return f"wrote {len(text)} characters"


def schema(name: str, description: str, **properties: str) -> dict[str, Any]:
    """A tool as one writes it by hand."""
    parameters = {
        "type": "object",
        "properties": {n: {"type": t} for n, t in properties.items()},
        "required": [*properties],
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = {
    "add": (add, schema("add", "Add two integers.", a="integer", b="integer")),
    "write": (write, schema("write", "Write a document.", text="string")),
}


class Agentpipe:
    """agentpipe as its README has it."""

    aiohttp = False

    async def start(self, url: str) -> None:
        from agentpipe import OpenAIChatClient

        self.client = OpenAIChatClient("echo", base_url=url, api_key="k", aiohttp=self.aiohttp)
        self.agents: dict[Any, Any] = {}

    def agent(self, model: str, tools: tuple[str, ...]) -> Any:
        from agentpipe import Agent, ChatOptions

        if (model, tools) not in self.agents:
            functions = [TOOLS[name][0] for name in tools]
            self.agents[model, tools] = Agent(
                self.client, INSTRUCTIONS, tools=functions, options=ChatOptions(model=model)
            )
        return self.agents[model, tools]

    async def run(self, model: str, tools: tuple[str, ...] = ()) -> str:
        return (await self.agent(model, tools).run(PROMPT)).text

    async def stream(self, model: str, tools: tuple[str, ...] = ()) -> str:
        async with self.agent(model, tools).stream(PROMPT) as stream:
            return "".join([update.text async for update in stream])

    def session(self) -> Any:
        from agentpipe import AgentSession

        return AgentSession()

    async def turn(self, session: Any, prompt: str) -> str:
        return (await self.agent("echo", ()).run(prompt, session=session)).text


class AgentpipeAiohttp(Agentpipe):
    """The same with the extra ``aiohttp``."""

    aiohttp = True


class Loop:
    """The loop as one writes it by hand; how to ask is for the peers to say."""

    async def ask(self, model: str, messages: list[Any], tools: list[Any]) -> Any:
        raise NotImplementedError

    async def ask_streamed(self, model: str, messages: list[Any], tools: list[Any]) -> Any:
        raise NotImplementedError

    async def run(self, model: str, tools: tuple[str, ...] = (), ask: Any = None) -> str:
        messages: list[Any] = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": PROMPT}]
        return await self._loop(model, messages, [TOOLS[name][1] for name in tools], ask or self.ask)

    async def stream(self, model: str, tools: tuple[str, ...] = ()) -> str:
        return await self.run(model, tools, self.ask_streamed)

    async def _loop(self, model: str, messages: list[Any], tools: list[Any], ask: Any) -> str:
        while True:
            text, calls = await ask(model, messages, tools)
            if not calls:
                return str(text)
            made = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
            messages.append({"role": "assistant", "content": text or None, "tool_calls": made})
            messages += await asyncio.gather(*[self._call(*call) for call in calls])

    async def _call(self, call_id: str, name: str, arguments: str) -> dict[str, Any]:
        result = await TOOLS[name][0](**json.loads(arguments))
        return {"role": "tool", "tool_call_id": call_id, "content": str(result)}

    def session(self) -> list[Any]:
        return [{"role": "system", "content": INSTRUCTIONS}]

    async def turn(self, session: list[Any], prompt: str) -> str:
        session.append({"role": "user", "content": prompt})
        text, _ = await self.ask("echo", session, [])
        session.append({"role": "assistant", "content": text})
        return str(text)


class Sdk(Loop):
    """The plain openai SDK, with its objects."""

    async def start(self, url: str) -> None:
        from openai import AsyncOpenAI

        self.client = AsyncOpenAI(base_url=url, api_key="k")

    async def ask(self, model: str, messages: list[Any], tools: list[Any]) -> Any:
        extra: Any = {"tools": tools} if tools else {}
        answer = await self.client.chat.completions.create(model=model, messages=messages, **extra)
        message: Any = answer.choices[0].message
        return message.content, [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ()]

    async def ask_streamed(self, model: str, messages: list[Any], tools: list[Any]) -> Any:
        extra: Any = {"tools": tools} if tools else {}
        text, calls = [], dict[int, list[Any]]()
        async for event in await self.client.chat.completions.create(
            model=model, messages=messages, stream=True, **extra
        ):
            for choice in event.choices:
                text.append(choice.delta.content or "")
                for piece in choice.delta.tool_calls or ():
                    call = calls.setdefault(piece.index, [piece.id, piece.function.name, []])
                    call[2].append(piece.function.arguments or "")
        return "".join(text), [(i, name, "".join(arguments)) for i, name, arguments in calls.values()]


class Bare(Loop):
    """Sockets and json: what is left when everything else is left out."""

    async def start(self, url: str) -> None:
        self.port = int(url.rsplit(":", 1)[1].partition("/")[0])
        self.idle: list[Any] = []

    async def _send(self, body: dict[str, Any]) -> Any:
        reader, writer = (
            self.idle.pop() if self.idle else await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 26)
        )
        data = json.dumps(body).encode()
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
        return reader, writer, (await reader.readuntil(b"\r\n\r\n")).lower()

    async def ask(self, model: str, messages: list[Any], tools: list[Any]) -> Any:
        extra = {"tools": tools} if tools else {}
        reader, writer, head = await self._send({"model": model, "messages": messages, **extra})
        data = await reader.readexactly(int(head.partition(b"content-length:")[2].partition(b"\r\n")[0]))
        self.idle.append((reader, writer))
        message = json.loads(data)["choices"][0]["message"]
        calls = message.get("tool_calls") or ()
        return message["content"], [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in calls]

    async def ask_streamed(self, model: str, messages: list[Any], tools: list[Any]) -> Any:
        extra = {"tools": tools} if tools else {}
        reader, writer, _ = await self._send({"model": model, "messages": messages, "stream": True, **extra})
        text, calls = [], dict[int, list[Any]]()
        while size := int(await reader.readline(), 16):
            data = (await reader.readexactly(size + 2))[6:-4]
            if data == b"[DONE]":
                continue
            for choice in json.loads(data)["choices"]:
                text.append(choice["delta"].get("content") or "")
                for piece in choice["delta"].get("tool_calls") or ():
                    function = piece["function"]
                    call = calls.setdefault(piece["index"], [piece.get("id"), function.get("name"), []])
                    call[2].append(function.get("arguments") or "")
        await reader.readline()
        self.idle.append((reader, writer))
        return "".join(text), [(i, name, "".join(arguments)) for i, name, arguments in calls.values()]


PEERS: dict[str, Any] = {
    "openai SDK": Sdk,
    "agentpipe": Agentpipe,
    "agentpipe, aiohttp": AgentpipeAiohttp,
    "bare loop": Bare,
}
