"""Folding updates into responses, and the stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpipe import (
    AgentPipeError,
    ApprovalRequestContent,
    ChatOptions,
    ChatRequest,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionCallContent,
    FunctionResultContent,
    InputRequestContent,
    Message,
    OutputError,
    ProgressContent,
    ReasoningContent,
    RefusalContent,
    ResponseStream,
    TextContent,
    ThoughtContent,
    TransportError,
    UsageDetails,
)
from agentpipe._responses import ResponseFolder, fold
from agentpipe.testing import ScriptedChatClient
from tests.strategies import contents, updates, usages

pieces = st.lists(
    st.tuples(st.sampled_from([TextContent, ReasoningContent]), st.text(min_size=1, max_size=9)), max_size=6
)


@given(pieces, st.randoms(use_true_random=False))
def test_any_cut_folds_into_the_same_response(parts: Sequence[Any], random: Any) -> None:
    """However texts and thoughts are cut into updates, they fold into the same messages."""
    whole = fold([ChatResponseUpdate([kind(text) for kind, text in parts], "assistant", "m")])
    cut = []
    for kind, text in parts:
        while text:
            size = random.randint(1, len(text))
            cut.append(ChatResponseUpdate([kind(text[:size])], "assistant" if random.random() < 0.5 else None, "m"))
            text = text[size:]
    assert fold(cut).messages == whole.messages


@given(usages, usages, usages)
def test_usages_add_up(a: UsageDetails, b: UsageDetails, c: UsageDetails) -> None:
    """Usages add, None counting as nothing, in whatever order."""
    assert (a + b) + c == a + (b + c)
    assert a + UsageDetails() == a
    total = fold([ChatResponseUpdate(usage=usage) for usage in (a, b, c)]).usage
    assert total == a + b + c


def test_where_a_message_begins() -> None:
    """Another role or another id begins another message; no id goes on with the last."""
    response = fold(
        [
            ChatResponseUpdate([TextContent("a")], "assistant", "1"),
            ChatResponseUpdate([TextContent("b")]),
            ChatResponseUpdate([TextContent("c")], "assistant", "2"),
            ChatResponseUpdate([FunctionResultContent("x")], "tool"),
            ChatResponseUpdate([FunctionResultContent("y")], "tool"),
            ChatResponseUpdate([TextContent("d")], "assistant"),
        ]
    )
    assert [(message.role, message.message_id) for message in response.messages] == [
        ("assistant", "1"), ("assistant", "2"), ("tool", None), ("assistant", None),
    ]  # fmt: skip
    assert [message.text for message in response.messages] == ["ab", "c", "", "d"]


def test_what_is_not_part_of_what_was_said() -> None:
    """Progress is never folded in; empty messages are left out; text that was thought becomes reasoning."""
    response = fold(
        [
            ChatResponseUpdate(role="assistant"),
            ChatResponseUpdate([ProgressContent("c", "f", "half way")]),
            ChatResponseUpdate([TextContent("hm")], "assistant"),
            ChatResponseUpdate([ThoughtContent()]),
            ChatResponseUpdate([TextContent("yes")]),
        ]
    )
    assert [content.type for content in response.messages[0].contents] == ["reasoning", "text"]
    assert (response.reasoning, response.text) == ("hm", "yes")
    assert fold([ChatResponseUpdate(role="assistant"), ChatResponseUpdate(finish_reason="stop")]).messages == ()
    pieces = [
        ReasoningContent("a"),
        TextContent("b"),
        FunctionCallContent("c", "f"),
        ThoughtContent(),
        TextContent("d"),
    ]
    thought = fold([ChatResponseUpdate([piece], "assistant") for piece in pieces]).messages[0].contents
    assert thought == (ReasoningContent("ab"), FunctionCallContent("c", "f"), TextContent("d"))


def test_data_to_be_echoed_finds_its_text() -> None:
    """A content without text carries what is to be echoed with the text of its kind that came before."""
    response = fold(
        [
            ChatResponseUpdate([ReasoningContent("why"), TextContent("so")], "assistant"),
            ChatResponseUpdate([ReasoningContent("", {"signature": "s"})]),
        ]
    )
    assert response.messages[0].contents == (ReasoningContent("why", {"signature": "s"}), TextContent("so"))


def test_folding_looks_at_each_piece_once() -> None:
    """Folding is linear: the number of joins does not grow with the number of pieces."""
    folder = ResponseFolder()
    for _ in range(5000):
        folder.add(ChatResponseUpdate([TextContent("x")], "assistant"))
    message = folder._open
    assert message is not None
    assert (len(message.contents), len(message.pieces)) == (0, 5000)
    assert folder.response().text == "x" * 5000


def test_a_response_as_updates_folds_into_itself() -> None:
    """as_updates gives updates that fold into the same response."""
    response = ChatResponse(
        (Message("assistant", [TextContent("a"), FunctionCallContent("c", "f")], "m1"), Message("tool", [FunctionResultContent("c")], "m2")),
        UsageDetails(1, 2, 3), "tool_calls", "limit", "r", "m", "conv", metadata={"a": 1},
    )  # fmt: skip
    assert fold(list(response.as_updates())).replace(created_at=None) == response


def stream_of(*steps: Any) -> ResponseStream:
    async def updates() -> AsyncIterator[ChatResponseUpdate]:
        for step in steps:
            if isinstance(step, BaseException):
                raise step
            yield ChatResponseUpdate([TextContent(step)], "assistant")

    return ResponseStream(updates())


async def test_get_response_takes_what_is_left() -> None:
    """get_response after some updates takes the rest, and gives the whole; partial is incomplete until then."""
    stream = stream_of("a", "b", "c")
    assert (await anext(stream)).text == "a"
    assert stream.partial.incomplete
    response = await stream.get_response()
    assert (response.text, response.incomplete) == ("abc", False)
    assert await stream.get_response() is response
    assert [text async for text in stream_of("x", "y").text_deltas()] == ["x", "y"]


async def test_an_error_in_mid_stream_is_raised_again() -> None:
    """After an error get_response raises it again; what had come is in partial, and never looks like an answer."""
    error = TransportError("cut")
    stream = stream_of("half", error)
    with pytest.raises(TransportError):
        async for _ in stream:
            pass
    for _ in range(2):
        with pytest.raises(TransportError) as caught:
            await stream.get_response()
        assert caught.value is error
    assert (stream.partial.text, stream.partial.incomplete) == ("half", True)
    assert error.response is not None
    assert error.response.incomplete


async def test_a_stream_that_was_left_has_no_response() -> None:
    """A stream that was closed before its end has no response, and says so."""
    client = ScriptedChatClient("a long story")
    async with client.stream("go") as stream:
        await anext(stream)
    assert client.open == 0
    with pytest.raises(AgentPipeError, match="closed before its end"):
        await stream.get_response()
    assert [update async for update in stream] == []


async def test_cancelling_closes_what_is_under_it() -> None:
    """Cancelling whoever reads a stream closes the client under it."""
    asked = asyncio.Event()

    async def hang(request: ChatRequest) -> None:
        asked.set()
        await asyncio.Event().wait()

    client = ScriptedChatClient(hang)
    task = asyncio.ensure_future(client.get_response("go"))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert client.open == 0


async def test_the_object_so_far() -> None:
    """partial_output gives the JSON values of a structured answer while it comes."""
    client = ScriptedChatClient('{"value": [1, 2, 3]}', piece=4)
    async with client.stream("go", ChatOptions(response_format=list[int])) as stream:
        seen = [stream.partial_output async for _ in stream]
    assert seen[-1] == [1, 2, 3]
    assert seen[0] is None
    assert (await stream.get_response()).parse(list[int]) == [1, 2, 3]
    with pytest.raises(ValueError, match="response_format"):
        _ = stream_of("x").partial_output


@given(st.lists(updates, max_size=6))
def test_folding_what_was_folded(pieces: list[ChatResponseUpdate]) -> None:
    """Whatever updates come, the response that they make is, as updates, the same again; ids may be new, not others."""
    response = fold(pieces)
    again = fold(list(response.as_updates()))
    ids = [message.message_id for message in response.messages]
    assert tuple(m.replace(message_id=i) for m, i in zip(again.messages, ids, strict=True)) == response.messages
    assert all(id in (None, message.message_id) for message, id in zip(again.messages, ids, strict=True))
    assert again.replace(created_at=None, messages=()) == response.replace(created_at=None, messages=())


@given(st.lists(contents, max_size=5), st.randoms(use_true_random=False))
def test_any_cut_of_any_contents(said: list[Content], random: Any) -> None:
    """Contents of every kind, with their texts cut anywhere: the pieces fold into what the whole folds into."""
    whole = fold([ChatResponseUpdate(said, "assistant", "m")])
    cut: list[list[Content]] = []
    for content in said:
        if isinstance(content, (TextContent, ReasoningContent)) and len(content.text) > 1:
            at = random.randint(1, len(content.text) - 1)
            cut.append([replace(content, text=content.text[:at])])
            cut.append([type(content)(content.text[at:])])
        else:
            cut.append([content])
    assert fold([ChatResponseUpdate(piece, "assistant", "m") for piece in cut]).messages == whole.messages


@given(st.lists(updates, max_size=5), st.integers(0, 5))
def test_the_response_so_far(pieces: list[ChatResponseUpdate], place: int) -> None:
    """Looking at the response in between changes nothing; what was looked at does not change either."""
    folder, seen = ResponseFolder(), []
    for update in pieces:
        folder.add(update)
        seen.append((folder.messages(), folder.response(incomplete=True)))
    assert [response.messages for _, response in seen] == [tuple(messages) for messages, _ in seen]
    assert [fold(pieces[: n + 1]).messages for n in range(len(pieces))] == [tuple(messages) for messages, _ in seen]
    assert folder.response().messages == fold(pieces).messages


def test_what_is_to_be_echoed_is_merged() -> None:
    """provider_data and unknown fields of pieces are merged into their content, the later wins; others stay apart."""
    response = fold(
        [
            ChatResponseUpdate([TextContent("a", {"x": 1, "y": 1}, {"future": 1})], "assistant"),
            ChatResponseUpdate([TextContent("b")]),
            ChatResponseUpdate([TextContent("", {"y": 2}, {"later": 2})]),
            ChatResponseUpdate([FunctionCallContent("c", "f"), TextContent("c")]),
        ]
    )
    assert response.messages[0].contents == (
        TextContent("ab", {"x": 1, "y": 2}, {"future": 1, "later": 2}),
        FunctionCallContent("c", "f"),
        TextContent("c"),
    )


def test_what_is_known_of_a_response() -> None:
    """Of model, ids and reasons the last told counts; metadata is united; the first author's name stays."""
    response = fold(
        [
            ChatResponseUpdate([TextContent("a")], "assistant", None, None, "r1", "m1", "length", metadata={"a": 1, "b": 1}),
            ChatResponseUpdate([TextContent("b")], None, "late id", "Ada", "r2", None, "stop", "answer"),
            ChatResponseUpdate(conversation_id="c", metadata={"b": 2}, raw={"end": True}),
        ]
    )  # fmt: skip
    assert (response.response_id, response.model, response.finish_reason, response.stop_reason) == (
        "r2",
        "m1",
        "stop",
        "answer",
    )
    assert (response.conversation_id, response.metadata, response.raw) == ("c", {"a": 1, "b": 2}, {"end": True})
    assert [(message.text, message.message_id) for message in response.messages] == [("a", None), ("b", "late id")]
    assert response.created_at is not None
    assert not response.incomplete


