"""Agents: spec/agents.md."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from agentpipe import (
    Agent,
    AgentSession,
    ChatClient,
    ChatOptions,
    ChatRequest,
    ChatResponse,
    ChatResponseUpdate,
    Context,
    ContextProvider,
    DelegatingAgent,
    FunctionInvokingChatClient,
    HistoryError,
    HistoryProvider,
    Message,
    TextContent,
    ToolContext,
    TransportError,
    UsageDetails,
    pipeline,
    tool,
)
from agentpipe.testing import ScriptedChatClient, call
from tests.conftest import ask


async def echo(text: str = "") -> str:
    """Say it again."""
    return f"echo {text}"


class Listed(HistoryProvider):
    """Keeps messages in a list, and everything that was asked of it."""

    def __init__(self, log: list[str] | None = None, fails_at: int | None = None) -> None:
        self.messages: list[Message] = []
        self.batches: list[list[str]] = []
        self.log = log if log is not None else []
        self.fails_at = fails_at

    async def get_messages(self, session: AgentSession) -> Sequence[Message]:
        self.log.append("load")
        return list(self.messages)

    async def add_messages(self, session: AgentSession, messages: Sequence[Message]) -> None:
        if self.fails_at == len(self.batches):
            raise HistoryError("the store is full")
        self.batches.append([message.role for message in messages])
        self.log.append(f"store {' '.join(self.batches[-1])}")
        self.messages += messages


async def test_the_order_of_a_run(streaming: bool) -> None:
    """A2: History, providers in order, input stored, client, each round stored at once, providers in reverse order."""
    log: list[str] = []

    class Noted(ContextProvider):
        def __init__(self, name: str) -> None:
            self.name = name

        async def before_run(self, request: ChatRequest) -> None:
            log.append(f"before {self.name}")

        async def after_run(
            self, request: ChatRequest, response: ChatResponse | None, error: BaseException | None
        ) -> None:
            assert response is not None
            log.append(f"after {self.name} {response.text}")

    async def model(request: ChatRequest) -> Any:
        log.append("model")
        return [call("echo")] if len(request.messages) == 1 else "done"

    agent = Agent(
        ScriptedChatClient(model, model),
        tools=[echo],
        history_provider=Listed(log),
        context_providers=[Noted("a"), Noted("b")],
    )
    await ask(agent, "go", streaming, session=AgentSession())
    assert log == [
        "load", "before a", "before b", "store user", "model", "store assistant tool", "model", "store assistant",
        "after b done", "after a done",
    ]  # fmt: skip


async def test_an_agent_holds_no_state_of_a_run(streaming: bool) -> None:
    """A1: A thousand sessions at once on one agent share nothing."""

    async def model(request: ChatRequest) -> str:
        await asyncio.sleep(0)
        return " ".join(message.text for message in request.messages if message.role == "user")

    agent = Agent(ScriptedChatClient(*[model] * 2000))
    sessions = [AgentSession() for _ in range(1000)]

    async def two_turns(n: int) -> str:
        await ask(agent, f"a{n}", streaming, session=sessions[n])
        return (await ask(agent, f"b{n}", streaming, session=sessions[n])).text

    assert await asyncio.gather(*map(two_turns, range(1000))) == [f"a{n} b{n}" for n in range(1000)]


async def test_a_session_is_taken_up_where_it_was_left(streaming: bool) -> None:
    """A5: A session that was JSON in between goes on; what the model is sent is what was said."""
    client = ScriptedChatClient("one", "two")
    agent, session = Agent(client, "Be brief."), AgentSession()
    await ask(agent, "first", streaming, session=session)
    session = AgentSession.model_validate_json(session.model_dump_json())
    await ask(agent, "second", streaming, session=session)
    assert [message.text for message in client.requests[1].messages] == ["first", "one", "second"]
    assert client.requests[1].options.instructions == "Be brief."


async def test_who_owns_the_history(streaming: bool) -> None:
    """A4: The endpoint or a provider, not both: both at once for one session is an error that says so."""
    agent = Agent(ScriptedChatClient("x"), history_provider=Listed())
    with pytest.raises(ValueError, match="conversation_id='c1'"):
        await ask(agent, "go", streaming, session=AgentSession(conversation_id="c1"))
    client = ScriptedChatClient([ChatResponseUpdate([TextContent("a")], "assistant", conversation_id="c2")], "b")
    agent, session = Agent(client), AgentSession()
    await ask(agent, "one", streaming, session=session)
    assert session.conversation_id == "c2"
    await ask(agent, "two", streaming, session=session)
    assert [message.text for message in client.requests[1].messages] == ["two"]
    assert client.requests[1].options.conversation_id == "c2"


async def test_context_providers_add_what_they_return(streaming: bool) -> None:
    """A7: Instructions, messages, tools and tool middleware of providers hold for the run; messages are not stored."""

    async def first(request: ChatRequest) -> Context:
        return Context(instructions="Today is Monday.", messages=[Message("user", "(a note)")], tools=[echo])

    async def wrap(context: ToolContext[Any], call_next: Any) -> str:
        return f"<{await call_next(context)}>"

    async def second(request: ChatRequest) -> Context:
        return Context(messages=[Message("user", "(kept)")], middleware=[wrap], store=True)

    async def nothing(request: ChatRequest) -> None:
        assert request.messages[-1].text == "go"

    client = ScriptedChatClient([call("echo", text="x")], "done", "again")
    agent, session = Agent(client, "Be brief.", context_providers=[first, second, nothing]), AgentSession()
    response = await ask(agent, "go", streaming, session=session)
    assert client.requests[0].options.instructions == "Be brief.\n\nToday is Monday."
    assert [message.text for message in client.requests[0].messages] == ["(a note)", "(kept)", "go"]
    assert response.function_results[0].result == "<echo x>"
    assert [message.text for message in session.messages if message.role == "user"] == ["(kept)", "go"]


@pytest.mark.parametrize("how", ["raises", "hangs"])
async def test_an_optional_provider_may_fail(how: str, streaming: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A7: The failure of a provider that is not required is logged, and the run goes on; a required one ends it."""

    class Flaky(ContextProvider):
        required = False
        timeout = 0.01

        async def before_run(self, request: ChatRequest) -> Context | None:
            if how == "hangs":
                await asyncio.Event().wait()
            raise OSError("no database")

    agent = Agent(ScriptedChatClient("fine", "fine"), context_providers=[Flaky()])
    with caplog.at_level(logging.WARNING, "agentpipe"):
        assert (await ask(agent, "go", streaming)).text == "fine"
    assert "Flaky() failed in before_run" in caplog.text
    flaky = Flaky()
    flaky.required = True
    history = Listed()
    strict = Agent(ScriptedChatClient("never"), context_providers=[flaky], history_provider=history)
    with pytest.raises(OSError if how == "raises" else TimeoutError):
        await ask(strict, "go", streaming, session=AgentSession())
    assert history.batches == []  # nothing was begun, so nothing is stored


