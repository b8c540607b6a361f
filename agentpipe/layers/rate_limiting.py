"""Waits, so that an endpoint is not asked more often than it allows."""

from __future__ import annotations

from collections.abc import AsyncIterator

from agentpipe._client import ChatClient, DelegatingChatClient
from agentpipe._request import ChatRequest
from agentpipe._responses import ChatResponseUpdate
from agentpipe._waist import closing
from agentpipe.layers._rate_limiter import Clock as Clock
from agentpipe.layers._rate_limiter import RateLimiter as RateLimiter


class RateLimitingChatClient(DelegatingChatClient):
    """Waits before it asks, so that the limits of an endpoint are kept.

    Below the FunctionInvokingChatClient, where people want it, it limits model calls. Above it a run would hold a
    place while its tools run, and tools that ask the same client could wait for one forever. Below a
    RetryingChatClient, where people want it, each attempt takes a place of its own; above it attempts are not counted.

    Args:
        inner: The client to ask.
        requests_per_minute: See `RateLimiter`.
        tokens_per_minute: See `RateLimiter`.
        max_concurrent: See `RateLimiter`.
        limiter: Limits that are shared with other clients, instead of the three above.

    Raises:
        ValueError: No limit is given, both kinds are, or a number is out of range.
        TypeError: ``limiter`` is none.
    """

    def __init__(
        self,
        inner: ChatClient,
        *,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        max_concurrent: int | None = None,
        limiter: RateLimiter | None = None,
    ) -> None:
        super().__init__(inner)
        if limiter is not None and not isinstance(limiter, RateLimiter):
            raise TypeError(f"limiter must be a RateLimiter, not {type(limiter).__name__}")
        if limiter is not None and (requests_per_minute, tokens_per_minute, max_concurrent) != (None, None, None):
            raise ValueError("limiter has its own limits: give either it, or the limits")
        self._shared = limiter is not None
        self.limiter = limiter or RateLimiter(
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
            max_concurrent=max_concurrent,
        )

    async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Wait for a place, then ask."""
        async with self.limiter.place(), closing(self.inner.respond(request)) as updates:
            async for update in updates:
                if update.usage is not None:
                    self.limiter.used(update.usage)
                yield update

    def _settings(self) -> dict[str, object]:
        if self._shared:
            return {"limiter": self.limiter}
        return {name: value for name, value in self.limiter.limits.items() if value is not None}
