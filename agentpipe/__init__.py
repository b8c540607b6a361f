"""agentpipe: a middleware pipeline of chat clients, and agents on top.

Everything that answers is a client; a layer is a client around a client; every layer is written once.

Names are imported on first use, so that ``import agentpipe`` costs next to nothing and loads neither openai nor what
is not asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentpipe._agent import Agent as Agent
    from agentpipe._base_agent import AgentMiddleware as AgentMiddleware
    from agentpipe._base_agent import BaseAgent as BaseAgent
    from agentpipe._base_agent import DelegatingAgent as DelegatingAgent
    from agentpipe._client import ChatClient as ChatClient
    from agentpipe._client import ChatMiddleware as ChatMiddleware
    from agentpipe._client import DelegatingChatClient as DelegatingChatClient
    from agentpipe._messages import ApprovalRequestContent as ApprovalRequestContent
    from agentpipe._messages import ApprovalResponseContent as ApprovalResponseContent
    from agentpipe._messages import Content as Content
    from agentpipe._messages import DataContent as DataContent
    from agentpipe._messages import FunctionCallContent as FunctionCallContent
    from agentpipe._messages import FunctionResultContent as FunctionResultContent
    from agentpipe._messages import InputRequestContent as InputRequestContent
    from agentpipe._messages import InputResponseContent as InputResponseContent
    from agentpipe._messages import Message as Message
    from agentpipe._messages import ProgressContent as ProgressContent
    from agentpipe._messages import ReasoningContent as ReasoningContent
    from agentpipe._messages import RefusalContent as RefusalContent
    from agentpipe._messages import TextContent as TextContent
    from agentpipe._messages import ThoughtContent as ThoughtContent
    from agentpipe._messages import UnknownContent as UnknownContent
    from agentpipe._messages import UriContent as UriContent
    from agentpipe._messages import assistant as assistant
    from agentpipe._messages import system as system
    from agentpipe._messages import user as user
    from agentpipe._options import ChatOptions as ChatOptions
    from agentpipe._options import LoopLimits as LoopLimits
    from agentpipe._pipeline import pipeline as pipeline
    from agentpipe._providers import Context as Context
    from agentpipe._providers import ContextProvider as ContextProvider
    from agentpipe._providers import HistoryProvider as HistoryProvider
    from agentpipe._reducers import Reducer as Reducer
    from agentpipe._reducers import Reduction as Reduction
    from agentpipe._reducers import SlidingWindowReducer as SlidingWindowReducer
    from agentpipe._reducers import SummarizingReducer as SummarizingReducer
    from agentpipe._reducers import ToolResultReducer as ToolResultReducer
    from agentpipe._reducers import TruncatingReducer as TruncatingReducer
    from agentpipe._request import ChatRequest as ChatRequest
    from agentpipe._responses import ChatResponse as ChatResponse
    from agentpipe._responses import ChatResponseUpdate as ChatResponseUpdate
    from agentpipe._responses import ResponseStream as ResponseStream
    from agentpipe._responses import UsageDetails as UsageDetails
    from agentpipe._session import AgentSession as AgentSession
    from agentpipe._tools import FunctionTool as FunctionTool
    from agentpipe._tools import HostedTool as HostedTool
    from agentpipe._tools import ToolContext as ToolContext
    from agentpipe._tools import current_tool_context as current_tool_context
    from agentpipe._tools import tool as tool
    from agentpipe._waist import closing as closing
    from agentpipe.agent_layers.approving import ApprovingAgent as ApprovingAgent
    from agentpipe.agent_layers.logging import LoggingAgent as LoggingAgent
    from agentpipe.agent_layers.telemetry import TelemetryAgent as TelemetryAgent
    from agentpipe.exceptions import AgentPipeError as AgentPipeError
    from agentpipe.exceptions import ApprovalError as ApprovalError
    from agentpipe.exceptions import AuthenticationError as AuthenticationError
    from agentpipe.exceptions import BadRequestError as BadRequestError
    from agentpipe.exceptions import BadResponseError as BadResponseError
    from agentpipe.exceptions import ChatClientError as ChatClientError
    from agentpipe.exceptions import ContentFilterError as ContentFilterError
    from agentpipe.exceptions import ContextLengthError as ContextLengthError
    from agentpipe.exceptions import FatalToolError as FatalToolError
    from agentpipe.exceptions import HistoryError as HistoryError
    from agentpipe.exceptions import OutputError as OutputError
    from agentpipe.exceptions import RateLimitError as RateLimitError
    from agentpipe.exceptions import ToolError as ToolError
    from agentpipe.exceptions import ToolLoopError as ToolLoopError
    from agentpipe.exceptions import TransportError as TransportError
    from agentpipe.exceptions import UsageLimitError as UsageLimitError
    from agentpipe.history.in_memory import InMemoryHistoryProvider as InMemoryHistoryProvider
    from agentpipe.history.postgres import PostgresHistoryProvider as PostgresHistoryProvider
    from agentpipe.history.redis import RedisHistoryProvider as RedisHistoryProvider
    from agentpipe.history.sqlite import SQLiteHistoryProvider as SQLiteHistoryProvider
    from agentpipe.layers._cache_stores import MemoryCache as MemoryCache
    from agentpipe.layers._cache_stores import SQLiteCache as SQLiteCache
    from agentpipe.layers._rate_limiter import RateLimiter as RateLimiter
    from agentpipe.layers.caching import CachingChatClient as CachingChatClient
    from agentpipe.layers.configure_options import ConfigureOptionsChatClient as ConfigureOptionsChatClient
    from agentpipe.layers.fallback import FallbackChatClient as FallbackChatClient
    from agentpipe.layers.function_invoking import FunctionInvokingChatClient as FunctionInvokingChatClient
    from agentpipe.layers.logging import LoggingChatClient as LoggingChatClient
    from agentpipe.layers.rate_limiting import RateLimitingChatClient as RateLimitingChatClient
    from agentpipe.layers.recording import RecordingChatClient as RecordingChatClient
    from agentpipe.layers.redacting import RedactingChatClient as RedactingChatClient
    from agentpipe.layers.reducing import ReducingChatClient as ReducingChatClient
    from agentpipe.layers.retrying import RetryingChatClient as RetryingChatClient
    from agentpipe.layers.routing import RoutingChatClient as RoutingChatClient
    from agentpipe.layers.structured_output import StructuredOutputChatClient as StructuredOutputChatClient
    from agentpipe.layers.telemetry import TelemetryChatClient as TelemetryChatClient
    from agentpipe.layers.usage_limit import TokenPrices as TokenPrices
    from agentpipe.layers.usage_limit import UsageLimitChatClient as UsageLimitChatClient
    from agentpipe.openai import EndpointProfile as EndpointProfile
    from agentpipe.openai import OpenAIChatClient as OpenAIChatClient

__all__ = [
    "Agent",
    "AgentMiddleware",
    "AgentPipeError",
    "AgentSession",
    "ApprovalError",
    "ApprovalRequestContent",
    "ApprovalResponseContent",
    "ApprovingAgent",
    "AuthenticationError",
    "BadRequestError",
    "BadResponseError",
    "BaseAgent",
    "CachingChatClient",
    "ChatClient",
    "ChatClientError",
    "ChatMiddleware",
    "ChatOptions",
    "ChatRequest",
    "ChatResponse",
    "ChatResponseUpdate",
    "ConfigureOptionsChatClient",
    "Content",
    "ContentFilterError",
    "Context",
    "ContextLengthError",
    "ContextProvider",
    "DataContent",
    "DelegatingAgent",
    "DelegatingChatClient",
    "EndpointProfile",
    "FallbackChatClient",
    "FatalToolError",
    "FunctionCallContent",
    "FunctionInvokingChatClient",
    "FunctionResultContent",
    "FunctionTool",
    "HistoryError",
    "HistoryProvider",
    "HostedTool",
    "InMemoryHistoryProvider",
    "InputRequestContent",
    "InputResponseContent",
    "LoggingAgent",
    "LoggingChatClient",
    "LoopLimits",
    "MemoryCache",
    "Message",
    "OpenAIChatClient",
    "OutputError",
    "PostgresHistoryProvider",
    "ProgressContent",
    "RateLimitError",
    "RateLimiter",
    "RateLimitingChatClient",
    "ReasoningContent",
    "RecordingChatClient",
    "RedactingChatClient",
    "RedisHistoryProvider",
    "Reducer",
    "ReducingChatClient",
    "Reduction",
    "RefusalContent",
    "ResponseStream",
    "RetryingChatClient",
    "RoutingChatClient",
    "SQLiteCache",
    "SQLiteHistoryProvider",
    "SlidingWindowReducer",
    "StructuredOutputChatClient",
    "SummarizingReducer",
    "TelemetryAgent",
    "TelemetryChatClient",
    "TextContent",
    "ThoughtContent",
    "TokenPrices",
    "ToolContext",
    "ToolError",
    "ToolLoopError",
    "ToolResultReducer",
    "TransportError",
    "TruncatingReducer",
    "UnknownContent",
    "UriContent",
    "UsageDetails",
    "UsageLimitChatClient",
    "UsageLimitError",
    "assistant",
    "closing",
    "current_tool_context",
    "pipeline",
    "system",
    "tool",
    "user",
]

_HOMES = {
    "_agent": ("Agent",),
    "agent_layers.approving": ("ApprovingAgent",),
    "agent_layers.logging": ("LoggingAgent",),
    "agent_layers.telemetry": ("TelemetryAgent",),
    "_base_agent": (
        "AgentMiddleware",
        "BaseAgent",
        "DelegatingAgent",
    ),
    "_client": (
        "ChatClient",
        "ChatMiddleware",
        "DelegatingChatClient",
    ),
    "exceptions": (
        "AgentPipeError",
        "ApprovalError",
        "AuthenticationError",
        "BadRequestError",
        "BadResponseError",
        "ChatClientError",
        "ContentFilterError",
        "ContextLengthError",
        "FatalToolError",
        "HistoryError",
        "OutputError",
        "RateLimitError",
        "ToolError",
        "ToolLoopError",
        "TransportError",
        "UsageLimitError",
    ),
    "history.in_memory": ("InMemoryHistoryProvider",),
    "history.postgres": ("PostgresHistoryProvider",),
    "history.redis": ("RedisHistoryProvider",),
    "history.sqlite": ("SQLiteHistoryProvider",),
    "layers._cache_stores": (
        "MemoryCache",
        "SQLiteCache",
    ),
    "layers._rate_limiter": ("RateLimiter",),
    "layers.caching": ("CachingChatClient",),
    "layers.configure_options": ("ConfigureOptionsChatClient",),
    "layers.fallback": ("FallbackChatClient",),
    "layers.function_invoking": ("FunctionInvokingChatClient",),
    "layers.logging": ("LoggingChatClient",),
    "layers.rate_limiting": ("RateLimitingChatClient",),
    "layers.recording": ("RecordingChatClient",),
    "layers.redacting": ("RedactingChatClient",),
    "layers.reducing": ("ReducingChatClient",),
    "layers.retrying": ("RetryingChatClient",),
    "layers.routing": ("RoutingChatClient",),
    "layers.structured_output": ("StructuredOutputChatClient",),
    "layers.telemetry": ("TelemetryChatClient",),
    "layers.usage_limit": (
        "TokenPrices",
        "UsageLimitChatClient",
    ),
    "_messages": (
        "ApprovalRequestContent",
        "ApprovalResponseContent",
        "Content",
        "DataContent",
        "FunctionCallContent",
        "FunctionResultContent",
        "InputRequestContent",
        "InputResponseContent",
        "Message",
        "ProgressContent",
        "ReasoningContent",
        "RefusalContent",
        "TextContent",
        "ThoughtContent",
        "UnknownContent",
        "UriContent",
        "assistant",
        "system",
        "user",
    ),
    "openai": (
        "EndpointProfile",
        "OpenAIChatClient",
    ),
    "_options": (
        "ChatOptions",
        "LoopLimits",
    ),
    "_pipeline": ("pipeline",),
    "_providers": (
        "Context",
        "ContextProvider",
        "HistoryProvider",
    ),
    "_reducers": (
        "Reducer",
        "Reduction",
        "SlidingWindowReducer",
        "SummarizingReducer",
        "ToolResultReducer",
        "TruncatingReducer",
    ),
    "_request": ("ChatRequest",),
    "_responses": (
        "ChatResponse",
        "ChatResponseUpdate",
        "ResponseStream",
        "UsageDetails",
    ),
    "_session": ("AgentSession",),
    "_tools": (
        "FunctionTool",
        "HostedTool",
        "ToolContext",
        "current_tool_context",
        "tool",
    ),
    "_waist": ("closing",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'agentpipe' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"agentpipe.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
