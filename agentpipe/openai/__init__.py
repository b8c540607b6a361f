"""Any OpenAI-compatible endpoint, and OpenAI's own JSON form of messages and tools."""

from __future__ import annotations

from agentpipe.openai._client import OpenAIChatClient
from agentpipe.openai._json_form import dump_messages, load_messages, load_tools
from agentpipe.openai._profiles import PROFILES, EndpointProfile

__all__ = ["PROFILES", "EndpointProfile", "OpenAIChatClient", "dump_messages", "load_messages", "load_tools"]
