"""Tools: functions that a model may call, and what they know while they run."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial, update_wrapper
from typing import Any, Generic, Literal, Protocol, TypeVar, cast, get_origin, overload

from agentpipe._messages import FunctionCallContent, InputRequestContent, Message
from agentpipe._records import new_id, to_json
from agentpipe._responses import UsageDetails
from agentpipe._schema import FunctionSchema, InvalidArguments, function_schema
from agentpipe._session import AgentSession

DepsT = TypeVar("DepsT")
F = TypeVar("F", bound=Callable[..., Any])

#: Whether a call needs a person's approval: always, never, or as a function of the call says.
ApprovalPolicy = bool | Callable[[FunctionCallContent], bool]


class Tool:
    """The base of what can be offered to a model."""

    name: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"


class HostedTool(Tool):
    """A tool that the endpoint runs itself, as the endpoint's JSON declares it (``{"type": "web_search", ...}``)."""

    def __init__(self, definition: Mapping[str, Any]) -> None:
        kind = definition.get("type")
        if not isinstance(kind, str) or not kind:
            raise ValueError("a hosted tool needs a 'type', for example {'type': 'web_search'}")
        self.name = kind
        self.definition = dict(definition)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HostedTool) and other.definition == self.definition

    def __hash__(self) -> int:
        return hash(self.name)


