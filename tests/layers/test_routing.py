"""RoutingChatClient."""

from __future__ import annotations

from typing import Any

import pytest

from agentpipe import Agent, ChatRequest, ChatResponseUpdate, RetryingChatClient, RoutingChatClient, TransportError
from agentpipe.testing import ScriptedChatClient, call
from tests.conftest import ask


def by_length(request: ChatRequest) -> str:
    return "big" if len(request.messages) > 1 else "small"


async def later(request: ChatRequest) -> str:
    return by_length(request)


def work() -> str:
    """Work."""
    return "done"


@pytest.mark.parametrize("choose", [by_length, later])
async def test_each_model_call_goes_where_the_function_says(choose: Any, streaming: bool) -> None:
    """Below the loop each model call is routed, by a function or an async one."""
    big, small = ScriptedChatClient("Done."), ScriptedChatClient(call("work"))
    agent = Agent(RoutingChatClient(choose, {"big": big, "small": small}), tools=[work])
    assert (await ask(agent, "Work", streaming)).text == "Done."
    assert (len(big.requests), len(small.requests), big.open, small.open) == (1, 1, 0, 0)


@pytest.mark.parametrize(
    ("chosen", "error", "text"),
    [("huge", ValueError, "pick chose 'huge', but there are only a"), (3, TypeError, "pick must return the key")],
)
async def test_a_choice_that_does_not_exist_is_told(chosen: Any, error: Any, text: str, streaming: bool) -> None:
    """The message has what was chosen, and what there is to choose from."""

    def pick(request: ChatRequest) -> Any:
        return chosen

    with pytest.raises(error, match=text):
        await ask(RoutingChatClient(pick, {"a": ScriptedChatClient("Hi")}), "Hi", streaming)


async def test_a_failure_closes_what_is_below(streaming: bool) -> None:
    """The error of the chosen client is what the caller gets; nothing stays open."""
    cut_off: Any = [ChatResponseUpdate(role="assistant"), TransportError("down")]
    client = ScriptedChatClient(cut_off)
    with pytest.raises(TransportError):
        await ask(RoutingChatClient(lambda request: "a", {"a": client}), "Hi", streaming)
    assert client.open == 0


def test_the_tree_shows_all() -> None:
    """Every client is printed beside its key, and found; one may stand in another."""
    inner = RoutingChatClient(by_length, {"big": ScriptedChatClient(model="b").wrap(RetryingChatClient)})
    client = RoutingChatClient(later, {"small": ScriptedChatClient(model="s"), "other": inner})
    assert str(client).split("\n") == [
        "RoutingChatClient(choose='later')",
        "├─ small: ScriptedChatClient(model='s')",
        "└─ other: RoutingChatClient(choose='by_length')",
        "   └─ big: RetryingChatClient(attempts=3)",
        "      └─ ScriptedChatClient(model='b')",
    ]
    assert client.find(RetryingChatClient) is not None


@pytest.mark.parametrize(
    ("choose", "clients", "name"),
    [("a", {"a": ScriptedChatClient()}, "choose"), (by_length, {}, "clients"), (by_length, {"a": "b"}, "clients")],
)
def test_bad_settings_are_refused(choose: Any, clients: Any, name: str) -> None:
    """A bad setting raises where the layer is made, and the message names it."""
    with pytest.raises((TypeError, ValueError), match=f"^{name}"):
        RoutingChatClient(choose, clients)
