"""UsageLimitChatClient."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from agentpipe import (
    Agent,
    AgentSession,
    ChatClient,
    FunctionInvokingChatClient,
    RedactingChatClient,
    TransportError,
    UsageDetails,
    UsageLimitChatClient,
    UsageLimitError,
    pipeline,
)
from agentpipe.layers.usage_limit import TokenPrices
from agentpipe.testing import ScriptedChatClient, call
from tests.conftest import ask

USAGE = UsageDetails(input_tokens=80, output_tokens=20, total_tokens=100)


def work() -> str:
    """Work."""
    return "done"


def endpoint(*steps: Any, usage: UsageDetails | None = USAGE) -> ScriptedChatClient:
    return ScriptedChatClient(*(steps or ["Hello."] * 10), usage=usage)


async def asked_until_refused(client: ChatClient, streaming: bool, **settings: Any) -> int:
    """How often it answers before it refuses."""
    for count in range(10):
        try:
            await ask(client, "Hi", streaming, **settings)
        except UsageLimitError:
            return count
    raise AssertionError("it never refused")


@pytest.mark.parametrize(
    ("settings", "answered"),
    [
        ({"tokens": 250}, 3),
        ({"tokens": 200}, 2),
        ({"requests": 4}, 4),
        ({"cost": 0.0005, "prices": TokenPrices(input=1.0, output=5.0)}, 3),  # 180 millionths a call
        ({"tokens": 1000, "requests": 1}, 1),
    ],
)
async def test_a_spent_budget_is_refused_before_the_call(
    settings: dict[str, Any], answered: int, streaming: bool
) -> None:
    """Tokens, requests or cost: the call that passes the limit is answered, the next one is not made."""
    inside = endpoint()
    client = UsageLimitChatClient(inside, **settings)
    assert await asked_until_refused(client, streaming) == answered
    assert len(inside.requests) == answered
    assert inside.open == 0


async def test_the_message_says_which_limit() -> None:
    """The error names the limit and what was used."""
    client = UsageLimitChatClient(endpoint(), tokens=50)
    await client.get_response("Hi")
    with pytest.raises(UsageLimitError, match=r"the limit of 50 \(tokens per client\) is reached: 100 used"):
        await client.get_response("Hi")
    assert client.spent == {"tokens": 100, "requests": 1, "cost": 0}


def test_prices_are_for_a_million_tokens() -> None:
    """Cached tokens cost their own price, or that of input; what is not told costs nothing."""
    usage = UsageDetails(input_tokens=1_000_000, output_tokens=1_000_000, cached_input_tokens=500_000)
    assert TokenPrices(input=2, output=8).cost(usage) == 10
    assert TokenPrices(input=2, output=8, cached_input=0).cost(usage) == 9
    assert TokenPrices(input=2, output=8).cost(UsageDetails()) == 0


async def test_what_failed_was_a_request_too(streaming: bool) -> None:
    """A request that failed counts as one, and what it used until then as well."""
    inside = endpoint(TransportError("down"), "Hello.")
    client = UsageLimitChatClient(inside, requests=1)
    with pytest.raises(TransportError):
        await ask(client, "Hi", streaming)
    assert await asked_until_refused(client, streaming) == 0


async def test_per_session_survives_in_the_session(streaming: bool) -> None:
    """Each session has its own account, in its state, so that it goes where the session goes."""
    one, other = AgentSession(), AgentSession()
    client = UsageLimitChatClient(endpoint(), requests=2, per="session")
    await ask(client, "Hi", streaming, session=one)
    one = AgentSession.model_validate_json(one.model_dump_json())
    client = UsageLimitChatClient(endpoint(), requests=2, per="session")
    assert await asked_until_refused(client, streaming, session=one) == 1
    assert await asked_until_refused(client, streaming, session=other) == 2
    assert one.state["usage_limit"] == {"tokens": 200, "requests": 2, "cost": 0}


async def test_per_session_needs_a_session(streaming: bool) -> None:
    """A budget that could not be kept is refused."""
    with pytest.raises(ValueError, match="needs a session"):
        await ask(UsageLimitChatClient(endpoint(), requests=2, per="session"), "Hi", streaming)


@pytest.mark.parametrize("between", [[], [partial(RedactingChatClient, patterns="email")]], ids=["bare", "redacting"])
async def test_per_run_begins_anew_with_each_run(between: list[Any], streaming: bool) -> None:
    """All calls of one run count together, whatever stands between; the next run has its own account."""
    inside = endpoint(call("work"), "Done.", call("work"), call("work"), "never asked")
    limit = partial(UsageLimitChatClient, requests=2, per="run")
    agent = Agent(pipeline(FunctionInvokingChatClient, *between, limit, inside), tools=[work])
    assert (await ask(agent, "Work", streaming)).text == "Done."
    with pytest.raises(UsageLimitError):
        await ask(agent, "Work", streaming)
    assert len(inside.requests) == 4


@pytest.mark.parametrize("place", ["below", "above"])
async def test_below_the_loop_it_stops_a_run_and_above_it_the_next_run(place: str, streaming: bool) -> None:
    """Below the loop a run is stopped, with what it did on the error; above it the run ends, and the next is refused."""
    inside = endpoint(call("work"), call("work"), "Done.")
    limit: Any = partial(UsageLimitChatClient, tokens=150)
    layers = [FunctionInvokingChatClient, limit] if place == "below" else [limit, FunctionInvokingChatClient]
    agent = Agent(pipeline(*layers, inside), tools=[work])
    if place == "above":
        assert (await ask(agent, "Work", streaming)).text == "Done."
    with pytest.raises(UsageLimitError) as caught:
        await ask(agent, "Work", streaming)
    assert len(inside.requests) == (2 if place == "below" else 3)
    if place == "below":
        response = caught.value.response
        assert response is not None
        assert [result.text for result in response.function_results] == ["done", "done"]


async def test_two_of_them_each_keep_their_own(streaming: bool) -> None:
    """Two limits, one per run and one per session, both hold."""
    inside = endpoint()
    client = pipeline(
        partial(UsageLimitChatClient, requests=1, per="session", state_key="outer"),
        partial(UsageLimitChatClient, requests=5, per="session"),
        inside,
    )
    assert await asked_until_refused(client, streaming, session=AgentSession()) == 1


def test_it_prints_its_settings_and_is_found() -> None:
    """The tree shows the limits."""
    client = UsageLimitChatClient(endpoint(), cost=1.5, prices=TokenPrices(1, 2), per="run")
    expected = "UsageLimitChatClient(cost=1.5, prices=TokenPrices(input=1, output=2, cached_input=None), per='run')"
    assert repr(client) == expected
    assert client.find(UsageLimitChatClient) is client


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "a usage limit needs at least one of tokens"),
        ({"tokens": 0}, "tokens"),
        ({"requests": True}, "requests"),
        ({"cost": 0, "prices": TokenPrices(1, 2)}, "cost"),
        ({"cost": 1}, "cost and prices"),
        ({"tokens": 1, "prices": TokenPrices(1, 2)}, "cost and prices"),
        ({"cost": 1, "prices": (1, 2)}, "prices"),
        ({"tokens": 1, "per": "day"}, "per"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], name: str) -> None:
    """A bad setting raises where the layer is made, and the message names it."""
    with pytest.raises((ValueError, TypeError), match=f"^{name}"):
        UsageLimitChatClient(endpoint(), **settings)


def test_a_price_below_zero_is_refused() -> None:
    """The message names the price."""
    with pytest.raises(ValueError, match="^output "):
        TokenPrices(input=1, output=-2)
