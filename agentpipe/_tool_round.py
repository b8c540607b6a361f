"""Running the calls of one round: in tasks and threads, with middleware, time limits and progress."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, cast

from agentpipe._messages import (
    Content,
    DataContent,
    FunctionCallContent,
    FunctionResultContent,
    ProgressContent,
    TextContent,
)
from agentpipe._records import to_json
from agentpipe._request import ChatRequest
from agentpipe._responses import ChatResponseUpdate
from agentpipe._schema import InvalidArguments
from agentpipe._session import OwnTurnError
from agentpipe._tool_loop import Outcome, PlannedCall, ToolLoop
from agentpipe._tools import TOOL_CONTEXT, FunctionTool, Interrupted, RunControl, ToolContext, ToolMiddleware
from agentpipe.exceptions import FatalToolError, ToolError

FAILED = "Error: the function failed."
CANCELLED = "cancelled: the run was cancelled while the function ran."
UNKNOWN_OUTCOME = "outcome unknown: the run was cancelled while the function ran, and it could not be stopped."
#: How deep the JSON of a result may be nested, so that a session that holds it can be read again.
MAX_RESULT_DEPTH = 100
TIME_LIMIT = "cancelled: the time limit of the run was reached while the function ran."


@dataclass(slots=True)
class ToolRunner:
    """How calls are run: with which middleware, limits and handlers."""

    request: ChatRequest
    middleware: Sequence[ToolMiddleware] = ()
    on_unknown_call: Callable[[ToolContext[Any]], Awaitable[Any]] | None = None
    timeout: float | None = None
    max_result_chars: int | None = None
    detailed_errors: bool = False

    def context(
        self, loop: ToolLoop, planned: PlannedCall, index: int, count: int, run: RunControl
    ) -> ToolContext[Any]:
        """What the function that is run for a call gets to know."""
        request = self.request
        return ToolContext(
            planned.runs,
            planned.tool,
            planned.runs.arguments,
            loop.seen_messages,
            request,
            request.session,
            request.deps,
            loop.iteration,
            index,
            count,
            loop.tools,
            planned.resume,
            None,
            run,
        )

    async def rewritten(
        self,
        loop: ToolLoop,
        call: FunctionCallContent,
        index: int,
        count: int,
        handler: Callable[[ToolContext[Any], str], Awaitable[str]],
    ) -> FunctionCallContent:
        """The call with its raw arguments as the ``arguments_handler`` wants them read."""
        planned = PlannedCall(call, call, loop.find_tool(call.name))
        context = self.context(loop, planned, index, count, _NoControl())
        raw = call.raw_arguments if call.raw_arguments is not None else _json_text(call.arguments)
        made = await handler(context, raw)
        return call if made == raw else replace(call, arguments={}, raw_arguments=made, invalid=None)

    async def outcome(self, context: ToolContext[Any], run: ToolRound) -> Outcome:
        """Run a call. Returns its result, or the questions that it stopped for; never raises but for cancellation."""
        if context.session is None:
            return await self._outcome(context, run)
        with context.session.inside():
            return await self._outcome(context, run)

    async def _outcome(self, context: ToolContext[Any], run: ToolRound) -> Outcome:
        token = TOOL_CONTEXT.set(context)
        try:
            value = await self._through(0, context)
            return self._result(context, value)
        except Interrupted as interrupted:
            return tuple([_asked_by(context.call, question) for question in interrupted.requests])
        except asyncio.CancelledError as error:
            if run.cancelled:
                raise
            return self._failure(context, error)
        except Exception as error:
            if isinstance(error, (FatalToolError, OwnTurnError, *(context.tool.fatal if context.tool else ()))):
                run.loop.fail(error)
            return self._failure(context, error)
        finally:
            TOOL_CONTEXT.reset(token)

    def _through(self, place: int, context: ToolContext[Any]) -> Awaitable[Any]:
        """The middleware from ``place`` on, and the function behind it."""
        if place == len(self.middleware):
            return self._invoke(context)

        async def call_next(changed: ToolContext[Any] | None = None) -> Any:
            return await self._through(place + 1, changed or context)

        return self.middleware[place](context, call_next)

    async def _invoke(self, context: ToolContext[Any]) -> Any:
        tool = context.tool
        if tool is None:
            assert self.on_unknown_call is not None
            return await self.on_unknown_call(context)
        args, kwargs = tool.bind(context.arguments, context)
        seconds = self.timeout if tool.timeout is None else tool.timeout
        if seconds is None:
            return await _call(tool, context, args, kwargs)
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await _call(tool, context, args, kwargs)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise _TookTooLong(f"the function took longer than {seconds:g} seconds") from error

    def _result(self, context: ToolContext[Any], value: object) -> FunctionResultContent:
        call = context.call
        try:
            result = as_result(call, value)
        except (ValueError, TypeError, RecursionError) as error:
            text = f"Error: the function returned a {type(value).__name__}, which cannot be written as JSON."
            return FunctionResultContent(call.call_id, call.name, text, True, exception=error)
        own = context.tool.max_result_chars if context.tool is not None else None
        limit = self.max_result_chars if own is None else own
        return result if limit is None else _shortened(result, limit)

    def _failure(self, context: ToolContext[Any], error: BaseException) -> FunctionResultContent:
        call = context.call
        if isinstance(error, (ToolError, InvalidArguments, _TookTooLong)):
            text = f"Error: {error}"
        elif self.detailed_errors:
            text = f"{FAILED} {'; '.join(_describe(error))}"
        else:
            text = FAILED
        return FunctionResultContent(call.call_id, call.name, text, True, exception=error)


class _TookTooLong(TimeoutError):
    """The function did not end in the time that it had."""


class _NoControl:
    """What a context can do before its call is run: nothing."""

    def terminate(self) -> None: ...
    def return_directly(self, call_id: str) -> None: ...
    def progress(self, call: FunctionCallContent, text: str) -> None: ...


class ToolRound:
    """The calls of one round on their way.

    At most ``concurrency`` run at the same time, begun in their order. Results are given in the order of the calls,
    each as soon as those before it are there; progress at once.
    """

    def __init__(self, loop: ToolLoop, calls: Sequence[PlannedCall], runner: ToolRunner, concurrency: int) -> None:
        self.loop = loop
        self.cancelled = False  # whether it is this round that cancels its tasks
        self._abandoned = False
        self._calls = list(calls)
        self._runner = runner
        self._concurrency = concurrency
        self._outcomes: list[Outcome | None] = [None] * len(calls)
        self._contexts: list[ToolContext[Any] | None] = [None] * len(calls)
        self._tasks: dict[asyncio.Task[None], int] = {}
        self._begun = 0
        self._recorded = 0
        self._progress: deque[ChatResponseUpdate] = deque()
        self._changed = asyncio.Event()
        self._asyncio_loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    # What a tool may ask for (RunControl)

    def terminate(self) -> None:
        """No more model calls, and no more calls that have not begun."""
        self.loop.terminate()

    def return_directly(self, call_id: str) -> None:
        """The result of this call is the answer."""
        self.loop.return_directly(call_id)

    def progress(self, call: FunctionCallContent, text: str) -> None:
        """Pass on how far a call is; from any thread."""
        update = ChatResponseUpdate((ProgressContent(call.call_id, call.name, str(text)),))
        if threading.get_ident() == self._thread:
            self._pass_on(update)
        else:
            self._asyncio_loop.call_soon_threadsafe(self._pass_on, update)

    def _pass_on(self, update: ChatResponseUpdate) -> None:
        self._progress.append(update)
        self._changed.set()

    # The round

    async def updates(self) -> AsyncIterator[ChatResponseUpdate]:
        """Run the calls; their results, and their progress meanwhile.

        Where nobody listens any more, what closes the transcript goes to the loop's ``outbox``.
        """
        try:
            while self._recorded < len(self._calls):
                self._begin_some()
                self._changed.clear()
                while self._progress:
                    yield self._progress.popleft()
                for update in self._record_ready():
                    yield update
                if self._recorded < len(self._calls) and not self._progress:
                    await self._wait()
        except BaseException:
            self.loop.outbox.extend(await self._abandon())
            raise
        self.loop.round_ended(self.loop.expired(time.monotonic()))

    def _begin_some(self) -> None:
        while self._begun < len(self._calls) and len(self._tasks) < self._concurrency:
            self._begin(self._begun)
            self._begun += 1

    def _begin(self, index: int) -> None:
        planned = self._calls[index] = self.loop.looked_up_again(self._calls[index])
        if planned.settled is not None:
            self._outcomes[index] = planned.settled
        elif self.loop.stopping:
            self._settle(index, f"not run: {self.loop.why_stopping}")
        elif self.loop.expired(time.monotonic()):
            self._settle(index, "not run: limit of time")
        else:
            self._start(index, planned)

    def _start(self, index: int, planned: PlannedCall) -> None:
        context = self._runner.context(self.loop, planned, index, len(self._calls), self)
        self._contexts[index] = context
        task = self._asyncio_loop.create_task(self._run(index, context))
        self._tasks[task] = index

    async def _run(self, index: int, context: ToolContext[Any]) -> None:
        """Run a call, and note what came of it."""
        try:
            self._outcomes[index] = await self._runner.outcome(context, self)
        except asyncio.CancelledError:
            self._settle(index, self._cancelled_text(index))
            raise
        except BaseException as error:
            self.loop.fail(error)
            self._settle(index, FAILED)
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
        finally:
            self._tasks.pop(cast("asyncio.Task[None]", asyncio.current_task()), None)
            self._changed.set()

    def _cancelled_text(self, index: int) -> str:
        if not self._abandoned:
            return TIME_LIMIT
        tool = self._calls[index].tool
        return UNKNOWN_OUTCOME if tool is not None and tool.kind in ("sync", "generator") else CANCELLED

    def _settle(self, index: int, text: str) -> None:
        call = self._calls[index].call
        self._calls[index].counts = False
        self._outcomes[index] = FunctionResultContent(call.call_id, call.name, text, True)

    def _record_ready(self) -> Iterator[ChatResponseUpdate]:
        while self._recorded < self._begun:
            outcome = self._outcomes[self._recorded]
            if outcome is None:
                break
            context = self._contexts[self._recorded]
            planned = self._calls[self._recorded]
            self._recorded += 1
            usage = context.usage if context is not None else None
            yield self.loop.record(planned, outcome, usage, last=self._recorded == len(self._calls))

    async def _wait(self) -> None:
        deadline = self.loop.settings.deadline
        if not self._tasks:
            return
        if deadline is None:
            await self._changed.wait()
            return
        try:
            async with asyncio.timeout_at(self._asyncio_loop.time() + max(0.0, deadline - time.monotonic())):
                await self._changed.wait()
        except TimeoutError:
            await self._cancel_tasks()

    async def _cancel_tasks(self) -> None:
        self.cancelled = True
        tasks = dict(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for index in tasks.values():
            if self._outcomes[index] is None:  # cancelled before its first step
                self._settle(index, self._cancelled_text(index))
        self._tasks.clear()

    async def _abandon(self) -> list[ChatResponseUpdate]:
        """The run ends here: cancel what runs and wait for it. Returns what closes the transcript."""
        self._abandoned = True
        await self._cancel_tasks()
        for index in range(self._recorded, len(self._calls)):
            if self._outcomes[index] is None and (settled := self._calls[index].settled) is not None:
                self._outcomes[index] = settled
            elif self._outcomes[index] is None:
                self._settle(index, "not run: cancelled")
        self._begun = len(self._calls)
        return list(self._record_ready())


async def _call(tool: FunctionTool, context: ToolContext[Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run the function of a tool, whichever kind of function it is."""
    function: Any = tool.function
    kind = tool.kind
    if kind == "async":
        return await function(*args, **kwargs)
    if kind == "async_generator":
        async with aclosing(function(*args, **kwargs)) as items:
            return _joined([_told(context, item) async for item in items])
    if kind == "generator":
        return await _in_thread(lambda: _joined([_told(context, item) for item in function(*args, **kwargs)]))
    value = await _in_thread(lambda: function(*args, **kwargs))
    return await value if inspect.isawaitable(value) else value


