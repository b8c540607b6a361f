"""Messages and the contents that they are made of.

All of it is frozen: whoever wants another message makes another. Every type can be written as JSON and read back
(``model_dump_json`` / ``model_validate_json``) without loss; a content of a kind that this version does not know is
kept as an `UnknownContent`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

from agentpipe._records import Record, RecordType, new_id, to_json

Role = Literal["system", "user", "assistant", "tool"]
Origin = Literal["input", "history", "context", "response"]

_ROLES = ("system", "user", "assistant", "tool")
_put = object.__setattr__  # how the fields of a frozen record are set while it is made


class Content(Record):
    """The base of everything that a message can hold."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = {"arbitrary_types_allowed": True}
    #: Passed on while a run goes on, but no part of what was said: never folded into a message.
    transient: ClassVar[bool] = False

    @classmethod
    def _is_family(cls) -> bool:
        return cls is Content

    @classmethod
    def _kind_of(cls, data: Mapping[str, Any]) -> RecordType:
        tag = data.get("type")
        if not isinstance(tag, str):
            raise ValueError("a content needs a 'type', for example {'type': 'text', 'text': '...'}")
        return CONTENT_KINDS.get(tag, UnknownContent)


@dataclass(frozen=True, slots=True)
class TextContent(Content):
    """Text that was said. ``provider_data`` is what the endpoint wants to see again with it."""

    type: ClassVar[str | None] = "text"
    text: str
    provider_data: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ReasoningContent(Content):
    """What the model thought before it answered. ``provider_data`` is what the endpoint wants to see again with it."""

    type: ClassVar[str | None] = "reasoning"
    text: str
    provider_data: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RefusalContent(Content):
    """The model's own words for not answering."""

    type: ClassVar[str | None] = "refusal"
    text: str
    provider_data: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class UriContent(Content):
    """An image, a sound or a file that lies at ``uri``; its ``media_type`` is guessed from the name if not given."""

    type: ClassVar[str | None] = "uri"
    uri: str
    media_type: str | None = None
    name: str | None = None
    provider_data: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.media_type is None:
            _put(self, "media_type", _guess_media_type(self.uri.partition("?")[0]) or "image/*")


@dataclass(frozen=True, slots=True)
class DataContent(Content):
    """An image, a sound or a file as bytes."""

    type: ClassVar[str | None] = "data"
    data: bytes = field(repr=False)
    media_type: str = "application/octet-stream"
    name: str | None = None
    provider_data: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] | None = None

    @classmethod
    def from_path(cls, path: str | Path, media_type: str | None = None) -> DataContent:
        """The content of the file at ``path``; OSError if it cannot be read."""
        path = Path(path)
        guessed = media_type or _guess_media_type(path.name) or "application/octet-stream"
        return cls(path.read_bytes(), guessed, path.name)

    @property
    def data_uri(self) -> str:
        """The bytes as a ``data:`` URI."""
        return f"data:{self.media_type};base64,{base64.b64encode(self.data).decode('ascii')}"

    @classmethod
    def _from_json(cls, data: dict[str, Any]) -> dict[str, Any]:
        if isinstance(encoded := data.get("data"), str):
            try:
                return {**data, "data": base64.b64decode(encoded, validate=True)}
            except binascii.Error as error:
                raise ValueError(f"'data' of a data content is not base64: {error}") from None
        return data


