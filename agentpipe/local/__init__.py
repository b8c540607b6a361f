"""A real model on this machine: no key, no network once its weights are here.

SmolLM2-135M-Instruct on llama.cpp: small enough for any machine and good for tests and first steps. It calls tools when
it has to (``tool_choice="required"`` for the first call); do not expect it to decide well whether to, or to be right.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from agentpipe._client import ChatClient
from agentpipe._layered import Layered
from agentpipe._request import ChatRequest
from agentpipe._responses import ChatResponseUpdate
from agentpipe._waist import closing
from agentpipe.local._server import TEMPLATE, ServerSettings, acquire, release
from agentpipe.local._weights import LocalModelError, Progress, cache_dir, no_progress, weights
from agentpipe.openai import EndpointProfile, OpenAIChatClient

__all__ = ["LocalChatClient", "LocalModelError", "cache_dir", "weights"]

#: What llama.cpp's server takes, with the template of this package.
PROFILE = EndpointProfile(tool_choice=("auto", "none", "required"), tool_call_content="", strict_tools=False)


class LocalChatClient(ChatClient):
    """A chat client on a model that runs in this process.

    The first request fetches the weights, if they are not in the cache yet (98 MB), and starts llama.cpp's server on
    loopback with a random key. Clients with the same settings share a server.

    Args:
        path: A GGUF file of your own; AGENTPIPE_LOCAL_MODEL by default, else SmolLM2-135M-Instruct.
        template: A Jinja chat template; by default the model's own, and for SmolLM2 one that makes tools work.
        threads: Threads to compute with. One is best where cores are shared.
        context: Tokens that a conversation may have.
        max_output_tokens: Tokens that an answer may have, where the request does not say.
        parallel: Requests that are answered at the same time; they share the context.
        progress: Told how far the fetching of the weights is: what is done, bytes done, bytes in all (0: not known).

    Raises:
        LocalModelError: At the first request: the weights cannot be had, or llama.cpp is not installed.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        template: str | Path | None = None,
        threads: int = 1,
        context: int = 4096,
        parallel: int = 1,
        max_output_tokens: int = 512,
        progress: Progress = no_progress,
    ) -> None:
        for name, value in (
            ("threads", threads),
            ("context", context),
            ("parallel", parallel),
            ("max_output_tokens", max_output_tokens),
        ):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value!r}")
        own = path or os.environ.get("AGENTPIPE_LOCAL_MODEL") or None
        self.path = Path(own) if own else None
        if self.path is not None and not self.path.is_file():
            raise ValueError(f"there is no model at {self.path}")
        self.template = Path(template) if template else (None if self.path else TEMPLATE)
        self.threads = threads
        self.context = context
        self.parallel = parallel
        self.max_output_tokens = max_output_tokens
        self._progress = progress
        self._settings_used: ServerSettings | None = None
        self._client: OpenAIChatClient | None = None
        self._starting: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    @property
    def model(self) -> str:
        """The name of the model."""
        return self.path.stem if self.path is not None else "SmolLM2-135M-Instruct"

    async def start(self) -> OpenAIChatClient:
        """Fetch the weights and start the server, if that is still to be done; the client of its endpoint."""
        if self._client is None:
            loop = asyncio.get_running_loop()
            if self._starting is None or self._starting[0] is not loop:
                self._starting = (loop, asyncio.Lock())
            async with self._starting[1]:
                if self._client is None:
                    self._client = await asyncio.to_thread(self._start)
        return self._client

    def _start(self) -> OpenAIChatClient:
        path = self.path or weights(progress=self._progress)
        settings = ServerSettings(path, self.template, self.threads, self.context, self.parallel)
        running = acquire(settings)
        self._settings_used = settings
        return OpenAIChatClient(self.model, base_url=running.base_url, api_key=running.key, profile=PROFILE)

    async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Ask the model."""
        client = await self.start()
        if request.options.max_output_tokens is None:
            # A model this small may go on for ever.
            request = request.replace(options=request.options.replace(max_output_tokens=self.max_output_tokens))
        async with closing(client.respond(request)) as updates:
            async for update in updates:
                yield update

    async def aclose(self) -> None:
        """Stop the server, unless another client uses it. A later request starts it again."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
        settings, self._settings_used = self._settings_used, None
        if settings is not None:
            await asyncio.to_thread(release, settings)

    async def _leave_loop(self) -> None:
        if self._client is not None:
            await self._client._leave_loop()

    def _inside(self) -> tuple[Layered, ...]:
        return ()

    def _settings(self) -> dict[str, object]:
        return {"model": self.model}
