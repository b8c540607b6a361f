"""Asks again when an endpoint could not answer."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from agentpipe._client import ChatClient, DelegatingChatClient
from agentpipe._request import ChatRequest
from agentpipe._responses import ChatResponseUpdate
from agentpipe._waist import closing
from agentpipe.exceptions import (
    ApprovalError,
    ChatClientError,
    HistoryError,
    ToolError,
    ToolLoopError,
    UsageLimitError,
)
from agentpipe.layers._common import On, OnErrors, answered_late, check_number, check_whole

# Asking again would not help, or would do twice what was done and paid for.
_NEVER = (ApprovalError, HistoryError, ToolError, ToolLoopError, UsageLimitError)


class RetryingChatClient(DelegatingChatClient):
    """Asks again when the client inside could not answer; the last error is raised as it was.

    Below the FunctionInvokingChatClient, where people want it, it repeats one model call; above it a whole run, as
    long as nothing was answered yet. An answer is repeated only before its first update was passed on: what a
    consumer has seen is never said twice. Cancellation, approvals and errors of tools, of limits and of the loop are
    never retried. No other part of agentpipe retries, so this is how often an endpoint is asked.

    A wait is ``wait_initial`` seconds, doubled each time up to ``wait_max``; or what the endpoint asked for
    (``retry_after``). A random part of up to ``jitter`` seconds is added, so that clients do not come back together.

    Args:
        inner: The client to ask.
        attempts: How often to ask at most; 1 never asks again.
        on: Which errors: types (of which a ChatClientError counts only if it is ``retryable``) or a function of the
            error, which has the last word. Every ChatClientError that is ``retryable`` by default.
        wait_initial: Seconds before the second attempt.
        wait_max: Seconds between two attempts at most; an endpoint that asks for more is given more.
        jitter: Seconds that are added at random, at most.
        max_time: Seconds for all of it: no attempt begins later. None sets no limit.
        sleep: How to wait; a test may give its own.

    Raises:
        ValueError: A number is out of range.
        TypeError: ``on`` is neither types of errors nor a function.
    """

    shown = ("attempts",)

    def __init__(
        self,
        inner: ChatClient,
        *,
        attempts: int = 3,
        on: On | None = None,
        wait_initial: float = 0.5,
        wait_max: float = 30.0,
        jitter: float = 0.5,
        max_time: float | None = 300.0,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        super().__init__(inner)
        check_whole("attempts", attempts, 1)
        check_number("wait_initial", wait_initial, least=0)
        check_number("wait_max", wait_max, least=0)
        check_number("jitter", jitter, least=0)
        check_number("max_time", max_time, above=0)
        self.attempts = attempts
        self.on = None if on is None else OnErrors(on)
        self.wait_initial = wait_initial
        self.wait_max = wait_max
        self.jitter = jitter
        self.max_time = max_time
        self._sleep = sleep

    async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Ask, and ask again while nothing was answered."""
        begun, attempt = time.monotonic(), 0
        late = answered_late(request)
        while True:
            attempt += 1
            passed_on = False
            try:
                async with closing(self.inner.respond(request)) as updates:
                    async for update in updates:
                        passed_on = True
                        yield update
                return
            except Exception as error:
                if passed_on or answered_late(request) > late or not self._may_help(error):
                    raise
                wait = self._wait(error, attempt, begun)
                if wait is None:
                    raise
            await self._sleep(wait)

    def _may_help(self, error: Exception) -> bool:
        if isinstance(error, _NEVER):
            return False
        if self.on is None:
            return isinstance(error, ChatClientError) and error.retryable
        return self.on(error) and (not self.on.types or getattr(error, "retryable", True))

    def _wait(self, error: Exception, attempt: int, begun: float) -> float | None:
        """Seconds until the next attempt; None to give up."""
        # Only who has failed pays for the import.
        import tenacity

        state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
        state.start_time, state.attempt_number = begun, attempt
        state.set_exception((type(error), error, error.__traceback__))
        told = getattr(error, "retry_after", None)
        backoff = tenacity.wait_exponential(multiplier=self.wait_initial, max=self.wait_max)
        wait = backoff if told is None else tenacity.wait_fixed(told)
        state.upcoming_sleep = wait(state) + tenacity.wait_random(0, self.jitter)(state)
        longest = math.inf if self.max_time is None else self.max_time
        stop = tenacity.stop_any(tenacity.stop_after_attempt(self.attempts), tenacity.stop_before_delay(longest))
        return None if stop(state) else state.upcoming_sleep
