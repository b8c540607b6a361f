"""The tool loop without I/O.

A `ToolLoop` says in ``step`` what to do next and is told what came of it. It awaits nothing, reads no clock and runs
no tool, so all of its behaviour can be written down as a table of transitions:

    ==========  =================================================================  =============================
    step        what the driver does                                               what may come next
    ==========  =================================================================  =============================
    CallModel   asks the model; `receive` each update, then `turn_ended`           Prepare, RunCalls, Stop
    Prepare     has the raw arguments rewritten, if anybody wants to; `plan`       RunCalls, Stop
    RunCalls    runs the calls; `record` each in order, then `round_ended`         CallModel, Stop, Fail
    Stop        passes on `last_updates`                                           nothing
    Fail        raises the error                                                   nothing
    ==========  =================================================================  =============================

What the loop held back lies in ``outbox`` when it may be passed on. Where a turn of the model ends before its time, by
an error or because nobody listens any more, `broken` puts there what closes the transcript.
Its one driver is the FunctionInvokingChatClient.
"""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentpipe._approval_rules import check_rules, keep_rule, rule_for
from agentpipe._arguments import read_arguments
from agentpipe._messages import (
    ApprovalRequestContent,
    Content,
    FunctionCallContent,
    FunctionResultContent,
    InputResponseContent,
    Message,
)
from agentpipe._options import ChatOptions, OnLimit, tools_of
from agentpipe._records import new_id
from agentpipe._request import ChatRequest
from agentpipe._responses import (
    DIRECT_CALL,
    ROUNDS,
    ChatResponse,
    ChatResponseUpdate,
    ResponseFolder,
    StopReason,
    UsageDetails,
)
from agentpipe._schema import InvalidArguments
from agentpipe._tools import FunctionTool, Resume, Tool, Tools, ToolSet
from agentpipe._transcript import (
    NOT_DECIDED,
    QUESTIONS,
    SPECIAL,
    CallRecord,
    Question,
    Reading,
    check_answers,
    edited,
    is_about,
    read,
    repaired,
)
from agentpipe.exceptions import AgentPipeError, ApprovalError, OutputError, ToolLoopError

DECLINED = "The user declined."
CUT_OFF = "the arguments were cut off at the limit of output tokens"
OUTCOME_UNKNOWN = "outcome unknown: the run that started this call ended before its result was recorded."


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """What the loop goes by; see FunctionInvokingChatClient for the meaning of each. ``deadline`` is a clock time."""

    max_iterations: int = 40
    on_limit: OnLimit = "final_answer"
    max_consecutive_errors: int = 3
    max_tool_calls: int | None = None
    deadline: float | None = None
    additional_tools: Tools = field(default_factory=Tools)
    terminate_on_unknown_calls: bool = False
    handles_unknown_calls: bool = False
    return_directly: frozenset[str] = frozenset()


Outcome = FunctionResultContent | tuple[Question, ...]


@dataclass(slots=True)
class PlannedCall:
    """A call of the round, and what is known of it before it runs.

    ``call`` is the call as it stands in the transcript, ``runs`` the same with the arguments to run it with.
    ``settled`` is its outcome where nothing is to be run. ``counts`` says whether the outcome tells of the round's
    success or failure. ``looked_up`` is the version of the tools by which the rest was found; None where it does not
    depend on them.
    """

    call: FunctionCallContent
    runs: FunctionCallContent
    tool: FunctionTool | None = None
    settled: Outcome | None = None
    resume: Resume | None = None
    counts: bool = True
    cut_off: bool = False  # whether the model was cut off while it wrote the call
    allowed: bool = False  # whether a person has allowed it
    looked_up: int | None = None
    record: CallRecord | None = None  # where the call is one of an earlier run that is taken up again

    def settle(self, text: str, *, is_error: bool = False) -> None:
        """The call is not run; ``text`` is what the model is told instead of a result."""
        self.settled = FunctionResultContent(self.call.call_id, self.call.name, text, is_error)


@dataclass(frozen=True, slots=True)
class CallModel:
    """Ask the model. ``whole`` says whether ``messages`` are all there are, or only what the endpoint has not seen."""

    messages: list[Message]
    options: ChatOptions
    whole: bool


