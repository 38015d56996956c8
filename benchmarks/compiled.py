"""What `compile: {backend: inductor}` gains on the CPU: llama-decode at batch 1, one thread.

    python benchmarks/compiled.py             # a table; the first run compiles, which takes minutes
    python benchmarks/compiled.py --check     # exit code 1 where a ratio is not what the project promises

The ways take turns in short rounds in one process; reported are medians. Compared are bare replays of the compiled and
of the recorded graph, whole runs of both, the call of the model compiled by `torch.compile`, and eager.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SPEC = Path(__file__).resolve().parent.parent / "specs/llama-decode/compiled.yaml"
ROUNDS, CALLS = 15, 20
#: Over the bare replay of the compiled graph.
REQUIRED = {"recorded replay": 1.5, "torch.compile": 2.5}


def main() -> int:
    """Measure, print, and compare with what is promised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail below the promised ratios")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    medians, opened = measure()
    least = medians["compiled replay"]
    ratios = {way: median / least for way, median in medians.items()}
    if arguments.json:
        sys.stdout.write(json.dumps({"us": medians, "ratios": ratios, "opened_s": opened}) + "\n")
    else:
        for way, median in medians.items():
            sys.stdout.write(f"{way:<18} {median:8.1f} us   {ratios[way]:5.2f}\n")
        sys.stdout.write(
            f"opened in {opened['compiled']:.2f} s from the cache, uncompiled in {opened['recorded']:.2f} s\n"
        )
    missed = [way for way, ratio in REQUIRED.items() if ratios[way] < ratio]
    for way in missed:
        sys.stderr.write(f"{way} takes {ratios[way]:.2f} of a compiled replay, and {REQUIRED[way]} is promised\n")
    return 1 if arguments.check and missed else 0


def measure() -> tuple[dict[str, float], dict[str, float]]:
    """The median of each way in microseconds, and what opening took, in seconds."""
    import torch

    from graphspec.runtime.runner import open_spec

    torch.set_num_threads(1)
    open_spec(SPEC, device="cpu").close()  # compiles, where the cache has nothing
    began = time.perf_counter()
    recorded = open_spec(SPEC, device="cpu", compile=False)
    between = time.perf_counter()
    compiled = open_spec(SPEC, device="cpu", model=recorded.model)
    opened = {"recorded": between - began, "compiled": time.perf_counter() - between}
    tokens = torch.ones(1, 1, dtype=torch.int64)
    model: Any = recorded.model
    with torch.no_grad():
        ours: Any = torch.compile(model, dynamic=False)
        ways: dict[str, Callable[[], object]] = {
            "compiled replay": compiled.graph("decode", {"batch": 1}).replay,
            "recorded replay": recorded.graph("decode", {"batch": 1}).replay,
            "compiled run": lambda: compiled.run(tokens=tokens),
            "recorded run": lambda: recorded.run(tokens=tokens),
            "torch.compile": lambda: ours(tokens),
            "eager": lambda: model(tokens),
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        for round_ in range(ROUNDS + 1):
            for way, call in ways.items():
                compiled.reset()  # the cache of the model holds so many tokens
                for _ in range(CALLS):
                    start = time.perf_counter_ns()
                    call()
                    times[way].append((time.perf_counter_ns() - start) / 1000 if round_ else 0)
    medians = {way: statistics.median(taken[CALLS:]) for way, taken in times.items()}
    compiled.close()
    recorded.close()
    return medians, opened


if __name__ == "__main__":
    sys.exit(main())