async def test_after_run_hears_of_failures(streaming: bool) -> None:
    """A7: after_run is told of a failure, with what there is of the response, in reverse order."""
    heard: list[Any] = []

    class Hears(ContextProvider):
        async def after_run(
            self, request: ChatRequest, response: ChatResponse | None, error: BaseException | None
        ) -> None:
            assert response is not None
            heard.append((type(error).__name__, len(response.messages)))

    agent = Agent(ScriptedChatClient([call("echo")], TransportError("gone")), tools=[echo], context_providers=[Hears()])
    with pytest.raises(TransportError):
        await ask(agent, "go", streaming)
    assert heard == [("TransportError", 2)]


@pytest.mark.parametrize("required", [True, False])
async def test_a_provider_that_fails_after_the_run(required: bool, streaming: bool) -> None:
    """A7: A failure in after_run is raised, the others hear of it, and what was said is stored; an optional one is logged."""
    heard: list[Any] = []

    class Hears(ContextProvider):
        async def after_run(
            self, request: ChatRequest, response: ChatResponse | None, error: BaseException | None
        ) -> None:
            heard.append(error)

    class Fails(ContextProvider):
        async def after_run(
            self, request: ChatRequest, response: ChatResponse | None, error: BaseException | None
        ) -> None:
            raise OSError("no database")

    failing, session = Fails(), AgentSession()
    failing.required = required
    agent = Agent(ScriptedChatClient("hi"), context_providers=[Hears(), failing])
    if required:
        with pytest.raises(OSError, match="no database") as caught:
            await ask(agent, "go", streaming, session=session)
        assert heard == [caught.value]
    else:
        assert (await ask(agent, "go", streaming, session=session)).text == "hi"
        assert heard == [None]
    assert [message.text for message in session.messages] == ["go", "hi"]


