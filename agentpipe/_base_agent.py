"""Agents: the same waist as chat clients, with sessions; and the base of the layers around an agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, final

from agentpipe._approval_rules import lend_rules, take_rules
from agentpipe._client import ChatClient
from agentpipe._layered import Layered
from agentpipe._messages import FunctionCallContent, Input, ProgressContent, TextContent
from agentpipe._options import ChatOptions
from agentpipe._request import ChatRequest
from agentpipe._responses import ChatResponse, ChatResponseUpdate, ResponseStream
from agentpipe._session import AgentSession
from agentpipe._tools import FunctionTool, Interrupted, ToolContext
from agentpipe._transcript import Question
from agentpipe._waist import FunctionMiddleware, Responder, put_around
from agentpipe.exceptions import AgentPipeError, ApprovalError, ToolError


class BaseAgent(Responder):
    """Something that runs: takes input, and answers when it is done. Implement `respond`."""

    name: str | None = None
    description: str | None = None

    @final
    async def run(
        self,
        input: Input | ChatRequest,
        *,
        session: AgentSession | None = None,
        options: ChatOptions | None = None,
        deps: Any = None,
    ) -> ChatResponse:
        """Run to the end.

        Args:
            input: Text, a Message, a content (an approval, an image), or a sequence of these.
            session: The conversation that this run goes on; None for a run that stands alone.
            options: What this run wants otherwise than the agent.
            deps: Your own object, handed to tools as ``ctx.deps``; never sent.

        Raises what the endpoint, a tool, a provider or a layer raises, see `agentpipe.exceptions`.
        """
        return await self._open_stream(input, options, session, deps, False).get_response()

    @final
    def stream(
        self,
        input: Input | ChatRequest,
        *,
        session: AgentSession | None = None,
        options: ChatOptions | None = None,
        deps: Any = None,
    ) -> ResponseStream:
        """The same run, piece by piece. Nothing happens before the first piece is asked for."""
        return self._open_stream(input, options, session, deps, True)

    @final
    def run_sync(
        self,
        input: Input | ChatRequest,
        *,
        session: AgentSession | None = None,
        options: ChatOptions | None = None,
        deps: Any = None,
    ) -> ChatResponse:
        """`run` for code without an event loop; RuntimeError where one is running."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self._run_alone(input, session, options, deps))
        raise RuntimeError("run_sync cannot be used inside of an event loop; use 'await agent.run(...)'")

    async def _run_alone(
        self, input: Input | ChatRequest, session: AgentSession | None, options: ChatOptions | None, deps: Any
    ) -> ChatResponse:
        """A run in an event loop of its own: connections are closed with it."""
        try:
            return await self.run(input, session=session, options=options, deps=deps)
        finally:
            for layer in self._walk():
                await layer._leave_loop()

    @final
    def wrap(self, layer: Any, /, **settings: Any) -> BaseAgent:
        """Put one layer (a class, a partial of one, or a middleware function) around this agent."""
        return put_around(layer, self, BaseAgent, FunctionAgent, **settings)

    @final
    def as_tool(
        self,
        name: str | None = None,
        description: str | None = None,
        *,
        session: AgentSession | None = None,
        progress: bool = False,
    ) -> FunctionTool:
        """This agent as a tool that takes ``input``, a text, and gives the text of the answer.

        Args:
            name: What the model calls it; the agent's own name by default.
            description: What the model is told about it; the agent's own description by default.
            session: The conversation that every call goes on; a new one for each call by default. It has one thing to
                decide at a time: a call that comes while an earlier one waits for an answer overtakes it, so that the
                answer is refused and the model is told so.
            progress: Whether the agent's text and its tool calls are passed on as progress of the call.

        What the agent uses counts in the usage of the caller's run. Where it has to ask somebody, its requests become
        the caller's, and the answers find the way back.
        """
        name = name or self.name
        if not name:
            raise ValueError("an agent without a name needs one to be a tool: agent.as_tool(name=...)")
        return FunctionTool(
            _AgentCall(self, session, progress).run,
            name=name,
            description=description if description is not None else self.description or f"Ask {name}.",
        )

    @final
    def as_chat_client(self) -> ChatClient:
        """This agent as a chat client: it gets the messages of each request, and no session."""
        return AgentChatClient(self)


