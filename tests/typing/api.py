"""What the types promise: checked by mypy and pyright, never run.

Each ``type: ignore`` marks what has to be an error; one that is not needed is an error itself.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import assert_type

from agentpipe import (
    Agent,
    BaseAgent,
    ChatClient,
    ChatOptions,
    ChatRequest,
    ChatResponse,
    ChatResponseUpdate,
    DelegatingAgent,
    DelegatingChatClient,
    FunctionInvokingChatClient,
    FunctionTool,
    LoopLimits,
    Message,
    OpenAIChatClient,
    TextContent,
    ToolContext,
    pipeline,
    tool,
)


class Layer(DelegatingChatClient):
    def __init__(self, inner: ChatClient, *, size: int = 1) -> None:
        super().__init__(inner)
        self.size = size


class Needs(DelegatingChatClient):
    def __init__(self, inner: ChatClient, *, size: int) -> None:
        super().__init__(inner)
        self.size = size


class Around(DelegatingAgent): ...


async def live(request: ChatRequest, inner: ChatClient) -> AsyncIterator[ChatResponseUpdate]:
    async for update in inner.respond(request):
        yield update


async def whole(request: ChatRequest, inner: ChatClient) -> ChatResponse:
    return await inner.get_response(request)


async def audit(request: ChatRequest, inner: BaseAgent) -> ChatResponse:
    return await inner.run(request)


client = OpenAIChatClient("m")
agent = Agent(client)

assert_type(pipeline(live, whole, Layer, FunctionInvokingChatClient, partial(Needs, size=3), client), ChatClient)
assert_type(pipeline(audit, Around, agent), BaseAgent)
assert_type(client.as_agent("Be brief."), Agent)

pipeline(Layer, agent)  # type: ignore  # a chat layer around an agent
pipeline(Around, client)  # type: ignore  # an agent layer around a client
pipeline(live, whole)  # type: ignore  # no client
pipeline(Needs, client)  # type: ignore  # a setting is missing
pipeline(partial(Layer, sise=3), client)  # type: ignore  # a setting is misspelt
pipeline(partial(Layer, size="3"), client)  # type: ignore  # a setting is of the wrong type
pipeline(live, agent)  # type: ignore  # a chat middleware around an agent
pipeline(audit, client)  # type: ignore  # an agent middleware around a client
pipeline()  # type: ignore  # nothing at all
pipeline(client, Layer)  # type: ignore  # the client is not the last
DelegatingChatClient(agent)  # type: ignore  # an agent where a client is due
ChatOptions(temprature=0.5)  # type: ignore  # an option that does not exist
ChatOptions(temperature="hot")  # type: ignore  # an option of the wrong type
LoopLimits(on_limit="explode")  # type: ignore  # no such choice
Message("boss", "hi")  # type: ignore  # no such role
TextContent(5)  # type: ignore  # a text that is none
Message("user", "hi").role = "tool"  # type: ignore  # messages are frozen


@tool
def add(a: int, b: int = 1) -> int:
    return a + b


@tool(requires_approval=True, timeout=5)
async def later(a: int) -> int:
    return a


assert_type(add, FunctionTool)
assert_type(later, FunctionTool)
tool(requires_aproval=True)  # type: ignore  # a setting is misspelt
ChatOptions(tools=[add, len, {"type": "web_search"}])
assert_type(client.find(Layer), Layer | None)
assert_type(agent.find(FunctionInvokingChatClient), FunctionInvokingChatClient | None)


class City:
    name: str


async def main(ctx: ToolContext[City]) -> None:
    assert_type(ctx.deps, City)
    assert_type(await client.get_response(["hi", TextContent("a"), Message("user", "b")]), ChatResponse)
    assert_type(await client.get_response(ChatRequest([])), ChatResponse)
    await client.get_response(5)  # type: ignore  # a number is no message
    await client.get_response("hi", {"seed": 1})  # type: ignore  # a dict is no ChatOptions
    await agent.run("hi", session="id")  # type: ignore  # an id is no session
    await agent.run("hi", ChatOptions())  # type: ignore  # options are given by name
    response = await agent.run("go")
    assert_type(response, ChatResponse)
    assert_type(response.parse(City), City)
    async with agent.stream("go") as stream:
        async for update in stream:
            assert_type(update, ChatResponseUpdate)
