"""The agent: a chat client with instructions, tools, a history and context providers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, nullcontext
from typing import Any

from agentpipe._base_agent import BaseAgent
from agentpipe._client import ChatClient
from agentpipe._layered import Layered, Node
from agentpipe._messages import Content, FunctionCallContent, FunctionResultContent, Message
from agentpipe._options import NO_OPTIONS, ChatOptions, merge, tools_of
from agentpipe._providers import Context, ContextFunction, ContextProvider, FunctionContextProvider, HistoryProvider
from agentpipe._records import new_id
from agentpipe._request import ChatRequest
from agentpipe._responses import ROUNDS, ChatResponse, ChatResponseUpdate, Late, ResponseFolder
from agentpipe._session import AgentSession
from agentpipe._tool_loop import check_edits
from agentpipe._tools import ToolLike
from agentpipe._transcript import ANSWERS, QUESTIONS, Reading, check_answers, check_questions, read
from agentpipe._waist import closing
from agentpipe.exceptions import AgentPipeError, OutputError
from agentpipe.history.in_memory import InMemoryHistoryProvider
from agentpipe.layers.function_invoking import FunctionInvokingChatClient

logger = logging.getLogger("agentpipe")


class Agent(BaseAgent):
    """A chat client that knows what it is for.

    An agent holds no state of a run: any number of runs may go on at once, each with its own session or none. In a run
    the options are merged, the history is loaded, the context providers are asked in their order, the input is stored,
    and the client is asked; each round is stored when it is finished, and at the end the providers hear of it in
    reverse order, also of a failure.

    Runs on one session take turns. A tool or a context provider that starts one on the session of its own run would
    wait for itself: it gets a RuntimeError, and so does the caller of the run.

    Args:
        client: What answers. A function-invoking layer is put around it where it has none.
        instructions: What the model is told first.
        name: The agent's name; its messages carry it as ``author_name``.
        description: What it is good for, for whoever uses it as a tool.
        tools: Functions and tools that the model may call.
        context_providers: What adds to what the model sees: `ContextProvider` objects or plain async functions.
        history_provider: Where the messages of sessions are kept; in the session itself by default.
        options: What every run wants; a run's own options are merged over them.

    Raises:
        TypeError: Something given is not of the kind it has to be.
        ValueError: Two tools have one name.
    """

    def __init__(
        self,
        client: ChatClient,
        instructions: str | None = None,
        *,
        name: str | None = None,
        description: str | None = None,
        tools: Sequence[ToolLike] | None = None,
        context_providers: Sequence[ContextProvider | ContextFunction] = (),
        history_provider: HistoryProvider | None = None,
        options: ChatOptions | None = None,
    ) -> None:
        if not isinstance(client, ChatClient):
            raise TypeError(f"an Agent needs a ChatClient, not {client!r:.80}")
        if instructions is not None and not isinstance(instructions, str):
            raise TypeError(f"instructions must be text, not {type(instructions).__name__}")
        if options is not None and not isinstance(options, ChatOptions):
            raise TypeError(f"options must be ChatOptions, not {type(options).__name__}")
        if history_provider is not None and not isinstance(history_provider, HistoryProvider):
            raise TypeError(f"history_provider must be a HistoryProvider, not {history_provider!r:.80}")
        self.name = name
        self.description = description
        self.client = client if client.find(FunctionInvokingChatClient) else FunctionInvokingChatClient(client)
        self.options = merge(options or NO_OPTIONS, ChatOptions(instructions=instructions, tools=tools))
        self.context_providers = tuple([_as_provider(provider) for provider in context_providers])
        self.history_provider = history_provider
        self._history: HistoryProvider = history_provider or InMemoryHistoryProvider()

    def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Run; `Agent` says what happens in which order."""
        options = merge(self.options, request.options)
        if request.session is None and not self.context_providers:
            return self._ask(request.replace(options=options))
        return request.watched(_Run(self, request, options).updates())

    def _ask(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """The client's answer; what the model says carries the agent's name, if it has one."""
        updates = self.client.respond(request)
        return _named(updates, self.name) if self.name else updates

    def keeps_history(self, session: AgentSession | None, options: ChatOptions) -> HistoryProvider | None:
        """Where the messages of a run are kept; None where nobody keeps them, or the endpoint does.

        Raises ValueError where both the endpoint and a history provider would.
        """
        if session is None:
            return None
        conversation_id = options.conversation_id or session.conversation_id
        if conversation_id is None:
            return self._history
        if self.history_provider is not None:
            raise ValueError(
                f"the endpoint keeps the history of this session (conversation_id={conversation_id!r}), so the agent "
                f"cannot keep it in {self.history_provider!r} too: leave one of them out"
            )
        return None

    def _usual_output(self) -> object:
        return self.options.response_format

    async def aclose(self) -> None:
        """Close the client and the history store."""
        await self.client.aclose()
        await self._history.aclose()

    def _inside(self) -> Sequence[Layered]:
        return (self.client,)

    def _settings(self) -> dict[str, object]:
        tools = [tool.name for tool in tools_of(self.options)]
        told = {"name": self.name, "tools": tools or None}
        return {key: value for key, value in told.items() if value is not None}

    def _node(self) -> Node:
        beside = [Node(repr(provider)) for provider in (*self.context_providers, self._history)]
        return Node(repr(self), [*beside, self.client._node()])


def _as_provider(value: Any) -> ContextProvider:
    return value if isinstance(value, ContextProvider) else FunctionContextProvider(value)


class _Run:
    """One run with a session or with context providers.

    Options merged -> session locked -> history loaded -> context providers in order -> input stored -> client; each
    finished round stored -> providers' ``after_run`` in reverse order, also after failure.
    """

    def __init__(self, agent: Agent, request: ChatRequest, options: ChatOptions) -> None:
        self.agent = agent
        self.request = request
        self.options = options
        self.late = Late()
        self.steps = _Steps()
        self.history: HistoryProvider | None = None
        self.told: list[ContextProvider] = []  # those that have to hear how the run ended
        self.contexts: list[Context] = []

    async def updates(self) -> AsyncIterator[ChatResponseUpdate]:
        session = self.request.session
        async with AsyncExitStack() as stack:
            if session is not None:
                await stack.enter_async_context(session.lock())
            try:
                down = await self._prepare()
                async with closing(self.agent._ask(down)) as updates:
                    async for update in updates:
                        if self.steps.add(update):
                            await self._store(self.steps.take())
                        yield update
                await self.late.close()
                await self._store(self.steps.take())
                self._follow_conversation()
            except BaseException as error:
                await self._failed(error)
                raise
            await self._tell(self.steps.response(), None)

    # The beginning

    async def _prepare(self) -> ChatRequest:
        request, session = self.request, self.request.session
        if session is not None and session.conversation_id and not self.options.conversation_id:
            self.options = self.options.replace(conversation_id=session.conversation_id)
        self.history = self.agent.keeps_history(session, self.options)
        earlier = await self._load(session)
        given = _given(request.messages, earlier)
        if self.history is not None and _hold(given, QUESTIONS):
            check_questions(read(earlier), given)
        await self._ask_providers(request.replace(messages=[*earlier, *given], options=self.options))
        if _hold(given, ANSWERS):
            self._check_answers(read([*earlier, *given]))
        added, kept = self._added()
        await self._store([*kept, *given])
        return request.replace(messages=[*earlier, *added, *given], options=self.options, late=self.late)

    def _check_answers(self, reading: Reading) -> None:
        """ApprovalError for answers that nothing can come of, before anything is stored."""
        check_answers(reading)
        loop = self.agent.client.find(FunctionInvokingChatClient)
        tools = [*(loop.additional_tools if loop is not None else ()), *tools_of(self.options)]
        check_edits(reading, {tool.name: tool for tool in tools}.get)

    async def _load(self, session: AgentSession | None) -> list[Message]:
        if self.history is None or session is None:
            return []
        return [message.from_("history") for message in await self.history.get_messages(session)]

    async def _ask_providers(self, request: ChatRequest) -> None:
        for provider in self.agent.context_providers:
            self.told.append(provider)
            context = await _guarded(provider, "before_run", request)
            if context is not None:
                self.contexts.append(_checked(context, provider))
                self.options = merge(self.options, _options_of(context))

    def _added(self) -> tuple[list[Message], list[Message]]:
        """The messages that the providers add, and those of them that become history."""
        added: list[Message] = []
        kept: list[Message] = []
        for context in self.contexts:
            messages = [message.from_("context") for message in context.messages]
            added += messages
            kept += messages if context.store else []
        return added, kept

    # The end

    def _follow_conversation(self) -> None:
        session = self.request.session
        conversation_id = self.steps.folder.conversation_id
        if session is not None and conversation_id is not None and self.agent.history_provider is None:
            session.conversation_id = conversation_id

    async def _failed(self, error: BaseException) -> None:
        await self.late.close()
        self.steps.add_late(self.late)
        if self.request.late is not None:
            self.request.late.extend(self.late)
        if not self.steps.broken:
            try:
                await self._store(self.steps.take_closed())
            except Exception as second:
                error.add_note(f"and the history could not be stored: {type(second).__name__}: {second}")
        response = self.steps.folder.response(incomplete=True)
        if isinstance(error, AgentPipeError) and not isinstance(error, OutputError) and response.messages:
            error.response = response  # whoever stands further out has seen more
        await self._tell(response, error)

    async def _store(self, messages: Sequence[Message]) -> None:
        session = self.request.session
        if self.history is None or session is None or not messages:
            return
        try:
            await self.history.add_messages(session, [message.from_("history") for message in messages])
        except Exception:
            self.steps.broken = True
            raise
        except BaseException:
            self.steps.give_back(messages)  # cancelled: whether they are stored is not known, and adding twice is safe
            raise

    async def _tell(self, response: ChatResponse, error: BaseException | None) -> None:
        while self.told:
            provider = self.told.pop()
            try:
                await _guarded(provider, "after_run", self.request, response, error)
            except Exception as second:
                if error is None:
                    await self._tell(response, second)
                    raise
                error.add_note(f"and {provider!r} failed after the run: {type(second).__name__}: {second}")


class _Steps:
    """What a run has said so far, and how much of it is stored."""

    def __init__(self) -> None:
        self.folder = ResponseFolder()
        self.broken = False  # the store failed: what it lacks cannot be made up for
        self._stored = 0
        self._turn_ended = False

    def add(self, update: ChatResponseUpdate) -> bool:
        """Take an update. Returns whether a round is over with it."""
        self.folder.add(update)
        if update.contents:
            self._turn_ended = False
        if update.finish_reason is not None:
            self._turn_ended = True
        return update.metadata is not None and ROUNDS in update.metadata

    def add_late(self, updates: Sequence[ChatResponseUpdate]) -> None:
        """Take what could be yielded no longer."""
        for update in updates:
            self.add(update)

    def take(self) -> list[Message]:
        """What is not stored yet."""
        messages = self.folder.messages()[self._stored :]
        self._stored += len(messages)
        return messages

    def give_back(self, messages: Sequence[Message]) -> None:
        """Of what was taken, these may not have been stored."""
        self._stored = max(0, self._stored - len(messages))

    def take_closed(self) -> list[Message]:
        """Of a run that failed: what is not stored yet and was finished, with a result for each open call."""
        messages = self.take()
        if messages and messages[-1].role == "assistant" and not self._turn_ended and not _hold(messages[-1:], _CALLS):
            messages.pop()  # the model had not finished that
        open_records = [record for record in read(messages).records if not record.result and not record.questions]
        if open_records and not (self._turn_ended and self.folder.stop_reason in ("declaration_only", "unknown_call")):
            results = [_unknown_result(record.call) for record in open_records]
            messages.append(Message("tool", tuple(results)))
        return messages

    def response(self) -> ChatResponse:
        """The response so far."""
        return self.folder.response()


async def _named(updates: AsyncIterator[ChatResponseUpdate], name: str) -> AsyncIterator[ChatResponseUpdate]:
    async with closing(updates):
        async for update in updates:
            if update.role == "assistant" and update.author_name is None:
                update = update.replace(author_name=name)
            yield update


#: What stands for a call in a message of the model.
_CALLS = (FunctionCallContent, *QUESTIONS)


def _given(messages: Sequence[Message], earlier: Sequence[Message]) -> list[Message]:
    """The input of a run. What is said again after an answer to it is another message, whatever id it was given."""
    given = [message.from_("input") for message in messages]
    said = messages[-1].message_id if messages else None
    if said is not None and any(message.message_id == said for message in earlier[:-1]):
        given[-1] = given[-1].replace(message_id=new_id("msg"))
    return given


def _hold(messages: Sequence[Message], kinds: tuple[type[Content], ...]) -> bool:
    return any(isinstance(content, kinds) for message in messages for content in message.contents)


def _unknown_result(call: FunctionCallContent) -> FunctionResultContent:
    return FunctionResultContent(
        call.call_id, call.name, "outcome unknown: the run ended before the result came.", True
    )


def _checked(context: object, provider: ContextProvider) -> Context:
    if not isinstance(context, Context):
        raise TypeError(f"{provider!r} must return a Context or None, not {type(context).__name__}")
    return context


def _options_of(context: Context) -> ChatOptions:
    own = ChatOptions(
        instructions=context.instructions,
        tools=context.tools or None,
        tool_middleware=tuple(context.middleware) or None,
    )
    return merge(own, context.options)


async def _guarded(provider: ContextProvider, method: str, request: ChatRequest, *args: Any) -> Any:
    """Ask a provider within its time; the failure of an optional one is logged, and the run goes on."""
    session = request.session
    try:
        with session.inside() if session is not None else nullcontext():
            async with asyncio.timeout(provider.timeout):
                return await getattr(provider, method)(request, *args)
    except Exception as error:
        if provider.required:
            raise
        logger.warning("%r failed in %s and is left out: %s: %s", provider, method, type(error).__name__, error)
        return None
