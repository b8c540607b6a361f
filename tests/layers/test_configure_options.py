"""ConfigureOptionsChatClient."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from agentpipe import ChatOptions, ChatRequest, ConfigureOptionsChatClient, pipeline
from agentpipe.testing import ScriptedChatClient
from tests.conftest import ask


async def sent(options: Any, asked: ChatOptions | None, streaming: bool) -> ChatOptions:
    endpoint = ScriptedChatClient("Hello.")
    await ask(ConfigureOptionsChatClient(endpoint, options=options), "Hi", streaming, options=asked)
    assert endpoint.open == 0
    return endpoint.requests[0].options


async def test_options_are_defaults(streaming: bool) -> None:
    """Options that are given as they are count where the caller has no opinion."""
    options = await sent(
        ChatOptions(temperature=0, model="small", instructions="Be brief."),
        ChatOptions(model="big", instructions="Be kind."),
        streaming,
    )
    assert (options.temperature, options.model) == (0, "big")
    assert options.instructions == "Be brief.\n\nBe kind."


async def test_a_function_has_the_last_word(streaming: bool) -> None:
    """What a function returns wins over the caller, whom it has seen."""

    def capped(request: ChatRequest) -> ChatOptions:
        return ChatOptions(max_output_tokens=min(request.options.max_output_tokens or 100, 100))

    options = await sent(capped, ChatOptions(max_output_tokens=500, model="big"), streaming)
    assert (options.max_output_tokens, options.model) == (100, "big")


async def test_a_function_may_have_no_opinion(streaming: bool) -> None:
    """None changes nothing."""
    asked = ChatOptions(model="big")
    assert await sent(lambda request: None, asked, streaming) == asked


async def test_two_of_them(streaming: bool) -> None:
    """Of two defaults the outer one counts, since it is the inner one's caller; of two functions the inner one."""
    for outer, inner, model in (
        (ChatOptions(model="outer"), ChatOptions(model="inner"), "outer"),
        (lambda request: ChatOptions(model="outer"), lambda request: ChatOptions(model="inner"), "inner"),
    ):
        endpoint = ScriptedChatClient("Hello.")
        layers: list[Any] = [partial(ConfigureOptionsChatClient, options=options) for options in (outer, inner)]
        await ask(pipeline(*layers, endpoint), "Hi", streaming)
        assert endpoint.requests[0].options.model == model


async def test_a_function_that_returns_something_else_is_told(streaming: bool) -> None:
    """The message names the function."""

    def wrong(request: ChatRequest) -> Any:
        return {"model": "x"}

    with pytest.raises(TypeError, match="wrong must return ChatOptions, not dict"):
        await sent(wrong, None, streaming)


def test_it_prints_its_options_without_headers() -> None:
    """The tree shows the options or the name of the function; headers are where keys travel."""

    def mine(request: ChatRequest) -> None: ...

    given: Any = ChatOptions(model="m", extra_headers={"x-key": "secret"})
    client = ConfigureOptionsChatClient(ScriptedChatClient(), options=given)
    assert repr(client) == "ConfigureOptionsChatClient(options=ChatOptions(model='m', extra_headers=...))"
    assert repr(client.wrap(ConfigureOptionsChatClient, options=mine)) == "ConfigureOptionsChatClient(options='mine')"
    assert client.find(ConfigureOptionsChatClient) is client


@pytest.mark.parametrize("options", [None, {"model": "m"}, ChatOptions])
def test_bad_settings_are_refused(options: Any) -> None:
    """What is neither options nor a function raises where the layer is made."""
    with pytest.raises(TypeError, match="^options "):
        ConfigureOptionsChatClient(ScriptedChatClient(), options=options)
