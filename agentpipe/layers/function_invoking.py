"""The function-invoking layer: asks the model, runs the functions it asks for, and asks again."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, get_args

from agentpipe._client import ChatClient, DelegatingChatClient
from agentpipe._layered import Node
from agentpipe._messages import Message
from agentpipe._options import LoopLimits, OnLimit
from agentpipe._reducers import Reducer
from agentpipe._request import ChatRequest
from agentpipe._responses import ChatResponseUpdate, UsageDetails
from agentpipe._tool_loop import CallModel, Fail, LoopSettings, Prepare, RunCalls, Stop, ToolLoop
from agentpipe._tool_round import ToolRound, ToolRunner
from agentpipe._tools import ToolContext, ToolLike, ToolMiddleware, as_middleware, as_tools
from agentpipe._waist import closing

UnknownCallHandler = Callable[[ToolContext[Any]], Awaitable[Any]]
ArgumentsHandler = Callable[[ToolContext[Any], str], Awaitable[str]]
MessageRewriter = Callable[[Sequence[Message]], Awaitable[Sequence[Message]]]


class FunctionInvokingChatClient(DelegatingChatClient):
    """The tool loop: thought, action, observation, until there is an answer or something stops it.

    What stands above this layer runs once per run; what stands below it once per model call. Every response says in
    ``stop_reason`` why it ended.

    Args:
        inner: The client to ask.
        max_iterations: Tool rounds per request; at least 1. What comes after is for ``on_limit`` to say.
        on_limit: "final_answer" asks once more without function tools; "tool_choice_none" asks once more with the
            tools and tool_choice "none"; "raise" raises ToolLoopError; "return" stops with what there is.
        max_consecutive_errors: How many rounds in a row may fail (every call of a round has to); 0 lets the first
            failure raise ToolLoopError.
        max_tool_calls: Calls per request, exactly; a call over it is answered "skipped: limit", then ``on_limit``.
        timeout: Seconds for the whole request: looked at before each step, and it cancels running tools.
        tool_timeout: Seconds per call; a tool's own ``timeout`` wins.
        max_result_chars: Characters of a result that the model gets to see; a tool's own setting wins.
        allow_concurrent_invocation: Run the calls of one round at the same time, rather than one after the other.
        max_concurrency: How many of them at most.
        include_detailed_errors: Tell the model the type and the text of a tool's exception.
        additional_tools: Tools that can be called though the model is never told of them.
        terminate_on_unknown_calls: A call of a tool that does not exist ends the run and goes to the caller.
        on_unknown_call: ``async (context) -> result``, instead of the result that says there is no such tool.
        arguments_handler: ``async (context, raw) -> raw``: sees and may rewrite raw arguments before they are read.
        message_rewriter: ``async (messages) -> messages`` before each model call; later rounds go on from what it
            makes. The response and the history have everything all the same.
        return_directly: Names of tools whose result ends the run, as its answer.
        middleware: Tool middleware ``async (context, call_next) -> result``, the first is the outermost.

    Raises:
        ValueError: A setting is out of range, or two of ``additional_tools`` have one name.
        TypeError: Something given is not of the kind it has to be.
    """

    shown = ("max_iterations", "max_consecutive_errors")

    def __init__(
        self,
        inner: ChatClient,
        *,
        max_iterations: int = 40,
        on_limit: OnLimit = "final_answer",
        max_consecutive_errors: int = 3,
        max_tool_calls: int | None = None,
        timeout: float | None = None,
        tool_timeout: float | None = None,
        max_result_chars: int | None = None,
        allow_concurrent_invocation: bool = False,
        max_concurrency: int | None = None,
        include_detailed_errors: bool = False,
        additional_tools: Sequence[ToolLike] = (),
        terminate_on_unknown_calls: bool = False,
        on_unknown_call: UnknownCallHandler | None = None,
        arguments_handler: ArgumentsHandler | None = None,
        message_rewriter: MessageRewriter | None = None,
        return_directly: Sequence[str] = (),
        middleware: Sequence[ToolMiddleware] = (),
    ) -> None:
        super().__init__(inner)
        LoopLimits(max_iterations, on_limit, timeout, max_tool_calls)  # raises where one is out of range
        if on_limit not in get_args(OnLimit):
            raise ValueError(f"on_limit must be one of {', '.join(get_args(OnLimit))}, not {on_limit!r}")
        _check_whole("max_iterations", max_iterations, 1)
        _check_whole("max_consecutive_errors", max_consecutive_errors, 0)
        _check_whole("max_concurrency", max_concurrency, 1, optional=True)
        _check_whole("max_result_chars", max_result_chars, 1, optional=True)
        if tool_timeout is not None and not tool_timeout > 0:
            raise ValueError(f"tool_timeout must be greater than 0 seconds, not {tool_timeout!r}")
        if isinstance(return_directly, str):
            raise TypeError(f"return_directly must be a sequence of names, not the text {return_directly!r}")
        self.max_iterations = max_iterations
        self.on_limit: OnLimit = on_limit
        self.max_consecutive_errors = max_consecutive_errors
        self.max_tool_calls = max_tool_calls
        self.timeout = timeout
        self.tool_timeout = tool_timeout
        self.max_result_chars = max_result_chars
        self.allow_concurrent_invocation = allow_concurrent_invocation
        self.max_concurrency = max_concurrency
        self.include_detailed_errors = include_detailed_errors
        self.additional_tools = as_tools(additional_tools)
        self.terminate_on_unknown_calls = terminate_on_unknown_calls
        self.on_unknown_call = on_unknown_call
        self.arguments_handler = arguments_handler
        self.message_rewriter = message_rewriter
        self.return_directly = tuple(return_directly)
        self.middleware = as_middleware(middleware)

    def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Run the loop; the updates of every model call, and the results of the functions between them."""
        return request.watched(self._updates(request))

    async def _updates(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        loop = ToolLoop(request, self._limits(request.options.loop))
        runner = self._runner(request)
        loop.start()
        try:
            while not isinstance(loop.step, (Stop, Fail)):
                if isinstance(loop.step, RunCalls):
                    steps = self._run_calls(loop, loop.step, runner)
                elif loop.expired(time.monotonic()):
                    loop.out_of_time()
                    continue
                else:
                    steps = self._ask_model(loop, request, runner)
                async with closing(steps) as updates:
                    async for update in updates:
                        yield update
        finally:
            if request.late is not None:
                request.late.extend(loop.outbox)  # what can be yielded no longer
        if isinstance(loop.step, Fail):
            raise loop.failed(loop.step.error)
        for update in loop.last_updates():
            yield update

    async def _ask_model(
        self, loop: ToolLoop, request: ChatRequest, runner: ToolRunner
    ) -> AsyncIterator[ChatResponseUpdate]:
        try:
            usage = await self._rewrite(loop, request)
            if usage is not None:
                yield ChatResponseUpdate(usage=usage)
            step = loop.step
            assert isinstance(step, CallModel)
            receive = loop.receive
            down = request.replace(messages=step.messages, options=step.options)
            async with closing(self.inner.respond(down)) as updates:
                async for update in updates:
                    passed = receive(update)
                    if passed is not None:
                        yield passed
            loop.turn_ended()
            if isinstance(loop.step, Prepare):
                loop.plan(await self._prepare(loop, loop.step, runner))
            while loop.outbox:
                yield loop.outbox.popleft()
        except Exception as error:
            loop.broken("the answer of the model broke off")
            while loop.outbox:
                yield loop.outbox.popleft()
            loop.failed(error)
            raise
        except BaseException:
            loop.broken("cancelled")
            raise

    async def _rewrite(self, loop: ToolLoop, request: ChatRequest) -> UsageDetails | None:
        """Let the message_rewriter have its say; what it used itself, where it is a reducer that asks a model."""
        rewriter = self.message_rewriter
        assert isinstance(loop.step, CallModel)
        if isinstance(rewriter, Reducer):
            reduction = await rewriter.reduce(loop.step.messages, request.session)
            loop.rewritten(reduction.messages)
            return reduction.usage
        if rewriter is not None:
            loop.rewritten(await rewriter(loop.step.messages))
        return None

    async def _prepare(self, loop: ToolLoop, step: Prepare, runner: ToolRunner) -> Sequence[Any]:
        if self.arguments_handler is None:
            return step.calls
        return [
            await runner.rewritten(loop, call, index, len(step.calls), self.arguments_handler)
            for index, call in enumerate(step.calls)
        ]

    def _run_calls(self, loop: ToolLoop, step: RunCalls, runner: ToolRunner) -> AsyncIterator[ChatResponseUpdate]:
        concurrency = (self.max_concurrency or len(step.calls)) if self.allow_concurrent_invocation else 1
        return ToolRound(loop, step.calls, runner, concurrency).updates()

    def _limits(self, limits: LoopLimits | None) -> LoopSettings:
        told = limits or _NO_LIMITS
        timeout = self.timeout if told.timeout is None else told.timeout
        return LoopSettings(
            max_iterations=told.max_iterations or self.max_iterations,
            on_limit=told.on_limit or self.on_limit,
            max_consecutive_errors=self.max_consecutive_errors,
            max_tool_calls=self.max_tool_calls if told.max_tool_calls is None else told.max_tool_calls,
            deadline=None if timeout is None else time.monotonic() + timeout,
            additional_tools=self.additional_tools,
            terminate_on_unknown_calls=self.terminate_on_unknown_calls,
            handles_unknown_calls=self.on_unknown_call is not None,
            return_directly=frozenset(self.return_directly),
        )

    def _runner(self, request: ChatRequest) -> ToolRunner:
        return ToolRunner(
            request=request,
            middleware=(*self.middleware, *(request.options.tool_middleware or ())),
            on_unknown_call=self.on_unknown_call,
            timeout=self.tool_timeout,
            max_result_chars=self.max_result_chars,
            detailed_errors=self.include_detailed_errors,
        )

    def _node(self) -> Node:
        return Node(repr(self), [self.inner._node()], loops=True)


_NO_LIMITS = LoopLimits()


def _check_whole(name: str, value: int | None, least: int, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
