"""What comes back: updates, and the response that they fold into.

A call that is not streamed yields each message in one update, a streamed one in pieces. Folding gives the same
response either way. It is incremental and linear: a piece is looked at once and joined at the end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone
from operator import attrgetter
from types import TracebackType
from typing import Any, ClassVar, Literal, Self, TypeVar, get_origin

from agentpipe._messages import (
    ApprovalRequestContent,
    Content,
    FunctionCallContent,
    FunctionResultContent,
    InputRequestContent,
    Message,
    ReasoningContent,
    RefusalContent,
    Role,
    TextContent,
    ThoughtContent,
)
from agentpipe._records import Record
from agentpipe._schema import output_type
from agentpipe.exceptions import AgentPipeError, OutputError

_put = object.__setattr__
FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "error"]
StopReason = Literal["answer", "limit", "return_directly", "terminated", "approval", "unknown_call", "declaration_only"]
T = TypeVar("T")

#: Where a response says which call's result is its answer (stop_reason "return_directly").
DIRECT_CALL = "direct_call_id"
#: Where a response says how many tool rounds it took. In a stream it comes with the last result of each round: a round
#: is then over, and may be stored.
ROUNDS = "rounds"


@dataclass(frozen=True, slots=True)
class UsageDetails(Record):
    """Tokens that were used; None where the endpoint did not tell. ``+`` adds, None counting as nothing."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    cached_input_tokens: int | None = None
    reasoning_tokens: int | None = None
    extra: Mapping[str, Any] | None = None

    def __add__(self, other: UsageDetails) -> UsageDetails:
        return UsageDetails(
            _add(self.input_tokens, other.input_tokens),
            _add(self.output_tokens, other.output_tokens),
            _add(self.total_tokens, other.total_tokens),
            _add(self.cached_input_tokens, other.cached_input_tokens),
            _add(self.reasoning_tokens, other.reasoning_tokens),
            _add_extra(self.extra, other.extra),
        )