@dataclass(frozen=True, slots=True)
class FunctionCallContent(Content):
    """The model asks for a function.

    ``arguments`` are the arguments as an object, ``raw_arguments`` the text that the endpoint sent. ``invalid`` says
    what is wrong with that text; such a call is kept and answered, but never run. ``provider_data`` is echoed.
    """

    type: ClassVar[str | None] = "function_call"
    call_id: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    raw_arguments: str | None = None
    invalid: str | None = None
    provider_data: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class FunctionResultContent(Content):
    """What came of a call.

    ``result`` is a JSON value; ``contents`` are images and other media that the tool returned. ``exception`` is what
    the tool raised, in this process only.
    """

    type: ClassVar[str | None] = "function_result"
    in_process: ClassVar[frozenset[str]] = frozenset({"exception"})
    call_id: str
    name: str | None = None
    result: Any = None
    is_error: bool = False
    contents: tuple[Content, ...] = ()
    exception: BaseException | None = field(default=None, compare=False, repr=False)
    extra: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if type(self.contents) is not tuple:
            _put(self, "contents", as_contents(self.contents))

    @property
    def text(self) -> str:
        """The result as the model reads it: text as it is, None as "Success", everything else as JSON."""
        if isinstance(self.result, str):
            return self.result
        if self.result is None:
            return "" if self.contents else "Success"
        import json

        return json.dumps(to_json(self.result), ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class ApprovalRequestContent(Content):
    """A call that a person has to allow first.

    It stands in the call's place until it is answered with `approve` or `reject`. Where the call belongs to a
    sub-agent, ``parent_call`` is the call of this transcript that waits for it and ``state`` what that call needs to
    go on.
    """

    type: ClassVar[str | None] = "approval_request"
    id: str
    call: FunctionCallContent
    parent_call: FunctionCallContent | None = None
    state: Any = None
    extra: Mapping[str, Any] | None = None

    def approve(
        self,
        *,
        arguments: Mapping[str, Any] | None = None,
        always: Literal["tool", "arguments"] | None = None,
    ) -> ApprovalResponseContent:
        """Run the recorded call, with ``arguments`` instead of its own if given.

        ``always`` makes it a rule of the session: every later call of this "tool", or every later call of it with
        these "arguments", is approved alike. About a call of a sub-agent it is a rule for that sub-agent's calls only.

        An agent stores the answer before it acts on it, and runs the call at most once: where the run fails in between,
        the outcome counts as unknown, and the model is told so.
        """
        edited = None if arguments is None else dict(arguments)
        return ApprovalResponseContent(self.id, True, arguments=edited, always=always)

    def reject(
        self, reason: str | None = None, *, always: Literal["tool", "arguments"] | None = None
    ) -> ApprovalResponseContent:
        """Do not run the call; the model is told, with your ``reason``."""
        return ApprovalResponseContent(self.id, False, reason=reason, always=always)


@dataclass(frozen=True, slots=True)
class ApprovalResponseContent(Content):
    """The answer to the `ApprovalRequestContent` whose id is ``request_id``."""

    type: ClassVar[str | None] = "approval_response"
    request_id: str
    approved: bool
    arguments: Mapping[str, Any] | None = None
    reason: str | None = None
    always: Literal["tool", "arguments"] | None = None
    extra: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class InputRequestContent(Content):
    """A tool has a question (``payload``) before it can go on; it stands in the place of its ``call``.

    ``state`` is what the tool asked to get back together with the answer. ``parent_call`` as in
    `ApprovalRequestContent`.
    """

    type: ClassVar[str | None] = "input_request"
    id: str
    call: FunctionCallContent
    payload: Any = None
    state: Any = None
    parent_call: FunctionCallContent | None = None
    extra: Mapping[str, Any] | None = None

    def answer(self, data: object = None) -> InputResponseContent:
        """The answer, any JSON value; the tool is run again and finds it in ``ctx.resume.data``."""
        return InputResponseContent(self.id, to_json(data))


@dataclass(frozen=True, slots=True)
class InputResponseContent(Content):
    """The answer to the `InputRequestContent` whose id is ``request_id``."""

    type: ClassVar[str | None] = "input_response"
    request_id: str
    data: Any = None
    extra: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ProgressContent(Content):
    """What a running tool has to tell meanwhile: seen in the stream, no part of the transcript."""

    type: ClassVar[str | None] = "progress"
    transient: ClassVar[bool] = True
    call_id: str
    name: str
    text: str
    extra: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ThoughtContent(Content):
    """Tells that what was said as text so far in this message was thought: a model closed a block that it never opened.

    Folding turns that text into reasoning. It is seen in the stream, and no part of the transcript.
    """

    type: ClassVar[str | None] = "thought"
    transient: ClassVar[bool] = True
    extra: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class UnknownContent(Content):
    """A content of a kind that this version does not know, kept as it came.

    Raises ValueError where ``data`` has no 'type', or that of a known kind: it could be written, but not read back.
    """

    data: Mapping[str, Any]

    def __post_init__(self) -> None:
        tag = self.data.get("type")
        if not isinstance(tag, str) or tag in CONTENT_KINDS:
            raise ValueError(f"an unknown content needs a 'type' that no known kind has, not {tag!r:.80}")

    def model_dump(self) -> dict[str, Any]:
        """The content as it came."""
        return dict(self.data)

    @classmethod
    def _is_family(cls) -> bool:
        return True  # its fields are whatever came

    @classmethod
    def _kind_of(cls, data: Mapping[str, Any]) -> RecordType:
        return UnknownContent

    @classmethod
    def _read(cls, data: object) -> Record:
        if isinstance(data, UnknownContent):
            return data
        if not isinstance(data, Mapping):
            raise ValueError(f"expected an object with a 'type', not {type(data).__name__}")
        return cls(dict(data))


CONTENT_KINDS: dict[str, type[Content]] = {
    str(kind.type): kind
    for kind in (
        TextContent,
        ReasoningContent,
        RefusalContent,
        UriContent,
        DataContent,
        FunctionCallContent,
        FunctionResultContent,
        ApprovalRequestContent,
        ApprovalResponseContent,
        InputRequestContent,
        InputResponseContent,
        ProgressContent,
        ThoughtContent,
    )
}

#: What is taken where a content is due: text stands for a TextContent.
ContentLike = str | Content


@dataclass(frozen=True, slots=True, init=False)
class Message(Record):
    """One turn of a conversation.

    ``contents`` may be given as text, one content, or a sequence of these. ``origin`` says where the message came from
    ("input", "history", "context", "response"), in this process only.
    """

    in_process: ClassVar[frozenset[str]] = frozenset({"origin"})
    role: Role
    contents: tuple[Content, ...] = ()
    message_id: str | None = None
    author_name: str | None = None
    metadata: Mapping[str, Any] | None = None
    origin: Origin | None = field(default=None, compare=False, repr=False)
    extra: Mapping[str, Any] | None = None

    def __init__(
        self,
        role: Role,
        contents: ContentLike | Iterable[ContentLike] = (),
        message_id: str | None = None,
        author_name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        origin: Origin | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        if role not in _ROLES:
            raise ValueError(f"role must be one of 'system', 'user', 'assistant', 'tool', not {role!r}")
        _put(self, "role", role)
        _put(self, "contents", as_contents(contents))
        _put(self, "message_id", message_id)
        _put(self, "author_name", author_name)
        _put(self, "metadata", metadata)
        _put(self, "origin", origin)
        _put(self, "extra", extra)

    @property
    def text(self) -> str:
        """The text contents, joined."""
        return "".join([content.text for content in self.contents if isinstance(content, TextContent)])

    def replace(self, **changes: Any) -> Message:
        """The same message with other fields."""
        return replace(self, **changes)

    def from_(self, origin: Origin) -> Message:
        """The same message, with an id, known to come from ``origin``."""
        if self.origin == origin and self.message_id is not None:
            return self
        message_id = self.message_id or new_id("msg")
        return Message(self.role, self.contents, message_id, self.author_name, self.metadata, origin, self.extra)

    def with_id(self) -> Message:
        """This message, or the same with a new id if it has none."""
        return self if self.message_id is not None else self.replace(message_id=new_id("msg"))


def as_contents(value: ContentLike | Iterable[ContentLike]) -> tuple[Content, ...]:
    """Contents from text, one content, or a sequence of these; TypeError for anything else."""
    if type(value) is tuple:
        for item in value:
            if not isinstance(item, Content):
                break
        else:
            return cast("tuple[Content, ...]", value)  # the usual case, made fast
    if isinstance(value, (str, Content)):
        return (_as_content(value),)
    if isinstance(value, Iterable) and not isinstance(value, (bytes, Mapping)):
        return tuple([_as_content(item) for item in value])
    raise TypeError(f"contents must be text, a content or a sequence of these, not {type(value).__name__}")


def _as_content(value: ContentLike) -> Content:
    if isinstance(value, str):
        return TextContent(value)
    if isinstance(value, Content):
        return value
    raise TypeError(f"a content must be text or a Content, not {type(value).__name__}")


def user(*contents: ContentLike, author_name: str | None = None) -> Message:
    """A message of the user."""
    return Message("user", as_contents(contents), author_name=author_name)


def system(*contents: ContentLike) -> Message:
    """A message that instructs the model."""
    return Message("system", as_contents(contents))


def assistant(*contents: ContentLike, author_name: str | None = None) -> Message:
    """A message of the model."""
    return Message("assistant", as_contents(contents), author_name=author_name)


MessageLike = str | Content | Message
#: What a run takes: text, a message, a content (an approval, an image), or a sequence of these.
Input = MessageLike | Sequence[MessageLike]


def as_messages(value: Input) -> list[Message]:
    """Messages from what a run takes. Contents that stand side by side share one message of the user.

    Raises TypeError for anything that is no text, content or message.
    """
    if isinstance(value, str):
        return [Message("user", (TextContent(value),))]
    if isinstance(value, Message):
        return [value]
    items = [value] if isinstance(value, Content) else value
    if not isinstance(items, Iterable) or isinstance(items, (bytes, Mapping)):
        raise TypeError(f"expected text, a Message, a content or a sequence of these, not {type(value).__name__}")
    messages: list[Message] = []
    loose: list[Content] = []
    for item in items:
        if isinstance(item, Message):
            _flush(loose, messages)
            messages.append(item)
        else:
            loose.append(_as_content(item))
    _flush(loose, messages)
    return messages


def _flush(loose: list[Content], messages: list[Message]) -> None:
    if loose:
        role: Role = "tool" if all(isinstance(content, FunctionResultContent) for content in loose) else "user"
        messages.append(Message(role, tuple(loose)))
        loose.clear()


def _guess_media_type(name: str) -> str | None:
    import mimetypes

    return mimetypes.guess_type(name)[0]
