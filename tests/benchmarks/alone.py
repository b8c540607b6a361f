"""What agentpipe takes by itself, without a network: ``python -m tests.benchmarks.alone``; CPU of the process, medians."""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from tests.benchmarks.peers import INSTRUCTIONS, PROMPT, add
from tests.benchmarks.server import stream, whole

URL = "http://endpoint.test/v1"
_CLIENT = f"import agentpipe; agentpipe.OpenAIChatClient('m', base_url='{URL}', api_key='k')"


async def cpu(function: Callable[[], Awaitable[object]], runs: int, repeats: int) -> float:
    """Seconds a run: the median of several repeats."""
    await function()
    took = []
    for _ in range(repeats):
        begun = time.process_time()
        for _ in range(runs):
            await function()
        took.append((time.process_time() - begun) / runs)
    return statistics.median(took)


def scripted(rounds: int) -> Any:
    """A client that asks for ``add`` in each of so many rounds, and then answers."""
    from agentpipe import ChatClient, ChatRequest, ChatResponseUpdate, FunctionCallContent, TextContent

    class Scripted(ChatClient):
        async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
            done = sum(message.role == "tool" for message in request.messages)
            call = FunctionCallContent(f"call_{done}", "add", {"a": done, "b": 1})
            yield ChatResponseUpdate((call if done < rounds else TextContent("done"),), "assistant", f"m{done}")

    return Scripted()


def canned(*packets: bytes) -> Any:
    """A client of the openai package whose every answer, in these packets, is at hand."""
    import httpx2
    from openai import AsyncOpenAI, DefaultAsyncHttpx2Client

    class Packets(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for packet in packets:
                yield packet

    class Canned(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            return httpx2.Response(200, stream=Packets())

    http_client = DefaultAsyncHttpx2Client(transport=Canned())
    return AsyncOpenAI(base_url=URL, api_key="k", http_client=http_client), http_client


async def rounds(repeats: int, runs: int) -> list[tuple[str, float, str]]:
    """S12: a round of the loop, and a run without tools."""
    from agentpipe import Agent

    ten, none = Agent(scripted(10), INSTRUCTIONS, tools=[add]), Agent(scripted(0), INSTRUCTIONS)
    run = await cpu(lambda: none.run(PROMPT), runs * 10, repeats)
    ten_rounds = await cpu(lambda: ten.run(PROMPT), runs, repeats)
    return [
        ("S12 one round of the loop, µs", (ten_rounds - run) / 10 * 1e6, "60"),
        ("S12 a run without tools, µs", run * 1e6, "40"),
    ]


async def chunks(repeats: int, runs: int) -> list[tuple[str, float, str]]:
    """What a chunk of a stream takes from its bytes to the reader of an agent's stream."""
    from agentpipe import Agent, OpenAIChatClient

    count = 2000
    sdk, http_client = canned(*[line.partition(b"\r\n")[2][:-2] for line in stream("stream", count)])
    agent = Agent(OpenAIChatClient("m", client=sdk), INSTRUCTIONS)

    async def ours() -> None:
        async with agent.stream(PROMPT) as answer:
            assert len([update async for update in answer]) > count

    async def bare() -> None:
        async with http_client.stream("POST", URL) as answer:
            assert len([packet async for packet in answer.aiter_raw()]) > count

    own = await cpu(ours, runs, repeats) - await cpu(bare, runs, repeats)
    return [("a chunk of a stream, µs", own / count * 1e6, "5")]


def functions(count: int) -> list[Any]:
    """Functions that were never seen before."""
    source = '''
def tool_{n}(city: str, days: int = 3, unit: str = "c") -> str:
    """Tell the weather, way {n}.

    Args:
        city: Where.
        days: How many days.
    """
    return city
'''
    found: dict[str, Any] = {}
    exec("".join(source.format(n=n) for n in range(count)), found)
    return [found[f"tool_{n}"] for n in range(count)]


async def tools(repeats: int, runs: int) -> list[tuple[str, float, str]]:
    """S11: an agent of 200 tools, and a request with them."""
    from agentpipe import Agent, OpenAIChatClient

    client = OpenAIChatClient(
        "m", client=canned(whole(json.dumps({"role": "assistant", "content": "done"}), "stop"))[0]
    )
    await Agent(client, INSTRUCTIONS, tools=functions(1)).run(PROMPT)  # so that what all runs need is imported
    took = []
    for _ in range(repeats):
        fresh = functions(200)
        begun = time.process_time()
        agent = Agent(client, INSTRUCTIONS, tools=fresh)
        await agent.run(PROMPT)
        took.append(time.process_time() - begun)
    each = await cpu(lambda: agent.run(PROMPT), runs, repeats)
    build = statistics.median(took)
    return [
        ("S11 200 tools: build and first run, ms", build * 1e3, "60"),
        ("S11 each further run, ms", each * 1e3, "5"),
    ]


def imported(repeats: int) -> list[tuple[str, float, str]]:
    """S9: import agentpipe and make a client, above what Python itself takes."""

    def child(code: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)

    child(_CLIENT)
    above = statistics.median([child(_CLIENT) - child("pass") for _ in range(repeats)])
    return [("S9 import and make a client, ms", above * 1e3, "150")]


async def measure(repeats: int, quick: bool = False) -> str:
    """A Markdown table."""
    runs = 1 if quick else 20
    found = [
        *imported(repeats),
        *await tools(repeats, runs),
        *await rounds(repeats, runs),
        *await chunks(repeats, runs),
    ]
    lines = [f"| {what} | {value:.1f} | {goal} |" for what, value, goal in found]
    return "\n".join(["| | agentpipe | goal |", "|---|---:|---:|", *lines])


if __name__ == "__main__":
    print(asyncio.run(measure(7)))
