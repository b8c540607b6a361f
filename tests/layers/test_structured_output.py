"""StructuredOutputChatClient: agents.md A9."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, Field

from agentpipe import (
    Agent,
    AgentSession,
    ChatClient,
    ChatOptions,
    ChatResponse,
    ChatResponseUpdate,
    EndpointProfile,
    FallbackChatClient,
    FunctionCallContent,
    FunctionInvokingChatClient,
    LoopLimits,
    OpenAIChatClient,
    OutputError,
    RefusalContent,
    StructuredOutputChatClient,
    TextContent,
    ToolLoopError,
    TransportError,
    UsageDetails,
    pipeline,
    tool,
)
from agentpipe.testing import ScriptedChatClient, call
from tests.conftest import ask, shape
from tests.strict_endpoint import StrictEndpoint


class City(BaseModel):
    name: str
    people: int = Field(ge=0)


PARIS = City(name="Paris", people=2_100_000)
RIGHT = PARIS.model_dump_json()
WRONG = '{"name":"Paris","people":-1}'
AS_CITY = ChatOptions(response_format=City)


class Endpoint(ScriptedChatClient):
    """A scripted client that tells what its endpoint takes."""

    def __init__(self, structured_output: Any, *steps: Any, **settings: Any) -> None:
        super().__init__(*steps, **settings)
        self.profile = EndpointProfile(structured_output=structured_output)


def census(name: str) -> int:
    """How many people live somewhere."""
    return 2_100_000


def typed(client: ChatClient, **settings: Any) -> Agent:
    return Agent(StructuredOutputChatClient(FunctionInvokingChatClient(client), **settings), tools=[census])


USAGE = UsageDetails(10, 1)


async def test_a_right_answer_passes(streaming: bool) -> None:
    """The answer is checked once, passed on as it comes, and parses."""
    client = ScriptedChatClient(RIGHT)
    response = await ask(typed(client), "The largest city?", streaming, options=AS_CITY)
    assert response.parse(City) == PARIS
    assert len(client.requests) == 1
    assert client.requests[0].options.response_format is City


@pytest.mark.parametrize("how", ["native", "prompt"])
async def test_a_wrong_answer_is_asked_for_again(streaming: bool, how: Any) -> None:
    """The model sees its answer and what is wrong with it; the exchange is in the transcript, and usage adds up."""
    client = ScriptedChatClient(call("census", name="Paris"), WRONG, RIGHT, usage=USAGE)
    session = AgentSession()
    response = await ask(typed(client, how=how), "The largest?", streaming, options=AS_CITY, session=session)
    assert response.parse(City) == PARIS
    assert [message.role for message in response.messages] == ["assistant", "tool", "assistant", "user", "assistant"]
    assert response.messages[2].text == WRONG
    assert "'people'" in response.messages[3].text
    assert "Answer again" in response.messages[3].text
    assert response.usage == UsageDetails(30, 3)
    assert shape(client.requests[2].messages) == shape([*session.messages[:1], *response.messages[:4]])
    assert shape(session.messages[1:]) == shape(response.messages)
    assert len({message.message_id for message in session.messages}) == 6


async def test_the_tool_way(streaming: bool) -> None:
    """A tool takes the object, beside the user's own; its wrong arguments are told to the model like any tool's."""
    script = [
        call("census", name="Paris"),
        call("final_answer", json.loads(WRONG)),
        call("final_answer", json.loads(RIGHT)),
    ]
    client = ScriptedChatClient(*script, usage=USAGE)
    response = await ask(typed(client, how="tool"), "The largest?", streaming, options=AS_CITY)
    assert response.parse(City) == PARIS
    assert response.stop_reason == "return_directly"
    assert response.function_results[0].text == "2100000"
    assert "'people'" in response.function_results[1].text
    assert response.usage == UsageDetails(30, 3)
    options = client.requests[0].options
    assert options.response_format is None
    assert [each.name for each in options.tools or ()] == ["census", "final_answer"]  # type: ignore[union-attr]
    assert options.tool_choice is None


async def test_the_tool_way_when_the_model_talks_instead(streaming: bool) -> None:
    """Text that is no object is asked for again, by the tool's name; text that is one is taken."""
    client = ScriptedChatClient("It is Paris.", call("final_answer", json.loads(RIGHT)))
    response = await ask(typed(client, how="tool"), "The largest?", streaming, options=AS_CITY)
    assert response.parse(City) == PARIS
    assert "Call final_answer with it" in client.requests[1].messages[-1].text
    assert client.requests[1].options.tool_choice == "final_answer"
    assert (await ask(typed(ScriptedChatClient(RIGHT), how="tool"), "?", streaming, options=AS_CITY)).parse(
        City
    ) == PARIS


