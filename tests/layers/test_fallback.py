"""FallbackChatClient."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from agentpipe import (
    Agent,
    AuthenticationError,
    BadRequestError,
    BadResponseError,
    ChatResponseUpdate,
    ContentFilterError,
    ContextLengthError,
    FallbackChatClient,
    FunctionInvokingChatClient,
    RateLimitError,
    RedactingChatClient,
    RetryingChatClient,
    TextContent,
    TransportError,
    pipeline,
)
from agentpipe.testing import ScriptedChatClient, call
from tests.conftest import ask

DOWN = TransportError("down")


async def no_sleep(seconds: float) -> None:
    pass


def work() -> str:
    """Work."""
    return "done"


@pytest.mark.parametrize(
    "error",
    [
        TransportError("down"),
        RateLimitError("no money", retryable=False),
        AuthenticationError("no key"),
        ContentFilterError("no"),
        BadResponseError("what"),
        ContextLengthError("too long"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_the_next_one_answers(error: Exception, streaming: bool) -> None:
    """Where the first cannot answer the second does, and the response says which one it was."""
    a, b = ScriptedChatClient(error), ScriptedChatClient("Hello.", model="b")
    response = await ask(FallbackChatClient(a, b), "Hi", streaming)
    assert response.text == "Hello."
    assert response.metadata == {"answered_by": {"client": 1, "name": "ScriptedChatClient(model='b')"}}
    assert a.open == b.open == 0


async def test_a_wrong_request_is_wrong_everywhere(streaming: bool) -> None:
    """A request that is refused as wrong is not sent to the next one, nor is an error that is not the endpoint's."""
    for error in (BadRequestError("no such parameter"), OSError("mine")):
        a, b = ScriptedChatClient(error), ScriptedChatClient("Hello.")
        with pytest.raises(type(error)):
            await ask(FallbackChatClient(a, b), "Hi", streaming)
        assert not b.requests


async def test_on_says_which_errors_move_on() -> None:
    """With ``on``, those move on and no others."""
    for error, answered in ((OSError("mine"), True), (DOWN, False)):
        client = FallbackChatClient(ScriptedChatClient(error), ScriptedChatClient("Hello."), on=OSError)
        if answered:
            assert (await client.get_response("Hi")).text == "Hello."
        else:
            with pytest.raises(TransportError):
                await client.get_response("Hi")


async def test_the_last_error_tells_of_the_others(streaming: bool) -> None:
    """When all fail the last error is raised as it was, with a note about each other."""
    last = RateLimitError("slow down")
    client = FallbackChatClient(ScriptedChatClient(TransportError("down")), ScriptedChatClient(last, model="b"))
    with pytest.raises(RateLimitError) as caught:
        await ask(client, "Hi", streaming)
    assert caught.value is last
    expected = "before that, ScriptedChatClient(model='scripted') failed: TransportError: down"
    assert last.__notes__ == [expected.replace("(model='scripted')", "()")]


async def test_nothing_is_said_twice(streaming: bool) -> None:
    """After the first update the next one is not asked."""
    cut_off: Any = [ChatResponseUpdate((TextContent("Hel"),), "assistant", "m"), DOWN]
    a = ScriptedChatClient(cut_off)
    b = ScriptedChatClient("Hello.")
    with pytest.raises(TransportError):
        await ask(FallbackChatClient(a, b), "Hi", streaming)
    assert not b.requests
    assert a.open == 0


@pytest.mark.parametrize("between", [[], [partial(RedactingChatClient, patterns="email")]], ids=["bare", "redacting"])
async def test_a_run_stays_with_who_answered(between: list[Any], streaming: bool) -> None:
    """Within a run the one that answered is asked again, whatever stands between; the next run begins anew."""
    a = ScriptedChatClient(DOWN, "Third.")
    b = ScriptedChatClient(call("work"), call("work"), "Second.")
    agent = Agent(pipeline(FunctionInvokingChatClient, *between, FallbackChatClient(a, b)), tools=[work])
    assert (await ask(agent, "Work", streaming)).text == "Second."
    assert (len(a.requests), len(b.requests)) == (1, 3)
    assert (await ask(agent, "Work", streaming)).text == "Third."


async def test_who_answered_so_far_may_fail_too(streaming: bool) -> None:
    """Where the one that the run stays with fails, the others are asked, the first one too."""
    a = ScriptedChatClient(DOWN, "Done.")
    b = ScriptedChatClient(call("work"), DOWN)
    response = await ask(Agent(FallbackChatClient(a, b), tools=[work]), "Work", streaming)
    assert response.text == "Done."
    assert response.metadata is not None
    assert response.metadata["answered_by"]["client"] == 0


@pytest.mark.parametrize("retries", ["inside", "outside"])
async def test_retries_inside_wait_and_retries_outside_move_on(retries: str, streaming: bool) -> None:
    """With retries inside, the first client is asked until they are used up; outside, each is asked in turn."""
    order: list[str] = []

    def down(name: str) -> Any:
        def step(request: object) -> Exception:
            order.append(name)
            return DOWN

        return step

    a, b = ScriptedChatClient(*[down("a")] * 2), ScriptedChatClient(*[down("b")] * 2)
    retry: Any = partial(RetryingChatClient, attempts=2, jitter=0, sleep=no_sleep)
    client = FallbackChatClient(retry(a), retry(b)) if retries == "inside" else retry(FallbackChatClient(a, b))
    with pytest.raises(TransportError):
        await ask(client, "Hi", streaming)
    assert order == (["a", "a", "b", "b"] if retries == "inside" else ["a", "b", "a", "b"])


async def test_cancelling_does_not_move_on() -> None:
    """Cancellation is no failure of a client."""
    b = ScriptedChatClient("Hello.")
    with pytest.raises(asyncio.CancelledError):
        await FallbackChatClient(ScriptedChatClient(asyncio.CancelledError()), b).get_response("Hi")
    assert not b.requests


async def test_one_inside_another_says_the_innermost() -> None:
    """Two of them: the response names who really answered."""
    inner = FallbackChatClient(ScriptedChatClient(DOWN), ScriptedChatClient("Hello.", model="b"))
    response = await FallbackChatClient(inner, ScriptedChatClient()).get_response("Hi")
    assert response.metadata == {"answered_by": {"client": 1, "name": "ScriptedChatClient(model='b')"}}


async def test_the_tree_shows_all_and_all_are_closed() -> None:
    """Every client is printed, found and closed."""
    closed: list[str] = []

    class Closing(ScriptedChatClient):
        async def aclose(self) -> None:
            closed.append(self.model)

    client = FallbackChatClient(Closing(model="a"), Closing(model="b").wrap(RetryingChatClient), on=OSError)
    assert str(client).split("\n") == [
        "FallbackChatClient(on=OSError)",
        "├─ Closing(model='a')",
        "└─ RetryingChatClient(attempts=3)",
        "   └─ Closing(model='b')",
    ]
    assert client.find(RetryingChatClient) is not None
    async with client:
        pass
    assert closed == ["a", "b"]


def test_bad_settings_are_refused() -> None:
    """What is no client, and an ``on`` that is none, raise where the layer is made."""
    bad: Any = "b"
    with pytest.raises(TypeError, match="'b'"):
        FallbackChatClient(ScriptedChatClient(), bad)
    with pytest.raises(TypeError, match="^on "):
        FallbackChatClient(ScriptedChatClient(), on=bad)
