"""Scenarios of the loop: each is written once and played whole and streamed, on a script and over a strict wire."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from agentpipe import (
    BaseAgent,
    ChatClient,
    ChatOptions,
    ChatRequest,
    ChatResponse,
    FunctionCallContent,
    FunctionInvokingChatClient,
    FunctionResultContent,
    FunctionTool,
    OpenAIChatClient,
    UsageDetails,
)
from agentpipe.testing import ScriptedChatClient
from tests.conftest import ask, shape
from tests.strict_endpoint import StrictEndpoint

USAGE = UsageDetails(input_tokens=10, output_tokens=5, total_tokens=15)


class Model:
    """What answers in a scenario, and what it was asked."""

    def __init__(self, client: ChatClient, source: ScriptedChatClient | StrictEndpoint) -> None:
        self.client = client
        self.source = source

    @property
    def calls(self) -> int:
        """How often the model was asked."""
        return len(self.source.requests if isinstance(self.source, ScriptedChatClient) else self.source.bodies)

    def roles(self, call: int) -> list[str]:
        """The roles of what it was asked, results counted one by one."""
        if isinstance(self.source, StrictEndpoint):
            return [message["role"] for message in self.source.bodies[call]["messages"]]
        request = self.source.requests[call]
        assert_closed(request)
        roles = ["system"] if request.options.instructions else []
        for message in request.messages:
            roles += [message.role] * (len(message.contents) if message.role == "tool" else 1)
        return roles

    def results(self, call: int) -> list[str]:
        """The results that it was told, in order."""
        if isinstance(self.source, StrictEndpoint):
            return [m["content"] for m in self.source.bodies[call]["messages"] if m["role"] == "tool"]
        contents = [content for message in self.source.requests[call].messages for content in message.contents]
        return [content.text for content in contents if isinstance(content, FunctionResultContent)]

    def tools(self, call: int) -> list[str]:
        """The functions that it was offered."""
        if isinstance(self.source, StrictEndpoint):
            return [tool["function"]["name"] for tool in self.source.bodies[call].get("tools") or ()]
        tools = self.source.requests[call].options.tools or ()
        return [tool.name for tool in tools if isinstance(tool, FunctionTool)]


def assert_closed(request: ChatRequest) -> None:
    """What a strict endpoint would refuse, the scripted one refuses too."""
    due: list[str] = []
    for message in request.messages:
        if message.role == "tool":
            for content in message.contents:
                assert isinstance(content, FunctionResultContent)
                assert content.call_id in due, f"a result without its call: {content}"
                due.remove(content.call_id)
            continue
        assert not due, f"calls without their results: {due}"
        due = [content.call_id for content in message.contents if isinstance(content, FunctionCallContent)]
    assert not due, f"calls without their results: {due}"


class Run:
    """One playing of a scenario."""

    def __init__(self, over: str, streaming: bool) -> None:
        self.over = over
        self.streaming = streaming
        self.seen: list[Any] = []

    @asynccontextmanager
    async def model(self, *steps: Any) -> AsyncIterator[Model]:
        """A model that answers ``steps``: text, ("name", {arguments}), a list of these, or an exception."""
        async with AsyncExitStack() as stack:
            if self.over == "script":
                source: Any = ScriptedChatClient(*[_scripted(step, n) for n, step in enumerate(steps)], usage=USAGE)
                client: ChatClient = source
            else:
                source = await stack.enter_async_context(StrictEndpoint(*[_wired(step) for step in steps]))
                client = await stack.enter_async_context(OpenAIChatClient("m", base_url=source.url, api_key="test-key"))
            yield Model(client, source)
            if isinstance(source, StrictEndpoint):
                assert not source.refused, source.refused

    async def ask(self, target: ChatClient | BaseAgent, given: Any, **settings: Any) -> ChatResponse:
        """Ask, and note the transcript for the comparison of whole and streamed."""
        response = await ask(target, given, self.streaming, **settings)
        self.seen.append((shape(response.messages), response.stop_reason, response.finish_reason, response.usage))
        return response

    async def loop(
        self, model: Model, given: Any, tools: Any = (), *, loop: Any = None, **settings: Any
    ) -> ChatResponse:
        """Ask a FunctionInvokingChatClient with these settings around the model."""
        client = FunctionInvokingChatClient(model.client, **settings)
        return await self.ask(client, given, options=ChatOptions(tools=list(tools), loop=loop))


def _scripted(step: Any, number: int) -> Any:
    if isinstance(step, (str, BaseException)) or callable(step):
        return step
    parts = step if isinstance(step, list) else [step]
    return [
        _call(part, f"call_{number}_{place}") if isinstance(part, tuple) else part for place, part in enumerate(parts)
    ]


def _call(part: tuple[str, Any], call_id: str) -> FunctionCallContent:
    import json

    name, arguments = part
    if isinstance(arguments, str):
        return FunctionCallContent(call_id, name, {}, arguments)
    return FunctionCallContent(call_id, name, arguments, json.dumps(arguments))


def _wired(step: Any) -> Any:
    if isinstance(step, (str, BaseException)):
        return step
    parts = step if isinstance(step, list) else [step]
    text = "".join(part for part in parts if isinstance(part, str))
    calls = [part for part in parts if isinstance(part, tuple)]
    return {"content": text or None, "tool_calls": calls}


Scene = Callable[[Run], Awaitable[None]]


def played(*overs: str) -> Callable[[Scene], Any]:
    """Play a scenario whole and streamed, and compare the transcripts; on a script and over the wire by default."""

    def decorate(scene: Scene) -> Any:
        @pytest.mark.parametrize("over", overs or ("script", "wire"))
        async def test(over: str) -> None:
            runs = [Run(over, False), Run(over, True)]
            for run in runs:
                await scene(run)
            assert runs[0].seen == runs[1].seen

        functools.update_wrapper(test, scene, updated=())
        del test.__wrapped__  # type: ignore[attr-defined]  # or pytest would look for its parameters there
        return test

    return decorate
