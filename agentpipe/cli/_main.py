"""Arguments, and what becomes of them. Exit codes: 0 done, 1 the run failed, 2 wrong usage, 130 interrupted."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from agentpipe._agent import Agent
    from agentpipe._client import ChatClient
    from agentpipe._tools import Tool

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


class UsageError(Exception):
    """What was asked for cannot be done as it was asked."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit code."""
    parser = _parser()
    try:
        given = parser.parse_args(argv)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else USAGE
    if "" not in sys.path:
        sys.path.insert(0, "")  # modules of the current directory, as for `python -m`
    try:
        return _show(given) if given.command == "show" else _chat(given)
    except UsageError as error:
        print(f"agentpipe: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has had enough; nothing more is to be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agentpipe", description="Talk to a model with tools, on any OpenAI-compatible endpoint."
    )
    parser.add_argument("--version", action="version", version=f"agentpipe {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="{chat,show}")
    chat = commands.add_parser(
        "chat",
        help="one question, or a conversation",
        description="Ask one question (PROMPT, or what stands on stdin), or hold a conversation if there is none. The "
        "answer goes to stdout, what happens meanwhile to stderr.",
    )
    chat.add_argument("prompt", nargs="?", metavar="PROMPT", help="what to ask; '-' reads it from stdin")
    chat.add_argument("--model", metavar="M", help="the model; OPENAI_MODEL by default")
    chat.add_argument("--base-url", metavar="U", help="the endpoint; OPENAI_BASE_URL by default")
    chat.add_argument("--local", action="store_true", help="use the small model that runs on this machine")
    chat.add_argument(
        "--tool", action="append", default=[], metavar="MODULE:FUNCTION", help="a function that the model may call"
    )
    chat.add_argument("--instructions", metavar="T", help="what the model is told first")
    chat.add_argument("--json", action="store_true", help="write what happens to stdout, one JSON object a line")
    show = commands.add_parser(
        "show", help="print a pipeline", description="Print the layers of an agent or a chat client."
    )
    show.add_argument("target", metavar="MODULE:AGENT", help="where the agent or the client is")
    show.add_argument("--mermaid", action="store_true", help="as a Mermaid flowchart")
    return parser


def _version() -> str:
    try:
        return version("agentpipe-chat")
    except PackageNotFoundError:
        return "(not installed)"


# -------------------------------------------------------------------------------------------------- show


def _show(given: argparse.Namespace) -> int:
    from agentpipe._layered import Layered

    target = _load(given.target)
    if not isinstance(target, Layered):
        raise UsageError(f"{given.target} is a {type(target).__name__}, neither an agent nor a chat client")
    print(target.to_mermaid() if given.mermaid else target)
    return DONE


def _load(name: str) -> Any:
    """What ``module:attribute`` names."""
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise UsageError(f"{name!r} must be written as module:name, like samples.weather:get_weather")
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"the module {module_name!r} cannot be imported: {why}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise UsageError(f"there is no {path!r} in the module {module_name!r}")
        found = getattr(found, part)
    return found


# -------------------------------------------------------------------------------------------------- chat


def _chat(given: argparse.Namespace) -> int:
    from agentpipe.cli._chat import Chat

    prompt = _prompt(given)
    display = _display(given)
    agent = _agent(given, display)
    chat = Chat(agent, display)
    with asyncio.Runner() as runner:
        code = runner.run(chat.once(prompt)) if prompt is not None else chat.converse(runner)
        if chat.interrupted:
            _leave(code)
    return code


def _leave(code: int) -> NoReturn:
    """End at once: a tool that was interrupted may still run in its thread, where nothing can stop it."""
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _prompt(given: argparse.Namespace) -> str | None:
    """What to ask once; None for a conversation."""
    text: str | None = given.prompt
    if text == "-" or (text is None and not (sys.stdin and sys.stdin.isatty())):
        text = _stdin()
    if text is None:
        return None
    if not text.strip():
        raise UsageError("the prompt is empty: give it as an argument or on stdin")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError("the prompt is no text in the encoding of this terminal") from None
    return text


def _stdin() -> str:
    if sys.stdin is None:
        return ""
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UsageError(f"the prompt on stdin is no text: {error}") from error


def _display(given: argparse.Namespace) -> Any:
    from agentpipe.cli._display import JsonDisplay, TextDisplay

    return JsonDisplay() if given.json else TextDisplay()


def _agent(given: argparse.Namespace, display: Any) -> Agent:
    from agentpipe._agent import Agent
    from agentpipe._options import ChatOptions

    local = _wants_local(given)
    tools = [_tool(name) for name in given.tool]
    # A model as small as the local one does not decide by itself to look something up; the loop is "auto" after that.
    options = ChatOptions(temperature=0.0, tool_choice="required" if tools else None) if local else None
    try:
        return Agent(_client(given, local, display), given.instructions, tools=tools, options=options)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error


def _tool(name: str) -> Tool:
    from agentpipe._tools import as_tool

    try:
        return as_tool(_load(name))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} cannot be a tool: {error}") from error


def _wants_local(given: argparse.Namespace) -> bool:
    if given.local and (given.base_url or given.model):
        other = "--base-url" if given.base_url else "--model"
        raise UsageError(f"--local and {other} name two different models: give one of them")
    if given.local:
        return True
    configured = given.base_url or os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_KEY")
    if not configured:
        print(
            "agentpipe: no endpoint is configured (OPENAI_API_KEY, OPENAI_BASE_URL or --base-url), "
            f"so this uses the small local model{f', not {given.model!r}' if given.model else ''}",
            file=sys.stderr,
        )
    return not configured


def _client(given: argparse.Namespace, local: bool, display: Any) -> ChatClient:
    from agentpipe.local import LocalChatClient
    from agentpipe.openai import OpenAIChatClient

    if local:
        return LocalChatClient(progress=display.fetching)
    client = OpenAIChatClient(given.model, base_url=given.base_url)
    if client.model is None:
        raise UsageError("no model is given: --model M, or OPENAI_MODEL")
    return client
