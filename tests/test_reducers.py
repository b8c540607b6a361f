"""Reducers: agents.md A13."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpipe import (
    AgentSession,
    ApprovalRequestContent,
    BadResponseError,
    FunctionCallContent,
    FunctionResultContent,
    Message,
    ReasoningContent,
    TransportError,
    UriContent,
    UsageDetails,
    assistant,
    system,
    user,
)
from agentpipe._reducers import (
    Reducer,
    SlidingWindowReducer,
    SummarizingReducer,
    ToolResultReducer,
    TruncatingReducer,
    estimate_tokens,
)
from agentpipe.testing import ScriptedChatClient, call


def result(call_id: str, value: Any = "ok") -> Message:
    return Message("tool", FunctionResultContent(call_id, "look", value))


def ids(messages: Sequence[Message]) -> list[str | None]:
    return [message.message_id for message in messages]


def numbered(messages: Sequence[Message]) -> list[Message]:
    return [message.replace(message_id=str(place)) for place, message in enumerate(messages)]


def one_each(message: Message) -> int:
    return 1


#: Two turns with tools; ids of calls come again in the second, as with some endpoints.
TALK = numbered(
    [
        system("Be brief."),
        user("first"),
        assistant(ReasoningContent("hm"), call("look", {}, "c0")),
        result("c0"),
        assistant("one"),
        user("second"),
        assistant(ReasoningContent("a thought by itself")),
        assistant(call("look", {}, "c0"), call("look", {}, "c1")),
        Message("tool", (FunctionResultContent("c0", "look", "a"), FunctionResultContent("c1", "look", "b"))),
        assistant("two"),
        user("third"),
        assistant("three"),
    ]
)


async def test_truncating_drops_the_oldest_units_and_keeps_what_always_stays() -> None:
    """The oldest go first, a call with its thought and its results; instructions and first and last question stay."""
    reducer = TruncatingReducer(9, count_tokens=one_each)
    assert ids(await reducer(TALK)) == ["0", "1", "5", "6", "7", "8", "9", "10", "11"]
    assert ids(await TruncatingReducer(8, count_tokens=one_each)(TALK)) == ["0", "1", "6", "7", "8", "9", "10", "11"]
    assert ids(await TruncatingReducer(7, count_tokens=one_each)(TALK)) == ["0", "1", "9", "10", "11"]
    assert ids(await TruncatingReducer(1, count_tokens=one_each)(TALK)) == ["0", "1", "10", "11"]


async def test_what_fits_is_left_alone() -> None:
    """Messages that fit are given back as they are."""
    assert await TruncatingReducer(12, count_tokens=one_each)(TALK) is TALK
    assert await SlidingWindowReducer(3)(TALK) is TALK
    assert await ToolResultReducer(2)(TALK) is TALK
    assert await SummarizingReducer(ScriptedChatClient(), 12, count_tokens=one_each)(TALK) is TALK


async def test_a_sliding_window_keeps_whole_turns() -> None:
    """The last turns stay, from the message of the user on, and so do the instructions and the first question."""
    assert ids(await SlidingWindowReducer(1)(TALK)) == ["0", "1", "10", "11"]
    assert ids(await SlidingWindowReducer(2)(TALK)) == ["0", "1", "5", "6", "7", "8", "9", "10", "11"]


async def test_a_result_that_came_late_stays_with_its_call() -> None:
    """A call that was decided on in a later turn goes or stays with the question, the decision and the result."""
    request = ApprovalRequestContent("r1", FunctionCallContent("c9", "delete"))
    messages = numbered(
        [
            user("first"),
            assistant("said"),
            user("delete it"),
            assistant(request),
            user(request.approve()),
            result("c9"),
            assistant("done"),
            user("thanks"),
            assistant("welcome"),
        ]
    )
    assert ids(await SlidingWindowReducer(1)(messages)) == ["0", "7", "8"]
    # The decision is no turn of its own: with two turns the window begins at "delete it".
    assert ids(await SlidingWindowReducer(2)(messages)) == ["0", "2", "3", "4", "5", "6", "7", "8"]
    assert ids(await TruncatingReducer(5, count_tokens=one_each)(messages)) == ["0", "6", "7", "8"]


async def test_old_results_become_a_line() -> None:
    """Long results of older rounds say how long they were; short and recent ones stay, and so do ids and errors."""
    image = FunctionResultContent("c2", "look", None, contents=(UriContent("https://a.b/c.png"),))
    messages = [
        user("go"),
        assistant(call("look", {}, "c1")),
        Message("tool", FunctionResultContent("c1", "look", "x" * 900, True), "r1"),
        assistant(call("look", {}, "c2")),
        Message("tool", image),
        assistant(call("look", {}, "c3")),
        result("c3", "short"),
        assistant(call("look", {}, "c4")),
        result("c4", "y" * 900),
    ]
    reduced = await ToolResultReducer(1)(messages)
    told = [
        content for message in reduced for content in message.contents if isinstance(content, FunctionResultContent)
    ]
    assert [content.text[:46] for content in told[:3]] == [
        "[old result left out: 900 characters]",
        "[old result left out: 0 characters, 1 file(s)]",
        "short",
    ]
    assert told[0].is_error
    assert told[0].call_id == "c1"
    assert told[1].contents == ()
    assert told[3].text == "y" * 900
    assert reduced[2].message_id == "r1"
    again = await ToolResultReducer(0)(messages)
    assert "y" not in str(again)


async def test_old_results_are_the_same_message_each_time() -> None:
    """A message that is shortened twice is one and the same, so that what was encoded once is found again."""
    reducer = ToolResultReducer(0)
    messages = [user("go"), assistant(call("look", {}, "c1")), result("c1", "x" * 900)]
    assert (await reducer(messages))[2] is (await reducer(messages))[2]


async def test_a_summary_takes_the_place_of_the_oldest_and_is_kept_in_the_session() -> None:
    """The oldest are summarised once; the next turn finds the summary in the session, also after JSON."""
    client = ScriptedChatClient("They said one and two.", usage=UsageDetails(100, 7))
    reducer = SummarizingReducer(client, 10, keep_tokens=6, count_tokens=one_each)
    session = AgentSession()
    reduction = await reducer.reduce(TALK, session)
    assert [m.message_id for m in reduction.messages if m.metadata is None] == ["0", "1", "9", "10", "11"]
    assert reduction.messages[2].text == "Summary of the conversation so far:\nThey said one and two."
    assert reduction.usage == UsageDetails(100, 7)
    later = AgentSession.model_validate_json(session.model_dump_json())
    again = await reducer.reduce([*TALK, user("fourth").with_id()], later)
    assert again.usage is None
    assert again.messages[:-1] == reduction.messages
    assert len(client.requests) == 1


async def test_a_second_summary_takes_up_the_first() -> None:
    """When it gets too long again, the next summary is made of the first one and of what came after."""
    client = ScriptedChatClient("summary A", "summary B")
    reducer = SummarizingReducer(client, 10, keep_tokens=6, count_tokens=one_each)
    session = AgentSession()
    await reducer.reduce(TALK, session)
    longer = [*TALK, *[assistant(f"more {n}").replace(message_id=f"m{n}") for n in range(8)]]
    reduced = (await reducer.reduce(longer, session)).messages
    told = client.requests[1].messages[0].text
    assert "summary A" in told
    assert "more 0" in told
    assert "call look" not in told
    assert [m.text for m in reduced].count("Summary of the conversation so far:\nsummary B") == 1
    assert not any("summary A" in m.text for m in reduced)
    assert (await reducer.reduce(longer, session)).messages == reduced


async def test_what_the_summary_is_told() -> None:
    """The writer is told who said and called what, results cut to size, no instructions and no thoughts; no tools go."""
    client = ScriptedChatClient("short")
    messages = [*TALK[:3], result("c0", "z" * 5000), *TALK[4:]]
    await SummarizingReducer(client, 6, keep_tokens=2, count_tokens=one_each)(messages)
    asked = client.requests[0]
    text = asked.messages[0].text
    assert "user: first" in text
    assert "assistant: [calls look({})]" in text
    assert "[look returned: zzz" in text
    assert text.count("z") < 2100
    assert "Be brief" not in text
    assert "hm" not in text
    assert asked.options.tools is None
    assert asked.session is None


async def test_a_history_that_was_edited_is_summarised_anew() -> None:
    """A summary of messages that are no longer there is not used."""
    client = ScriptedChatClient("A", "B")
    reducer = SummarizingReducer(client, 10, keep_tokens=6, count_tokens=one_each)
    session = AgentSession(state={"agentpipe.summary": {"text": "of another talk", "through": "gone", "id": "s"}})
    reduced = await reducer.reduce(TALK, session)
    assert not any("of another talk" in message.text for message in reduced.messages)


@pytest.mark.parametrize("state", [None, 3, {}, {"text": 5, "through": "2"}, {"text": "x"}, []])
async def test_a_state_that_is_no_summary_is_passed_over(state: Any) -> None:
    """Whatever stands in the session in its place, the reducer goes on."""
    reducer = SummarizingReducer(ScriptedChatClient(), 100, count_tokens=one_each)
    session = AgentSession(state={"agentpipe.summary": state})
    assert (await reducer.reduce(TALK, session)).messages == TALK


async def test_a_summary_that_fails() -> None:
    """The error is raised, or the oldest are dropped this time; nothing is stored, and an earlier summary stays."""
    session = AgentSession()
    failing = SummarizingReducer(ScriptedChatClient(TransportError("down")), 10, count_tokens=one_each)
    with pytest.raises(TransportError):
        await failing.reduce(TALK, session)
    client = ScriptedChatClient("", "fine", TransportError("down"))
    reducer = SummarizingReducer(client, 10, keep_tokens=6, on_error="truncate", count_tokens=one_each)
    assert ids((await reducer.reduce(TALK, session)).messages) == ["0", "1", "9", "10", "11"]
    assert session.state == {}
    await reducer.reduce(TALK, session)
    longer = [*TALK, *[assistant(f"more {n}").replace(message_id=f"m{n}") for n in range(8)]]
    reduced = (await reducer.reduce(longer, session)).messages
    assert any("fine" in message.text for message in reduced)


async def test_an_empty_summary_is_an_error() -> None:
    """A model that has nothing to say has not summarised."""
    with pytest.raises(BadResponseError, match="summary of the conversation is empty"):
        await SummarizingReducer(ScriptedChatClient("  "), 10, count_tokens=one_each)(TALK)


def random_talk(draw: Any) -> list[Message]:
    """A transcript as they come: turns with rounds of calls, in order, some results late or missing."""
    messages: list[Message] = [system("s")] if draw(st.booleans()) else []
    for turn in range(draw(st.integers(0, 6))):
        messages.append(user(f"turn {turn}"))
        for number in range(draw(st.integers(0, 3))):
            calls = [call("look", {}, f"c{index}") for index in range(draw(st.integers(1, 2)))]
            if draw(st.booleans()):
                messages.append(assistant(ReasoningContent(f"thought {number}")))
            messages.append(assistant(*calls))
            if draw(st.booleans()):
                messages.append(user("by the way"))
            told = [made for made in calls if draw(st.integers(0, 5))]
            messages += [result(made.call_id, "x" * draw(st.integers(0, 400))) for made in told]
        if draw(st.booleans()):
            messages.append(assistant(f"answer {turn}"))
    return numbered(messages)


talks = st.composite(random_talk)()
ANY_REDUCER = st.one_of(
    st.builds(TruncatingReducer, st.integers(1, 30), count_tokens=st.just(one_each)),
    st.builds(TruncatingReducer, st.integers(1, 500)),
    st.builds(SlidingWindowReducer, st.integers(1, 5)),
    st.builds(ToolResultReducer, st.integers(0, 4)),
    st.builds(
        lambda most: SummarizingReducer(
            ScriptedChatClient(*["told"] * 9), most, keep_tokens=most // 2, count_tokens=one_each
        ),
        st.integers(2, 20),
    ),
)


def pairs(messages: Sequence[Message]) -> list[tuple[str | None, str | None]]:
    """Each call with its result, by the ids of their messages, in the order of time."""
    waiting: dict[str, str | None] = {}
    found = []
    for message in messages:
        for content in message.contents:
            if isinstance(content, FunctionCallContent):
                waiting[content.call_id] = message.message_id
            elif isinstance(content, FunctionResultContent):
                found.append((waiting.get(content.call_id), message.message_id))
    return found


@given(talks, ANY_REDUCER)
async def test_whatever_the_talk(messages: list[Message], reducer: Reducer) -> None:
    """Pairs are never split, what always stays is there, the order is kept, and twice is the same as once."""
    reduced = list(await reducer(messages))
    kept = ids(reduced)
    assert set(pairs(reduced)) <= set(pairs(messages))
    for asked, answered in pairs(messages):
        assert (asked in kept) == (answered in kept) or asked is None
    users = [m.message_id for m in messages if m.role == "user"]
    staying = [m.message_id for m in messages if m.role == "system"] + users[:1] + users[-1:] + ids(messages)[-1:]
    assert set(staying) <= set(kept)
    own = [name for name in kept if name is not None and name.isdigit()]
    assert own == sorted(own, key=int)
    assert list(await reducer(reduced)) == reduced


@pytest.mark.parametrize("length", [800, 3200])
async def test_the_work_is_linear_and_tokens_are_counted_once(length: int) -> None:
    """Each message is counted once, however often and in whatever company it is reduced."""
    counted: list[Message] = []

    def count(message: Message) -> int:
        counted.append(message)
        return 10

    messages = [user("go")]
    for number in range(length // 2):
        messages += [assistant(call("look", {}, f"c{number}")), result(f"c{number}")]
    reducer = TruncatingReducer(length, count_tokens=count)
    for end in range(len(messages) - 20, len(messages)):
        await reducer(messages[:end])
    assert len(counted) == len(messages) - 1


def test_an_estimate_of_tokens() -> None:
    """A quarter of the characters, 4 for the message, and 1,000 for an image; calls count with their arguments."""
    assert estimate_tokens(user("a" * 400)) == 104
    assert estimate_tokens(user("a" * 401, UriContent("https://a.b/c.png"))) == 1105
    arguments = {"place": "Suzhou"}
    assert estimate_tokens(assistant(call("look", arguments))) == 4 + -(-(4 + len(json.dumps(arguments))) // 4)
    assert estimate_tokens(assistant(FunctionCallContent("c", "look", arguments))) == 4 + 6
    assert estimate_tokens(result("c", {"a": 1})) == 4 + 2


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (lambda: TruncatingReducer(0), "max_tokens must be a whole number of at least 1, not 0"),
        (lambda: SlidingWindowReducer(0), "turns must be a whole number of at least 1, not 0"),
        (lambda: SlidingWindowReducer(True), "turns must be"),
        (lambda: ToolResultReducer(-1), "keep_rounds must be"),
        (lambda: ToolResultReducer(max_chars=10), "max_chars must be"),
        (lambda: SummarizingReducer(ScriptedChatClient(), 1), "max_tokens must be"),
        (lambda: SummarizingReducer(ScriptedChatClient(), 10, keep_tokens=10), "keep_tokens must be less than max_tok"),
        (lambda: SummarizingReducer(ScriptedChatClient(), 10, on_error="log"), "on_error must be"),  # type: ignore[arg-type]
        (lambda: SummarizingReducer("gpt", 10), "client must be a ChatClient, not str"),  # type: ignore[arg-type]
    ],
)
def test_wrong_settings(make: Any, wrong: str) -> None:
    """A setting that cannot be is refused where the reducer is made, by its name."""
    with pytest.raises((ValueError, TypeError), match=wrong):
        make()


def test_reducers_print_their_settings() -> None:
    """A reducer shows what it was told."""
    told = [
        TruncatingReducer(9),
        SlidingWindowReducer(3),
        ToolResultReducer(),
        SummarizingReducer(ScriptedChatClient(), 9),
    ]
    assert [repr(reducer) for reducer in told] == [
        "TruncatingReducer(max_tokens=9)",
        "SlidingWindowReducer(turns=3)",
        "ToolResultReducer(keep_rounds=2, max_chars=200)",
        "SummarizingReducer(max_tokens=9, keep_tokens=4)",
    ]