def test_what_is_no_provider_is_refused() -> None:
    """A provider has to be a ContextProvider or an async function; anything else raises where the agent is made."""
    with pytest.raises(TypeError, match="context provider"):
        Agent(ScriptedChatClient(), context_providers=[lambda request: None])  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="history_provider"):
        Agent(ScriptedChatClient(), history_provider="sqlite")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="ChatClient"):
        Agent("gpt-4o-mini")  # type: ignore[arg-type]


@pytest.mark.parametrize("fails_at", [0, 1, 2])
async def test_a_store_that_fails(fails_at: int, streaming: bool) -> None:
    """A store that fails raises HistoryError, with the answer that was paid for on it."""
    client = ScriptedChatClient([call("echo", text="x")], "done")
    agent = Agent(client, tools=[echo], history_provider=Listed(fails_at=fails_at))
    with pytest.raises(HistoryError) as caught:
        await ask(agent, "go", streaming, session=AgentSession())
    response = caught.value.response
    assert (len(response.messages) if response else 0) == [0, 2, 3][fails_at]
    assert len(client.requests) == fails_at
    assert fails_at < 2 or (response is not None and response.text == "done")


async def test_ten_runs_at_once_on_one_session(streaming: bool) -> None:
    """A3: Ten runs at once on one session take turns: whole turns, nothing interleaved, every message there."""

    async def model(request: ChatRequest) -> Any:
        await asyncio.sleep(0)
        return [call("echo", text="x")] if request.messages[-1].role == "user" else "done"

    agent, session = Agent(ScriptedChatClient(*[model] * 20), tools=[echo]), AgentSession()
    await asyncio.gather(*[ask(agent, f"{n}", streaming, session=session) for n in range(10)])
    assert [message.role for message in session.messages] == ["user", "assistant", "tool", "assistant"] * 10


async def test_a_consumer_that_leaves_frees_the_session() -> None:
    """A stream that is left gives the session back, and keeps what was finished."""
    agent, session = Agent(ScriptedChatClient("a long story", "next")), AgentSession()
    async with agent.stream("go", session=session) as stream:
        async for _ in stream:
            break
    assert [message.role for message in session.messages] == ["user"]
    assert (await agent.run("and now?", session=session)).text == "next"


async def test_messages_carry_the_agents_name(streaming: bool) -> None:
    """A12: Every assistant message of an agent carries its name; messages know where they came from."""
    origins: list[Any] = []

    async def note(request: ChatRequest) -> Context:
        return Context(messages=[Message("user", "(note)")])

    async def model(request: ChatRequest) -> str:
        origins.append([message.origin for message in request.messages])
        return "hi"

    agent, session = Agent(ScriptedChatClient(model, model), name="Ada", context_providers=[note]), AgentSession()
    await ask(agent, "go", streaming, session=session)
    response = await ask(agent, "go", streaming, session=session)
    assert [message.author_name for message in response.messages] == ["Ada"]
    assert origins == [["context", "input"], ["history", "history", "context", "input"]]


