"""A real model on this machine: no key, no network once its weights are here.

SmolLM2-135M-Instruct on llama.cpp: small enough for any machine and good for tests and first steps. It calls tools when
it has to (``tool_choice="required"`` for the first call); do not expect it to decide well whether to, or to be right.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

from agentpipe._request import ChatRequest
from agentpipe._responses import ChatResponseUpdate
from agentpipe._waist import closing
from agentpipe.local._server import TEMPLATE, RunningServer, ServerSettings, acquire, release
from agentpipe.local._weights import LocalModelError, Progress, cache_dir, no_progress, weights
from agentpipe.openai import EndpointProfile, OpenAIChatClient
from agentpipe.openai._transport import Transport

__all__ = ["LocalChatClient", "LocalModelError", "cache_dir", "weights"]

MODEL = "SmolLM2-135M-Instruct"
#: What llama.cpp's server takes, with the template of this package.
PROFILE = EndpointProfile(tool_choice=("auto", "none", "required"), tool_call_content="", strict_tools=False)
#: llama.cpp closes a connection after a streamed answer, having promised to keep it; the next request could be lost.
_HEADERS = {"connection": "close"}
#: Stands for the address and the key of a server that has not been started.
_NOT_YET = "http://127.0.0.1"


class LocalChatClient(OpenAIChatClient):
    """A chat client on a model that runs in this process.

    It is an `OpenAIChatClient` of llama.cpp's own server. The first request fetches the weights, if they are
    not in the cache yet (98 MB), and starts that server on loopback with a random key. Clients with the same settings
    share a server; the last one that is closed stops it, and so does the end of the process.

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
        super().__init__(self.path.stem if self.path else MODEL, base_url=_NOT_YET, api_key=_NOT_YET, profile=PROFILE)
        self._progress = progress
        self._lock = threading.Lock()
        self._server: RunningServer | None = None

    async def start(self) -> None:
        """Fetch the weights and start the server, if that is still to be done, so that the first request is quick."""
        if self._server is None:
            await asyncio.to_thread(self._start)

    def _start(self) -> None:
        with self._lock:
            if self._server is not None:
                return
            path = self.path or weights(progress=self._progress)
            server = acquire(ServerSettings(path, self.template, self.threads, self.context, self.parallel))
            self.base_url = server.base_url
            self._transport = Transport(
                base_url=server.base_url, api_key=server.key, headers=_HEADERS, timeout=None, aiohttp=False, client=None
            )
            self._server = server

    async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Ask the model. Raises LocalModelError where there is none, and what `OpenAIChatClient` raises."""
        await self.start()
        if request.options.max_output_tokens is None:
            # A model this small may go on for ever.
            request = request.replace(options=request.options.replace(max_output_tokens=self.max_output_tokens))
        async with closing(super().respond(request)) as updates:
            async for update in updates:
                yield update

    async def aclose(self) -> None:
        """Stop the server, unless another client uses it; what is being answered breaks off. A later request starts it
        again."""
        await super().aclose()
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        with self._lock:
            server, self._server = self._server, None
            if server is not None:
                release(server)

    def _settings(self) -> dict[str, object]:
        return {"model": self.model}
