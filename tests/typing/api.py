"""What the types promise: checked by mypy and pyright, never run.

Each ``type: ignore`` marks what has to be an error; one that is not needed is an error itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import assert_type

from agentpipe import (
    Agent,
    BaseAgent,
    ChatClient,
    ChatRequest,
    ChatResponse,
    ChatResponseUpdate,
    DelegatingAgent,
    DelegatingChatClient,
    FunctionInvokingChatClient,
    OpenAIChatClient,
    ToolContext,
    pipeline,
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


class City:
    name: str


async def main(ctx: ToolContext[City]) -> None:
    assert_type(ctx.deps, City)
    response = await agent.run("go")
    assert_type(response, ChatResponse)
    assert_type(response.parse(City), City)
    async with agent.stream("go") as stream:
        async for update in stream:
            assert_type(update, ChatResponseUpdate)
