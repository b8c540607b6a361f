"""llama.cpp's own OpenAI-compatible server, in this process, on loopback, with a key that nobody else knows."""

from __future__ import annotations

import atexit
import os
import secrets
import socket
import stat
import threading
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agentpipe.local._weights import LocalModelError

TEMPLATE = Path(__file__).with_name("smollm2_tools.jinja")
#: llama.cpp's level for saying nothing at all: what goes wrong with a request is in its answer.
_SILENT = 0


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

    def __init__(self, settings: ServerSettings, server: Any, key: str) -> None:
        self.settings = settings
        self._server = server
        self.key = key
        self.base_url = f"{server.listening_address.rstrip('/')}/v1"
        self.users = 0

    def stop(self) -> None:
        """Stop the server; what it is answering breaks off."""
        # While a client waits for an answer, llama.cpp waits for the end of that answer with the interpreter locked.
        _hang_up(("127.0.0.1", urlsplit(self.base_url).port))
        self._server = None


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


def release(running: RunningServer) -> None:
    """One client needs the server no longer; the last one stops it."""
    with _LOCK:
        running.users -= 1
        if running.users == 0:
            del _RUNNING[running.settings]
            running.stop()


@atexit.register
def _stop_all() -> None:
    """A server that still runs when the interpreter is torn down crashes it."""
    with _LOCK:
        while _RUNNING:
            _RUNNING.popitem()[1].stop()


def _hang_up(address: tuple[str, int | None]) -> None:
    """Break off every connection of this process to ``address``."""
    with suppress(OSError):
        for name in os.listdir("/dev/fd"):
            with suppress(OSError):
                _hang_up_one(int(name), address)


def _hang_up_one(descriptor: int, address: tuple[str, int | None]) -> None:
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.family == socket.AF_INET and connection.getpeername() == address:
            connection.shutdown(socket.SHUT_RDWR)


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
    parameters.verbosity = _SILENT
    parameters.warmup = False
    try:
        return RunningServer(settings, xllamacpp.Server(parameters), key)
    except Exception as error:
        raise LocalModelError(f"llama.cpp cannot serve {settings.path}: {error}") from error
