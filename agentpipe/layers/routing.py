"""Picks the client for each request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from agentpipe._client import ChatClient
from agentpipe._layered import Node, name_of
from agentpipe._request import ChatRequest
from agentpipe._responses import ChatResponseUpdate
from agentpipe._waist import closing

Choose = Callable[[ChatRequest], str | Awaitable[str]]


class RoutingChatClient(ChatClient):
    """Picks the client for each request; it stands where the client stands.

    Below the FunctionInvokingChatClient it picks for each model call, above it for each run::

        RoutingChatClient(lambda request: "big" if len(request.messages) > 20 else "small", {"big": a, "small": b})

    Args:
        choose: A function of the request, sync or async, that returns a key of ``clients``.
        clients: The clients to pick from.

    Raises:
        TypeError: ``choose`` is no function, or there is something else than clients in ``clients``.
        ValueError: ``clients`` is empty. While answering: ``choose`` returned no key of it.
    """

    def __init__(self, choose: Choose, clients: Mapping[str, ChatClient]) -> None:
        if not callable(choose):
            raise TypeError(f"choose must be a function of the request, not {choose!r:.80}")
        if not clients:
            raise ValueError("clients must have at least one client to pick")
        for key, client in clients.items():
            if not isinstance(client, ChatClient):
                raise TypeError(f"clients[{key!r}] must be a chat client, not {client!r:.80}")
        self.choose = choose
        self.clients = dict(clients)

    async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Answer as the client does that is picked."""
        chosen = self.choose(request)
        key = chosen if isinstance(chosen, str) else await _awaited(chosen, self.choose)
        if key not in self.clients:
            raise ValueError(f"{name_of(self.choose)} chose {key!r}, but there are only {', '.join(self.clients)}")
        async with closing(self.clients[key].respond(request)) as updates:
            async for update in updates:
                yield update

    def _inside(self) -> Sequence[ChatClient]:
        return tuple(self.clients.values())

    def _settings(self) -> dict[str, object]:
        return {"choose": name_of(self.choose)}

    def _node(self) -> Node:
        below = [(key, client._node()) for key, client in self.clients.items()]
        return Node(repr(self), [replace(node, label=f"{key}: {node.label}") for key, node in below])


async def _awaited(chosen: object, choose: Choose) -> str:
    if not isinstance(chosen, Awaitable):
        raise TypeError(f"{name_of(choose)} must return the key of a client, not {chosen!r:.80}")
    return cast("str", await chosen)