async def test_a_final_answer_of_the_users_own(streaming: bool) -> None:
    """A tool of the user's that has the name already stays what it is; without other tools ours is called at once."""

    def final_answer(text: str) -> str:
        """Answer."""
        return f"not {text}"

    client = ScriptedChatClient(call("final_answer", text="x"), call("final_answer_", json.loads(RIGHT)))
    stack = StructuredOutputChatClient(FunctionInvokingChatClient(client), how="tool")
    response = await ask(stack, "?", streaming, options=AS_CITY.replace(tools=[final_answer]))
    assert response.parse(City) == PARIS
    assert response.function_results[0].text == "not x"
    alone = ScriptedChatClient(call("final_answer", json.loads(RIGHT)))
    await ask(
        StructuredOutputChatClient(FunctionInvokingChatClient(alone), how="tool"), "?", streaming, options=AS_CITY
    )
    assert alone.requests[0].options.tool_choice == "final_answer"


async def test_the_prompt_way(streaming: bool) -> None:
    """The schema goes into the instructions, and JSON mode is asked for."""
    client = ScriptedChatClient(f"```json\n{RIGHT}\n```")
    agent = Agent(StructuredOutputChatClient(FunctionInvokingChatClient(client), how="prompt"), "Be brief.")
    assert (await ask(agent, "?", streaming, options=AS_CITY)).parse(City) == PARIS
    options = client.requests[0].options
    assert options.response_format == {"type": "json_object"}
    assert options.instructions is not None
    assert options.instructions.startswith("Be brief.\n\nAnswer with one JSON object")
    assert '"people"' in options.instructions


@pytest.mark.parametrize(
    ("endpoint", "loop", "asked"),
    [
        ("json_schema", True, (City, 0)),
        ("json_schema", False, (City, 0)),
        ("json_object", True, (None, 1)),
        (None, True, (None, 1)),
        ("json_object", False, ({"type": "json_object"}, 0)),
        (None, False, ({"type": "json_object"}, 0)),
    ],
)
async def test_the_way_goes_by_the_endpoint(endpoint: Any, loop: bool, asked: Any, streaming: bool) -> None:
    """json_schema where the profile has it, else a tool where there is a loop to run it, else the prompt."""
    client = Endpoint(endpoint, RIGHT)
    inner = FunctionInvokingChatClient(client) if loop else client
    response = await ask(StructuredOutputChatClient(inner), "?", streaming, options=AS_CITY)
    options = client.requests[0].options
    assert (options.response_format, len(options.tools or ())) == asked
    assert response.parse(City) == PARIS


async def test_several_endpoints(streaming: bool) -> None:
    """Where one of several does not know schemas, the way is one that all of them know."""
    clients = [Endpoint(known, call("final_answer", json.loads(RIGHT))) for known in ("json_schema", "json_object")]
    stack = StructuredOutputChatClient(FunctionInvokingChatClient(FallbackChatClient(*clients)))
    assert (await ask(stack, "?", streaming, options=AS_CITY)).parse(City) == PARIS
    assert clients[0].requests[0].options.tool_choice == "final_answer"


