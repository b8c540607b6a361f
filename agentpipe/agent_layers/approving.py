"""An agent layer that has approvals decided by a function, and goes on by itself."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable

from agentpipe._base_agent import BaseAgent, DelegatingAgent
from agentpipe._messages import ApprovalRequestContent, ApprovalResponseContent, Content, Message
from agentpipe._request import ChatRequest
from agentpipe._responses import ChatResponseUpdate, fold
from agentpipe._waist import closing

Decision = bool | ApprovalResponseContent | None
Decide = Callable[[ApprovalRequestContent], Awaitable[Decision]]


class ApprovingAgent(DelegatingAgent):
    """Asks ``decide`` about each call that needs approval, and resumes the run with the answers.

    Args:
        inner: The agent whose requests are decided.
        decide: ``async (request) -> decision``: True approves, False rejects, ``request.approve(...)`` and
            ``request.reject(...)`` say more, and None leaves the request to the caller, as without this layer.
        max_rounds: How often a run is resumed before its requests go to the caller.

    Without a session the transcript of the run itself is what it is resumed on.

    Raises:
        TypeError: ``decide`` is not an async function.
        ValueError: ``max_rounds`` is less than 1.
    """

    def __init__(self, inner: BaseAgent, decide: Decide, *, max_rounds: int = 100) -> None:
        super().__init__(inner)
        called = decide if inspect.isroutine(decide) else getattr(decide, "__call__", decide)  # noqa: B004
        if not inspect.iscoroutinefunction(called):
            raise TypeError(f"decide must be an async function of the request, not {decide!r:.80}")
        if max_rounds < 1:
            raise ValueError(f"max_rounds must be at least 1, not {max_rounds!r}")
        self.decide = decide
        self.max_rounds = max_rounds

    async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Run, decide, and run on until nothing is left to decide here."""
        run = _Watched()
        for _ in range(self.max_rounds):
            run = _Watched()
            async with closing(self.inner.respond(request)) as updates:
                async for update in updates:
                    if (passed := run.take(update)) is not None:
                        yield passed
            answers = [answer for question in run.requests if (answer := await self._answer(question)) is not None]
            if not answers:
                break
            request = _resumed(request, run, answers)
        for update in run.held:
            yield update

    async def _answer(self, question: ApprovalRequestContent) -> ApprovalResponseContent | None:
        decision = await self.decide(question)
        if isinstance(decision, bool):
            return question.approve() if decision else question.reject()
        if decision is not None and not isinstance(decision, ApprovalResponseContent):
            raise TypeError(f"decide must return a bool, an answer or None, not {type(decision).__name__}")
        return decision

    def _settings(self) -> dict[str, object]:
        return {"decide": getattr(self.decide, "__name__", type(self.decide).__name__)}


class _Watched:
    """What one run of the agent inside said."""

    def __init__(self) -> None:
        self.requests: list[ApprovalRequestContent] = []
        self.updates: list[ChatResponseUpdate] = []
        self.held: list[ChatResponseUpdate] = []

    def take(self, update: ChatResponseUpdate) -> ChatResponseUpdate | None:
        """The update to pass on; what ends the run waits until it is known whether the run goes on."""
        found = [content for content in update.contents if isinstance(content, ApprovalRequestContent)]
        known = {request.id for request in self.requests}
        self.requests += [request for request in found if request.id not in known]
        self.updates.append(update)
        if update.stop_reason == "approval":
            self.held.append(update)
            return None
        return update


def _resumed(request: ChatRequest, run: _Watched, answers: list[ApprovalResponseContent]) -> ChatRequest:
    """The request that goes on: the answers alone where a session has the rest, else the transcript with them."""
    contents: tuple[Content, ...] = tuple(answers)
    answered = Message("user", contents)
    if request.session is not None:
        return request.replace(messages=[answered])
    return request.replace(messages=[*request.messages, *fold(run.updates).messages, answered])
