"""Transcripts: which call has which result, and what may be sent to a model.

A transcript grows at its end only. A decision comes after the question and the result after the decision, so a result
may stand far behind its call. What a model is sent is another matter: each call, and directly behind it exactly one
result. `read` finds the calls and what became of them; `Reading.rendered` puts them in the order that endpoints accept.

Calls and results are paired in the order in which they come, since ids repeat across turns with some endpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from agentpipe._messages import (
    ApprovalRequestContent,
    ApprovalResponseContent,
    Content,
    FunctionCallContent,
    FunctionResultContent,
    InputRequestContent,
    InputResponseContent,
    Message,
)
from agentpipe.exceptions import ApprovalError

Question = ApprovalRequestContent | InputRequestContent
Answer = ApprovalResponseContent | InputResponseContent

NOT_RECORDED = "not recorded: there is no result of this call."
NOT_DECIDED = "not decided: the call was not run, since the user went on without deciding on it."

QUESTIONS = (ApprovalRequestContent, InputRequestContent)
ANSWERS = (ApprovalResponseContent, InputResponseContent)
SPECIAL = frozenset({FunctionCallContent, FunctionResultContent, *QUESTIONS, *ANSWERS})


@dataclass(slots=True)
class CallRecord:
    """A call, and what became of it so far.

    ``stands`` is what stands for it in its message: the call itself, or the question whether to run it. ``questions``
    are all that were asked about it, oldest first; ``message_ids`` says in which message each of them was put.
    """

    call: FunctionCallContent
    place: int  # the index of its message
    stands: Content
    questions: list[Question] = field(default_factory=list)
    message_ids: dict[str, str | None] = field(default_factory=dict)
    result: FunctionResultContent | None = None


@dataclass(slots=True)
class Reading:
    """What `read` found in a transcript."""

    messages: Sequence[Message]
    records: list[CallRecord] = field(default_factory=list)
    questions: dict[str, CallRecord] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    #: The index of the message that holds each answer.
    answered_at: dict[str, int] = field(default_factory=dict)
    #: What is wrong with an answer, and the index of its message.
    faults: list[tuple[int, str]] = field(default_factory=list)
    #: Whether every call already stands with its results as endpoints want it.
    in_order: bool = True

    def unanswered(self, record: CallRecord) -> list[Question]:
        """The questions about a call that wait for their answer."""
        return [question for question in record.questions if question.id not in self.answers]

    def overtaken(self, record: CallRecord) -> bool:
        """Whether the user went on talking without an answer to what was asked about this call."""
        return any(
            message.role == "user" and any(not isinstance(content, ANSWERS) for content in message.contents)
            for message in self.messages[record.place + 1 :]
        )

    def is_new(self, request_id: str) -> bool:
        """Whether a request is answered in this run, rather than in one that history tells of."""
        return self.messages[self.answered_at[request_id]].origin != "history"

    def decisions(self) -> Iterator[tuple[ApprovalRequestContent, ApprovalResponseContent]]:
        """What is decided in this run about running calls of this transcript, and not of a sub-agent's."""
        for record in self.records:
            for question in record.questions:
                answer = self.answers.get(question.id)
                if not isinstance(question, ApprovalRequestContent) or not isinstance(answer, ApprovalResponseContent):
                    continue
                if is_about(question, record.call) and self.is_new(question.id):
                    yield question, answer

    def decision(self, record: CallRecord) -> ApprovalResponseContent | None:
        """What a person decided last about running this call."""
        decided = None
        for question in record.questions:
            answer = self.answers.get(question.id)
            if is_about(question, record.call) and isinstance(answer, ApprovalResponseContent):
                decided = answer
        return decided

    def seen(self, record: CallRecord) -> FunctionCallContent:
        """The call as the model sees it: with the arguments that a person put in the place of its own."""
        call = record.call
        for question in record.questions:
            answer = self.answers.get(question.id)
            if is_about(question, record.call) and isinstance(answer, ApprovalResponseContent) and answer.approved:
                call = edited(question.call, answer)
        return call

    def rendered(self) -> list[Message]:
        """The transcript as it may be sent; a call that has no result is said to have none recorded."""
        if self.in_order:
            return list(self.messages)
        by_place: dict[int, list[CallRecord]] = {}
        for record in self.records:
            by_place.setdefault(record.place, []).append(record)
        rendered: list[Message] = []
        for place, message in enumerate(self.messages):
            records = by_place.get(place, [])
            contents = tuple(self._kept(message, records))
            if contents or not message.contents:
                rendered.append(message if contents == message.contents else message.replace(contents=contents))
            if records:
                rendered.append(Message("tool", tuple([self._result(record) for record in records])))
        return rendered

    def _kept(self, message: Message, records: Sequence[CallRecord]) -> Iterator[Content]:
        """The contents that stay in a message: its calls, without questions, answers and results."""
        place = 0
        for content in message.contents:
            if type(content) not in SPECIAL:
                yield content
            elif place < len(records) and content is records[place].stands:
                yield self.seen(records[place])
                place += 1

    def _result(self, record: CallRecord) -> FunctionResultContent:
        if record.result is not None:
            return record.result
        text = NOT_DECIDED if self.unanswered(record) else NOT_RECORDED
        return FunctionResultContent(record.call.call_id, record.call.name, text, True)


def edited(call: FunctionCallContent, answer: ApprovalResponseContent) -> FunctionCallContent:
    """``call`` with the arguments that a person put in the place of its own, if any."""
    if answer.arguments is None:
        return call
    return replace(call, arguments=answer.arguments, raw_arguments=None, invalid=None)