@pytest.mark.parametrize("how", ["native", "tool", "prompt"])
@pytest.mark.parametrize("max_repairs", [0, 1, 2])
async def test_an_answer_that_stays_wrong(how: Any, max_repairs: int, streaming: bool) -> None:
    """After the last repair OutputError says what is wrong, and has all answers; None is never returned."""
    step: Any = call("final_answer", json.loads(WRONG)) if how == "tool" else WRONG
    client = ScriptedChatClient(*[step] * 9, usage=USAGE)
    session = AgentSession()
    agent = typed(client, how=how, max_repairs=max_repairs)
    with pytest.raises(OutputError, match="'people'") as caught:
        await ask(agent, "?", streaming, options=AS_CITY, session=session)
    assert len(client.requests) == max_repairs + 1
    assert caught.value.response is not None
    assert len(caught.value.response.messages) == 2 * (max_repairs + 1) - (how != "tool")
    assert caught.value.response.usage == UsageDetails(10 * (max_repairs + 1), max_repairs + 1)
    assert shape(session.messages[1:]) == shape(caught.value.response.messages)


async def test_an_object_that_is_never_json(streaming: bool) -> None:
    """Where the loop gives up on the arguments of the answer, that is an OutputError too; on other tools it is not."""
    broken = FunctionCallContent("c", "final_answer", {}, '{"name": "Par', "it ends in the middle")
    with pytest.raises(OutputError, match="it ends in the middle") as caught:
        await ask(typed(ScriptedChatClient(*[broken] * 9), how="tool"), "?", streaming, options=AS_CITY)
    assert isinstance(caught.value.__cause__, ToolLoopError)
    assert caught.value.response is caught.value.__cause__.response
    with pytest.raises(ToolLoopError):
        await ask(typed(ScriptedChatClient(*[call("nobody")] * 9), how="tool"), "?", streaming, options=AS_CITY)


async def test_what_is_no_answer_passes_untouched(streaming: bool) -> None:
    """A question to a person, a limit, a tool's own direct result, a call that goes to the caller: none is checked."""

    @tool(requires_approval=True)
    def delete(path: str) -> str:
        """Delete."""
        return path

    @tool(return_directly=True)
    def direct() -> str:
        """Answer."""
        return "the real result"

    declared = {"name": "declared"}
    cases: list[tuple[Any, Any, str]] = [
        ([delete], call("delete", path="x"), "approval"),
        ([direct], call("direct"), "return_directly"),
        ([], call("nobody"), "limit"),
        ([_declared(declared)], call("declared"), "declaration_only"),
    ]
    for how in ("native", "tool", "prompt"):
        for tools, step, stop_reason in cases:
            client = ScriptedChatClient(step, step, step)
            stack = StructuredOutputChatClient(FunctionInvokingChatClient(client), how=how)
            options = AS_CITY.replace(tools=tools, loop=LoopLimits(max_iterations=1, on_limit="return"))
            response = await ask(stack, "?", streaming, options=options)
            assert response.stop_reason == stop_reason
            assert len(client.requests) == 1
            assert response.text == ("the real result" if stop_reason == "return_directly" else "")


def _declared(definition: dict[str, str]) -> Any:
    from agentpipe import FunctionTool

    return FunctionTool(name=definition["name"])


async def test_after_an_approval_the_answer_is_checked(streaming: bool) -> None:
    """The run that takes up an approved call ends with a checked answer, repaired after the results."""
    done: list[str] = []

    @tool(requires_approval=True)
    def delete(path: str) -> str:
        """Delete."""
        done.append(path)
        return path

    client = ScriptedChatClient(call("delete", path="x"), WRONG, RIGHT)
    agent = Agent(StructuredOutputChatClient(FunctionInvokingChatClient(client)), tools=[delete], options=AS_CITY)
    session = AgentSession()
    waiting = await ask(agent, "?", streaming, session=session)
    response = await ask(agent, waiting.approval_requests[0].approve(), streaming, session=session)
    assert response.parse(City) == PARIS
    assert done == ["x"]


async def test_below_the_loop(streaming: bool) -> None:
    """Below the loop a call of a tool passes, and each answer in text is checked."""
    client = ScriptedChatClient(call("census", name="Paris"), WRONG, RIGHT)
    stack = pipeline(FunctionInvokingChatClient, StructuredOutputChatClient, client)
    response = await ask(Agent(stack, tools=[census]), "?", streaming, options=AS_CITY)
    assert response.parse(City) == PARIS
    assert len(client.requests) == 3


