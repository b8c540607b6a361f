"""The command ``agentpipe`` as a person or a script runs it: in a process of its own, on pipes or on a terminal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import signal
import sys
import termios
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "agentpipe.cli")
#: Seconds after which a command that should have said or done something counts as hanging.
PATIENCE = 60


@dataclass
class Ended:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


def environment(**changes: str) -> dict[str, str]:
    """The environment without any endpoint in it, and with this agentpipe."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    kept.pop("NO_COLOR", None)
    return {**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm", **changes}


async def run(
    *arguments: str, cwd: Path = ROOT, stdin: str | bytes | None = None, env: Mapping[str, str] | None = None
) -> Ended:
    """Run the command on pipes to its end; no ``stdin`` is an empty one."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *arguments,
        cwd=cwd,
        env=environment(**(env or {})),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    given = stdin.encode() if isinstance(stdin, str) else stdin or b""
    async with asyncio.timeout(PATIENCE):
        out, err = await process.communicate(given)
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


def _at_a_terminal() -> None:
    """Make Ctrl-C reach the process as a signal, also where the tests were started with SIGINT ignored ("&")."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """The command on a terminal: what it shows, and what is typed.

    async with Terminal("chat", "--base-url", url) as terminal:
        await terminal.until("> ")
        terminal.type("hello\\n")
    """

    def __init__(self, *arguments: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> None:
        self.arguments = arguments
        self.cwd = cwd
        self.env = environment(**(env or {}))
        self.shown = ""
        self._seen = 0
        self._news = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._master, slave = pty.openpty()
        self._process = await asyncio.create_subprocess_exec(
            *COMMAND,
            *self.arguments,
            cwd=self.cwd,
            env=self.env,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_at_a_terminal,
        )
        os.close(slave)
        asyncio.get_running_loop().add_reader(self._master, self._read)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        asyncio.get_running_loop().remove_reader(self._master)
        os.close(self._master)

    def _read(self) -> None:
        try:
            self.shown += os.read(self._master, 65536).decode("utf-8", "replace")
        except OSError:  # the other end is closed
            asyncio.get_running_loop().remove_reader(self._master)
        self._news.set()

    async def until(self, text: str) -> None:
        """Wait until ``text`` is shown, after what was waited for before."""
        async with asyncio.timeout(PATIENCE):
            while (place := self.shown.find(text, self._seen)) < 0:
                self._news.clear()
                await self._news.wait()
        self._seen = place + len(text)

    def type(self, text: str) -> None:
        """Press these keys; ``\\x03`` is Ctrl-C, ``\\x04`` Ctrl-D."""
        os.write(self._master, text.encode())

    async def ended(self) -> int:
        """Wait for the end; the exit code."""
        async with asyncio.timeout(PATIENCE):
            return await self._process.wait()
