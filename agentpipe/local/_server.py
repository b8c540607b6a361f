"""llama.cpp's own OpenAI-compatible server, in this process, on loopback, with a key that nobody else knows."""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from agentpipe.local._weights import LocalModelError

TEMPLATE = Path(__file__).with_name("smollm2_tools.jinja")
#: llama.cpp's level for errors only.
_QUIET = 1


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What a server is started with; clients with equal settings share one."""

    path: Path
    template: Path | None
    threads: int
    context: int
    parallel: int


class RunningServer:
    """A server, and what it takes to talk to it."""

    def __init__(self, server: Any, key: str) -> None:
        self._server = server
        self.key = key
        self.base_url = f"{server.listening_address.rstrip('/')}/v1"
        self.users = 0


_LOCK = threading.Lock()
_RUNNING: dict[ServerSettings, RunningServer] = {}


def acquire(settings: ServerSettings) -> RunningServer:
    """The running server with these settings, started if there is none. Blocks for a second or so.

    Raises LocalModelError where it cannot be started.
    """
    with _LOCK:
        running = _RUNNING.get(settings)
        if running is None:
            running = _RUNNING[settings] = _start(settings)
        running.users += 1
        return running


def release(settings: ServerSettings) -> None:
    """One client needs the server no longer; the last one stops it."""
    with _LOCK:
        running = _RUNNING.get(settings)
        if running is None:
            return
        running.users -= 1
        if running.users <= 0:
            del _RUNNING[settings]


def _start(settings: ServerSettings) -> RunningServer:
    try:
        xllamacpp: Any = import_module("xllamacpp")
    except ImportError as error:
        raise LocalModelError("the local model needs llama.cpp: pip install 'agentpipe-chat[local]'") from error
    key = secrets.token_urlsafe(24)
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(settings.path)
    parameters.model_alias = {settings.path.stem}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.api_keys = [key]
    parameters.n_ctx = settings.context
    parameters.n_parallel = settings.parallel
    parameters.cpuparams.n_threads = settings.threads
    parameters.cpuparams_batch.n_threads = settings.threads
    parameters.use_jinja = True
    if settings.template is not None:
        parameters.chat_template = settings.template.read_text("utf-8")
    parameters.verbosity = _QUIET
    parameters.warmup = False
    try:
        return RunningServer(xllamacpp.Server(parameters), key)
    except Exception as error:
        raise LocalModelError(f"llama.cpp cannot serve {settings.path}: {error}") from error
