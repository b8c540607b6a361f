"""Profiles: named, guessed, shown."""

from __future__ import annotations

import pytest

from agentpipe import EndpointProfile, OpenAIChatClient
from agentpipe.openai import PROFILES
from agentpipe.openai._profiles import profile_of

NAMES = [
    "openai",
    "azure",
    "vllm",
    "sglang",
    "ollama",
    "llama.cpp",
    "lmstudio",
    "deepseek",
    "qwen",
    "kimi",
    "glm",
    "minimax",
    "mistral",
    "groq",
    "together",
    "fireworks",
    "openrouter",
    "gemini",
    "anthropic",
    "xai",
    "bedrock",
    "litellm",
    "cerebras",
    "nvidia",
]


def test_the_table_has_every_endpoint() -> None:
    """All the names of the documentation are there."""
    assert set(NAMES) <= set(PROFILES)


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_by_its_name(name: str) -> None:
    """A name stands for its entry, and shows as the name."""
    client = OpenAIChatClient("m", base_url="http://127.0.0.1:1/v1", profile=name)
    assert client.profile is PROFILES[name]
    assert f"profile='{name}'" in repr(client)


@pytest.mark.parametrize(
    ("url", "model", "name"),
    [
        (None, "gpt-4o-mini", "openai"),
        (None, "o3-mini", "openai-reasoning"),
        ("https://api.openai.com/v1", "gpt-5-mini", "openai-reasoning"),
        ("https://api.openai.com/v1", "gpt-5-chat-latest", "openai"),
        ("https://me.openai.azure.com/openai/v1/", "gpt-4o", "azure"),
        ("https://api.deepseek.com", "deepseek-chat", "deepseek"),
        ("https://dashscope.aliyuncs.com/compatible-mode/v1", "qwen-max", "qwen"),
        ("https://api.moonshot.ai/v1", "kimi-k2", "kimi"),
        ("https://api.mistral.ai/v1", "mistral-small", "mistral"),
        ("https://api.groq.com/openai/v1", "llama", "groq"),
        ("https://openrouter.ai/api/v1", "anthropic/claude", "openrouter"),
        ("https://generativelanguage.googleapis.com/v1beta/openai/", "gemini-2.5-flash", "gemini"),
        ("http://localhost:11434/v1", "qwen3", "ollama"),
    ],
)
def test_a_guess_by_host_and_model(url: str | None, model: str, name: str) -> None:
    """Host and model say which entry it is."""
    assert profile_of(None, url, model) is PROFILES[name]


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/v1", "https://llm.example.com/v1", "http://10.0.0.1:11434/v1"])
@pytest.mark.parametrize("model", ["gpt-4o", "o3", "deepseek-reasoner", "mistral-small"])
def test_no_guess_where_nothing_is_known(url: str, model: str) -> None:
    """At a host of its own, a model's name says nothing about what the server takes: what all take is sent."""
    assert profile_of(None, url, model) == EndpointProfile()


def test_a_profile_shows_what_differs() -> None:
    """str() has the fields that are not at their default, and no others."""
    assert str(EndpointProfile()) == "EndpointProfile()"
    assert str(EndpointProfile(system_role="user", stream_usage=False)) == (
        "EndpointProfile(system_role='user', stream_usage=False)"
    )


def test_wrong_profiles_say_what_is_right() -> None:
    """An unknown name lists the names; a wrong value names the field and its values."""
    with pytest.raises(ValueError, match="there is no profile 'vlm'; there are anthropic, azure"):
        OpenAIChatClient("m", base_url="http://127.0.0.1:1/v1", profile="vlm")
    with pytest.raises(ValueError, match="system_role must be one of 'system', 'developer', 'user', not 'root'"):
        EndpointProfile(system_role="root")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="profile must be an EndpointProfile or a name"):
        OpenAIChatClient("m", base_url="http://127.0.0.1:1/v1", profile=3)  # type: ignore[arg-type]


def test_one_choice_may_be_given_as_a_word() -> None:
    """A single value of tool_choice needs no list."""
    assert EndpointProfile(tool_choice="auto").tool_choice == ("auto",)