def is_about(question: Question, call: FunctionCallContent) -> bool:
    """Whether a question asks to run this very call, rather than being asked by it while it ran."""
    if not isinstance(question, ApprovalRequestContent):
        return False
    return question.parent_call is None or (question.state is None and question.call.call_id == call.call_id)


def read(messages: Sequence[Message]) -> Reading:
    """Find the calls of a transcript and what became of them; linear."""
    reading = Reading(messages)
    for message in messages:
        for content in message.contents:
            if type(content) in SPECIAL:
                _Reader(reading).read()
                return reading
    return reading


def repaired(messages: Sequence[Message]) -> list[Message]:
    """The transcript as it may be sent: every call with one result directly behind it, and no result without a call.

    A call whose result is missing gets one that says so; an orphan or second result is left out.
    """
    return read(messages).rendered()


class _Reader:
    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.open: dict[str, CallRecord] = {}  # the last call of an id that has no result yet
        self.latest: dict[str, CallRecord] = {}  # the last call of an id
        self.expected: list[CallRecord] = []  # the calls of the last message that had some, in order ...
        self.next = 0  # ... and how many of them have their result in order

    def read(self) -> None:
        for place, message in enumerate(self.reading.messages):
            if message.role != "tool":
                self._expect_no_more()
            for content in message.contents:
                if type(content) in SPECIAL:
                    self._take(content, place, message)
        self._expect_no_more()

    def _expect_no_more(self) -> None:
        if self.next < len(self.expected):
            self.reading.in_order = False
        self.expected, self.next = [], 0

    def _take(self, content: Content, place: int, message: Message) -> None:
        if isinstance(content, FunctionCallContent):
            self._call(content, place, message, content)
        elif isinstance(content, FunctionResultContent):
            self._result(content, message)
        elif isinstance(content, QUESTIONS):
            self.reading.in_order = False
            self._question(content, place, message)
        elif isinstance(content, ANSWERS):
            self.reading.in_order = False
            self._answer(content, place)

    def _call(self, call: FunctionCallContent, place: int, message: Message, stands: Content) -> CallRecord | None:
        if message.role != "assistant":
            self.reading.in_order = False  # only the model calls
            return None
        record = CallRecord(call, place, stands)
        self.expected.append(record)
        self.reading.records.append(record)
        self.open[call.call_id] = self.latest[call.call_id] = record
        return record

    def _result(self, result: FunctionResultContent, message: Message) -> None:
        record = self.open.pop(result.call_id, None)
        if record is None:
            self.reading.in_order = False  # an orphan, or a second result
            return
        record.result = result
        if message.role == "tool" and self.next < len(self.expected) and self.expected[self.next] is record:
            self.next += 1
        else:
            self.reading.in_order = False

    def _question(self, question: Question, place: int, message: Message) -> None:
        if question.id in self.reading.questions:
            return  # stated again because it is still open
        record = self._asker(question) or self._call(question.parent_call or question.call, place, message, question)
        if record is not None:
            record.questions.append(question)
            record.message_ids[question.id] = message.message_id
            self.reading.questions[question.id] = record

    def _asker(self, question: Question) -> CallRecord | None:
        """The call that stands in the transcript already; None where the question stands for it."""
        if question.parent_call is not None:
            return self.latest.get(question.parent_call.call_id)
        return self.open.get(question.call.call_id) if isinstance(question, InputRequestContent) else None

    def _answer(self, answer: Answer, place: int) -> None:
        reading = self.reading
        earlier = reading.answers.get(answer.request_id)
        if earlier is not None:
            if not _agree(earlier, answer):
                reading.faults.append((place, f"request {answer.request_id!r} was already answered otherwise"))
        elif fault := self._fault(answer):
            reading.faults.append((place, fault))
        else:
            reading.answers[answer.request_id] = answer
            reading.answered_at[answer.request_id] = place

    def _fault(self, answer: Answer) -> str | None:
        record = self.reading.questions.get(answer.request_id)
        if record is None:
            return f"there is no request {answer.request_id!r} in this conversation"
        if record.result is not None:
            return f"request {answer.request_id!r} is no longer open"
        question = next(question for question in record.questions if question.id == answer.request_id)
        if isinstance(question, ApprovalRequestContent) is not isinstance(answer, ApprovalResponseContent):
            return f"request {answer.request_id!r} got an answer of the wrong kind; use the request's own methods"
        return None


def _agree(one: Answer, other: Answer) -> bool:
    if isinstance(one, ApprovalResponseContent) and isinstance(other, ApprovalResponseContent):
        return one.approved == other.approved and one.arguments == other.arguments
    return one == other


def check_answers(reading: Reading) -> None:
    """ApprovalError where an answer of this run names no open question, or contradicts an earlier answer.

    What history holds is past checking: a bad answer there is passed over.
    """
    for place, fault in reading.faults:
        if reading.messages[place].origin != "history":
            raise ApprovalError(f"{fault}; nothing was run")


def check_questions(known: Reading, given: Sequence[Message]) -> None:
    """ApprovalError where the input holds a question that the history does not know: it could answer itself."""
    for message in given:
        for content in message.contents:
            if isinstance(content, QUESTIONS) and content.id not in known.questions:
                raise ApprovalError(
                    f"request {content.id!r} is not in the history of this session, and the input cannot ask it; "
                    "nothing was run"
                )