async def test_options_agent_run_provider(streaming: bool) -> None:
    """A8: Options merge agent <- run <- context providers; instructions join with a blank line."""

    async def provider(request: ChatRequest) -> Context:
        return Context(instructions="three", options=ChatOptions(temperature=0.3, stop=["c"]))

    client = ScriptedChatClient("x")
    base = ChatOptions(temperature=0.1, top_p=0.5, stop=["a"])
    agent = Agent(client, "one", options=base, context_providers=[provider])
    await ask(agent, "go", streaming, options=ChatOptions(instructions="two", temperature=0.2, seed=1, stop=["b"]))
    options = client.requests[0].options
    assert options.instructions == "one\n\ntwo\n\nthree"
    assert (options.temperature, options.top_p, options.seed, options.stop) == (0.3, 0.5, 1, ("a", "b", "c"))


async def test_cancelled_while_a_round_is_stored(streaming: bool) -> None:
    """A run that is cancelled while the store is at work tries again: the finished round is not lost."""
    storing = asyncio.Event()

    class Slow(Listed):
        async def add_messages(self, session: AgentSession, messages: Sequence[Message]) -> None:
            if len(messages) == 2 and not storing.is_set():
                storing.set()
                await asyncio.Event().wait()
            await super().add_messages(session, messages)

    history = Slow()
    agent = Agent(ScriptedChatClient([call("echo")], "never"), tools=[echo], history_provider=history)
    task = asyncio.ensure_future(ask(agent, "go", streaming, session=AgentSession()))
    await storing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [message.role for message in history.messages] == ["user", "assistant", "tool"]


def test_the_function_invoking_layer_is_added_once() -> None:
    """An agent adds the loop where there is none, and shows it in the tree."""
    script = ScriptedChatClient()
    assert str(Agent(script, name="Ada", tools=[echo])).split("\n") == [
        "Agent(name='Ada', tools=['echo'])",
        "├─ InMemoryHistoryProvider()",
        "└─ FunctionInvokingChatClient(max_iterations=40, max_consecutive_errors=3)",
        "   └─ ScriptedChatClient()",
    ]
    own = FunctionInvokingChatClient(script, max_iterations=3)
    assert Agent(own).client is own
    assert "calls tools, asks again" in Agent(own).to_mermaid()
    assert Agent(own).find(ScriptedChatClient) is script


async def test_agent_layers(streaming: bool) -> None:
    """Agent layers stand around an agent: a class, and functions of both forms."""
    log: list[str] = []

    class Layer(DelegatingAgent):
        async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
            log.append("class")
            async for update in self.inner.respond(request):
                yield update

    async def whole(request: ChatRequest, inner: Any) -> ChatResponse:
        log.append("whole")
        response: ChatResponse = await inner.run(request)
        return response.replace(metadata={"audited": True})

    agent = pipeline(whole, Layer, Agent(ScriptedChatClient("hi"), name="Ada"))
    response = await ask(agent, "go", streaming)
    assert (response.text, response.metadata, log) == ("hi", {"audited": True}, ["whole", "class"])
    assert agent.name == "Ada"


async def test_a_failing_run_below_a_whole_layer_loses_nothing(streaming: bool) -> None:
    """A whole middleware below the agent never yields on failure: the agent learns of finished rounds all the same."""

    async def whole(request: ChatRequest, inner: ChatClient) -> ChatResponse:
        return await inner.get_response(request)

    script = ScriptedChatClient([call("echo", text="x")], TransportError("gone"), "done")
    agent, session = Agent(pipeline(whole, FunctionInvokingChatClient, script), tools=[echo]), AgentSession()
    with pytest.raises(TransportError):
        await ask(agent, "go", streaming, session=session)
    assert [message.role for message in session.messages] == ["user", "assistant", "tool"]
    assert (await ask(agent, "again", streaming, session=session)).text == "done"


