"""A process that writes turns of three messages into one session: ``writer.py KIND PLACE SESSION NAME TURNS``.

It says "NAME TURN" before and after each append. Started again it goes on after the last turn that is stored, once it
has sent that one a second time.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from agentpipe import (
    AgentSession,
    HistoryError,
    HistoryProvider,
    Message,
    PostgresHistoryProvider,
    RedisHistoryProvider,
    SQLiteHistoryProvider,
)

KINDS: dict[str, Callable[[str], HistoryProvider]] = {
    "sqlite": SQLiteHistoryProvider,
    "postgres": PostgresHistoryProvider,
    "redis": RedisHistoryProvider,
}
SIZE = 3


def open_store(kind: str, place: str) -> HistoryProvider:
    return KINDS[kind](place)


def turn_of(name: str, turn: int) -> list[Message]:
    return [Message("user", f"{name} {turn} {i}", f"{name} {turn} {i}") for i in range(SIZE)]


async def write(kind: str, place: str, session_id: str, name: str, turns: int) -> None:
    provider, session = open_store(kind, place), AgentSession(session_id)
    stored = await provider.get_messages(session)
    done = sum(message.text.startswith(f"{name} ") for message in stored) // SIZE
    for turn in range(max(0, done - 1), turns):
        print(name, turn, flush=True)
        while True:
            try:
                await provider.add_messages(session, turn_of(name, turn))
                break
            except HistoryError as error:
                if "another run" not in str(error):
                    raise
                await provider.get_messages(session)
        print(name, turn, flush=True)
    await provider.aclose()


if __name__ == "__main__":
    asyncio.run(write(*sys.argv[1:5], int(sys.argv[5])))  # type: ignore[call-arg, arg-type]