async def test_two_layers_and_a_layer_above_that_reads_the_answer(streaming: bool) -> None:
    """One above the other, an answer that the inner one saw to is right for the outer one too."""
    client = ScriptedChatClient(WRONG, RIGHT)
    stack = pipeline(StructuredOutputChatClient, StructuredOutputChatClient, FunctionInvokingChatClient, client)
    assert (await ask(stack, "?", streaming, options=AS_CITY)).parse(City) == PARIS
    assert len(client.requests) == 2


async def test_a_repair_does_not_force_the_tool_again(streaming: bool) -> None:
    """A tool that had to be called was called: the repair leaves the choice to the model."""
    client = ScriptedChatClient(call("census", name="Paris"), WRONG, RIGHT)
    response = await ask(typed(client), "?", streaming, options=AS_CITY.replace(tool_choice="required"))
    assert response.parse(City) == PARIS
    assert [request.options.tool_choice for request in client.requests] == ["required", "auto", "auto"]


async def test_an_endpoint_that_keeps_the_conversation(streaming: bool) -> None:
    """Where the endpoint has seen the answer, only what is wrong with it is sent."""
    steps = [
        [
            ChatResponseUpdate((TextContent(text),), "assistant", conversation_id="conv"),
            ChatResponseUpdate(finish_reason="stop"),
        ]
        for text in (WRONG, RIGHT)
    ]
    client = ScriptedChatClient(*steps)
    response = await ask(
        StructuredOutputChatClient(FunctionInvokingChatClient(client)), "?", streaming, options=AS_CITY
    )
    assert response.parse(City) == PARIS
    assert [message.role for message in client.requests[1].messages] == ["user"]
    assert client.requests[1].options.conversation_id == "conv"


async def test_a_refusal_and_a_cut_answer(streaming: bool) -> None:
    """A refusal is told at once and not argued with; an answer that was cut off is asked for again, with that said."""
    client = ScriptedChatClient([RefusalContent("I will not.")], RIGHT)
    with pytest.raises(OutputError, match=r"the model refused: I will not\."):
        await ask(StructuredOutputChatClient(client), "?", streaming, options=AS_CITY)
    assert len(client.requests) == 1
    cut = [ChatResponseUpdate((TextContent('{"name": "Par'),), "assistant"), ChatResponseUpdate(finish_reason="length")]
    client = ScriptedChatClient(cut, RIGHT)
    response = await ask(StructuredOutputChatClient(client), "?", streaming, options=AS_CITY)
    assert "cut off at the limit of output tokens" in response.messages[1].text
    filtered = [ChatResponseUpdate((TextContent(""),), "assistant"), ChatResponseUpdate(finish_reason="content_filter")]
    with pytest.raises(OutputError, match="filtered"):
        await ask(
            StructuredOutputChatClient(ScriptedChatClient(filtered), max_repairs=0), "?", streaming, options=AS_CITY
        )


@pytest.mark.parametrize(
    ("profile", "asked"),
    [("openai", "json_schema"), ("deepseek", "final_answer"), ("anthropic", "final_answer"), ("vllm", "json_schema")],
)
async def test_over_the_wire(profile: str, asked: str, streaming: bool) -> None:
    """A strict endpoint is asked in the way that its profile says, and takes the exchange of a repair and the next turn."""
    wrong, right = json.loads(WRONG), json.loads(RIGHT)
    steps: list[Any] = [{"tool_calls": [("census", {"name": "Paris"})]}]
    for answer in (wrong, right, right):
        by_tool: Any = {"tool_calls": [("final_answer", answer)]}
        steps.append(by_tool if asked == "final_answer" else json.dumps(answer))
    async with StrictEndpoint(*steps) as endpoint:
        client = OpenAIChatClient("m", base_url=endpoint.url, api_key="k", profile=profile)
        async with client:
            agent, session = typed(client), AgentSession()
            for _ in range(2):
                response = await ask(agent, "The largest?", streaming, options=AS_CITY, session=session)
                assert response.parse(City) == PARIS
        assert endpoint.refused == []
        body = endpoint.bodies[0]
        assert body.get("response_format", {}).get("type") == ("json_schema" if asked == "json_schema" else None)
        assert [tool["function"]["name"] for tool in body["tools"]][1:] == (
            ["final_answer"] if asked == "final_answer" else []
        )