@dataclass(frozen=True, slots=True)
class Prepare:
    """These calls are about to be planned."""

    calls: Sequence[FunctionCallContent]


@dataclass(frozen=True, slots=True)
class RunCalls:
    """Run these calls; the settled ones only have to be recorded."""

    calls: Sequence[PlannedCall]


@dataclass(frozen=True, slots=True)
class Stop:
    """The run is over."""

    reason: StopReason


@dataclass(frozen=True, slots=True)
class Fail:
    """The run is over, and this is to be raised."""

    error: BaseException


Step = CallModel | Prepare | RunCalls | Stop | Fail


class ToolLoop:
    """One run of the loop; the table in the module's docstring says what is called when."""

    def __init__(self, request: ChatRequest, settings: LoopSettings) -> None:
        self.request = request
        self.settings = settings
        self.tools = ToolSet(tools_of(request.options))
        self.iteration = 0
        self.produced: list[Message] = []  # what goes to the caller
        self.working: list[Message] = []  # what goes to the model
        self.outbox: deque[ChatResponseUpdate] = deque()  # what was held back, and is to be passed on next
        self.step: Step = Stop("answer")
        self._fresh = 0  # how many messages at the end of `working` the model has not seen
        self._options = request.options
        self._tools_version = 0
        self._by_name: dict[str, Tool] | None = None
        self._conversation_id = request.options.conversation_id
        self._model_calls = 0
        self._choice_used = False  # the model has called what tool_choice asked for
        self._calls_used = 0
        self._failed_rounds = 0
        self._final = False  # the model is asked for the last time
        self._over_budget = False
        self._terminated = False
        self._direct: list[str] = []  # calls whose result is to be the answer, as they asked for it
        self._answer_call: str | None = None
        self._taken = _Ids(request.messages)
        self._turn = _Turn(self._taken)
        self._planned: list[PlannedCall] = []
        self._pending: list[Question] = []
        self._results: list[Content] = []
        self._results_id = ""
        self._outcomes: list[tuple[PlannedCall, Outcome]] = []
        self._reading: Reading | None = None  # of the transcript, while this run takes up calls of an earlier one
        self._fatal: BaseException | None = None
        self._usage: UsageDetails | None = None

    # ------------------------------------------------------------------------------------------ the beginning

    def start(self) -> None:
        """Read the transcript: which calls wait, and what was decided about them.

        Raises ApprovalError where an answer fits no open question, or not the tool.
        """
        check_rules(self.request.session)
        reading = read(self.request.messages)
        check_answers(reading)
        check_edits(reading, self.find_tool)
        waiting = [record for record in reading.records if record.result is None and record.questions]
        if not waiting:
            self._go_on_from(reading.rendered())
            return
        self._reading = reading
        self._keep_rules(reading)
        for record in waiting:
            self._take_up(reading, record)
        self._begin_round()

    def _go_on_from(self, messages: list[Message]) -> None:
        self.working = messages
        self._fresh = len(messages)
        self._ask_model()

    def _take_up(self, reading: Reading, record: CallRecord) -> None:
        unanswered = reading.unanswered(record)
        if not unanswered:
            self._choice_used = True
            planned = self._decided(reading, record)
        elif reading.overtaken(record):
            planned = _settled(record.call, NOT_DECIDED, is_error=True)
        else:
            self._pending.extend(unanswered)
            return
        planned.record = record
        self._planned.append(planned)

    def _decided(self, reading: Reading, record: CallRecord) -> PlannedCall:
        decision = reading.decision(record)
        if decision is not None and not decision.approved:
            return _settled(record.call, _declined(decision.reason))
        if not any(reading.is_new(question.id) for question in record.questions):
            # The answer was stored, so the run that stored it may have started the call: it is run at most once.
            return _settled(record.call, OUTCOME_UNKNOWN, is_error=True)
        planned = self._plan_call(reading.seen(record), allowed=True)
        planned.resume = _resume(reading, record)
        if planned.settled is None and self._has_to_ask_again(reading, record, planned):
            planned.settled = (ApprovalRequestContent(new_id("approval"), planned.runs, record.call),)
            planned.looked_up = None
        return planned

    def _has_to_ask_again(self, reading: Reading, record: CallRecord, planned: PlannedCall) -> bool:
        """An edited call is another call: a policy that looks at calls is asked about that one too."""
        asked = [question for question in record.questions if is_about(question, record.call)]
        was_edited = bool(asked) and planned.runs.arguments != asked[-1].call.arguments
        tool = planned.tool
        return (
            was_edited and tool is not None and callable(tool.requires_approval) and tool.needs_approval(planned.runs)
        )

    def _keep_rules(self, reading: Reading) -> None:
        """Rules are kept where the question arose: those of a sub-agent by itself, when the answer comes to it."""
        session = self.request.session
        for question, answer in reading.decisions():
            if session is not None and answer.always:
                keep_rule(session, edited(question.call, answer), answer.always, answer.approved)

    # ------------------------------------------------------------------------------------- the model's turn

    def _ask_model(self) -> None:
        options = self._current_options()
        endpoint_keeps = self._conversation_id is not None and self._model_calls > 0
        messages = self.working[len(self.working) - self._fresh :] if endpoint_keeps else list(self.working)
        self._choice_used = True
        if self._turn.ended:
            self._turn = _Turn(self._taken)
        self.step = CallModel(messages, options, not endpoint_keeps)

    def rewritten(self, messages: Iterable[Message]) -> None:
        """A message_rewriter had its say before the model is called: later rounds go on from what it made."""
        assert isinstance(self.step, CallModel)
        made = list(messages)
        if self.step.whole:
            self.working = list(made)
        self.step = replace(self.step, messages=made)

    def _current_options(self) -> ChatOptions:
        options = self._options
        changes: dict[str, Any] = {}
        if self.tools.version != self._tools_version:
            self._tools_version, self._by_name = self.tools.version, None
            changes["tools"] = Tools(self.tools)
        if self._choice_used and options.tool_choice not in (None, "auto", "none"):
            changes["tool_choice"] = "auto"
        if options.conversation_id != self._conversation_id:
            changes["conversation_id"] = self._conversation_id
        if changes:
            options = self._options = options.replace(**changes)
        return _last_options(options, self.settings.on_limit) if self._final else options

    def receive(self, update: ChatResponseUpdate) -> ChatResponseUpdate | None:
        """Take a piece of the model's answer. Returns what to pass on, or None where it has to wait.

        A call that may need approval waits for the end of the turn, and so does all that follows it, since whether it
        is a call or a request is not known before.
        """
        turn = self._turn
        contents = update.contents
        if contents or update.role is not None:
            update = turn.identified(update)
            for content in contents:
                turn.last = content
                if type(content) in SPECIAL:
                    update = self._noted(update)
                    break
        if turn.holding:
            turn.hold(update)
            return None
        turn.folder.add(update)
        return update

    def _noted(self, update: ChatResponseUpdate) -> ChatResponseUpdate:
        """The update, once what it says of calls is noted."""
        turn = self._turn
        update = turn.told_apart(update)
        for content in update.contents:
            turn.last = content
            if type(content) in SPECIAL:
                turn.note(content)
                turn.holding = turn.holding or self._may_ask(content)
        return update

    def _may_ask(self, content: Content) -> bool:
        tool = self.find_tool(content.name) if isinstance(content, FunctionCallContent) else None
        return tool is not None and tool.requires_approval is not False

    def turn_ended(self) -> None:
        """The model has said all."""
        turn = self._turn
        self._model_calls += 1
        self._follow_conversation(turn.folder.conversation_id)
        calls = turn.open_calls()
        if calls and not turn.stopped_below and not self._final:
            reason = self._reason_to_leave_calls(calls)
            if reason is None:
                self.step = Prepare(calls)
                return
            self.step = Stop(reason)
        elif calls and not turn.stopped_below:
            self._planned = [_settled(call, self._limit_text(), is_error=True, counts=False) for call in calls]
            self._begin_round()
        else:
            self.step = Stop(turn.stopped_below or ("limit" if self._final else "answer"))
        self._take_turn({})

    def _take_turn(self, in_place: Mapping[int, Content]) -> None:
        """What the model said becomes part of the run, with other contents in the place of some."""
        turn = self._turn
        if turn.held:
            self.outbox.extend(turn.release(in_place))
        turn.ended = True
        self.produced += turn.messages()
        self._usage = _sum(self._usage, turn.folder.usage)

    def _reason_to_leave_calls(self, calls: Sequence[FunctionCallContent]) -> StopReason | None:
        tools = [self.find_tool(call.name) for call in calls]
        if self.settings.terminate_on_unknown_calls and None in tools:
            return "unknown_call"
        if any(tool is not None and tool.declaration_only for tool in tools):
            return "declaration_only"
        return None

    def _follow_conversation(self, conversation_id: str | None) -> None:
        given = self.request.options.conversation_id
        # One that the caller gave stays; one that the endpoint gave and then dropped is gone.
        self._conversation_id = conversation_id or (self._conversation_id if given else None)

    def broken(self, why: str) -> None:
        """The model's turn ends before its time: each of its calls that waits for nobody gets a result."""
        if not self._turn.ended:
            self._take_turn({})
            calls = self._turn.open_calls()
        else:
            calls = [planned.call for planned in self._planned]
        self._planned = []
        if not calls:
            return
        results = [FunctionResultContent(call.call_id, call.name, f"not run: {why}", True) for call in calls]
        message = Message("tool", tuple(results), new_id("msg"))
        self.produced.append(message)
        self.outbox.append(ChatResponseUpdate(message.contents, "tool", message.message_id))

    # ------------------------------------------------------------------------------------------ the plan

    def plan(self, calls: Sequence[FunctionCallContent]) -> None:
        """Decide about the calls of `Prepare`, in their order, each with its raw arguments as they are to be read.

        In the place of those that need it a request for approval is passed on.
        """
        assert isinstance(self.step, Prepare)
        cut_off = self._turn.cut_off
        planned = [
            self._plan_call(runs, cut_off=cut_off(call)) for call, runs in zip(self.step.calls, calls, strict=True)
        ]
        in_place: dict[int, Content] = {}
        for call, plan in zip(self.step.calls, planned, strict=True):
            plan.call = call
            if isinstance(plan.settled, tuple):
                in_place[id(call)] = plan.settled[0]
                self._pending.extend(plan.settled)
            else:
                self._planned.append(plan)
        self._take_turn(in_place)
        self._begin_round()

    def _plan_call(self, call: FunctionCallContent, *, cut_off: bool = False, allowed: bool = False) -> PlannedCall:
        limit = self.settings.max_tool_calls
        if limit is not None and self._calls_used >= limit:
            self._over_budget = True
            return _settled(call, f"skipped: limit of {limit} tool calls", is_error=True, counts=False)
        self._calls_used += 1
        planned = PlannedCall(call, call, cut_off=cut_off, allowed=allowed)
        self._look_up(planned)
        return planned

    def looked_up_again(self, planned: PlannedCall) -> PlannedCall:
        """The call as it is to be run now that its turn has come: a call before it may have changed the tools."""
        if planned.looked_up in (None, self.tools.version):
            return planned
        again = replace(planned, tool=None, settled=None)
        self._look_up(again)
        if isinstance(again.settled, tuple):
            # It was passed on as a call already, so that the question is asked by it, and stands with the results.
            again.settled = tuple([replace(question, parent_call=again.call) for question in again.settled])
        return again

    def _look_up(self, planned: PlannedCall) -> None:
        """Find the tool of the call, or what is to be said instead of running it."""
        call = planned.runs
        planned.looked_up = self.tools.version
        tool = self.find_tool(call.name)
        if tool is None or tool.declaration_only:
            if self.settings.handles_unknown_calls:
                planned.runs = self._read(call, None)
            else:
                planned.settle(f"Error: {self._unknown(call.name)}", is_error=True)
            return
        planned.tool = tool
        runs = planned.runs = self._read(call, tool)
        wrong = CUT_OFF if planned.cut_off else runs.invalid
        if wrong is not None:
            planned.settle(f"Error: invalid arguments: {wrong}", is_error=True)
        elif not planned.allowed and tool.requires_approval is not False:
            self._settle_whether_to_ask(planned, tool)

    def _settle_whether_to_ask(self, planned: PlannedCall, tool: FunctionTool) -> None:
        runs = planned.runs
        try:
            tool.bind(runs.arguments)
        except InvalidArguments as error:
            planned.settle(f"Error: {error}", is_error=True)
            return
        rule = rule_for(self.request.session, runs)
        if rule is False:
            planned.settle(DECLINED)
        elif rule is None and tool.needs_approval(runs):
            planned.settled = (ApprovalRequestContent(new_id("approval"), runs),)

    def _read(self, call: FunctionCallContent, tool: FunctionTool | None) -> FunctionCallContent:
        """The call with its arguments read, where only the raw text is there to tell them."""
        raw = call.raw_arguments
        if call.invalid is not None or raw is None or call.arguments:
            return call
        arguments, _, invalid = read_arguments(raw, tool.parameters if tool is not None else None)
        return call if not arguments and invalid is None else replace(call, arguments=arguments, invalid=invalid)

    def find_tool(self, name: str) -> FunctionTool | None:
        """The function tool of this name: one of the options first, then one of additional_tools."""
        if self._by_name is None or self._tools_version != self.tools.version:
            tools = [*self.settings.additional_tools, *self.tools]
            self._by_name = {tool.name: tool for tool in tools if isinstance(tool, FunctionTool)}
        found = self._by_name.get(name)
        return found if isinstance(found, FunctionTool) else None

    def _unknown(self, name: str) -> str:
        names = [tool.name for tool in (*self.tools, *self.settings.additional_tools) if isinstance(tool, FunctionTool)]
        close = difflib.get_close_matches(name, names, 1)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        return f"there is no tool named {name!r}{hint} The tools are: {', '.join(names) or 'none'}."

    # ----------------------------------------------------------------------------------------- the round

    def _begin_round(self) -> None:
        if not self._planned:
            self.step = Stop("approval")
            return
        self.iteration += 1
        self._results, self._results_id, self._outcomes = [], new_id("msg"), []
        self.step = RunCalls(tuple(self._planned))

    def seen_messages(self) -> list[Message]:
        """What the model was sent, and what it answered."""
        return [*self.working, *self._turn.messages()]

    def record(
        self, planned: PlannedCall, outcome: Outcome, usage: UsageDetails | None = None, *, last: bool = False
    ) -> ChatResponseUpdate:
        """Note what came of a call. Returns the update that says so; the ``last`` one of a round counts the rounds."""
        contents = outcome if isinstance(outcome, tuple) else (outcome,)
        self._outcomes.append((planned, outcome))
        self._results.extend(contents)
        self._usage = _sum(self._usage, usage)
        if isinstance(outcome, tuple):
            self._pending.extend(outcome)
        if planned.record is not None:
            self._note_in_reading(planned.record, outcome)
        metadata = {ROUNDS: self.iteration} if last else None
        return ChatResponseUpdate(contents, "tool", self._results_id, usage=usage, metadata=metadata)

    def _note_in_reading(self, record: CallRecord, outcome: Outcome) -> None:
        if isinstance(outcome, tuple):
            record.questions.extend(outcome)
            record.message_ids.update({question.id: self._results_id for question in outcome})
        else:
            record.result = outcome

    def terminate(self) -> None:
        """A tool asked for no more model calls."""
        self._terminated = True

    def return_directly(self, call_id: str) -> None:
        """A tool asked for its result to be the answer."""
        self._direct.append(call_id)

    def fail(self, error: BaseException) -> None:
        """A tool failed in a way that stops the run."""
        self._fatal = self._fatal or error

    @property
    def stopping(self) -> bool:
        """Whether calls that have not begun are not to be begun."""
        return self._terminated or self._fatal is not None

    @property
    def why_stopping(self) -> str:
        """What the model is told of a call that is not begun any more."""
        return "another function of this round failed for good" if self._fatal is not None else "terminated"

    def expired(self, now: float) -> bool:
        """Whether the time of the run is up at the clock time ``now``."""
        return self.settings.deadline is not None and now >= self.settings.deadline

    def round_ended(self, expired: bool = False) -> None:
        """Every call of the round is recorded. ``expired`` says whether the time of the run is up."""
        message = Message("tool", tuple(self._results), self._results_id, origin="response")
        self.produced.append(message)
        self._add_to_working(message)
        failures = self._failures()
        self._answer_call = self._find_direct()
        self._planned = []
        if self._fatal is not None:
            self.step = Fail(self._fatal)
        elif self._failed_rounds > self.settings.max_consecutive_errors:
            self.step = Fail(self._too_many_errors(failures))
        elif self._pending:
            self.step = Stop("approval")
        elif self._terminated:
            self.step = Stop("terminated")
        elif self._answer_call is not None:
            self.step = Stop("return_directly")
        elif self._final:
            self.step = Stop("limit")
        elif expired:
            self._stop_for_time()
        else:
            self._next_round()

    def _add_to_working(self, message: Message) -> None:
        reading = self._reading
        if reading is not None:
            reading.in_order = False
            self.working = reading.rendered()
            self._fresh = len(self.working)
            if not self._pending:
                self._reading = None
            return
        turn = self._turn
        new = [*turn.messages(), message]
        if turn.answered:
            new = repaired(new)  # the endpoint's own results stand in the message of their calls
        self.working += new
        self._fresh = sum(1 for m in new if m.role == "tool")

    def _next_round(self) -> None:
        settings = self.settings
        if not self._over_budget and self.iteration < settings.max_iterations:
            self._ask_model()
        elif settings.on_limit == "raise":
            self.step = Fail(
                ToolLoopError(f"{self._limit_text()} was reached".removeprefix("not run: "), response=None)
            )
        elif settings.on_limit == "return":
            self.step = Stop("limit")
        else:
            self._final = True
            self._ask_model()

    def _stop_for_time(self) -> None:
        if self.settings.on_limit == "raise":
            self.step = Fail(ToolLoopError("the time limit of the run was reached"))
        else:
            self.step = Stop("limit")

    def out_of_time(self) -> None:
        """The time of the run is up before the model is called."""
        self._stop_for_time()

    def _limit_text(self) -> str:
        if self._over_budget:
            return f"not run: limit of {self.settings.max_tool_calls} tool calls"
        return f"not run: limit of {self.settings.max_iterations} tool rounds"

    def _failures(self) -> list[FunctionResultContent]:
        """The failed results of the round; counts the rounds in a row in which nothing else came out."""
        told = [outcome for planned, outcome in self._outcomes if planned.counts]
        failures = [o for o in told if isinstance(o, FunctionResultContent) and o.is_error]
        if told and not self._pending:  # a call that waits has not failed
            self._failed_rounds = self._failed_rounds + 1 if len(failures) == len(told) else 0
        return failures

    def _too_many_errors(self, failures: Sequence[FunctionResultContent]) -> ToolLoopError:
        exceptions = [failure.exception for failure in failures if failure.exception is not None]
        rounds = "a round" if self._failed_rounds == 1 else f"{self._failed_rounds} rounds in a row"
        texts = "; ".join(dict.fromkeys(f"{failure.name}: {failure.text}" for failure in failures))
        error = ToolLoopError(f"every tool call failed in {rounds}: {texts}", errors=exceptions)
        if len(exceptions) > 1:
            error.__cause__ = BaseExceptionGroup("the tools of the last round failed", exceptions)
        elif exceptions:
            error.__cause__ = exceptions[0]
        return error

    def _find_direct(self) -> str | None:
        """The call whose result is the answer: the last that asked for it, else the first that is marked so."""
        good = {o.call_id for _, o in self._outcomes if isinstance(o, FunctionResultContent) and not o.is_error}
        asked = [call_id for call_id in self._direct if call_id in good]
        self._direct = []
        if asked:
            return asked[-1]
        for planned, outcome in self._outcomes:
            marked = planned.tool is not None and planned.settled is None and self._is_direct(planned.tool)
            if marked and isinstance(outcome, FunctionResultContent) and not outcome.is_error:
                return outcome.call_id
        return None

    def _is_direct(self, tool: FunctionTool) -> bool:
        return tool.return_directly or tool.name in self.settings.return_directly

    # ------------------------------------------------------------------------------------------ the end

    def last_updates(self) -> list[ChatResponseUpdate]:
        """What the run ends with: questions that are still open from earlier runs, and why it ended."""
        assert isinstance(self.step, Stop)
        metadata = {DIRECT_CALL: self._answer_call} if self.step.reason == "return_directly" else None
        end = ChatResponseUpdate(stop_reason=self.step.reason, conversation_id=self._conversation_id, metadata=metadata)
        return [*self._stated_again(), end]

    def _stated_again(self) -> list[ChatResponseUpdate]:
        """The open questions of earlier runs, under the ids of their messages, so that no store keeps them twice."""
        if self._reading is None:
            return []
        updates: list[ChatResponseUpdate] = []
        for record in self._reading.records:
            for question in self._reading.unanswered(record) if record.result is None else ():
                if (message_id := record.message_ids.get(question.id)) != self._results_id:
                    role = self._reading.messages[record.place].role if question is record.stands else "tool"
                    updates.append(ChatResponseUpdate((question,), role, message_id or new_id("msg")))
        return updates

    def response(self) -> ChatResponse:
        """The transcript of this run so far, closed."""
        folder = self._turn.folder
        return ChatResponse(
            tuple(self.produced),
            self._usage,
            folder.finish_reason,
            None,
            folder.response_id,
            folder.model,
            self._conversation_id,
            incomplete=True,
        )

    def failed(self, error: BaseException) -> BaseException:
        """``error`` with what there is of the answer on it, where it has a place for that.

        What stood there is of a run further in, a sub-agent's or the last model call, unless it is the output that the
        error is about.
        """
        if isinstance(error, AgentPipeError) and not isinstance(error, OutputError) and self.produced:
            error.response = self.response()
        return error


