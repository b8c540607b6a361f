"""What the endpoint must not see: placeholders go out, and real values come back, to tools as well.

python -m samples.redacting
"""

from __future__ import annotations

import asyncio
import re
from functools import partial

from agentpipe import Agent, ChatRequest, FunctionCallContent, FunctionInvokingChatClient, RedactingChatClient, pipeline
from agentpipe.testing import ScriptedChatClient, call


def send(to: str, text: str) -> str:
    """Send a mail."""
    print(f"(sending to {to})")
    return f"sent to {to}"


# What a model would do: use the placeholder as if it were the address.


def address(request: ChatRequest) -> str:
    return str(re.findall(r"\[EMAIL_\w+\]", request.messages[0].text)[0])


def calls_send(request: ChatRequest) -> FunctionCallContent:
    return call("send", to=address(request), text="Dear Ada, ...")


def tells(request: ChatRequest) -> str:
    return f"I have written to {address(request)}."


async def main() -> None:
    model = ScriptedChatClient(calls_send, tells)
    redacting = partial(RedactingChatClient, patterns=["email", "phone", re.compile(r"project \w+")])
    agent = Agent(pipeline(FunctionInvokingChatClient, redacting, model), tools=[send])
    response = await agent.run("Write to ada@example.org about project Nightingale.")
    print("the user reads:", response)
    for message in model.requests[-1].messages:
        print("the model saw:", message.model_dump_json())


if __name__ == "__main__":
    asyncio.run(main())
