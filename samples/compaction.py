"""A long conversation that stays short for the model: the oldest of it becomes a summary, which is made once.

python -m samples.compaction
"""

from __future__ import annotations

import asyncio

from agentpipe import Agent, AgentSession, ReducingChatClient, SummarizingReducer
from agentpipe.testing import ScriptedChatClient

QUESTIONS = [f"What about station {number}?" for number in range(1, 8)]


async def main() -> None:
    # Scripts stand in for the two models; any client may write the summaries, a smaller one for example.
    model = ScriptedChatClient(*[f"Station {n} measured {10 + n} degrees." for n in range(1, 8)])
    writer = ScriptedChatClient("Stations 1 to 4: 11, 12, 13 and 14 degrees.")
    reducer = SummarizingReducer(writer, max_tokens=110, keep_tokens=60)
    agent = Agent(ReducingChatClient(model, reducer), "You read thermometers.")
    print(agent)
    session = AgentSession()
    for question in QUESTIONS:
        await agent.run(question, session=session)
        print(f"{len(session.messages) - 1} messages are there, {len(model.requests[-1].messages)} are sent")
    for message in model.requests[-1].messages:
        print(f"{message.role}: {message.text}")


if __name__ == "__main__":
    asyncio.run(main())