async def _in_thread(function: Callable[[], Any]) -> Any:
    """What ``function`` returns, run in a worker thread with a copied context."""

    def run() -> Any:
        try:
            return function()
        except StopIteration as error:  # no future can carry that, and who waits for it would wait for ever
            raise RuntimeError("the function raised StopIteration") from error

    return await asyncio.to_thread(run)


def _told(context: ToolContext[Any], item: object) -> object:
    context.progress(item if isinstance(item, str) else _json_text(item))
    return item


def _joined(items: list[Any]) -> Any:
    """The items of a generator as one result: text is joined, anything else makes a list."""
    if all(isinstance(item, str) for item in items):
        return "".join(items)
    return items


def _asked_by(call: FunctionCallContent, question: Any) -> Any:
    """A question as this transcript holds it: asked by this call, whoever asked it further down."""
    return question if question.call is call else replace(question, parent_call=call)


def as_result(call: FunctionCallContent, value: object) -> FunctionResultContent:
    """The result of ``call`` from what its function returned.

    Raises ValueError or TypeError where that cannot be written as JSON.
    """
    if value is None or isinstance(value, str):
        return FunctionResultContent(call.call_id, call.name, value)
    if isinstance(value, FunctionResultContent):
        own = value if value.call_id == call.call_id else replace(value, call_id=call.call_id, name=call.name)
        return replace(own, result=_as_json(own.result))
    if isinstance(value, (bytes, bytearray)):
        return _of_contents(call, [_as_data(bytes(value))])
    if isinstance(value, Content):
        return _of_contents(call, [value])
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, Content) for item in value):
        return _of_contents(call, value)
    return FunctionResultContent(call.call_id, call.name, _as_json(value))


