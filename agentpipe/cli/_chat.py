"""One question, or a conversation."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentpipe._agent import Agent
from agentpipe._messages import ApprovalRequestContent, ApprovalResponseContent, InputResponseContent
from agentpipe._responses import ChatResponse
from agentpipe._session import AgentSession
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

    async def once(self, prompt: str) -> int:
        """Ask one question; the exit code."""
        try:
            return await self._run(prompt)
        finally:
            await self.agent.aclose()

    def converse(self) -> int:
        """Ask what is typed until there is no more; the exit code. Ctrl-C ends a run, and at the prompt all of it."""
        with asyncio.Runner() as runner:
            try:
                while (line := self._read_line()) is not None:
                    if line.strip():
                        runner.run(self._run(line))
            except KeyboardInterrupt:
                print(file=sys.stderr)
            finally:
                runner.run(self.agent.aclose())
        return DONE

    def _read_line(self) -> str | None:
        try:
            print("> ", end="", file=sys.stderr, flush=True)
            return input()
        except EOFError:
            print(file=sys.stderr)
            return None

    async def _run(self, given: str) -> int:
        """Run to the end, with every question answered; the exit code. SIGINT cancels the run."""
        task = asyncio.ensure_future(self._with_answers(given))
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            self.display.failed("interrupted")
            return INTERRUPTED
        except (AgentPipeError, ValueError, OSError) as error:
            self.display.failed(str(error) or type(error).__name__)
            return FAILED
        finally:
            loop.remove_signal_handler(signal.SIGINT)
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
        decided = [self._decide(request) for request in response.approval_requests]
        told = [question.answer(self.display.ask(f"{question.payload} ")) for question in response.input_requests]
        return [*decided, *told]

    def _decide(self, request: ApprovalRequestContent) -> ApprovalResponseContent:
        call = request.call
        said = self.display.ask(f"run {call.name}({dict(call.arguments)})? [y/N] ")
        if said is not None and said.strip().lower() in ("y", "yes"):
            return request.approve()
        return request.reject(None if said is not None else "Nobody is there to approve it.")