def check_edits(reading: Reading, find_tool: Callable[[str], Tool | None]) -> None:
    """ApprovalError where a person put arguments in the place of a call's own that its tool cannot be called with.

    A policy that fails about them fails here, while the request is open.
    """
    for question, answer in reading.decisions():
        tool = find_tool(question.call.name) if answer.approved and answer.arguments is not None else None
        if not isinstance(tool, FunctionTool) or tool.declaration_only:
            continue
        try:
            tool.bind(answer.arguments or {})
        except InvalidArguments as error:
            raise ApprovalError(
                f"the arguments approved for {tool.name!r} do not fit: {error}; nothing was run, the request is open"
            ) from None
        tool.needs_approval(edited(question.call, answer))


class _Ids:
    """The ids of messages that are taken, looked at only when an endpoint gives ids of its own."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._taken: set[str | None] | None = None

    def claim(self, message_id: str) -> str:
        """The id for a message that an endpoint calls ``message_id``: another one where it calls several so."""
        if self._taken is None:
            self._taken = {message.message_id for message in self._messages}
        own = new_id("msg") if message_id in self._taken else message_id
        self._taken.add(own)
        return own


class _Turn:
    """What the model says in one go."""

    __slots__ = (
        "_messages",
        "_taken",
        "answered",
        "ended",
        "folder",
        "held",
        "holding",
        "last",
        "names",
        "open",
        "questions",
        "role",
        "seen_any",
    )

    def __init__(self, taken: _Ids) -> None:
        self._taken = taken
        self._messages: list[Message] | None = None
        self.ended = False  # all was said, and nothing is held back any more
        self.names: dict[str, str] = {}
        self.folder = ResponseFolder()
        self.open: dict[str, FunctionCallContent] = {}  # the calls that have no result yet, by their ids
        self.answered = False  # whether the endpoint, or a loop below, ran some itself
        self.questions = 0
        self.last: Content | None = None
        self.held: list[ChatResponseUpdate] = []
        self.holding = False
        self.role: str | None = None
        self.seen_any = False

    def identified(self, update: ChatResponseUpdate) -> ChatResponseUpdate:
        """The update with an id for its message, made where the endpoint gives none."""
        if self.seen_any and update.message_id is None and update.role is None:
            return update  # it goes on
        starts = not self.seen_any or (update.role is not None and self.role is not None and update.role != self.role)
        self.seen_any = True
        self.role = update.role or self.role
        given = update.message_id
        if given is None:
            return update.replace(message_id=new_id("msg")) if starts else update
        own = self.names.get(given)
        if own is None:
            own = self.names[given] = self._taken.claim(given)
        return update if own == given else update.replace(message_id=own)

    def told_apart(self, update: ChatResponseUpdate) -> ChatResponseUpdate:
        """The update, with another id for each call whose id a call has that waits for its result too."""
        ids = [content.call_id for content in update.contents if isinstance(content, FunctionCallContent)]
        if len(ids) < 2 and not self.open:
            return update
        taken = set(self.open)
        if len(taken.union(ids)) == len(taken) + len(ids):
            return update
        contents: list[Content] = []
        for content in update.contents:
            if isinstance(content, FunctionCallContent):
                if content.call_id in taken:
                    content = replace(content, call_id=new_id("call"))
                taken.add(content.call_id)
            contents.append(content)
        return update.replace(contents=contents)

    def note(self, content: Content) -> None:
        if isinstance(content, FunctionCallContent):
            self.open[content.call_id] = content
        elif isinstance(content, FunctionResultContent):
            self.answered = True
            self.open.pop(content.call_id, None)
        elif isinstance(content, QUESTIONS):
            self.questions += 1

    def messages(self) -> list[Message]:
        """What was said; asked for again and again once all of it is there."""
        if self._messages is not None:
            return self._messages
        messages = self.folder.messages()
        if self.ended:
            self._messages = messages
        return messages

    def open_calls(self) -> list[FunctionCallContent]:
        return list(self.open.values())

    @property
    def stopped_below(self) -> StopReason | None:
        """Why a loop below stopped, where the caller has to know."""
        reason = self.folder.stop_reason
        if reason not in (None, "answer"):
            return reason
        return "approval" if self.questions else None

    def cut_off(self, call: FunctionCallContent) -> bool:
        """Whether the limit of output tokens may have cut this call: it is the last thing that was said."""
        return self.folder.finish_reason == "length" and call is self.last

    def hold(self, update: ChatResponseUpdate) -> None:
        """Keep an update back; what it tells besides its contents is known at once."""
        self.held.append(update)
        self.folder.add(update.replace(contents=(), role=None))

    def release(self, in_place: Mapping[int, Content]) -> list[ChatResponseUpdate]:
        """What was held back, with other contents in the place of some."""
        released, self.held = self.held, []
        if in_place:
            released = [
                update.replace(contents=tuple([in_place.get(id(content), content) for content in update.contents]))
                for update in released
            ]
        for update in released:
            said = ChatResponseUpdate(update.contents, update.role, update.message_id, update.author_name)
            self.folder.add(said)
        return released


def _settled(call: FunctionCallContent, text: str, *, is_error: bool = False, counts: bool = True) -> PlannedCall:
    """A call that is not run, and what the model is told instead of a result."""
    planned = PlannedCall(call, call, counts=counts)
    planned.settle(text, is_error=is_error)
    return planned


def _declined(reason: str | None) -> str:
    return f"{DECLINED} {reason}" if reason else DECLINED


def _resume(reading: Reading, record: CallRecord) -> Resume | None:
    asked = [question for question in record.questions if not is_about(question, record.call)]
    if not asked:
        return None
    answers = tuple([reading.answers[question.id] for question in asked])
    states = [question.state for question in asked if question.state not in (None, {})]
    last = answers[-1]
    data = last.data if isinstance(last, InputResponseContent) else None
    return Resume(data, states[-1] if states else None, answers)


def _last_options(options: ChatOptions, on_limit: OnLimit) -> ChatOptions:
    """The options of the last model call: no function may be called any more."""
    if on_limit == "tool_choice_none":
        return options.replace(tool_choice="none")
    hosted = Tools([tool for tool in tools_of(options) if not isinstance(tool, FunctionTool)])
    return options.replace(tools=hosted or None, tool_choice=options.tool_choice if hosted else None)


def _sum(a: UsageDetails | None, b: UsageDetails | None) -> UsageDetails | None:
    return a + b if a is not None and b is not None else a or b