class FunctionTool(Tool):
    """A function that a model may call; calling it calls the function.

    Args:
        function: The function: sync or async, plain or a generator. None only declares the tool: a call of it ends
            the run, and the caller answers it.
        name: What the model calls it; the function's own name by default.
        description: What the model is told about it; the docstring by default.
        parameters: A JSON schema of the arguments instead of the one read off the signature. The function then gets
            the arguments as keywords.
        requires_approval: Whether a person has to allow a call first, or a function of the call that says so.
        return_directly: Whether the result is the answer of the run. It is not where another call of its round waits
            for a person: the run then ends for that, and the run that goes on asks the model.
        timeout: Seconds that a call may take.
        max_result_chars: How much of a result the model gets to see.
        fatal: Exceptions that stop the run instead of being told to the model.
        strict: Whether to ask the endpoint for strict adherence to the schema; None leaves it to the profile.

    Raises:
        TypeError: The function cannot be described; the message names the parameter.
        ValueError: A setting is out of range.
    """

    def __init__(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        description: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        requires_approval: ApprovalPolicy = False,
        return_directly: bool = False,
        timeout: float | None = None,
        max_result_chars: int | None = None,
        fatal: Sequence[type[BaseException]] = (),
        strict: bool | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        if function is None and not name:
            raise ValueError("a FunctionTool without a function needs a name")
        if function is not None and not callable(function):
            raise TypeError(f"a tool must be a function, not {type(function).__name__}")
        if callable(requires_approval) and _kind_of(requires_approval) != "sync":
            raise TypeError(f"requires_approval must be a plain function of the call, not {requires_approval!r:.80}")
        _check_positive("timeout", timeout)
        _check_positive("max_result_chars", max_result_chars)
        self.function = function
        self._schema = _schema_of(function) if function is not None and parameters is None else None
        self.name = name or (self._schema.name if self._schema else _name_of(function))
        self.description = description if description is not None else self._default_description()
        self._parameters = None if parameters is None else _checked_schema(self.name, parameters)
        self.requires_approval = requires_approval
        self.return_directly = return_directly
        self.timeout = timeout
        self.max_result_chars = max_result_chars
        self.fatal = tuple(fatal)
        self.strict = strict
        self.metadata = metadata
        self._kind: FunctionKind | None = None
        if function is not None:
            update_wrapper(cast("Any", self), function, assigned=("__doc__", "__module__", "__qualname__"), updated=())

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The JSON schema of the arguments."""
        if self._schema is not None:
            return self._schema.parameters
        return self._parameters if self._parameters is not None else {"type": "object", "properties": {}}

    @property
    def kind(self) -> FunctionKind:
        """How the function is to be run."""
        if self._kind is None:
            self._kind = _kind_of(self.function)
        return self._kind

    @property
    def declaration_only(self) -> bool:
        """Whether there is no function to run: whoever asked the model answers the call."""
        return self.function is None

    def bind(self, arguments: Mapping[str, Any], context: object = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What to call the function with; InvalidArguments, which says what is wrong, if ``arguments`` do not fit."""
        if self._schema is not None:
            return self._schema.bind(arguments, context)
        _check_names(arguments, self.parameters)
        return (), dict(arguments)

    def needs_approval(self, call: FunctionCallContent) -> bool:
        """Whether a person has to allow this ``call``."""
        policy = self.requires_approval
        return policy(call) if callable(policy) else bool(policy)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.function is None:
            raise TypeError(f"the tool {self.name!r} is only declared; there is no function to call")
        return self.function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> FunctionTool:
        """A tool made from a method is, on an instance, the tool of the bound method."""
        if instance is None or self.function is None:
            return self
        return self._with_function(self.function.__get__(instance, owner))

    def _with_function(self, function: Callable[..., Any]) -> FunctionTool:
        return FunctionTool(
            function,
            name=self.name,
            description=self.description,
            parameters=self._parameters,
            requires_approval=self.requires_approval,
            return_directly=self.return_directly,
            timeout=self.timeout,
            max_result_chars=self.max_result_chars,
            fatal=self.fatal,
            strict=self.strict,
            metadata=self.metadata,
        )

    def _default_description(self) -> str:
        if self._schema is not None:
            return self._schema.description
        return inspect.getdoc(self.function) or "" if self.function is not None else ""


FunctionKind = Literal["sync", "async", "generator", "async_generator"]


def _kind_of(function: object) -> FunctionKind:
    while isinstance(function, partial):
        function = function.func
    if not inspect.isroutine(function):
        function = getattr(function, "__call__", function)  # noqa: B004
    if inspect.iscoroutinefunction(function):
        return "async"
    if inspect.isasyncgenfunction(function):
        return "async_generator"
    return "generator" if inspect.isgeneratorfunction(function) else "sync"


def _schema_of(function: Callable[..., Any]) -> FunctionSchema:
    return function_schema(function, is_context=is_tool_context)


def _name_of(function: object) -> str:
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__name__", None)
    return str(name) if name else type(function).__name__


def _check_positive(name: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise ValueError(f"{name} must be greater than 0, not {value!r}")


def _checked_schema(name: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise TypeError(f"the parameters of the tool {name!r} must be a JSON schema of an object")
    return parameters


def _check_names(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
    known: Mapping[str, Any] = parameters.get("properties") or {}
    missing = [name for name in parameters.get("required") or () if name not in arguments]
    unknown = [] if parameters.get("additionalProperties") else [name for name in arguments if name not in known]
    wrong = [f"{name!r} is missing" for name in missing] + [f"unknown argument {name!r}" for name in unknown]
    if wrong:
        raise InvalidArguments("invalid arguments: " + "; ".join(wrong))


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    requires_approval: ApprovalPolicy = False,
    return_directly: bool = False,
    timeout: float | None = None,
    max_result_chars: int | None = None,
    fatal: Sequence[type[BaseException]] = (),
    strict: bool | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(function: Callable[..., Any] | None = None, /, **settings: Any) -> Any:
    """Make a `FunctionTool` of a function: ``@tool``, or ``@tool(requires_approval=True)`` with its settings.

    Plain functions are taken wherever tools are; the decorator is for the settings and for failing early.
    """
    if function is None:
        return partial(FunctionTool, **settings)
    return FunctionTool(function, **settings)


#: What is taken where a tool is due: a plain function stands for its FunctionTool, a dict for a HostedTool.
ToolLike = Tool | Callable[..., Any] | Mapping[str, Any]


def as_tool(value: ToolLike) -> Tool:
    """A `Tool` from a tool, a plain function or an endpoint's own declaration; TypeError for anything else."""
    if isinstance(value, Tool):
        return value
    if callable(value):
        return FunctionTool(value)
    if isinstance(value, Mapping):
        return HostedTool(value)
    raise TypeError(f"a tool must be a function, a FunctionTool or a HostedTool, not {type(value).__name__}")


class Tools(tuple[Tool, ...]):
    """Tools with distinct names."""

    __slots__ = ()


def as_tools(values: Iterable[ToolLike]) -> Tools:
    """`Tools` from what is taken where tools are due.

    Raises ValueError where two function tools have one name, TypeError for what is no tool.
    """
    if isinstance(values, Tools):
        return values
    if isinstance(values, (str, Mapping)) or not isinstance(values, Iterable):
        raise TypeError(f"tools must be a sequence of tools, not {type(values).__name__}")
    tools = Tools([as_tool(value) for value in values])
    _check_distinct(tools)
    return tools


def _check_distinct(tools: Iterable[Tool]) -> None:
    seen: set[str] = set()
    for tool in tools:
        if isinstance(tool, FunctionTool):
            if tool.name in seen:
                raise ValueError(f"two tools are named {tool.name!r}; give one of them another name: tool(name=...)")
            seen.add(tool.name)


class ToolSet(MutableSequence[Tool]):
    """The tools of a run, which a tool may change for the rest of it (``ctx.tools``).

    A list of tools with distinct names: ``append(function)``, ``remove("name")``, ``replace(tool)``, ``clear()``,
    ``ctx.tools["name"]``, ``"name" in ctx.tools``. The list that the caller gave stays as it is.
    """

    def __init__(self, tools: Iterable[ToolLike] = ()) -> None:
        self._tools = list(as_tools(tools))
        self.version = 0  # counts the changes, so that the loop sees that there was one

    def __len__(self) -> int:
        return len(self._tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(list(self._tools))

    def __getitem__(self, index: Any) -> Any:
        return self._named(index) if isinstance(index, str) else self._tools[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        changed = list(self._tools)
        if isinstance(index, slice):
            changed[index] = [as_tool(each) for each in value]
        else:
            changed[index] = as_tool(value)
        self._become(changed)

    def __delitem__(self, index: Any) -> None:
        changed = list(self._tools)
        del changed[index]
        self._become(changed)

    def __contains__(self, item: object) -> bool:
        return any(tool is item or tool.name == item for tool in self._tools)

    def insert(self, index: int, value: ToolLike) -> None:
        """Add a tool; ValueError if its name is taken."""
        changed = list(self._tools)
        changed.insert(index, as_tool(value))
        self._become(changed)

    def add(self, *tools: ToolLike) -> None:
        """Add tools; ValueError if a name is taken."""
        self._become([*self._tools, *map(as_tool, tools)])

    def remove(self, value: Any) -> None:
        """Take away a tool, given itself, its function or its name; ValueError if it is not there."""
        kept = [t for t in self._tools if not (t is value or t.name == value or getattr(t, "function", t) is value)]
        if len(kept) == len(self._tools):
            raise ValueError(f"there is no tool {value!r}; there are {[tool.name for tool in self._tools]}")
        self._become(kept)

    def replace(self, *tools: ToolLike) -> None:
        """Put each tool in the place of the one with its name, or at the end if there is none."""
        changed = {tool.name: tool for tool in self._tools}
        changed.update({tool.name: tool for tool in map(as_tool, tools)})
        self._become(list(changed.values()))

    def _named(self, name: str) -> Tool:
        for tool in self._tools:
            if tool.name == name:
                return tool
        raise KeyError(name)

    def _become(self, tools: list[Tool]) -> None:
        _check_distinct(tools)
        self._tools = tools
        self.version += 1

    def __repr__(self) -> str:
        return f"ToolSet({[tool.name for tool in self._tools]})"


@dataclass(frozen=True, slots=True)
class Resume:
    """What a tool that stopped with ``ctx.interrupt`` finds when it is run again.

    ``data`` is the answer's data, ``state`` what the tool asked to get back. ``answers`` are the answers themselves,
    where it asked more than one question.
    """

    data: Any = None
    state: Any = None
    answers: tuple[Any, ...] = ()


#: Tool middleware: ``async (context, call_next) -> result``; ``await call_next(context)`` goes on to the function.
ToolMiddleware = Callable[["ToolContext[Any]", Callable[..., Awaitable[Any]]], Awaitable[Any]]


def as_middleware(values: Iterable[ToolMiddleware]) -> tuple[ToolMiddleware, ...]:
    """Tool middleware, the first outermost; TypeError for what cannot be one."""
    middleware = tuple(values)
    for each in middleware:
        if not callable(each):
            raise TypeError(f"tool middleware must be an async function of context and call_next, not {each!r:.80}")
    return middleware


class Interrupted(BaseException):
    """Leaves a tool that waits for an answer; the loop takes it from there.

    Not an Exception, so that a tool's own ``except Exception`` does not swallow it.
    """

    def __init__(self, requests: Sequence[Any]) -> None:
        super().__init__("the tool waits for an answer")
        self.requests = tuple(requests)


class RunControl(Protocol):
    """What a tool may ask of the run that it is part of."""

    def terminate(self) -> None: ...
    def return_directly(self, call_id: str) -> None: ...
    def progress(self, call: FunctionCallContent, text: str) -> None: ...


@dataclass(slots=True, eq=False)
class ToolContext(Generic[DepsT]):
    """What a running tool knows and may do. A parameter annotated with it gets it, hidden from the model.

    Attributes:
        call: The call that is being answered.
        tool: The tool that runs.
        arguments: The arguments of the call, as JSON values.
        request: The `ChatRequest` of the run.
        session: The session of the run, or None.
        deps: The caller's own object (``agent.run(..., deps=...)``).
        iteration: Which round of the loop this is, from 1.
        index: The place of this call among the calls of its round, from 0.
        count: How many calls the round has.
        tools: The tools of the run; what a tool changes here holds for the rest of it.
        resume: What came of an earlier `interrupt` of this very call, or None.
    """

    call: FunctionCallContent
    tool: FunctionTool | None
    arguments: Mapping[str, Any]
    transcript: Callable[[], Sequence[Message]] = field(repr=False)
    request: Any = field(repr=False)
    session: AgentSession | None
    deps: DepsT = field(repr=False)  # as in ChatRequest: the user's own, and may hold keys
    iteration: int
    index: int
    count: int
    tools: ToolSet
    resume: Resume | None = None
    usage: UsageDetails | None = None
    _run: RunControl | None = None
    _asked: int = 0

    @property
    def messages(self) -> Sequence[Message]:
        """What the model was sent, and what it answered; read only."""
        return tuple(self.transcript())

    def terminate(self) -> None:
        """Ask for no more model calls: the run ends after this round, with stop_reason "terminated".

        Where another call of the round waits for a person the run ends for that, and the run that goes on starts clean.
        """
        if self._run is not None:
            self._run.terminate()

    def return_directly(self) -> None:
        """Make this call's result the answer of the run."""
        if self._run is not None:
            self._run.return_directly(self.call.call_id)

    def progress(self, text: str) -> None:
        """Tell who watches the stream how far this is; no part of the transcript. May be called from any thread."""
        if self._run is not None:
            self._run.progress(self.call, text)

    def interrupt(self, payload: object, state: object = None) -> Any:
        """Stop for an answer to the question ``payload`` (any JSON value).

        The run ends with an `InputRequestContent`. When the answer is there, the tool is run again from its start:
        this call then returns the answer's data, and ``ctx.resume`` has it together with ``state``. A tool that asks
        several times gets the answers in the order of its questions.
        """
        answers = self.resume.answers if self.resume is not None else ()
        self._asked += 1
        if self._asked <= len(answers):
            return answers[self._asked - 1].data
        raise Interrupted([InputRequestContent(new_id("input"), self.call, to_json(payload), to_json(state))])

    def add_usage(self, usage: UsageDetails | None) -> None:
        """Count tokens that the tool itself used (a model of its own) in the usage of the run."""
        if usage is not None:
            self.usage = usage if self.usage is None else self.usage + usage


def is_tool_context(annotation: object) -> bool:
    """Whether a parameter with this annotation gets the `ToolContext`."""
    return annotation is ToolContext or get_origin(annotation) is ToolContext


TOOL_CONTEXT: ContextVar[ToolContext[Any] | None] = ContextVar("agentpipe_tool_context", default=None)


def current_tool_context() -> ToolContext[Any] | None:
    """The context of the tool that is running here, or None outside of tools."""
    return TOOL_CONTEXT.get()
