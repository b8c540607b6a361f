"""Runs one peer in a process of its own: ``python -m tests.benchmarks.worker PEER URL``, a scenario a line on stdin."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
import tracemalloc
from typing import Any

from tests.benchmarks.peers import PEERS, PROMPT
from tests.benchmarks.server import FINAL


class Worker:
    """The scenarios; each gives the CPU of the process, in milliseconds a run."""

    def __init__(self, name: str) -> None:
        self.peer = PEERS[name]()

    async def _runs(self, runs: int, ask: Any, expected: str) -> float:
        assert await ask() == expected
        gc.collect()
        begun = time.process_time()
        for _ in range(runs):
            said = await ask()
        assert said == expected
        return (time.process_time() - begun) * 1e3 / runs

    async def s1(self, runs: int) -> float:
        return await self._runs(runs, lambda: self.peer.run("echo"), FINAL)

    async def s2(self, runs: int) -> float:
        return await self._runs(runs, lambda: self.peer.run("tool-1", ("add",)), FINAL)

    async def s3(self, runs: int) -> float:
        return await self._runs(runs, lambda: self.peer.run("tool-10", ("add",)), FINAL)

    async def s4(self, runs: int) -> float:
        return await self._runs(runs, lambda: self.peer.run("parallel-8", ("add",)), FINAL)

    async def s5(self, runs: int) -> float:
        text = "".join(f"tok{n % 10} " for n in range(2000))
        return await self._runs(runs, lambda: self.peer.stream("stream-2000"), text)

    async def s6(self, runs: int) -> float:
        return await self._runs(runs, lambda: self.peer.stream("args-1000", ("write",)), "tok0 ")

    async def s7(self, runs: int) -> float:
        async def batch() -> str:
            said = await asyncio.gather(*[self.peer.run("tool-1@50", ("add",)) for _ in range(runs)])
            assert set(said) == {FINAL}
            return FINAL

        return await self._runs(1, batch, FINAL) / runs

    async def s8(self, turns: int) -> float:
        """The median of the last ten turns of a session."""
        session = self.peer.session()
        took = []
        for turn in range(turns):
            begun = time.process_time()
            assert await self.peer.turn(session, f"{PROMPT} This is turn {turn}.") == FINAL
            took.append((time.process_time() - begun) * 1e3)
        return sorted(took[-10:])[5 if turns >= 10 else 0]

    async def s10(self, sessions: int) -> float:
        """Kilobytes of a session of twenty messages."""
        kept = []

        async def fill(count: int) -> None:
            for _ in range(count):
                kept.append(self.peer.session())
                for turn in range(10):
                    await self.peer.turn(kept[-1], f"{PROMPT} This is turn {turn}.")
            gc.collect()

        await fill(3)
        tracemalloc.start(1)
        await fill(sessions)  # so that what others cache is there before it is counted
        before = tracemalloc.get_traced_memory()[0]
        await fill(sessions)
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        return grown / 1024 / sessions


async def main(name: str, url: str) -> None:
    worker = Worker(name)
    await worker.peer.start(url)
    for line in sys.stdin:
        scenario, runs = line.split()
        print(json.dumps(await getattr(worker, scenario)(int(runs))), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