async def test_an_agent_as_a_chat_client(streaming: bool) -> None:
    """A11: agent.as_chat_client() is a client; client.as_agent(...) is an agent."""
    inner = Agent(ScriptedChatClient("from the inner one"), "Inner.")
    outer = inner.as_chat_client().as_agent("Outer.", name="Outer")
    assert isinstance(outer, Agent)
    assert (await ask(outer, "go", streaming, session=AgentSession())).text == "from the inner one"
    assert "Agent()" in str(outer)


async def test_an_agent_as_a_tool(streaming: bool) -> None:
    """A11, L25: An agent as a tool has a session of its own unless told, and passes its progress on where asked."""
    inner_client = ScriptedChatClient("answer one", "answer two", usage=UsageDetails(3))
    inner = Agent(inner_client, name="expert", description="Knows.")
    shared = AgentSession()
    tool = inner.as_tool(session=shared, progress=True)
    assert (tool.name, tool.description) == ("expert", "Knows.")
    script = ScriptedChatClient([call("expert", {"input": "a"}, "1")], [call("expert", {"input": "b"}, "2")], "done")
    outer = Agent(script, tools=[tool])
    progress: list[str] = []
    async with outer.stream("go") as stream:
        async for update in stream:
            progress += [content.text for content in update.contents if content.type == "progress"]  # type: ignore[attr-defined]
    assert "".join(progress) == "answer oneanswer two"
    assert [message.text for message in shared.messages] == ["a", "answer one", "b", "answer two"]
    with pytest.raises(ValueError, match="name"):
        Agent(ScriptedChatClient()).as_tool()


def test_run_sync_needs_no_event_loop() -> None:
    """run_sync runs in an event loop of its own, as often as wanted."""
    agent = Agent(ScriptedChatClient("one", "two"))
    assert [agent.run_sync("a").text, agent.run_sync("b").text] == ["one", "two"]


async def test_run_sync_inside_of_a_loop_says_what_to_do() -> None:
    """run_sync inside of an event loop raises, and says to await run."""
    with pytest.raises(RuntimeError, match="await agent.run"):
        Agent(ScriptedChatClient("x")).run_sync("a")


@pytest.mark.parametrize(
    "given", ["text", ["a", "b"], Message("user", "x"), [Message("user", "x"), "y"], TextContent("z")]
)
async def test_what_a_run_takes(given: Any, streaming: bool) -> None:
    """Input is text, a message, a content, or a sequence of these."""
    client = ScriptedChatClient("ok")
    await ask(Agent(client), given, streaming)
    assert all(message.role == "user" for message in client.requests[0].messages)


@pytest.mark.parametrize("given", [None, 5, b"bytes", {"role": "user"}, [5]])
async def test_what_a_run_does_not_take(given: Any, streaming: bool) -> None:
    """Anything else raises TypeError that says what was expected."""
    with pytest.raises(TypeError, match="text"):
        await ask(Agent(ScriptedChatClient("never")), given, streaming)


def own_tool(agent: list[Agent], session: AgentSession) -> Any:
    """The agent of a tool goes on in the session of the run that calls it."""
    return Agent(ScriptedChatClient("sub"), name="nested").as_tool(session=session)


def own_run(agent: list[Agent], session: AgentSession) -> Any:
    @tool
    async def nested(ctx: ToolContext[None], input: str) -> str:
        return (await agent[0].run(input, session=ctx.session)).text

    return nested


def own_run_in_a_task(agent: list[Agent], session: AgentSession) -> Any:
    @tool
    async def nested(ctx: ToolContext[None], input: str) -> str:
        return (await asyncio.create_task(agent[0].run(input, session=session))).text

    return nested


