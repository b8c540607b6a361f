"""An answer of a type of your own: checked, and asked for again with what is wrong with it.

python -m samples.structured_output
"""

from __future__ import annotations

import asyncio

from pydantic import BaseModel, Field

from agentpipe import Agent, ChatOptions, FunctionInvokingChatClient, StructuredOutputChatClient, pipeline
from agentpipe.testing import ScriptedChatClient


class City(BaseModel):
    name: str
    people: int = Field(ge=0)


async def main() -> None:
    # A script stands in for the model; its first answer does not fit.
    model = ScriptedChatClient('{"name": "Paris", "people": "many"}', '{"name": "Paris", "people": 2100000}', piece=16)
    client = pipeline(StructuredOutputChatClient, FunctionInvokingChatClient, model)
    agent = Agent(client, options=ChatOptions(response_format=City))
    async with agent.stream("The largest city of France?") as stream:
        async for _ in stream:
            print("so far:", stream.partial_output)
    response = await stream.get_response()
    for message in response.messages:
        print(f"{message.role}: {message.text}")
    city: City = response.parse(City)
    print(repr(city))


if __name__ == "__main__":
    asyncio.run(main())
