"""Write your own layer: from one that passes everything on to a working budget, in four steps.

1. Pass everything on. A layer is a `DelegatingChatClient`, and ``respond`` is all that it may have to say::

       class Budget(DelegatingChatClient):
           async def respond(self, request):
               async for update in self.inner.respond(request):
                   yield update

2. Close what is inside, whatever happens: a reader that leaves, an error, a cancelled run::

       async with closing(self.inner.respond(request)) as updates:
           async for update in updates:
               yield update

3. Look at what goes by. Whole or streamed, it is the same loop: usages add up over the updates::

       if update.usage is not None:
           self.left -= update.usage.total_tokens or 0

4. Refuse before anything is spent, and check the setting where the layer is made. That is the class below.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

from agentpipe import (
    Agent,
    ChatClient,
    ChatRequest,
    ChatResponseUpdate,
    DelegatingChatClient,
    FunctionInvokingChatClient,
    UsageDetails,
    UsageLimitError,
    closing,
    pipeline,
)
from agentpipe.testing import ScriptedChatClient, call


class Budget(DelegatingChatClient):
    """Stops asking when ``tokens`` are used up."""

    def __init__(self, inner: ChatClient, *, tokens: int) -> None:
        super().__init__(inner)
        if tokens < 1:
            raise ValueError(f"tokens must be at least 1, not {tokens}")
        self.tokens = tokens  # kept under its name, so print shows it
        self.left = tokens

    async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        if self.left <= 0:
            raise UsageLimitError(f"all {self.tokens} tokens are used")
        async with closing(self.inner.respond(request)) as updates:
            async for update in updates:
                if update.usage is not None:
                    self.left -= update.usage.total_tokens or 0
                yield update


def look(place: str) -> str:
    """Look at a place."""
    return f"{place} is beautiful"


async def main() -> None:
    usage = UsageDetails(total_tokens=40)
    model = ScriptedChatClient(call("look", place="Suzhou"), call("look", place="Hangzhou"), "Both are.", usage=usage)
    # Below the loop it looks before each model call; above it, it would look once a run.
    agent = Agent(pipeline(FunctionInvokingChatClient, partial(Budget, tokens=60), model), tools=[look])
    print(agent)
    try:
        await agent.run("Which is more beautiful, Suzhou or Hangzhou?")
    except UsageLimitError as error:
        print(error)
        for result in error.response.function_results if error.response else ():
            print("done until then:", result.text)


if __name__ == "__main__":
    asyncio.run(main())
