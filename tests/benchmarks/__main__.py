"""Measures all peers in one interleaved run: ``python -m tests.benchmarks [--quick] [--repeats N] [--out DIR]``.

The CPU of the client's process is what counts, as a ratio to the plain SDK in the same repeat; the medians are shown.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.alone import measure as alone
from tests.benchmarks.peers import PEERS

ROOT = Path(__file__).parents[2]
BASE = "openai SDK"
#: Scenario: what it is, how many runs, and how many in a quick one.
SCENARIOS = {
    "s1": ("one answer", 200, 3),
    "s2": ("one tool", 100, 2),
    "s3": ("ten rounds", 20, 1),
    "s4": ("eight calls at once", 40, 1),
    "s5": ("a stream of 2,000 chunks", 3, 1),
    "s6": ("arguments in 1,000 fragments", 3, 1),
    "s7": ("200 runs at once, 50 ms latency", 200, 5),
    "s8": ("turn 200 of one session", 200, 4),
    "s10": ("an idle session of 20 messages, kB", 40, 2),
}
Samples = dict[str, dict[str, list[float]]]


class Process:
    """A peer in its own process."""

    def __init__(self, name: str, url: str) -> None:
        command = [sys.executable, "-m", "tests.benchmarks.worker", name, url]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def measure(self, scenario: str, runs: int) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{scenario} {runs}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args!r} ended in {scenario}")
        return float(json.loads(line))

    def end(self) -> None:
        self.process.communicate()


def measure(names: list[str], repeats: int, quick: bool) -> Samples:
    """Every scenario on every peer, ``repeats`` times, the peers in another order each time."""
    samples: Samples = {scenario: {name: [] for name in names} for scenario in SCENARIOS}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.server"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}/v1"
        processes = {name: Process(name, url) for name in names}
        for _ in range(repeats):
            for scenario, (_what, runs, few) in SCENARIOS.items():
                for name in random.sample(names, len(names)):
                    samples[scenario][name].append(processes[name].measure(scenario, few if quick else runs))
        for process in processes.values():
            process.end()
        server.terminate()
    return samples


def ratio(samples: Samples, scenario: str, name: str) -> float:
    """The median of the ratios to the plain SDK, each within one repeat."""
    own, base = samples[scenario][name], samples[scenario][BASE]
    return statistics.median([a / b if b else 0.0 for a, b in zip(own, base, strict=True)])


def table(samples: Samples, names: list[str]) -> str:
    """A Markdown table: ratios, and behind them milliseconds (kilobytes for memory)."""
    lines = [f"| | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    for scenario, (what, *_runs) in SCENARIOS.items():
        cells = [
            f"{ratio(samples, scenario, name):.2f}x ({statistics.median(samples[scenario][name]):.2f})"
            for name in names
        ]
        lines.append(f"| {scenario.upper()} {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(samples: Samples, names: list[str]) -> str:
    """A bar chart of the ratios, as SVG."""
    shown = [name for name in names if name != BASE]
    row, left, wide = 16 * len(shown) + 14, 260, 400
    colours = ("#2a78d6", "#5bb0a6", "#b9b9b9")
    height = row * len(SCENARIOS) + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{height}" font-family="sans-serif" font-size="12">'
    ]
    parts.append(
        f'<line x1="{left + wide}" y1="20" x2="{left + wide}" y2="{height - 30}" stroke="#999" stroke-dasharray="3"/>'
    )
    parts.append(f'<text x="{left + wide}" y="14" text-anchor="middle">plain openai SDK</text>')
    for place, (scenario, (what, *_runs)) in enumerate(SCENARIOS.items()):
        top = 28 + place * row
        parts.append(f'<text x="{left - 8}" y="{top + 12}" text-anchor="end">{what}</text>')
        for number, name in enumerate(shown):
            found = ratio(samples, scenario, name)
            y, long = top + number * 16, min(found, 1.2) * wide
            parts.append(f'<rect x="{left}" y="{y}" width="{long:.0f}" height="12" fill="{colours[number % 3]}"/>')
            parts.append(f'<text x="{left + long + 4:.0f}" y="{y + 10}" font-size="10">{found:.2f}</text>')
    for number, name in enumerate(shown):
        x = left + number * 150
        parts.append(f'<rect x="{x}" y="{height - 18}" width="12" height="12" fill="{colours[number % 3]}"/>')
        parts.append(f'<text x="{x + 18}" y="{height - 8}">{name}</text>')
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke test; its figures mean nothing")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, help="where to write results.json, results.md and results.svg")
    given = parser.parse_args()
    names = list(PEERS)
    samples = measure(names, given.repeats, given.quick)
    own = asyncio.run(alone(given.repeats, given.quick))
    print(f"{table(samples, names)}\n\n{own}")
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "results.json").write_text(json.dumps(samples))
        (given.out / "results.md").write_text(f"{table(samples, names)}\n\n{own}\n")
        (given.out / "results.svg").write_text(plot(samples, names))


if __name__ == "__main__":
    main()
