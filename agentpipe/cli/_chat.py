"""One question, or a conversation."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentpipe._agent import Agent
from agentpipe._messages import (
    ApprovalRequestContent,
    ApprovalResponseContent,
    InputRequestContent,
    InputResponseContent,
)
from agentpipe._responses import ChatResponse
from agentpipe._session import AgentSession
from agentpipe.cli._terminal import until_typed
from agentpipe.exceptions import AgentPipeError

if TYPE_CHECKING:
    from agentpipe.cli._display import Display

DONE, FAILED, INTERRUPTED = 0, 1, 130

Answers = Sequence[ApprovalResponseContent | InputResponseContent]


class Chat:
    """Runs an agent and shows what comes of it."""

    def __init__(self, agent: Agent, display: Display) -> None:
        self.agent = agent
        self.display = display
        self.session = AgentSession()
        self.interrupted = False

    async def once(self, prompt: str) -> int:
        """Ask one question; the exit code."""
        try:
            return await self._run(prompt)
        finally:
            await self._close()

    def converse(self, runner: asyncio.Runner) -> int:
        """Ask what is typed until there is no more; the exit code. Ctrl-C ends a run, and at the prompt all of it."""
        try:
            while (line := self._read_line()) is not None:
                if line.strip():
                    runner.run(self._run(line))
        except KeyboardInterrupt:
            print(file=sys.stderr)
        finally:
            runner.run(self._close())
        return DONE

    async def _close(self) -> None:
        await self.agent.aclose()
        self.display.close()

    def _read_line(self) -> str | None:
        try:
            print("> ", end="", file=sys.stderr, flush=True)
            until_typed()
            return input()
        except EOFError:
            print(file=sys.stderr)
            return None

    async def _run(self, given: str) -> int:
        """Run to the end, with every question answered; the exit code. Ctrl-C cancels the run, a second one all."""
        try:
            await self._with_answers(given)
        except asyncio.CancelledError:
            self.interrupted = True
            self.display.failed("interrupted")
            return INTERRUPTED
        except BrokenPipeError:
            raise
        except Exception as error:
            self.display.failed(reason(error))
            return FAILED
        return DONE

    async def _with_answers(self, given: str) -> None:
        response = await self._stream(given)
        while response.approval_requests or response.input_requests:
            response = await self._stream(self._answers(response))

    async def _stream(self, given: str | Answers) -> ChatResponse:
        async with self.agent.stream(given, session=self.session) as stream:
            async for update in stream:
                self.display.update(update)
            response = await stream.get_response()
        self.display.done(response)
        return response

    def _answers(self, response: ChatResponse) -> Answers:
        decisions = [self._decide(request) for request in response.approval_requests]
        return [*decisions, *[self._answer(question) for question in response.input_requests]]

    def _answer(self, question: InputRequestContent) -> InputResponseContent:
        said = self.display.ask(f"{question.call.name} asks: {question.payload} ")
        if said is None:
            raise AgentPipeError(f"the tool {question.call.name!r} has a question, and nobody is there to answer it")
        return question.answer(said.rstrip("\n"))

    def _decide(self, request: ApprovalRequestContent) -> ApprovalResponseContent:
        call = request.call
        said = self.display.ask(f"run {call.name}({dict(call.arguments)})? [y/N] ")
        if said is not None and said.strip().lower() in ("y", "yes"):
            return request.approve()
        return request.reject(None if said is not None else "Nobody is there to approve it.")


def reason(error: BaseException) -> str:
    """Why something failed, in one line; the kind of error too where its text was not written for people."""
    text = " ".join(str(error).split())
    if isinstance(error, (AgentPipeError, ValueError, OSError)) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