async def test_what_is_no_type_is_left_to_the_endpoint(streaming: bool) -> None:
    """A dict goes down as it is and nothing is checked; without a response_format there is nothing to do."""
    client = ScriptedChatClient("no JSON", "no JSON")
    wanted = {"type": "json_object"}
    stack = StructuredOutputChatClient(client)
    assert (await ask(stack, "?", streaming, options=ChatOptions(response_format=wanted))).text == "no JSON"
    assert (await ask(stack, "?", streaming)).text == "no JSON"
    assert client.requests[0].options.response_format == wanted


@dataclass
class Point:
    x: int


@pytest.mark.parametrize("how", ["native", "tool", "prompt"])
@pytest.mark.parametrize(
    ("kind", "answer", "value"),
    [(Point, {"x": 1}, Point(1)), (list[int], {"value": [1, 2]}, [1, 2]), (int, {"value": 3}, 3)],
)
async def test_types_of_all_kinds(how: Any, kind: Any, answer: Any, value: Any, streaming: bool) -> None:
    """Dataclasses, lists and scalars, wrapped where endpoints want an object, in all three ways."""
    step: Any = call("final_answer", answer) if how == "tool" else json.dumps(answer)
    stack = StructuredOutputChatClient(FunctionInvokingChatClient(ScriptedChatClient(step)), how=how)
    response = await ask(stack, "?", streaming, options=ChatOptions(response_format=kind))
    assert response.parse(kind) == value


async def test_the_object_so_far() -> None:
    """While the answer streams, ``partial_output`` grows; after a repair it is the new one's."""
    stream = typed(ScriptedChatClient(WRONG, RIGHT, piece=5)).stream("?", options=AS_CITY)
    seen = [stream.partial_output async for _ in stream]
    assert {"name": "P"} in seen
    assert seen.index({"name": "Paris", "people": -1}) < seen.index({"name": "Paris", "people": 2_100_000})
    assert stream.partial.parse(City) == PARIS


async def test_errors_and_closing(streaming: bool) -> None:
    """What the inside raises passes, also in a repair; a consumer that stops closes what is under it."""
    client = ScriptedChatClient(WRONG, TransportError("down"))
    with pytest.raises(TransportError):
        await ask(StructuredOutputChatClient(client), "?", streaming, options=AS_CITY)
    client = ScriptedChatClient(RIGHT)
    async with StructuredOutputChatClient(client).stream("?", AS_CITY) as stream:
        await anext(stream)
        assert client.open == 1
    assert client.open == 0


async def test_a_bare_response_is_checked_too(streaming: bool) -> None:
    """A client that yields a whole response without ids is repaired all the same."""
    client = ScriptedChatClient(ChatResponse((), finish_reason="stop"), RIGHT)
    assert (await ask(StructuredOutputChatClient(client), "?", streaming, options=AS_CITY)).parse(City) == PARIS


def test_settings() -> None:
    """The layer prints what it was told, and refuses what cannot be."""
    client = ScriptedChatClient()
    assert repr(StructuredOutputChatClient(client)) == "StructuredOutputChatClient()"
    assert repr(StructuredOutputChatClient(client, max_repairs=3, how="prompt")) == (
        "StructuredOutputChatClient(max_repairs=3, how='prompt')"
    )
    with pytest.raises(ValueError, match="max_repairs must be a whole number of at least 0, not -1"):
        StructuredOutputChatClient(client, max_repairs=-1)
    with pytest.raises(ValueError, match="how must be one of native, tool, prompt or None, not 'json'"):
        StructuredOutputChatClient(client, how="json")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="how='tool' needs a FunctionInvokingChatClient inside"):
        StructuredOutputChatClient(client, how="tool")
