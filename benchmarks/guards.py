"""What the guards cost: their part of a replay of llama-decode, and how they grow with the number of tensors.

    python benchmarks/guards.py             # two tables
    python benchmarks/guards.py --check     # exit code 1 if the guards cost more than 8% of a replay

The part is measured inside of ordinary runs, the check and the replay of each: a replay empties the caches, so that a
check in a loop of its own takes less than half as long. One thread, batch 1; medians over all runs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import graphspec
from graphspec.runtime.holdings.guard import Guard
from graphspec.runtime.holdings.reach import reach
from graphspec.runtime.holdings.which import modes, read_tensors

SPEC = Path(__file__).resolve().parent.parent / "specs" / "llama-decode" / "model.yaml"
MOST = 0.08  # of a replay
ROUNDS, RUNS, WARMUP = 15, 40, 4  # a round stays within the cache of llama-decode, which is reset before it
SIZES = (50, 300, 1000)


class Timer:
    """A call that remembers how long it took last."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.seconds = 0.0

    def __call__(self) -> Any:
        """Call, and remember."""
        start = time.perf_counter()
        result = self.call()
        self.seconds = time.perf_counter() - start
        return result


def parts() -> dict[str, tuple[float, float, float]]:
    """For each way to check: seconds of a check, seconds of a replay, and the part of one in the other."""
    with graphspec.open(SPEC) as runner:
        ((name, sequence),) = runner.sequences.items()
        inputs = runner.sample(name, {"batch": 1})
        runner.run(**inputs)
        variants = runner._variants  # noqa: SLF001 - a benchmark of what is inside
        (guard,) = variants.guards()
        columns = guard._columns  # noqa: SLF001
        (step,) = next(iter(sequence._routes.values())).steps  # noqa: SLF001
        replay = Timer(step._replay)  # type: ignore[union-attr] # noqa: SLF001
        step._replay = replay  # type: ignore[union-attr] # noqa: SLF001
        ways = {
            "no check at all": lambda: None,
            "place by place, in Python": columns,
            "as runs do": guard.check,
        }
        taken: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for _ in range(ROUNDS):
            for way, call in ways.items():
                runner.reset()
                check = Timer(call)
                variants.check = lambda _, check=check: check()  # type: ignore[method-assign, misc]
                for number in range(WARMUP + RUNS):
                    runner.run(**inputs)
                    if number >= WARMUP:
                        taken[way].append((check.seconds, replay.seconds))
    return {
        way: (
            statistics.median(check for check, _ in times),
            statistics.median(replayed for _, replayed in times),
            statistics.median(check / replayed for check, replayed in times),
        )
        for way, times in taken.items()
    }


def growth(tensors: int) -> dict[str, float]:
    """Seconds of one check of a chain of linear layers, in a loop of its own: the best of several rounds."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(tensors // 2))).eval()
    found = reach({"model": model})
    entries = read_tensors([((place,), tensor) for place, tensor in found.tensors])
    guard = Guard((*entries, *modes(found.modules)))
    ways = {
        "walk parameters()": lambda: [tensor.data_ptr() for tensor in model.parameters()],
        "place by place, in Python": guard._columns,  # noqa: SLF001
        "as runs do": guard.check,
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for way, call in ways.items():
            start = time.perf_counter()
            for _ in range(20_000 // tensors):
                call()
            best[way] = min(best[way], (time.perf_counter() - start) / (20_000 // tensors))
    return best


def main() -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="exit code 1 if the guards cost too much")
    check = parser.parse_args().check
    torch.set_num_threads(1)
    measured = parts()
    print(f"{'in runs of llama-decode':<28}{'check us':>10}{'replay us':>12}{'part':>8}")
    for way, (seconds, replayed, part) in measured.items():
        print(f"{way:<28}{seconds * 1e6:>10.1f}{replayed * 1e6:>12.1f}{part:>8.1%}")
    columns = [growth(size) for size in SIZES]
    print(f"\n{'microseconds for N tensors':<28}" + "".join(f"{size:>10}" for size in SIZES))
    for way in columns[0]:
        print(f"{way:<28}" + "".join(f"{column[way] * 1e6:>10.1f}" for column in columns))
    return int(check and measured["as runs do"][2] > MOST)


if __name__ == "__main__":
    sys.exit(main())