class AgentChatClient(ChatClient):
    """An agent where a chat client is due."""

    def __init__(self, agent: BaseAgent) -> None:
        self.agent = agent

    def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Answer as the agent does."""
        return self.agent.respond(request.replace(session=None))

    def _inside(self) -> Sequence[Layered]:
        return (self.agent,)

    def _settings(self) -> dict[str, object]:
        return {}


class _AgentCall:
    """The function of the tool that an agent becomes."""

    def __init__(self, agent: BaseAgent, session: AgentSession | None, progress: bool) -> None:
        self.agent = agent
        self.session = session
        self.progress = progress

    async def run(
        self, input: Annotated[str, "What to ask, with all that has to be known."], ctx: ToolContext[Any]
    ) -> str:
        state = ctx.resume.state if ctx.resume is not None else None
        session = self.session or (AgentSession.model_validate(state) if state else AgentSession())
        given: Input = list(ctx.resume.answers) if ctx.resume is not None else input
        try:
            response = await self._ask_by_rules(given, session, ctx)
        except ApprovalError as error:  # nothing was run; the model has to know why
            raise ToolError(str(error)) from error
        except AgentPipeError as error:
            ctx.add_usage(error.response.usage if error.response is not None else None)
            raise
        ctx.add_usage(response.usage)
        questions: list[Question] = [*response.approval_requests, *response.input_requests]
        if questions:
            # What the agent needs to go on travels with the first of its questions; {} marks the others as its own too.
            first = replace(questions[0], state=session.model_dump())
            raise Interrupted([first, *[replace(question, state={}) for question in questions[1:]]])
        return response.text

    async def _ask_by_rules(self, given: Input, session: AgentSession, ctx: ToolContext[Any]) -> ChatResponse:
        """Ask; what a person decides about the agent's calls for good is kept in the caller's session."""
        if session is self.session:
            return await self._ask(given, session, ctx)
        lend_rules(ctx.session, ctx.call.name, session)
        try:
            return await self._ask(given, session, ctx)
        finally:
            take_rules(ctx.session, ctx.call.name, session)

    async def _ask(self, given: Input, session: AgentSession, ctx: ToolContext[Any]) -> ChatResponse:
        if not self.progress:
            return await self.agent.run(given, session=session, deps=ctx.deps)
        async with self.agent.stream(given, session=session, deps=ctx.deps) as stream:
            async for update in stream:
                for content in update.contents if update.role != "user" else ():
                    if isinstance(content, (TextContent, ProgressContent)):
                        ctx.progress(content.text)
                    elif isinstance(content, FunctionCallContent):
                        ctx.progress(f"{content.name}({content.raw_arguments or dict(content.arguments)})")
            return await stream.get_response()


class DelegatingAgent(BaseAgent):
    """The base of agent layers: it asks the agent inside it, and changes what it wants of that."""

    def __init__(self, inner: BaseAgent) -> None:
        if not isinstance(inner, BaseAgent):
            name = f"the class {inner.__name__}" if isinstance(inner, type) else type(inner).__name__
            raise TypeError(f"{type(self).__name__} needs an agent inside it, not {name}")
        self.inner = inner
        self.name = inner.name
        self.description = inner.description

    def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Answer as the agent inside does."""
        return self.inner.respond(request)

    def _usual_output(self) -> object:
        return self.inner._usual_output()


AgentMiddleware = (
    Callable[[ChatRequest, BaseAgent], AsyncIterator[ChatResponseUpdate]]
    | Callable[[ChatRequest, BaseAgent], Awaitable[ChatResponse]]
)


class FunctionAgent(FunctionMiddleware[BaseAgent], DelegatingAgent):
    """The layer that a middleware function makes."""

    def __init__(self, inner: BaseAgent, function: AgentMiddleware) -> None:
        super().__init__(inner)
        self._take(function)