def _add(a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b


def _add_extra(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if not a or not b:
        return a or b
    joined = {**a, **b}
    for key in a.keys() & b.keys():
        if isinstance(a[key], (int, float)) and isinstance(b[key], (int, float)):
            joined[key] = a[key] + b[key]
    return joined


@dataclass(slots=True)
class ChatResponseUpdate(Record):
    """A piece of a response. Treat it as frozen: to change one, pass on another (`replace`).

    ``usage`` is what is new since the last update that had one: the usages of a response add up.
    """

    contents: Sequence[Content] = ()
    role: Role | None = None
    message_id: str | None = None
    author_name: str | None = None
    response_id: str | None = None
    model: str | None = None
    finish_reason: FinishReason | None = None
    stop_reason: StopReason | None = None
    usage: UsageDetails | None = None
    conversation_id: str | None = None
    metadata: Mapping[str, Any] | None = None
    raw: Any = field(default=None, compare=False, repr=False)
    extra: Mapping[str, Any] | None = None

    in_process: ClassVar[frozenset[str]] = frozenset({"raw"})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ChatResponseUpdate):
            return NotImplemented
        # Contents are whatever sequence was given, since making an update has to be cheap.
        return tuple(self.contents) == tuple(other.contents) and _REST_OF(self) == _REST_OF(other)

    @property
    def text(self) -> str:
        """The text of this piece."""
        contents = self.contents
        if len(contents) == 1:
            first = contents[0]
            return first.text if isinstance(first, TextContent) else ""
        return "".join([content.text for content in contents if isinstance(content, TextContent)])

    def replace(self, **changes: Any) -> ChatResponseUpdate:
        """The same update with other fields; AttributeError for one that does not exist."""
        made = ChatResponseUpdate(
            self.contents,
            self.role,
            self.message_id,
            self.author_name,
            self.response_id,
            self.model,
            self.finish_reason,
            self.stop_reason,
            self.usage,
            self.conversation_id,
            self.metadata,
            self.raw,
            self.extra,
        )
        for name, value in changes.items():
            setattr(made, name, value)
        return made


#: What two equal updates have in common besides their contents.
_REST_OF = attrgetter(*[f.name for f in fields(ChatResponseUpdate) if f.compare and f.name != "contents"])


@dataclass(frozen=True, slots=True)
class ChatResponse(Record):
    """An answer: the messages that were produced, in order, and what is known of them.

    ``finish_reason`` is the model's, of the last model call; ``stop_reason`` the loop's. ``incomplete`` marks a
    response whose end never came. ``raw`` is the endpoint's own JSON, where asked for, in this process only.
    """

    in_process: ClassVar[frozenset[str]] = frozenset({"raw"})
    messages: tuple[Message, ...] = ()
    usage: UsageDetails | None = None
    finish_reason: FinishReason | None = None
    stop_reason: StopReason | None = None
    response_id: str | None = None
    model: str | None = None
    conversation_id: str | None = None
    created_at: datetime | None = None
    incomplete: bool = False
    metadata: Mapping[str, Any] | None = None
    raw: Any = field(default=None, compare=False, repr=False)
    extra: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if type(self.messages) is not tuple:
            _put(self, "messages", tuple(self.messages))

    @property
    def text(self) -> str:
        """The text of the final answer: of the last message if it is the model's, or the result returned directly."""
        if self.stop_reason == "return_directly" and self.metadata:
            return self._direct_text(self.metadata.get(DIRECT_CALL))
        last = self._answer
        return last.text if last else ""

    @property
    def reasoning(self) -> str:
        """What the model thought before the final answer."""
        last = self._answer
        return "".join([c.text for c in last.contents if isinstance(c, ReasoningContent)]) if last else ""

    @property
    def refusal(self) -> str:
        """The model's words for not answering, or ""."""
        last = self._answer
        return "".join([c.text for c in last.contents if isinstance(c, RefusalContent)]) if last else ""

    @property
    def function_calls(self) -> list[FunctionCallContent]:
        """The calls that the model made, in order."""
        return [content for content in self._contents() if isinstance(content, FunctionCallContent)]

    @property
    def function_results(self) -> list[FunctionResultContent]:
        """What came of the calls, in order."""
        return [content for content in self._contents() if isinstance(content, FunctionResultContent)]

    @property
    def approval_requests(self) -> list[ApprovalRequestContent]:
        """The calls that wait for a person's decision."""
        return [content for content in self._contents() if isinstance(content, ApprovalRequestContent)]

    @property
    def input_requests(self) -> list[InputRequestContent]:
        """The questions of tools that wait for an answer."""
        return [content for content in self._contents() if isinstance(content, InputRequestContent)]

    def parse(self, kind: type[T]) -> T:
        """The final answer as a ``kind`` (pydantic model, dataclass, TypedDict, list, enum, scalar ...).

        Raises OutputError, with this response on it, when the text does not fit.
        """
        try:
            value: T = output_type(kind).parse(self.text)
        except ValueError as error:
            raise OutputError(str(error), response=self) from error
        return value

    def replace(self, **changes: Any) -> ChatResponse:
        """The same response with other fields."""
        return replace(self, **changes)

    def as_updates(self) -> Iterator[ChatResponseUpdate]:
        """This response as updates that fold into it again: one a message, the last one with all the rest."""
        role: Role | None = None
        for message in self.messages:
            # Without an id of its own it would run into the one before it.
            told = message.with_id() if message.role == role else message
            role = message.role
            yield ChatResponseUpdate(told.contents, role, told.message_id, told.author_name)
        yield ChatResponseUpdate(
            response_id=self.response_id,
            model=self.model,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            usage=self.usage,
            conversation_id=self.conversation_id,
            metadata=self.metadata,
            raw=self.raw,
        )

    def __str__(self) -> str:
        return self.text

    @property
    def _answer(self) -> Message | None:
        last = self.messages[-1] if self.messages else None
        return last if last is not None and last.role == "assistant" else None

    def _contents(self) -> Iterator[Content]:
        for message in self.messages:
            yield from message.contents

    def _direct_text(self, call_id: object) -> str:
        for result in reversed(self.function_results):
            if result.call_id == call_id:
                return result.text
        return ""


# Contents that come in pieces and are joined: text after text, thought after thought.
_JOINED = (TextContent, ReasoningContent, RefusalContent)


class _OpenMessage:
    """A message while its pieces arrive."""

    __slots__ = ("author_name", "contents", "extra", "kind", "message_id", "pieces", "provider_data", "role")

    def __init__(self, update: ChatResponseUpdate) -> None:
        self.role: Role = update.role or "assistant"
        self.message_id = update.message_id
        self.author_name = update.author_name
        self.contents: list[Content] = []
        self.kind: type[Content] | None = None  # of the content whose pieces are being collected
        self.pieces: list[str] = []
        self.provider_data: dict[str, Any] | None = None
        self.extra: dict[str, Any] | None = None

    def goes_on_in(self, update: ChatResponseUpdate) -> bool:
        if update.role is not None and update.role != self.role:
            return False
        if update.message_id is not None and update.message_id != self.message_id:
            return self.message_id is None and not self.contents and not self.pieces
        return True

    def add(self, content: Content) -> None:
        kind = type(content)
        if kind is self.kind:
            self.pieces.append(content.text)  # type: ignore[attr-defined]  # the kinds in _JOINED have text
            if content.provider_data or content.extra:  # type: ignore[attr-defined]
                self._take_data(content)
        elif kind in _JOINED:
            self._add_other_kind(kind, content)
        elif not content.transient:
            self._finish_pieces()
            self.contents.append(content)
        elif kind is ThoughtContent:
            self._finish_pieces()
            said, self.contents = self.contents, []
            for each in said:  # anew, so that thoughts side by side become one
                self.add(_as_thought(each))

    def _add_other_kind(self, kind: type[Content], content: Any) -> None:
        if not content.text and content.provider_data and self._give_to_earlier(kind, content.provider_data):
            return
        if not content.text and not content.provider_data:
            return
        self._finish_pieces()
        self.kind, self.pieces, self.provider_data, self.extra = kind, [content.text], None, None
        self._take_data(content)

    def _give_to_earlier(self, kind: type[Content], data: Mapping[str, Any]) -> bool:
        """A content without text carries what is to be echoed with the text of its kind that came before."""
        for place in range(len(self.contents) - 1, -1, -1):
            earlier = self.contents[place]
            if isinstance(earlier, (TextContent, ReasoningContent, RefusalContent)) and type(earlier) is kind:
                self.contents[place] = replace(earlier, provider_data={**(earlier.provider_data or {}), **data})
                return True
        return False

    def _take_data(self, content: Any) -> None:
        if content.provider_data:
            self.provider_data = {**(self.provider_data or {}), **content.provider_data}
        if content.extra and (content.text or content.provider_data):  # else it says nothing
            self.extra = {**(self.extra or {}), **content.extra}

    def _finish_pieces(self) -> None:
        if self.kind is not None:
            self.contents.append(self._joined())
            self.kind = None

    def _joined(self) -> Content:
        kind: Any = self.kind
        text: Content = kind("".join(self.pieces), self.provider_data, self.extra)
        return text

    def message(self) -> Message:
        contents = self.contents if self.kind is None else [*self.contents, self._joined()]
        return Message(self.role, tuple(contents), self.message_id, self.author_name, None, "response")

    @property
    def empty(self) -> bool:
        return not self.contents and self.kind is None


def _as_thought(content: Content) -> Content:
    if isinstance(content, TextContent):
        return ReasoningContent(content.text, content.provider_data, content.extra)
    return content


class ResponseFolder:
    """Folds updates into a `ChatResponse`, one at a time."""

    __slots__ = (
        "_closed",
        "_open",
        "conversation_id",
        "finish_reason",
        "metadata",
        "model",
        "raw",
        "response_id",
        "stop_reason",
        "usage",
    )

    def __init__(self) -> None:
        self._closed: list[Message] = []
        self._open: _OpenMessage | None = None
        self.usage: UsageDetails | None = None
        self.finish_reason: FinishReason | None = None
        self.stop_reason: StopReason | None = None
        self.response_id: str | None = None
        self.model: str | None = None
        self.conversation_id: str | None = None
        self.metadata: Mapping[str, Any] | None = None
        self.raw: Any = None

    def add(self, update: ChatResponseUpdate) -> None:
        """Fold in one more update."""
        contents = update.contents
        if contents or update.role is not None:
            message = self._open
            if message is None or not message.goes_on_in(update):
                message = self._start(update)
            elif message.message_id is None:
                message.message_id = update.message_id
            if message.author_name is None:
                message.author_name = update.author_name
            for content in contents:
                message.add(content)
        if update.response_id is not None:
            self.response_id = update.response_id
        if update.model is not None:
            self.model = update.model
        if update.finish_reason is not None:
            self.finish_reason = update.finish_reason
        if update.usage is not None:
            self.usage = update.usage if self.usage is None else self.usage + update.usage
        if update.stop_reason is not None:
            self.stop_reason = update.stop_reason
        if update.conversation_id is not None:
            self.conversation_id = update.conversation_id
        if update.metadata is not None:
            self.metadata = {**(self.metadata or {}), **update.metadata}
        if update.raw is not None:
            self.raw = update.raw

    def _start(self, update: ChatResponseUpdate) -> _OpenMessage:
        self._close()
        message = self._open = _OpenMessage(update)
        return message

    def _close(self) -> None:
        if self._open is not None and not self._open.empty:
            self._closed.append(self._open.message())
        self._open = None

    def take_closed(self) -> list[Message]:
        """The messages that are whole by now, each given once; they stay part of the response no longer."""
        closed, self._closed = self._closed, []
        return closed

    def messages(self) -> list[Message]:
        """The messages so far."""
        last = self._open
        return [*self._closed, last.message()] if last is not None and not last.empty else list(self._closed)

    def response(self, *, incomplete: bool = False) -> ChatResponse:
        """The response that the updates so far make."""
        return ChatResponse(
            tuple(self.messages()),
            self.usage,
            self.finish_reason,
            self.stop_reason,
            self.response_id,
            self.model,
            self.conversation_id,
            datetime.now(timezone.utc),
            incomplete,
            self.metadata,
            self.raw,
        )


def fold(updates: Sequence[ChatResponseUpdate]) -> ChatResponse:
    """The response that ``updates`` make."""
    folder = ResponseFolder()
    for update in updates:
        folder.add(update)
    return folder.response()


class Late(list["ChatResponseUpdate"]):
    """Where updates are left that can be yielded no longer (see `ChatRequest.late`), and who may yet leave some there.

    A layer that does not close what is inside it leaves that open when it is left itself. So whoever makes a `Late`
    closes it before it looks.
    """

    _watched: Sequence[AsyncIterator[ChatResponseUpdate]] = ()

    def watch(self, updates: AsyncIterator[ChatResponseUpdate]) -> AsyncIterator[ChatResponseUpdate]:
        """Have ``updates`` closed in time, whoever they are given to."""
        self._watched = [*filter(_is_left, self._watched), updates] if self._watched else [updates]
        return updates

    async def close(self) -> None:
        """Close what is still open, from the outside in."""
        for updates in self._watched:
            if _is_left(updates):
                await close(updates)
        self._watched = ()


class Asked(Late):
    """The `Late` of a function that sees whole answers of ``inner``: what it was given is known, should it raise."""

    def __init__(self, inner: object) -> None:
        super().__init__()
        self.inner = inner
        self.answers: list[ChatResponse] = []

    def left(self) -> list[ChatResponseUpdate]:
        """What tools did for the answers, what that used, and what else was left; but not the words of the answers."""
        updates: list[ChatResponseUpdate] = []
        for answer in self.answers:
            acted = [place for place, message in enumerate(answer.messages, 1) if message.role == "tool"]
            updates += ChatResponse(answer.messages[: acted[-1] if acted else 0], answer.usage).as_updates()
        return [*updates, *self]


class ResponseStream:
    """The updates of one call, while they come.

    ``async for update in stream`` gives each piece; ``async with stream`` closes the connection at once on leaving;
    ``await stream.get_response()`` takes what is left and gives the whole. After an error `get_response` raises that
    error again: what had come until then is in `partial`, and never looks like an answer.
    """

    def __init__(
        self,
        updates: AsyncIterator[ChatResponseUpdate],
        late: list[ChatResponseUpdate] | None = None,
        *,
        outermost: bool = True,
        asked: Asked | None = None,
        output: object = None,
    ) -> None:
        self._updates = updates
        self._late = Late() if late is None else late
        self._own_late = self._late if outermost and isinstance(self._late, Late) else None
        self._asked = asked
        self._output = output
        self._folder = ResponseFolder()
        # What nobody further out has seen; theirs to know should this call fail (see ChatRequest.late).
        self._unseen = None if outermost else ResponseFolder()
        self._response: ChatResponse | None = None
        self._error: BaseException | None = None
        self._ended = False

    def __aiter__(self) -> AsyncIterator[ChatResponseUpdate]:
        return self

    async def __anext__(self) -> ChatResponseUpdate:
        if self._ended:
            raise StopAsyncIteration
        try:
            update = await self._updates.__anext__()
        except StopAsyncIteration:
            self._ended = True
            self._response = self._folder.response()
            if self._own_late is not None:
                await self._own_late.close()
            elif self._asked is not None:
                self._asked.answers.append(self._response)
            raise
        except BaseException as error:
            await self._fail(error)
            raise
        self._folder.add(update)
        return update

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop here: closes the connection, and cancels what still runs."""
        if not self._ended:
            await self._end()

    async def get_response(self) -> ChatResponse:
        """Take what is left; the whole response. Raises what the call raised."""
        unseen = self._unseen
        async for update in self:
            if unseen is not None:
                unseen.add(update)
        if self._response is not None:
            return self._response
        if self._error is not None:
            raise self._error
        raise AgentPipeError(
            "the stream was closed before its end; stream.partial has what came", response=self.partial
        )

    async def text_deltas(self) -> AsyncIterator[str]:
        """The text of the answer, piece by piece."""
        async for update in self:
            if (text := update.text) and update.role != "user":
                yield text

    @property
    def partial(self) -> ChatResponse:
        """The response so far; ``incomplete`` until the end was reached."""
        return self._response or self._folder.response(incomplete=True)

    @property
    def partial_output(self) -> Any:
        """The object so far, where ``response_format`` is a type; None while there is nothing yet."""
        if not isinstance(self._output, type) and get_origin(self._output) is None:
            raise ValueError("partial_output needs ChatOptions(response_format=<a type>) on this call")
        return output_type(self._output).parse_partial(self.partial.text)

    async def _fail(self, error: BaseException) -> None:
        await self._end()
        if isinstance(error, Exception):
            self._error = error
        if isinstance(error, AgentPipeError) and error.response is None and (partial := self.partial).messages:
            error.response = partial

    async def _end(self) -> None:
        self._ended = True
        try:
            await close(self._updates)
            if self._own_late is not None:
                await self._own_late.close()
        finally:
            self._take_late()

    def _take_late(self) -> None:
        if self._unseen is not None:
            self._late[:0] = self._unseen.response().as_updates()
        else:
            for update in self._late:
                self._folder.add(update)
            self._late.clear()


def _is_left(updates: AsyncIterator[object]) -> bool:
    """Whether updates may still come, and nobody waits for one at this moment."""
    return getattr(updates, "ag_frame", updates) is not None and not getattr(updates, "ag_running", False)


async def close(updates: AsyncIterator[object]) -> None:
    """Close an iterator of updates, if it can be closed."""
    aclose = getattr(updates, "aclose", None)
    if aclose is not None:
        await aclose()
