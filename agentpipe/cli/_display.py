"""What is shown: the answer on stdout, what happens meanwhile on stderr, or all of it as JSON on stdout."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from typing import Any, Protocol

from agentpipe._messages import (
    Content,
    FunctionCallContent,
    FunctionResultContent,
    ProgressContent,
    RefusalContent,
    TextContent,
)
from agentpipe._responses import ChatResponse, ChatResponseUpdate
from agentpipe.cli._terminal import until_typed

#: The last thing that is done when weights are fetched.
_LAST = "unpacking"


class Display(Protocol):
    """Shows how a run goes."""

    def update(self, update: ChatResponseUpdate) -> None:
        """A piece of the answer came."""

    def done(self, response: ChatResponse) -> None:
        """A run is over."""

    def failed(self, why: str) -> None:
        """A run failed."""

    def ask(self, question: str) -> str | None:
        """Ask whoever sits there; None where nobody does."""

    def fetching(self, what: str, done: int, total: int) -> None:
        """The weights of the local model are being fetched."""

    def close(self) -> None:
        """Nothing more is to be shown."""


class TextDisplay:
    """For people: the answer goes to stdout; calls, results and durations to stderr, if that is a terminal."""

    def __init__(self) -> None:
        self._shows = sys.stderr.isatty()
        self._console = _console() if self._shows else None
        self._bar = _Bar(self._console) if self._console is not None else None
        self._fetches = False
        self._begun: dict[str, float] = {}
        self._line_open = False

    def update(self, update: ChatResponseUpdate) -> None:
        """Write text at once, and a line for each call and result."""
        for content in update.contents:
            if isinstance(content, (TextContent, RefusalContent)):
                self._say(content.text)
            else:
                self._show(content)

    def _say(self, text: str) -> None:
        if text:
            print(text, end="", flush=True)
            self._line_open = not text.endswith("\n")

    def _show(self, content: Content) -> None:
        if isinstance(content, FunctionCallContent):
            self._begun[content.call_id] = time.monotonic()
            arguments = ", ".join(f"{name}={value!r}" for name, value in content.arguments.items())
            self._tell(f"→ {content.name}({_short(arguments or content.raw_arguments or '')})", "cyan")
        elif isinstance(content, FunctionResultContent):
            begun = self._begun.pop(content.call_id, None)
            took = f" ({time.monotonic() - begun:.1f} s)" if begun is not None else ""
            self._tell(f"← {_short(content.text)}{took}", "red" if content.is_error else "green")
        elif isinstance(content, ProgressContent):
            self._tell(f"  {_short(content.text)}", "dim")

    def _tell(self, line: str, style: str) -> None:
        if not self._shows:
            return
        self._end_line()
        if self._console is not None:
            self._console.print(line, style=style, highlight=False, markup=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def _end_line(self) -> None:
        if self._line_open:
            print(flush=True)
            self._line_open = False

    def done(self, response: ChatResponse) -> None:
        """End the line, or say why there is no answer."""
        if response.stop_reason == "return_directly":
            self._say(response.text)
        self._end_line()
        if response.stop_reason not in ("answer", "return_directly", "approval"):
            print(f"agentpipe: the run ended early: {response.stop_reason}", file=sys.stderr)
        elif response.finish_reason == "length":
            print("agentpipe: the answer was cut off at the limit of output tokens", file=sys.stderr)

    def failed(self, why: str) -> None:
        """One line on stderr."""
        self.close()
        self._end_line()
        print(f"agentpipe: {why}", file=sys.stderr, flush=True)

    def ask(self, question: str) -> str | None:
        """Ask on the terminal."""
        if not (self._shows and sys.stdin and sys.stdin.isatty()):
            print(f"agentpipe: nobody to ask: {question}", file=sys.stderr)
            return None
        self._end_line()
        return _read_line(question)

    def fetching(self, what: str, done: int, total: int) -> None:
        """A progress bar on a terminal; one line elsewhere."""
        if self._bar is not None:
            self._bar.show(what, done, total)
        elif not self._fetches:
            print(f"agentpipe: {what}", file=sys.stderr, flush=True)
        self._fetches = True

    def close(self) -> None:
        """Take the progress bar away, should it still stand."""
        if self._bar is not None:
            self._bar.stop()


class JsonDisplay:
    """For programs: one JSON object a line on stdout."""

    def __init__(self) -> None:
        self._fetches = False

    def update(self, update: ChatResponseUpdate) -> None:
        """Text, calls, results and progress as they come."""
        if text := update.text:
            self._write({"type": "text", "text": text})
        for content in update.contents:
            if content.type != "text":
                self._write(content.model_dump())

    def done(self, response: ChatResponse) -> None:
        """The whole response."""
        self._write({"type": "response", **response.model_dump(), "text": response.text})

    def failed(self, why: str) -> None:
        """The error, on both outputs: a program reads the one, a person the other."""
        self._write({"type": "error", "message": why})
        print(f"agentpipe: {why}", file=sys.stderr, flush=True)

    def ask(self, question: str) -> str | None:
        """Nobody is asked."""
        return None

    def fetching(self, what: str, done: int, total: int) -> None:
        """One line on stderr."""
        if not self._fetches:
            print(f"agentpipe: {what}", file=sys.stderr, flush=True)
        self._fetches = True

    def close(self) -> None:
        """Every line is whole already."""

    def _write(self, event: dict[str, Any]) -> None:
        print(json.dumps(event, ensure_ascii=False), flush=True)


class _Bar:
    """How far the fetching of the weights is."""

    def __init__(self, console: Any) -> None:
        self._console = console
        self._progress: Any = None
        self._task: Any = None

    def show(self, what: str, done: int, total: int) -> None:
        if self._progress is None:
            from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn

            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), DownloadColumn())
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._progress.start()
            self._task = self._progress.add_task(what, total=None)
        self._progress.update(self._task, description=what, completed=done, total=total or None)
        if total and what == _LAST and done >= total:
            self.stop()

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _console() -> Any:
    """rich on stderr, if it is installed and colours are wanted."""
    if os.environ.get("NO_COLOR"):
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(stderr=True)


def _read_line(question: str) -> str | None:
    """What is typed in answer to a question; None at the end of input. Ctrl-C cancels the run that asks, at once."""
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        print(question, end="", file=sys.stderr, flush=True)
        until_typed()
        return sys.stdin.readline() or None
    except KeyboardInterrupt:
        raise asyncio.CancelledError from None
    finally:
        signal.signal(signal.SIGINT, inherited)


def _short(text: str) -> str:
    """The beginning of a text in one line, with nothing in it that steers a terminal."""
    line = " ".join("".join([letter if letter.isprintable() else " " for letter in text[:1000]]).split())
    return line if len(line) <= 200 else f"{line[:197]}..."