def _as_json(value: object) -> Any:
    """``value`` as JSON values; the numbers that JSON has no word for (NaN, Infinity) as text."""
    return value if isinstance(value, str) else _checked_json(to_json(value), MAX_RESULT_DEPTH)


def _checked_json(value: Any, depth: int) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else json.dumps(value)
    if not isinstance(value, (dict, list)):
        return value
    if depth == 0:
        raise ValueError(f"it is nested deeper than {MAX_RESULT_DEPTH} levels")
    if isinstance(value, dict):
        return {key: _checked_json(item, depth - 1) for key, item in value.items()}
    return [_checked_json(item, depth - 1) for item in value]


def _of_contents(call: FunctionCallContent, contents: Sequence[Content]) -> FunctionResultContent:
    texts = [content.text for content in contents if isinstance(content, TextContent)]
    media = tuple([content for content in contents if not isinstance(content, TextContent)])
    return FunctionResultContent(call.call_id, call.name, "".join(texts) if texts else None, contents=media)


_MAGIC = (
    (b"\x89PNG", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF", "application/pdf"),
)


def _as_data(value: bytes) -> Content:
    for magic, media_type in _MAGIC:
        if value.startswith(magic):
            return DataContent(value, media_type)
    if value[:4] == b"RIFF" and value[8:12] == b"WEBP":
        return DataContent(value, "image/webp")
    try:
        return TextContent(value.decode())
    except UnicodeDecodeError:
        return DataContent(value)


def _shortened(result: FunctionResultContent, limit: int) -> FunctionResultContent:
    text = result.text
    if len(text) <= limit:
        return result
    return replace(result, result=f"{text[:limit]}\n[{len(text) - limit} more characters are left out]")


def _json_text(value: object) -> str:
    return json.dumps(to_json(value), ensure_ascii=False)


def _describe(error: BaseException) -> Iterator[str]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _describe(inner)
    else:
        yield f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
