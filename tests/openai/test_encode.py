"""What goes out: sane for every endpoint, and by the profile where endpoints differ."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentpipe import (
    ChatOptions,
    DataContent,
    EndpointProfile,
    FunctionCallContent,
    FunctionResultContent,
    Message,
    ReasoningContent,
    TextContent,
    UriContent,
    assistant,
    system,
    tool,
    user,
)
from agentpipe._request import ChatRequest
from agentpipe.openai import load_tools
from agentpipe.openai._body import BodyBuilder
from tests.endpoints.constraints import broken
from tests.strict_endpoint import faults

Json = dict[str, Any]
IMAGE = DataContent(b"image", "image/png")


@tool
def add(a: int, b: int = 0) -> int:
    """Add two numbers."""
    return a + b


def body_of(
    messages: list[Message], profile: EndpointProfile | None = None, *, streaming: bool = False, **options: Any
) -> Json:
    request = ChatRequest(messages, ChatOptions(**options), streaming)
    body: Json = json.loads(BodyBuilder(profile or EndpointProfile()).build(request, "m")[0])
    return body


def turn(*calls: tuple[str, object], call_id: str = "c") -> list[Message]:
    """A message with calls, and their results."""
    made = [FunctionCallContent(f"{call_id}{n}", name, {"a": n}) for n, (name, _) in enumerate(calls)]
    results = [FunctionResultContent(f"{call_id}{n}", name, result) for n, (name, result) in enumerate(calls)]
    return [assistant(*made), Message("tool", tuple(results))]


# --------------------------------------------------------------------------------------------- messages


def test_a_conversation() -> None:
    """Instructions first, text as plain strings, null beside calls, one message a result."""
    history = [system("Be brief."), user("Hi"), *turn(("add", 3), ("add", {"b": [1]})), assistant("Done.")]
    body = body_of(history, instructions="You are Ada.", tools=[add])
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a":0}'}}
    assert body["messages"] == [
        {"role": "system", "content": "You are Ada."},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c0", **call},
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}},
        ]},
        {"role": "tool", "tool_call_id": "c0", "content": "3"},
        {"role": "tool", "tool_call_id": "c1", "content": '{"b":[1]}'},
        {"role": "assistant", "content": "Done."},
    ]  # fmt: skip


def test_a_broken_history_goes_out_whole() -> None:
    """Open calls get a result, orphans go, results stand directly behind their calls."""
    call, result = turn(("add", 1))
    open_call = assistant(FunctionCallContent("open", "add", {}))
    orphan = Message("tool", (FunctionResultContent("orphan", "add", 1),))
    body = body_of([user("a"), call, user("between"), result, orphan, open_call, user("b")], tools=[add])
    assert list(faults(body)) == []
    assert [m["role"] for m in body["messages"]] == ["user", "assistant", "tool", "user", "assistant", "tool", "user"]
    assert "not recorded" in body["messages"][5]["content"]


def test_questions_and_answers_about_calls_are_not_sent() -> None:
    """What people decided on is no message to the model."""
    from agentpipe import ApprovalRequestContent

    request = ApprovalRequestContent("r", FunctionCallContent("c", "add", {}))
    body = body_of([user("a"), assistant(request), Message("user", (request.reject(),)), user("b")], tools=[add])
    assert list(faults(body)) == []
    assert "approv" not in json.dumps(body["messages"])


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b", "\x00"])
def test_characters_that_no_endpoint_takes_are_left_out(text: str) -> None:
    """NUL and half characters go out nowhere."""
    call = FunctionCallContent("c", "add", {"a": text, text: 1})
    messages = [
        system(text), user(text, text), assistant(text, call), Message("tool", (FunctionResultContent("c", "add", text),))
    ]  # fmt: skip
    body = body_of(messages, instructions=text, tools=[add])
    assert broken({"no_bad_chars": True}, body) is None


@pytest.mark.parametrize("raw", ["", "5", "[1]", "{bad", '{"a": 1} {"a": 2}', '{"a": 1}'])
def test_arguments_go_out_as_the_text_of_an_object(raw: str) -> None:
    """Whatever a model sent, what it sees of it later is the text of an object."""
    messages = [user("x"), assistant(FunctionCallContent("c", "add", {}, raw, "it is wrong" if raw else None))]
    body = body_of(messages, tools=[add])
    assert list(faults(body)) == []


def test_media_in_messages_of_the_user(tmp_path: Path) -> None:
    """Images by address, bytes and path, sound and files, each in OpenAI's form."""
    (tmp_path / "a.png").write_bytes(b"image")
    contents = [
        TextContent("look"), UriContent("https://x.test/a.png"), IMAGE, DataContent.from_path(tmp_path / "a.png"),
        DataContent(b"sound", "audio/wav"), DataContent(b"%PDF", "application/pdf", "a.pdf"),
    ]  # fmt: skip
    (message,) = body_of([user(*contents)])["messages"]
    encoded = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aW1hZ2U="}}
    assert message["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}},
        encoded,
        encoded,
        {"type": "input_audio", "input_audio": {"data": "c291bmQ=", "format": "wav"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERg==", "filename": "a.pdf"}},
    ]


def result_with_image(call_id: str) -> Message:
    return Message("tool", (FunctionResultContent(call_id, "add", "see", contents=(IMAGE,)),))


def test_images_of_a_tool_follow_in_a_message_of_the_user() -> None:
    """Media of a result stand behind all the results of the turn, also where each result is a message of its own."""
    calls = assistant(FunctionCallContent("c0", "add", {}), FunctionCallContent("c1", "add", {}))
    history = [user("x"), calls, result_with_image("c0"), result_with_image("c1")]
    body = body_of(history, tools=[add])
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "tool", "tool", "user"]
    assert [part["type"] for part in body["messages"][-1]["content"]] == ["text", "image_url", "image_url"]
    assert list(faults(body)) == []
    within = body_of(history, EndpointProfile(tool_images=True), tools=[add])["messages"]
    assert [part["type"] for part in within[2]["content"]] == ["text", "image_url"]
    assert len(within) == 4


# ---------------------------------------------------------------------------------------------- options


def test_options_under_their_names() -> None:
    """Each option goes under the name that endpoints have for it, and what is None not at all."""
    body = body_of([user("x")], temperature=0.5, top_p=0.9, max_output_tokens=7, stop="end", seed=3,
                   frequency_penalty=0.1, presence_penalty=0.2, reasoning_effort="low")  # fmt: skip
    assert body == {
        "model": "m", "messages": [{"role": "user", "content": "x"}], "temperature": 0.5, "top_p": 0.9, "max_tokens": 7,
        "stop": ["end"], "seed": 3, "frequency_penalty": 0.1, "presence_penalty": 0.2, "reasoning_effort": "low",
    }  # fmt: skip
    assert body_of([user("x")]).keys() == {"model", "messages"}


def test_without_tools_nothing_is_said_of_tools() -> None:
    """No empty list, no choice, no parallel calls where there is no tool."""
    body = body_of([user("x")], tools=[], tool_choice="required", parallel_tool_calls=True)
    assert body.keys() == {"model", "messages"}


@pytest.mark.parametrize(
    ("choice", "takes", "sent"),
    [
        ("required", ("auto", "none", "required", "named"), "required"),
        ("add", ("auto", "none", "required", "named"), {"type": "function", "function": {"name": "add"}}),
        ("add", ("auto", "required"), "required"),
        ("add", ("auto",), "auto"),
        ("required", ("auto", "none"), "auto"),
        ("none", ("auto", "none"), "none"),
    ],
)
def test_tool_choice_by_profile(choice: str, takes: tuple[str, ...], sent: object) -> None:
    """A choice that the endpoint does not take becomes the nearest that it does."""
    body = body_of([user("x")], EndpointProfile(tool_choice=takes), tools=[add], tool_choice=choice)
    assert body["tool_choice"] == sent


def test_extra_body_wins() -> None:
    """What the caller puts into the body is there as it is, whatever we would have sent."""
    extra = {"temperature": 1, "model": "other", "messages": [], "tools": [], "guided_json": {"a": 1}}
    body = body_of([user("x")], temperature=0.1, tools=[add], extra_body=extra)
    assert body == extra


@dataclass
class City:
    name: str
    inhabitants: int


def test_response_format() -> None:
    """A dict goes as it is; a type by what the endpoint takes."""
    given = {"type": "json_object"}
    assert body_of([user("x")], response_format=given)["response_format"] == given
    sent = body_of([user("x")], response_format=City)["response_format"]
    assert sent["type"] == "json_schema"
    assert sent["json_schema"]["name"] == "City"
    assert sent["json_schema"]["schema"]["properties"].keys() == {"name", "inhabitants"}
    older = EndpointProfile(structured_output="json_object")
    assert body_of([user("x")], older, response_format=City)["response_format"] == given
    assert "response_format" not in body_of([user("x")], EndpointProfile(structured_output=None), response_format=City)


def test_names_that_no_endpoint_takes_are_mapped() -> None:
    """A tool's odd name gets one that fits, the same in the list, the history and the choice, and unique."""
    names = ["a.b/c", "a_b_c", "ü" * 80, "a.b.c"]
    tools = load_tools([{"type": "function", "function": {"name": name}} for name in names])
    call = assistant(FunctionCallContent("c", "a.b/c", {}))
    request = ChatRequest([user("x"), call], ChatOptions(tools=tools, tool_choice="a.b/c"))
    content, wire = BodyBuilder(EndpointProfile()).build(request, "m")
    body = json.loads(content)
    sent = [declared["function"]["name"] for declared in body["tools"]]
    assert len(set(sent)) == 4
    assert broken({"tool_name_pattern": "[a-zA-Z0-9_-]{1,64}"}, body) is None
    assert body["messages"][1]["tool_calls"][0]["function"]["name"] == sent[0]
    assert body["tool_choice"]["function"]["name"] == sent[0]
    assert [wire.to_own.get(name, name) for name in sent] == names


# --------------------------------------------------------------------------------------------- profiles

HISTORY = [
    system("One."), user("a"), user("b"), system("Two."), assistant("c"), *turn(("add", ""), ("add", 2), call_id="x"),
    user("d"), *turn(("add", 3), call_id="x"), user("e"), assistant("f"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("profile", "constraint"),
    [
        ({"system_role": "user"}, {"forbid_role": ["system", "developer"]}),
        ({"system_role": "developer"}, {"forbid_role": ["system"]}),
        ({"multiple_system": False}, {"single_leading_system": True}),
        ({"strict_alternation": True, "multiple_system": False}, {"alternate": True, "single_leading_system": True}),
        ({"strict_alternation": True, "system_role": "user"}, {"alternate": True, "forbid_role": ["system"]}),
        ({"assistant_after_tool": True}, {"no_user_after_tool": True}),
        ({"assistant_prefill": False}, {"last_role": ["user", "tool"]}),
        ({"message_name": False}, {"forbid_message_key": ["name"]}),
        ({"tool_call_content": ""}, {"no_null_content": True}),
        ({"tool_call_content": None, "empty_tool_result": "(nothing)"}, {"no_empty_content": True}),
        ({"tool_id_format": "mistral9"}, {"tool_id_pattern": "[a-zA-Z0-9]{9}"}),
        ({"reasoning_echo": "reasoning_content"}, {"reasoning_content_required": True}),
        ({"max_tokens_field": "max_completion_tokens"}, {"forbid_param": ["max_tokens"]}),
        ({"parallel_tool_calls": False}, {"forbid_param": ["parallel_tool_calls"]}),
        ({"tool_choice": ["auto"]}, {"tool_choice_allowed": ["auto"]}),
        ({"strict_tools": False}, {"forbid_tool_key": ["strict"]}),
        ({"strict_tools": True}, {"strict_uniform": True}),
        ({"stream_usage": False}, {"forbid_param": ["stream_options"]}),
        ({"supports_sampling": False}, {"forbid_param": ["temperature", "top_p", "presence_penalty"]}),
    ],
    ids=lambda value: next(iter(value)),
)
@pytest.mark.parametrize("streaming", [False, True])
def test_each_field_keeps_its_promise(profile: Json, constraint: Json, streaming: bool) -> None:
    """What a profile says that an endpoint refuses is not in the request, and the transcript stays in order."""
    body = body_of(HISTORY, EndpointProfile(**profile), streaming=streaming, tools=[add], temperature=1.0, top_p=1.0,
                   presence_penalty=0.0, max_output_tokens=5, parallel_tool_calls=False, tool_choice="required",
                   instructions="Zero.")  # fmt: skip
    assert broken(constraint, body) is None
    assert broken({"tool_results_complete": True, "no_orphan_tool": True, "args_json_object": True}, body) is None
    assert list(faults(body)) == []
    said = json.dumps(body["messages"])
    assert all(text in said for text in ("Zero.", "One.", "Two."))


def test_all_constraints_of_a_strict_template_at_once() -> None:
    """Fields of a profile can be combined without getting in each other's way."""
    profile = EndpointProfile(system_role="user", strict_alternation=True, assistant_after_tool=True,
                              assistant_prefill=False, tool_id_format="mistral9", tool_call_content="")  # fmt: skip
    body = body_of([*HISTORY, result_with_image("none"), user(IMAGE)], profile, tools=[add], instructions="Zero.")
    rules = {"forbid_role": ["system"], "no_user_after_tool": True, "last_role": ["user"], "no_null_content": True,
             "tool_id_pattern": "[a-zA-Z0-9]{9}"}  # fmt: skip
    assert broken(rules, body) is None


def test_a_stub_where_tools_are_required_with_history() -> None:
    """An endpoint that wants tools declared with calls in the history gets one, and is told not to call it."""
    profile = EndpointProfile(tools_required_with_history=True)
    body = body_of([user("x"), *turn(("add", 1))], profile)
    assert list(faults(body)) == []
    assert body["tool_choice"] == "none"
    assert "tools" not in body_of([user("x")], profile)


@pytest.mark.parametrize(
    ("echo", "expected"),
    [
        (None, {}),
        ("reasoning_content", {"reasoning_content": "hm"}),
        ("reasoning", {"reasoning": "hm"}),
        ("reasoning_details", {"reasoning_details": [{"type": "reasoning.text", "text": "hm", "signature": "s"}]}),
    ],
)
def test_thoughts_are_echoed_by_profile(echo: Any, expected: Json) -> None:
    """Thoughts go back in the field in which the endpoint wants them, or not at all."""
    details = {"reasoning_details": [{"type": "reasoning.text", "text": "hm", "signature": "s"}]}
    message = assistant(ReasoningContent("hm", details), TextContent("yes"))
    encoded = body_of([user("x"), message, user("y")], EndpointProfile(reasoning_echo=echo))["messages"][1]
    assert encoded == {"role": "assistant", "content": "yes", **expected}


def test_thinking_is_switched_on_by_the_profiles_fields() -> None:
    """Where thinking has a switch of its own, an effort turns it."""
    profile = EndpointProfile(thinking_param={"thinking": {"type": "enabled"}})
    assert body_of([user("x")], profile, reasoning_effort="high")["thinking"] == {"type": "enabled"}
    assert "thinking" not in body_of([user("x")], profile)


DEEP = {
    "type": "object", "$schema": "https://json-schema.org/draft/2020-12/schema", "additionalProperties": False,
    "properties": {
        "node": {"$ref": "#/$defs/Node"},
        "size": {"type": ["integer", "null"], "exclusiveMinimum": 0},
        "kind": {"const": "x"},
        "$ref": {"type": "string", "title": "a property that is called so"},
    },
    "$defs": {"Node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}}}},
}  # fmt: skip


def parameters(schema: Any, profile: EndpointProfile) -> Json:
    tools = load_tools([{"type": "function", "function": {"name": "f", "parameters": schema}}])
    found: Json = body_of([user("x")], profile, tools=tools)["tools"][0]["function"]["parameters"]
    return found


def test_schemas_by_profile() -> None:
    """References are put in place and keywords that are refused are said otherwise, or dropped; recursion ends."""
    refused = ["additionalProperties", "$schema", "$defs", "exclusiveMinimum", "const"]
    gemini = parameters(DEEP, EndpointProfile(schema="gemini"))
    body = {"tools": [{"function": {"name": "f", "parameters": gemini}}]}
    assert broken({"schema_forbid": refused}, body) is None
    assert gemini["properties"]["size"] == {"type": "integer", "nullable": True}
    assert gemini["properties"]["kind"]["enum"] == ["x"]
    assert gemini["properties"]["$ref"] == {"type": "string", "title": "a property that is called so"}
    inlined = parameters(DEEP, EndpointProfile(schema="inline_refs"))
    assert inlined["properties"]["node"]["properties"]["next"]
    assert "$defs" not in inlined
    assert parameters({}, EndpointProfile()) == {"type": "object", "properties": {}}
    assert parameters({"type": "object"}, EndpointProfile())["properties"] == {}


# ---------------------------------------------------------------------------------------------- caching


def test_what_was_encoded_once_is_the_same_bytes_again() -> None:
    """A second request says the same of old messages, and a new message is a new one even at an old address."""
    builder = BodyBuilder(EndpointProfile())
    options = ChatOptions(tools=[add])
    history: list[Message] = [user("start")]
    for number in range(50):
        history.append(user(f"message {number}"))
        request = ChatRequest(list(history), options)
        cached, _ = builder.build(request, "m")
        fresh, _ = BodyBuilder(EndpointProfile()).build(request, "m")
        assert cached == fresh
    for number in range(200):  # each is gone before the next is made, so that addresses are used again
        content, _ = builder.build(ChatRequest([user(f"short-lived {number}")]), "m")
        assert json.loads(content)["messages"][0]["content"] == f"short-lived {number}"


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that has seen very many messages has not kept them all."""
    monkeypatch.setattr("agentpipe.openai._body._MESSAGES", 10)
    builder = BodyBuilder(EndpointProfile())
    for number in range(100):
        builder.build(ChatRequest([user(str(number))]), "m")
    assert len(builder._messages) <= 10
