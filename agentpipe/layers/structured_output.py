"""Answers that have the type they were asked for."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal, get_args

from agentpipe._client import ChatClient, DelegatingChatClient
from agentpipe._messages import Message, TextContent
from agentpipe._options import ChatOptions, merge, tools_of
from agentpipe._records import new_id, to_json
from agentpipe._request import ChatRequest
from agentpipe._responses import ChatResponse, ChatResponseUpdate, ResponseFolder
from agentpipe._schema import OutputType, output_type
from agentpipe._tools import FunctionTool
from agentpipe._waist import closing
from agentpipe.exceptions import OutputError, ToolError, ToolLoopError
from agentpipe.layers.function_invoking import FunctionInvokingChatClient

How = Literal["native", "tool", "prompt"]


class StructuredOutputChatClient(DelegatingChatClient):
    """Sees to it that the answer is what ``response_format`` asks for, where that is a type.

    It says to the model what to answer in the way that the endpoint knows, checks the answer, and asks again with what
    is wrong with it. That exchange is part of the answer: the wrong answer, a message of the user that says what is
    wrong, and the new answer, in the same stream. ``response.parse(T)`` gives the object, and
    ``stream.partial_output`` what there is of it so far.

    People want it above the FunctionInvokingChatClient: tools work as ever, and one answer is checked for each run.
    Below it, each model call that calls no tool is checked. An answer that is none passes untouched: one that waits
    for approval, that was stopped by a limit or a tool, or that is a tool's own result. A ``response_format`` that is
    no type is left to the endpoint.

    Args:
        inner: The client to ask.
        max_repairs: How often to ask again; at least 0.
        how: "native" leaves it to the endpoint's json_schema; "tool" offers a tool ``final_answer`` that takes the
            object, which needs a FunctionInvokingChatClient inside; "prompt" writes the schema into the instructions
            and asks for JSON mode. None goes by the profiles of the endpoints inside: native where all have
            it, else tool, else prompt.

    Raises:
        ValueError: A setting is out of range, or nothing inside can run a tool.
        OutputError: While answering: the last answer does not fit either; ``error.response`` has all of them.
    """

    def __init__(self, inner: ChatClient, *, max_repairs: int = 1, how: How | None = None) -> None:
        super().__init__(inner)
        if not isinstance(max_repairs, int) or isinstance(max_repairs, bool) or max_repairs < 0:
            raise ValueError(f"max_repairs must be a whole number of at least 0, not {max_repairs!r}")
        if how is not None and how not in get_args(How):
            raise ValueError(f"how must be one of {', '.join(get_args(How))} or None, not {how!r}")
        if how == "tool" and inner.find(FunctionInvokingChatClient) is None:
            raise ValueError("how='tool' needs a FunctionInvokingChatClient inside, which runs the tool")
        self.max_repairs = max_repairs
        self.how: How | None = how

    def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Answer with what was asked for."""
        wanted = request.options.response_format
        if wanted is None or isinstance(wanted, (str, Mapping)):
            return self.inner.respond(request)
        return self._respond_typed(request, output_type(wanted))

    async def _respond_typed(self, request: ChatRequest, output: OutputType[Any]) -> AsyncIterator[ChatResponseUpdate]:
        how = self.how or _best_way(self.inner)
        down = request.replace(options=_asking(request.options, output, how, self.max_repairs))
        everything = ResponseFolder()
        for repairs_left in range(self.max_repairs, -1, -1):
            answer = ResponseFolder()
            async with closing(self._attempt(down)) as updates:
                async for update in updates:
                    answer.add(update)
                    everything.add(update)
                    yield update
            response = answer.response()
            wrong = _what_is_wrong(response, output)
            if wrong is None:
                return
            if not repairs_left or response.refusal:
                raise OutputError(wrong, response=everything.response())
            question = ChatResponseUpdate((_complaint(wrong, down.options),), "user", new_id("msg"))
            everything.add(question)
            yield question
            down = _asking_again(down, response, Message("user", tuple(question.contents), question.message_id))

    async def _attempt(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        try:
            async with closing(self.inner.respond(request)) as updates:
                async for update in updates:
                    yield update
        except ToolLoopError as error:
            if _failed_at_answer(error, request.options):
                raise OutputError(str(error), response=error.response) from error
            raise


_IN_WORDS = "Answer with one JSON object and nothing else. It has to fit this JSON schema:\n{schema}"
_TOOL = "final_answer"


def _what_is_wrong(response: ChatResponse, output: OutputType[Any]) -> str | None:
    """What is wrong with the answer; None where it is right, or is no answer."""
    if not _is_answer(response):
        return None
    if response.refusal:
        return f"the model refused: {response.refusal}"
    if response.finish_reason == "content_filter":
        return "the endpoint filtered the answer"
    try:
        output.parse(response.text)
    except ValueError as error:
        cut_off = "the answer was cut off at the limit of output tokens; " if response.finish_reason == "length" else ""
        return f"{cut_off}{error}"
    return None


def _failed_at_answer(error: ToolLoopError, options: ChatOptions) -> bool:
    """Whether it was the arguments of the answer that the loop gave up on."""
    tool = _output_tool(options)
    if tool is None or error.response is None or not error.response.function_results:
        return False
    return error.response.function_results[-1].name == tool.name


def _is_answer(response: ChatResponse) -> bool:
    """Whether the model has said its last word, rather than called something or been stopped."""
    if response.stop_reason not in (None, "answer"):
        return False
    answered = {result.call_id for result in response.function_results}
    return not response.approval_requests and all(call.call_id in answered for call in response.function_calls)


def _complaint(wrong: str, options: ChatOptions) -> TextContent:
    tool = _output_tool(options)
    again = f"Call {tool.name} with it" if tool else "Answer again, with the whole corrected JSON and nothing else"
    return TextContent(f"That is not the answer that was asked for: {wrong}. {again}.")


def _asking_again(request: ChatRequest, response: ChatResponse, question: Message) -> ChatRequest:
    options = request.options
    if tool := _output_tool(options):
        options = options.replace(tool_choice=tool.name)
    elif options.tool_choice not in (None, "none"):
        options = options.replace(tool_choice="auto")  # the choice that was made was for the first call
    conversation_id = response.conversation_id or options.conversation_id
    if conversation_id is not None:  # the endpoint has seen all but the question
        return request.replace(messages=[question], options=options.replace(conversation_id=conversation_id))
    return request.replace(messages=[*request.messages, *response.messages, question], options=options)


# ---------------------------------------------------------------------------------------------- three ways


#: Where the profile of an endpoint tells what it knows.
_KNOWN = "structured_output"


def _best_way(inner: ChatClient) -> How:
    profiles = [profile for layer in inner._walk() if hasattr(profile := getattr(layer, "profile", None), _KNOWN)]
    if all(getattr(profile, _KNOWN) == "json_schema" for profile in profiles):
        return "native"
    return "prompt" if inner.find(FunctionInvokingChatClient) is None else "tool"


def _asking(options: ChatOptions, output: OutputType[Any], how: How, max_repairs: int) -> ChatOptions:
    if how == "native":
        return options
    if how == "prompt":
        schema = json.dumps(output.schema, ensure_ascii=False)
        told = merge(options, ChatOptions(instructions=_IN_WORDS.format(schema=schema)))
        return told.replace(response_format={"type": "json_object"})
    tools = tools_of(options)
    name = _TOOL
    while any(tool.name == name for tool in tools):
        name += "_"
    choice = options.tool_choice or (None if tools else name)
    return options.replace(
        response_format=None, tools=[*tools, _OutputTool(name, output, max_repairs)], tool_choice=choice
    )


def _output_tool(options: ChatOptions) -> _OutputTool | None:
    return next((tool for tool in tools_of(options) if isinstance(tool, _OutputTool)), None)


class _OutputTool(FunctionTool):
    """The tool that takes the answer: its result is the answer of the run.

    What is wrong with the arguments is told to the model as the tool's result, as with any tool.
    """

    def __init__(self, name: str, output: OutputType[Any], max_repairs: int) -> None:
        super().__init__(
            self._take,
            name=name,
            description="Give the final answer. Call this once, when nothing else is left to do.",
            parameters=output.schema,
            return_directly=True,
            fatal=(OutputError,),
        )
        self._output = output
        self._repairs_left = max_repairs

    def bind(self, arguments: Mapping[str, Any], context: object = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """All arguments as one object: they are checked as a whole, like an answer in text."""
        return (arguments,), {}

    async def _take(self, arguments: Mapping[str, Any]) -> Any:
        try:
            self._output.validate(arguments)
        except ValueError as error:
            self._repairs_left -= 1
            if self._repairs_left < 0:
                raise OutputError(str(error)) from error
            raise ToolError(str(error)) from error
        return to_json(arguments)
