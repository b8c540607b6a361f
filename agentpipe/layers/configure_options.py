"""Sets options of the requests that pass."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from agentpipe._client import ChatClient, DelegatingChatClient
from agentpipe._layered import name_of
from agentpipe._options import ChatOptions, merge
from agentpipe._request import ChatRequest
from agentpipe._responses import ChatResponseUpdate

Configure = Callable[[ChatRequest], ChatOptions | None]


class ConfigureOptionsChatClient(DelegatingChatClient):
    """Sets options of the requests that pass, by the one rule for merging (see `ChatOptions`).

    Options that are given as they are, are defaults: what the caller says wins. A function has seen what the caller
    says, so what it returns wins::

        client.wrap(ConfigureOptionsChatClient, options=ChatOptions(temperature=0))
        client.wrap(ConfigureOptionsChatClient, options=lambda request: ChatOptions(model="small"))

    Args:
        inner: The client to ask.
        options: The defaults, or a function of the request that returns options (or None for no opinion).

    Raises:
        TypeError: ``options`` is neither. While answering: the function returned something else.
    """

    def __init__(self, inner: ChatClient, *, options: ChatOptions | Configure) -> None:
        super().__init__(inner)
        if not isinstance(options, ChatOptions) and (not callable(options) or isinstance(options, type)):
            raise TypeError(f"options must be ChatOptions or a function of the request, not {options!r:.80}")
        self.options = options

    def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Ask with these options."""
        return self.inner.respond(request.replace(options=self._configured(request)))

    def _configured(self, request: ChatRequest) -> ChatOptions:
        if isinstance(self.options, ChatOptions):
            return merge(self.options, request.options)
        told = self.options(request)
        if told is not None and not isinstance(told, ChatOptions):
            raise TypeError(f"{name_of(self.options)} must return ChatOptions, not {type(told).__name__}")
        return merge(request.options, told)

    def _settings(self) -> dict[str, object]:
        return {"options": self.options if isinstance(self.options, ChatOptions) else name_of(self.options)}
