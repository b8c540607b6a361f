"""How endpoints differ in what they take.

What an endpoint *sends* is read by one set of rules. What it *takes* is a profile: given, named, or guessed from the
host and the model, never wrongly enough to break.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

SystemRole = Literal["system", "developer", "user"]
ReasoningEcho = Literal["reasoning_content", "reasoning", "reasoning_details"]
SchemaForm = Literal["default", "inline_refs", "gemini", "strict"]
StructuredOutput = Literal["json_schema", "json_object"]

_ALL_CHOICES = ("auto", "none", "required", "named")


@dataclass(frozen=True, slots=True)
class EndpointProfile:
    """What an endpoint takes, where it is not what every endpoint takes; ``str(profile)`` shows the difference.

    Args:
        system_role: The role of instructions; "user" folds them into the first message of the user.
        multiple_system: Whether there may be several system messages, anywhere; else they are joined into one, first.
        strict_alternation: Whether neighbours must differ in role and the first must be the user's.
        assistant_after_tool: Whether an assistant message has to stand between a tool's and a user's.
        assistant_prefill: Whether the last message may be the assistant's.
        message_name: Whether messages may carry a ``name``.
        tool_call_content: The content beside calls: "auto" (null), "" or None (null).
        empty_tool_result: What is sent for an empty result.
        tool_id_format: "mistral9" makes ids of nine letters and digits.
        reasoning_echo: The field in which the model wants to see its own thoughts again.
        thinking_param: Body fields that switch thinking on, sent with a ``reasoning_effort``.
        max_tokens_field: Where the limit of output tokens goes.
        parallel_tool_calls: Whether ``parallel_tool_calls`` is known.
        tool_choice: The values that tool_choice takes ("named" is a tool by name); others become "auto".
        tools_required_with_history: Whether tools have to be declared where the history has calls.
        strict_tools: Whether ``strict`` is sent for tools: None as the tool says, False never, True always.
        schema: What schemas may hold.
        stream_usage: Whether a stream can be asked for its usage.
        supports_sampling: Whether temperature, top_p and penalties are taken.
        recover_text_tool_calls: Read a message that is nothing but a <tool_call> block as a call.
        cumulative_deltas: Whether each piece of a stream repeats all that came before.
        structured_output: What ``response_format`` takes; None for nothing.
        tool_images: Whether images may stand in tool messages; else they follow in a user message.
    """

    system_role: SystemRole = "system"
    multiple_system: bool = True
    strict_alternation: bool = False
    assistant_after_tool: bool = False
    assistant_prefill: bool = True
    message_name: bool = True
    tool_call_content: str | None = "auto"
    empty_tool_result: str = ""
    tool_id_format: Literal["mistral9"] | None = None
    reasoning_echo: ReasoningEcho | None = None
    thinking_param: Mapping[str, Any] | None = field(default=None, hash=False)
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    parallel_tool_calls: bool = True
    tool_choice: Sequence[str] = _ALL_CHOICES
    tools_required_with_history: bool = False
    strict_tools: bool | None = None
    schema: SchemaForm = "default"
    stream_usage: bool = True
    supports_sampling: bool = True
    recover_text_tool_calls: bool = False
    cumulative_deltas: bool = False
    structured_output: StructuredOutput | None = "json_schema"
    tool_images: bool = False

    def __post_init__(self) -> None:
        choices = (self.tool_choice,) if isinstance(self.tool_choice, str) else tuple(self.tool_choice)
        object.__setattr__(self, "tool_choice", choices)
        _one_of("system_role", self.system_role, get_args(SystemRole))
        _one_of("tool_call_content", self.tool_call_content, ("auto", "", None))
        _one_of("tool_id_format", self.tool_id_format, (None, "mistral9"))
        _one_of("reasoning_echo", self.reasoning_echo, (None, *get_args(ReasoningEcho)))
        _one_of("max_tokens_field", self.max_tokens_field, ("max_tokens", "max_completion_tokens"))
        _one_of("schema", self.schema, get_args(SchemaForm))
        _one_of("structured_output", self.structured_output, (None, *get_args(StructuredOutput)))

    def __str__(self) -> str:
        told = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)
            if getattr(self, field.name) != getattr(_DEFAULT, field.name)
        ]
        return f"EndpointProfile({', '.join(told)})"


def _one_of(name: str, value: object, allowed: Sequence[object]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")


_DEFAULT = EndpointProfile()

#: Each entry with where its difference is told. What is not told of an endpoint stays at the default.
PROFILES: dict[str, EndpointProfile] = {
    # platform.openai.com/docs/api-reference/chat/create
    "openai": EndpointProfile(max_tokens_field="max_completion_tokens", structured_output="json_schema"),
    # platform.openai.com/docs/guides/reasoning: developer messages; temperature and penalties are refused
    "openai-reasoning": EndpointProfile(
        system_role="developer", max_tokens_field="max_completion_tokens", supports_sampling=False
    ),
    # learn.microsoft.com/azure/ai-services/openai/reference
    "azure": EndpointProfile(max_tokens_field="max_completion_tokens"),
    # docs.vllm.ai/en/latest/serving/openai_compatible_server.html
    "vllm": EndpointProfile(),
    # docs.sglang.ai/basic_usage/openai_api_completions.html
    "sglang": EndpointProfile(),
    # github.com/ollama/ollama/blob/main/docs/openai.md: tool_choice is not supported
    "ollama": EndpointProfile(tool_choice=("auto",), parallel_tool_calls=False),
    # github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md: tool_choice takes a word, no name
    "llama.cpp": EndpointProfile(tool_choice=("auto", "none", "required"), tool_call_content=""),
    # lmstudio.ai/docs/app/api/endpoints/openai: 400 on "messages must have content"
    "lmstudio": EndpointProfile(tool_call_content="", tool_choice=("auto", "none", "required")),
    # api-docs.deepseek.com/guides/thinking_mode: the thoughts of a turn with calls have to come back
    "deepseek": EndpointProfile(
        reasoning_echo="reasoning_content", structured_output="json_object", strict_tools=False
    ),
    # help.aliyun.com/zh/model-studio/qwen-api-reference: one system message, first
    "qwen": EndpointProfile(multiple_system=False, structured_output="json_object", strict_tools=False),
    # platform.moonshot.ai/docs/guide/use-kimi-k2-thinking-model: echo reasoning_content; $ref only to $defs
    "kimi": EndpointProfile(
        reasoning_echo="reasoning_content", schema="inline_refs", structured_output="json_object", strict_tools=False
    ),
    # docs.z.ai/api-reference/llm/chat-completion: tool_choice is auto only
    "glm": EndpointProfile(tool_choice=("auto",), structured_output="json_object", strict_tools=False),
    # platform.minimax.io/docs/guides/text-m2-function-call: thoughts come back as reasoning_details
    "minimax": EndpointProfile(reasoning_echo="reasoning_details", multiple_system=False, strict_tools=False),
    # docs.mistral.ai/api: ids of nine letters and digits, no user message after a tool's
    "mistral": EndpointProfile(
        tool_id_format="mistral9", assistant_after_tool=True, assistant_prefill=False, message_name=False
    ),
    # console.groq.com/docs/openai: names of messages are not supported
    "groq": EndpointProfile(message_name=False, max_tokens_field="max_completion_tokens"),
    # docs.together.ai/docs/openai-api-compatibility
    "together": EndpointProfile(strict_tools=False),
    # docs.fireworks.ai/tools-sdks/openai-compatibility
    "fireworks": EndpointProfile(strict_tools=False),
    # openrouter.ai/docs/use-cases/reasoning-tokens#preserving-reasoning-blocks
    "openrouter": EndpointProfile(reasoning_echo="reasoning_details"),
    # ai.google.dev/gemini-api/docs/openai: a subset of OpenAPI schemas
    "gemini": EndpointProfile(schema="gemini", strict_tools=False, parallel_tool_calls=False, message_name=False),
    # docs.claude.com/en/api/openai-sdk: strict is ignored, system messages are hoisted, no empty text
    "anthropic": EndpointProfile(
        multiple_system=False,
        strict_tools=False,
        tools_required_with_history=True,
        tool_call_content=None,
        empty_tool_result="(no output)",
        structured_output=None,
    ),
    # docs.x.ai/docs/api-reference
    "xai": EndpointProfile(max_tokens_field="max_completion_tokens"),
    # docs.aws.amazon.com/bedrock: toolConfig has to be there with history, no empty text
    "bedrock": EndpointProfile(
        tools_required_with_history=True, tool_call_content=None, empty_tool_result="(no output)", strict_tools=False
    ),
    # docs.litellm.ai/docs/completion/input: what goes behind it can be anything
    "litellm": EndpointProfile(tools_required_with_history=True),
    # inference-docs.cerebras.ai/capabilities/tool-use: strict must be the same for all tools
    "cerebras": EndpointProfile(strict_tools=False, max_tokens_field="max_completion_tokens"),
    # docs.api.nvidia.com/nim/reference/llm-apis
    "nvidia": EndpointProfile(strict_tools=False, parallel_tool_calls=False),
}

_HOSTS = (
    ("api.openai.com", "openai"),
    (".openai.azure.com", "azure"),
    (".cognitiveservices.azure.com", "azure"),
    ("api.deepseek.com", "deepseek"),
    ("dashscope", "qwen"),
    ("api.moonshot", "kimi"),
    ("api.kimi.com", "kimi"),
    ("api.z.ai", "glm"),
    ("open.bigmodel.cn", "glm"),
    ("api.minimax", "minimax"),
    ("api.mistral.ai", "mistral"),
    ("api.groq.com", "groq"),
    ("api.together", "together"),
    ("api.fireworks.ai", "fireworks"),
    ("openrouter.ai", "openrouter"),
    ("generativelanguage.googleapis.com", "gemini"),
    ("aiplatform.googleapis.com", "gemini"),
    ("api.anthropic.com", "anthropic"),
    ("api.x.ai", "xai"),
    ("bedrock", "bedrock"),
    ("api.cerebras.ai", "cerebras"),
    ("integrate.api.nvidia.com", "nvidia"),
)
_PORTS = {11434: "ollama", 1234: "lmstudio"}


def profile_of(given: EndpointProfile | str | None, base_url: str | None, model: str | None) -> EndpointProfile:
    """The profile that was given, or named, or that host and model suggest.

    Raises ValueError for a name that is not in the table, TypeError for what is no profile.
    """
    if isinstance(given, EndpointProfile):
        return given
    if isinstance(given, str):
        if given not in PROFILES:
            raise ValueError(f"there is no profile {given!r}; there are {', '.join(sorted(PROFILES))}")
        return PROFILES[given]
    if given is not None:
        raise TypeError(f"profile must be an EndpointProfile or a name, not {type(given).__name__}")
    return _guess(base_url, model)


def _guess(base_url: str | None, model: str | None) -> EndpointProfile:
    parts = urlsplit(base_url or "https://api.openai.com/v1")
    host = parts.hostname or ""
    name = next((name for part, name in _HOSTS if part in host), None)
    if name is None and host in ("127.0.0.1", "localhost", "::1"):
        name = _PORTS.get(parts.port or 0)
    if name in ("openai", "azure") and _reasons(model or ""):
        name = "openai-reasoning"
    return PROFILES[name] if name else _DEFAULT


def _reasons(model: str) -> bool:
    """Whether an OpenAI model is one of those that think first, and refuse sampling."""
    model = model.rsplit("/", 1)[-1]
    return model.startswith(("o1", "o3", "o4", "gpt-5")) and "chat" not in model