def own_run_in_a_thread(agent: list[Agent], session: AgentSession) -> Any:
    @tool
    def nested(input: str) -> str:
        return agent[0].run_sync(input, session=session).text

    return nested


def own_run_further_in(agent: list[Agent], session: AgentSession) -> Any:
    @tool
    async def deeper() -> str:
        return (await agent[0].run("deeper", session=session)).text

    return Agent(ScriptedChatClient([call("deeper")]), name="nested", tools=[deeper]).as_tool(session=AgentSession())


@pytest.mark.parametrize("how", [own_tool, own_run, own_run_in_a_task, own_run_in_a_thread, own_run_further_in])
async def test_a_session_inside_of_its_own_run(how: Any, streaming: bool) -> None:
    """A3: A run that waits for its own session would wait for ever: it raises instead, and the transcript is closed."""
    session = AgentSession()
    agents: list[Agent] = []
    script = ScriptedChatClient([call("nested", input="1"), call("other")], "on")

    async def other() -> None: ...

    agents.append(Agent(script, tools=[how(agents, session), other]))
    with pytest.raises(RuntimeError, match="used inside of its own run"):
        await ask(agents[0], "x", streaming, session=session)
    assert [message.role for message in session.messages] == ["user", "assistant", "tool"]
    assert (await ask(agents[0], "x", streaming, session=session)).text == "on"


async def test_a_context_provider_inside_of_its_own_run(streaming: bool) -> None:
    """A3: The same for a context provider."""

    async def provider(request: ChatRequest) -> None:
        await Agent(ScriptedChatClient("sub")).run("x", session=request.session)

    agent = Agent(ScriptedChatClient("on"), context_providers=[provider])
    with pytest.raises(RuntimeError, match="used inside of its own run"):
        await ask(agent, "x", streaming, session=AgentSession())


async def test_others_wait_for_their_turn_while_a_tool_runs(streaming: bool) -> None:
    """A3: A run that is none of the tool's waits its turn; so does one that the tool started and did not wait for."""
    running, go_on = asyncio.Event(), asyncio.Event()
    session = AgentSession()
    started: list[asyncio.Task[Any]] = []

    async def fire_and_forget() -> str:
        async def later() -> str:
            await go_on.wait()
            return (await agent.run("later", session=session)).text

        started.append(asyncio.create_task(later()))
        return "fired"

    async def slow() -> str:
        running.set()
        await go_on.wait()
        return "slow"

    script = ScriptedChatClient([call("fire_and_forget"), call("slow")], "first", "next", "next")
    agent = Agent(script, tools=[fire_and_forget, slow])
    first = asyncio.create_task(ask(agent, "x", streaming, session=session))
    await running.wait()
    second = asyncio.create_task(ask(agent, "unrelated", streaming, session=session))
    go_on.set()
    assert ((await first).text, (await second).text, await started[0]) == ("first", "next", "next")


async def test_a_message_that_is_said_again(streaming: bool) -> None:
    """A6: The same Message in a later turn is another message; in a run that is tried again it is the one it was."""
    again = Message("user", "go on", "mine")
    script = ScriptedChatClient("one", "two", TransportError("cut"), "three")
    agent, session = Agent(script), AgentSession()
    for _ in range(2):
        await ask(agent, again, streaming, session=session)
    assert [message.role for message in session.messages] == ["user", "assistant"] * 2
    retried = Message("user", "retry", "other")
    with pytest.raises(TransportError):
        await ask(agent, retried, streaming, session=session)
    await ask(agent, retried, streaming, session=session)
    assert [message.text for message in session.messages[4:]] == ["retry", "three"]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"instructions": 5}, "instructions must be text, not int"),
        ({"options": {}}, "options must be ChatOptions, not dict"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], told: str) -> None:
    """A setting of the wrong kind is told of at once, by its name."""
    with pytest.raises(TypeError, match=told):
        Agent(ScriptedChatClient(), **settings)
