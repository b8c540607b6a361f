"""Composing layers: ``pipeline(outermost, ..., client)`` reads as a request travels and as ``print`` shows it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar, cast

from agentpipe._base_agent import BaseAgent
from agentpipe._client import ChatClient
from agentpipe._request import ChatRequest
from agentpipe._responses import ChatResponse, ChatResponseUpdate

Tower = TypeVar("Tower", ChatClient, BaseAgent)

#: A layer class (or a partial of one), or a middleware function of either form.
Layer = (
    Callable[[Tower], Tower]
    | Callable[[ChatRequest, Tower], AsyncIterator[ChatResponseUpdate]]
    | Callable[[ChatRequest, Tower], Awaitable[ChatResponse]]
)


def pipeline(*stack: *tuple[*tuple[Layer[Tower], ...], Tower]) -> Tower:
    """Put layers around a client, or around an agent; the first is the outermost.

    Args:
        stack: Layers (classes, partials of classes with their settings, or middleware functions), and last what they
            stand around.

    Returns:
        The outermost layer; the client or agent itself where there are no layers.

    Raises:
        TypeError: The last is neither a client nor an agent, or a layer is none for it.
    """
    layers, inner = stack[:-1], cast("Any", stack[-1] if stack else None)
    if not isinstance(inner, (ChatClient, BaseAgent)):
        raise TypeError(f"the last argument of pipeline must be a chat client or an agent, not {inner!r:.80}")
    for layer in reversed(layers):
        inner = inner.wrap(layer)
    return cast("Tower", inner)