def test_messages_that_are_whole_are_given_once() -> None:
    """take_closed gives each message once, when the next one has begun."""
    folder = ResponseFolder()
    folder.add(ChatResponseUpdate([TextContent("a")], "assistant"))
    assert folder.take_closed() == []
    folder.add(ChatResponseUpdate([FunctionResultContent("c")], "tool"))
    assert [message.text for message in folder.take_closed()] == ["a"]
    assert folder.take_closed() == []
    assert [message.role for message in folder.messages()] == ["tool"]


def test_messages_of_one_role_stay_apart_as_updates() -> None:
    """Messages of one role without ids do not run into each other on their way through updates."""
    response = ChatResponse((Message("assistant", "a"), Message("assistant", "b"), Message("user", "c")))
    assert [message.text for message in fold(list(response.as_updates())).messages] == ["a", "b", "c"]


def test_the_text_of_the_final_answer() -> None:
    """The text is the last message's, if that is the model's; the lists tell what came anywhere."""
    call, result = FunctionCallContent("c", "f"), FunctionResultContent("c", "f", {"a": 1})
    asked = Message("assistant", ["let me see", call])
    told = Message("tool", [result])
    done = Message("assistant", [ReasoningContent("hm"), "yes", RefusalContent("no")])
    response = ChatResponse((asked, told, done))
    assert (response.text, response.reasoning, response.refusal, str(response)) == ("yes", "hm", "no", "yes")
    assert (response.function_calls, response.function_results) == ([call], [result])
    assert (ChatResponse((asked, told)).text, ChatResponse().text) == ("", "")
    direct = ChatResponse((asked, told), stop_reason="return_directly", metadata={"direct_call_id": "c"})
    assert direct.text == '{"a":1}'
    question = ApprovalRequestContent("q", call)
    asking = InputRequestContent("i", call)
    waiting = ChatResponse((Message("assistant", [question, asking]),), stop_reason="approval")
    assert (waiting.approval_requests, waiting.input_requests) == ([question], [asking])


