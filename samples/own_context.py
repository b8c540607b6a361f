"""Context providers of one's own: a function, and a class that also learns what came of the run."""

from __future__ import annotations

import asyncio
from datetime import date

from agentpipe import Agent, AgentSession, ChatRequest, ChatResponse, Context, ContextProvider
from agentpipe.testing import ScriptedChatClient


async def today(request: ChatRequest) -> Context:
    """The simplest one: instructions for this run."""
    return Context(instructions=f"Today is {date.today():%A}.")


class Memory(ContextProvider):
    """Remembers what the user likes, in the session, and tells the model."""

    async def before_run(self, request: ChatRequest) -> Context | None:
        likes = request.session.state.get("likes", []) if request.session else []
        return Context(instructions=f"The user likes {', '.join(likes)}.") if likes else None

    async def after_run(self, request: ChatRequest, response: ChatResponse | None, error: BaseException | None) -> None:
        said = request.messages[-1].text
        if request.session is not None and said.startswith("I like "):
            request.session.state.setdefault("likes", []).append(said.removeprefix("I like ").rstrip("."))


async def main() -> None:
    client = ScriptedChatClient("Noted.", "Then have some tea.")
    agent = Agent(client, "Be brief.", context_providers=[today, Memory()])
    session = AgentSession()
    await agent.run("I like tea.", session=session)
    print(await agent.run("I am thirsty.", session=session))
    print("The model was told:", client.requests[1].options.instructions)
    print(agent)


if __name__ == "__main__":
    asyncio.run(main())
