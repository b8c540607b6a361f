"""The tests that every history store has to pass, to be run on one's own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from agentpipe._messages import (
    ApprovalRequestContent,
    ApprovalResponseContent,
    Content,
    DataContent,
    FunctionCallContent,
    FunctionResultContent,
    InputRequestContent,
    InputResponseContent,
    Message,
    ReasoningContent,
    RefusalContent,
    TextContent,
    UnknownContent,
    UriContent,
    assistant,
    user,
)
from agentpipe._providers import HistoryProvider
from agentpipe._records import new_id
from agentpipe._session import AgentSession
from agentpipe.exceptions import HistoryError

Open = Callable[[], Awaitable[HistoryProvider]]

_CALL = FunctionCallContent("c1", "weigh", {"n": 2**70, "s": "ä"}, '{"n": 1180591620717411303424, "s": "ä"}')
#: The tests of stores that two writers can share.
_TWO_WRITERS = (
    "test_outcome_unknown",
    "test_outcome_unknown_and_race_lost",
    "test_lost_race",
    "test_lost_race_in_part",
    "test_many_writers",
)
#: A content of every kind that is stored.
EVERY_CONTENT: tuple[Content, ...] = (
    TextContent("text", {"annotations": [1, None, 2.5]}),
    ReasoningContent("thought", {"encrypted": "x"}),
    RefusalContent("no"),
    UriContent("https://example.com/cat.png", name="cat"),
    DataContent(bytes(range(256)), "image/png", "all bytes"),
    _CALL,
    FunctionCallContent("c2", "broken", {}, '{"a": ', "no JSON"),
    FunctionResultContent("c1", "weigh", {"kg": [1.5, -0.0, 1e300], "ok": True, "none": None}),
    FunctionResultContent("c2", "broken", "no JSON", True, (TextContent("see"), DataContent(b"\0", "image/gif"))),
    ApprovalRequestContent("a1", _CALL, parent_call=_CALL, state={"deep": [[["er"]]]}),
    ApprovalResponseContent("a1", True, {"n": 1}, "fine", "tool"),
    InputRequestContent("i1", _CALL, {"question": "?"}, [1], _CALL),
    InputResponseContent("i1", {"answer": [True]}),
    UnknownContent({"type": "hologram", "x": {"y": [1]}}),
)
HARD_TEXTS = (
    "",
    "NUL \0 in the middle, and at the end \0",
    "lone surrogates \ud800 and \udfff, a pair 😀",
    "Grüße, 苏州, العربية, e\u0301, \u200b\u2028\ufeff\uffff",
    "quotes ' \" ` ; -- \\ \\u0000 %s $1 {x}",
    "\r\n\t\x01\x1f\x7f",
)


def _test(body: Callable[[Any, Open], Awaitable[None]]) -> Callable[[Any], None]:
    """A test that any test runner can run, with or without a plugin for async tests."""

    async def whole(self: HistoryProviderContract) -> None:
        async with AsyncExitStack() as stack:

            async def opened() -> HistoryProvider:
                provider = await self.make_provider()
                stack.push_async_callback(provider.aclose)
                return provider

            await body(self, opened)

    def run(self: HistoryProviderContract) -> None:
        asyncio.run(whole(self))

    run.__name__, run.__qualname__, run.__doc__ = body.__name__, body.__qualname__, body.__doc__
    return run


class HistoryProviderContract:
    """What agents rely on, as tests. Subclass it, and say how to open your store:

        class TestMine(HistoryProviderContract):
            @pytest.fixture(autouse=True)
            def place(self, tmp_path):
                self.path = tmp_path / "history"

            async def make_provider(self):
                return MyHistoryProvider(self.path)

    ``make_provider`` is called several times in a test, and each time has to open the same store, as another process
    would. Where a session never has two writers at once, set ``one_writer = True``, which leaves out races. The tests
    use sessions of their own, so the store may hold others.
    """

    #: No two writers add to a session at once, as where the messages live in the session object, or in this process.
    one_writer = False

    async def make_provider(self) -> HistoryProvider:
        """The provider to test: a new one each time, over the same store."""
        raise NotImplementedError("say how to open your store: define make_provider")

    def elsewhere(self, session: AgentSession) -> AgentSession:
        """``session`` as another process has it."""
        return AgentSession.model_validate_json(session.model_dump_json())

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in _TWO_WRITERS if cls.one_writer else ():
            setattr(cls, name, None)  # what cannot be so is not tested

    @_test
    async def test_unknown_session(self, opened: Open) -> None:
        """A session that was never stored has no messages."""
        assert list(await (await opened()).get_messages(_session())) == []

    @_test
    async def test_order(self, opened: Open) -> None:
        """Messages come back in the order in which they were added, over many calls."""
        provider, session = await opened(), _session()
        messages = _messages("m", 12)
        for start in range(0, 12, 3):
            await provider.add_messages(session, messages[start : start + 3])
        assert list(await provider.get_messages(session)) == messages

    @_test
    async def test_nothing_to_add(self, opened: Open) -> None:
        """An empty append does nothing."""
        provider, session = await opened(), _session()
        await provider.add_messages(session, [])
        assert list(await provider.get_messages(session)) == []

    @_test
    async def test_append_again(self, opened: Open) -> None:
        """The same append a second time stores nothing, also when it is repeated in part or with something new."""
        provider, session = await opened(), _session()
        messages = _messages("m", 4)
        await provider.get_messages(session)
        await provider.add_messages(session, messages[:3])
        await provider.add_messages(session, messages[:3])
        await provider.add_messages(session, messages[1:])
        await provider.add_messages(session, [messages[0], messages[0]])
        assert list(await provider.get_messages(session)) == messages

    @_test
    async def test_twice_in_one_append(self, opened: Open) -> None:
        """A message that stands twice in one append is stored once."""
        provider, session = await opened(), _session()
        first, second = _messages("m", 2)
        await provider.add_messages(session, [first, second, first])
        assert list(await provider.get_messages(session)) == [first, second]

    @_test
    async def test_outcome_unknown(self, opened: Open) -> None:
        """An append that succeeded without the writer's learning of it may be repeated, and he can go on after."""
        provider, session = await opened(), _session()
        turn, another = _messages("turn", 3), _messages("next", 2)
        await provider.get_messages(session)
        before = dict(session.heads or {})
        await provider.add_messages(session, turn)
        session.heads = dict(before)  # the connection was lost between the commit and the answer
        await provider.add_messages(session, turn)
        session.heads = dict(before)
        await provider.add_messages(session, [*turn, *another])
        assert list(await provider.get_messages(session)) == [*turn, *another]

    @_test
    async def test_outcome_unknown_and_race_lost(self, opened: Open) -> None:
        """An append that is repeated after others have added succeeds if it is all there; going on does not."""
        provider, session = await opened(), _session()
        turn, theirs = _messages("turn", 3), _messages("theirs", 1)
        await provider.get_messages(session)
        before = dict(session.heads or {})
        await provider.add_messages(session, turn)
        await (await opened()).add_messages(self.elsewhere(session), theirs)
        session.heads = before
        await provider.add_messages(session, turn)
        await _fails(provider.add_messages(session, _messages("next", 1)))
        assert list(await provider.get_messages(session)) == [*turn, *theirs]

    @_test
    async def test_without_id(self, opened: Open) -> None:
        """Messages without an id get one, and are each a message of their own."""
        provider, session = await opened(), _session()
        await provider.add_messages(session, [user("twin"), user("twin")])
        stored = await provider.get_messages(session)
        assert [message.text for message in stored] == ["twin", "twin"]
        assert len({message.message_id for message in stored} - {None}) == 2

    @_test
    async def test_sessions_share_nothing(self, opened: Open) -> None:
        """Sessions share neither messages nor ids, however alike their names are."""
        provider = await opened()
        base = new_id("s")
        names = [base, base + " ", base + "%", base.upper(), base + "\0", base + "\0x", base + "\\u0000", base + "}"]
        names += [base + "\ud800", base + "\ud801", base + "'", base + "ä", base + _LONG, base + _LONG + "x"]
        sessions = [AgentSession(name) for name in names]
        for session in sessions:
            await provider.add_messages(session, [user(session.id).replace(message_id="same")])
        for session in sessions:
            assert [message.text for message in await provider.get_messages(session)] == [session.id]

    @_test
    async def test_ids_of_all_sorts(self, opened: Open) -> None:
        """Any text may be the id of a message."""
        provider, session = await opened(), _session()
        messages = [user("x").replace(message_id=text) for text in [*HARD_TEXTS, _LONG, _LONG + "x"]]
        await provider.add_messages(session, messages)
        await provider.add_messages(session, messages)
        assert list(await provider.get_messages(session)) == messages

    @_test
    async def test_every_content(self, opened: Open) -> None:
        """Every kind of content, and every field of a message, comes back exactly."""
        provider, session = await opened(), _session()
        messages = [Message("assistant", (content,), new_id("m")) for content in EVERY_CONTENT]
        messages.append(Message("tool", EVERY_CONTENT, "all", "Ada", {"a": {"b": [1]}}, extra={"future": True}))
        await provider.add_messages(session, messages)
        stored = await (await opened()).get_messages(self.elsewhere(session))
        assert list(stored) == messages
        assert [message.model_dump() for message in stored] == [message.model_dump() for message in messages]

    @_test
    async def test_hard_texts(self, opened: Open) -> None:
        """NUL, lone surrogates, quotes and every script come back exactly, as text, results and arguments."""
        provider, session = await opened(), _session()
        messages = [
            Message(
                "assistant",
                (TextContent(t), FunctionResultContent("c", t, {t: [t]}), FunctionCallContent("c", t, {t: t}, t)),
                new_id("m"),
                t,
                {t: t},
            )
            for t in HARD_TEXTS
        ]
        await provider.add_messages(session, messages)
        assert list(await (await opened()).get_messages(self.elsewhere(session))) == messages

    @_test
    async def test_megabytes(self, opened: Open) -> None:
        """Messages of several megabytes come back exactly."""
        provider, session = await opened(), _session()
        messages = [user("ä" * 2_000_000), user(DataContent(bytes(range(256)) * 12_000)), assistant("short")]
        messages = [message.with_id() for message in messages]
        await provider.add_messages(session, messages)
        assert list(await (await opened()).get_messages(self.elsewhere(session))) == messages

    @_test
    async def test_thousands(self, opened: Open) -> None:
        """Thousands of messages fit in one append and in one session."""
        provider, session = await opened(), _session()
        messages = _messages("m", 3000)
        await provider.add_messages(session, messages)
        await provider.add_messages(session, messages)
        await provider.add_messages(session, more := _messages("more", 3))
        assert list(await provider.get_messages(session)) == [*messages, *more]

    @_test
    async def test_restart(self, opened: Open) -> None:
        """What was stored is there after the provider was closed and another one opened, which can go on."""
        provider, session = await opened(), _session()
        first, second = _messages("first", 3), _messages("second", 3)
        await provider.add_messages(session, first)
        await provider.aclose()
        await provider.aclose()
        provider, session = await opened(), self.elsewhere(session)
        assert list(await provider.get_messages(session)) == first
        await provider.add_messages(session, second)
        assert list(await provider.get_messages(session)) == [*first, *second]

    @_test
    async def test_lost_race(self, opened: Open) -> None:
        """Of two writers that read the same history the second fails, stores nothing, and may read and try again."""
        session = _session()
        (one, mine), (other, theirs) = (await opened(), session), (await opened(), self.elsewhere(session))
        first, lost = _messages("first", 3), _messages("lost", 3)
        await one.get_messages(mine)
        await other.get_messages(theirs)
        await one.add_messages(mine, first)
        await _fails(other.add_messages(theirs, lost))
        await _fails(other.add_messages(theirs, lost))
        assert list(await one.get_messages(mine)) == first
        assert list(await other.get_messages(theirs)) == first
        await other.add_messages(theirs, lost)
        await _fails(one.add_messages(mine, _messages("late", 1)))
        assert list(await one.get_messages(mine)) == [*first, *lost]

    @_test
    async def test_lost_race_in_part(self, opened: Open) -> None:
        """An append that lost the race is refused whole, though some of it is stored from before."""
        session = _session()
        (one, mine), (other, theirs) = (await opened(), session), (await opened(), self.elsewhere(session))
        first, more = _messages("first", 2), _messages("more", 2)
        await one.add_messages(mine, first)
        await other.get_messages(theirs)
        await one.add_messages(mine, more)
        await _fails(other.add_messages(theirs, [*first, *_messages("lost", 1)]))
        await other.add_messages(theirs, first)  # all there: nothing to lose
        assert list(await one.get_messages(mine)) == [*first, *more]

    @_test
    async def test_unread_appends_go_to_the_end(self, opened: Open) -> None:
        """A writer that has not read the session adds to its end."""
        session = _session()
        first, second = _messages("first", 2), _messages("second", 2)
        await (await opened()).add_messages(session, first)
        other, there = await opened(), self.elsewhere(session)
        await other.add_messages(there, second)
        assert list(await other.get_messages(there)) == [*first, *second]

    @_test
    async def test_many_writers(self, opened: Open) -> None:
        """Of many writers at once, each of which tries again when it has lost, every append is whole and there once."""
        session = _session()
        turns = {writer: [_messages(f"{writer}-{turn}", 3) for turn in range(4)] for writer in "abcd"}

        async def write(batches: list[list[Message]]) -> None:
            provider, here = await opened(), self.elsewhere(session)
            for batch in batches:
                await _until_stored(provider, here, batch)

        await asyncio.gather(*map(write, turns.values()))
        stored = list(await (await opened()).get_messages(session))
        found = [stored[start : start + 3] for start in range(0, len(stored), 3)]
        for batches in turns.values():
            assert [batch for batch in found if batch in batches] == batches
        assert len(stored) == 48

    @_test
    async def test_many_sessions_at_once(self, opened: Open) -> None:
        """A hundred sessions written at once through one provider share nothing."""
        provider = await opened()
        sessions = [_session() for _ in range(100)]

        async def write(session: AgentSession) -> None:
            for turn in range(2):
                await provider.get_messages(session)
                await provider.add_messages(session, _messages(f"{session.id} {turn}", 2))

        await asyncio.gather(*map(write, sessions))
        for session in sessions:
            expected = [*_messages(f"{session.id} 0", 2), *_messages(f"{session.id} 1", 2)]
            assert list(await provider.get_messages(session)) == expected

    @_test
    async def test_cancelled(self, opened: Open) -> None:
        """An append that is cancelled at any moment is stored whole or not at all, and may be repeated."""
        provider = await opened()
        for moments in (0, 1, 2, 3, 5, 8, 13, 21, 34, 55):
            session, batch = _session(), _messages("m", 3)
            await provider.get_messages(session)
            task = asyncio.ensure_future(provider.add_messages(session, batch))
            for _ in range(moments):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert list(await (await opened()).get_messages(self.elsewhere(session))) in ([], batch)
            await provider.add_messages(session, batch)
            await provider.add_messages(session, more := _messages("more", 1))
            assert list(await provider.get_messages(session)) == [*batch, *more]

    @_test
    async def test_result_is_yours(self, opened: Open) -> None:
        """Changing the list that was returned changes nothing in the store."""
        provider, session = await opened(), _session()
        await provider.add_messages(session, messages := _messages("m", 2))
        got = await provider.get_messages(session)
        if isinstance(got, list):
            got.clear()
        assert list(await provider.get_messages(session)) == messages


#: An id as long as nobody needs, which no index can pack.
_LONG = "".join(chr(0x4E00 + i * i % 20_000) for i in range(5_000))


def _session() -> AgentSession:
    return AgentSession(new_id("contract"))


def _messages(name: str, count: int) -> list[Message]:
    make = (partial(Message, "user"), partial(Message, "assistant"))
    return [make[i % 2](f"{name} {i}", f"{name} {i}") for i in range(count)]


async def _fails(append: Awaitable[None]) -> None:
    try:
        await append
    except HistoryError:
        return
    raise AssertionError("another writer had added to the session: HistoryError was due")


async def _until_stored(provider: HistoryProvider, session: AgentSession, batch: Sequence[Message]) -> None:
    for _ in range(200):
        await provider.get_messages(session)
        try:
            return await provider.add_messages(session, batch)
        except HistoryError:
            await asyncio.sleep(0)
    raise AssertionError("an append lost 200 races in a row")