def test_parsing_what_does_not_fit() -> None:
    """parse raises OutputError with the response when the text is not what was asked for."""
    response = ChatResponse((Message("assistant", "not a number"),))
    with pytest.raises(OutputError) as caught:
        response.parse(int)
    assert caught.value.response is response


def test_updates_are_equal_by_what_they_say() -> None:
    """Two updates are equal whatever sequence holds their contents; replace makes another, and knows its fields."""
    update = ChatResponseUpdate([TextContent("a")], "assistant", raw={"x": 1})
    assert update == ChatResponseUpdate((TextContent("a"),), "assistant")
    assert update != ChatResponseUpdate([TextContent("a")])
    assert update != "a"
    assert update.replace(role="tool") == ChatResponseUpdate([TextContent("a")], "tool")
    assert (update.role, update.replace(role="tool").raw) == ("assistant", {"x": 1})
    with pytest.raises(AttributeError, match="nonsense"):
        update.replace(nonsense=1)


async def test_an_error_without_an_answer_has_none() -> None:
    """An error before anything came has no response; one that has a response already keeps it."""
    error = TransportError("refused")
    with pytest.raises(TransportError):
        await stream_of(error).get_response()
    assert error.response is None
    known = ChatResponse((Message("assistant", "known"),))
    error = TransportError("cut", response=known)
    with pytest.raises(TransportError):
        await stream_of("half", error).get_response()
    assert error.response is known


async def test_after_an_error_there_is_no_more() -> None:
    """A stream that failed gives no more pieces, and closing it again does nothing."""
    stream = stream_of("half", TransportError("cut"))
    with pytest.raises(TransportError):
        _ = [text async for text in stream.text_deltas()]
    assert [update async for update in stream] == []
    await stream.aclose()
    with pytest.raises(TransportError):
        await stream.get_response()


async def test_a_stream_that_was_never_read() -> None:
    """A stream that is closed before it was read has no response; an empty answer is one."""
    stream = stream_of("a")
    await stream.aclose()
    with pytest.raises(AgentPipeError, match="closed before its end"):
        await stream.get_response()
    assert (await stream_of().get_response()).messages == ()
