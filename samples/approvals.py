"""A person decides, perhaps tomorrow: approvals that survive a restart of the process.

python -m samples.approvals            asks for something that needs approval, stores the session, and ends
python -m samples.approvals approve    another process: approves what was asked, and the run goes on
python -m samples.approvals reject     ... or rejects it
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from agentpipe import Agent, AgentSession, ApprovalRequestContent, tool
from agentpipe.testing import ScriptedChatClient, Step, call

STORE = Path("approvals-session.json")


@tool(requires_approval=True)
def delete(path: str) -> str:
    """Delete a file."""
    print(f"(deleting {path})")
    return f"{path} is gone"


def agent(*script: Step) -> Agent:
    # A script stands in for the model, so that this runs without one. With a real one: OpenAIChatClient("gpt-4o-mini").
    return Agent(ScriptedChatClient(*script), "You tidy up.", tools=[delete])


async def first_process() -> None:
    session = AgentSession()
    response = await agent([call("delete", path="/tmp/old")]).run("Tidy up.", session=session)
    for request in response.approval_requests:
        print(f"{request.id}: may I run {request.call.name}({dict(request.call.arguments)})?")
    STORE.write_text(session.model_dump_json())


async def second_process(decision: str) -> None:
    session = AgentSession.model_validate_json(STORE.read_text())
    contents = [content for message in session.messages for content in message.contents]
    requests = [content for content in contents if isinstance(content, ApprovalRequestContent)]
    answers = [request.approve() if decision == "approve" else request.reject("Keep it.") for request in requests]
    response = await agent("All done.").run(answers, session=session)
    for result in response.function_results:
        print(f"result: {result.text}")
    print(response)
    STORE.unlink()


if __name__ == "__main__":
    asyncio.run(second_process(sys.argv[1]) if len(sys.argv) > 1 else first_process())
