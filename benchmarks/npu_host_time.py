"""Host time of a run against that of torch_npu's own graphed callable, for the same module and the same input.

    LD_LIBRARY_PATH=tests/cann/_build python benchmarks/npu_host_time.py      # on the emulated CANN, or on a real NPU

Both are called in turns, many times each without waiting for the device, under no_grad; the median of a round counts,
and the ratio of the medians of all rounds is printed. ``run`` checks its input, copies it in, checks everything the
graph reads from outside, replays, and returns a copy of its own; the callable of ``make_graphed_callables`` copies the
input where its address differs, replays, and returns the graph's own memory.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import graphspec
from graphspec.backends.npu import load_torch_npu

ROUNDS, CALLS, WARMUP = 30, 40, 20

SPEC = """
graphspec: 1
name: host-time
model: {factory: model.py:build}
buffers:
  x: {shape: [8, 64], dtype: float32}
regions:
  mlp: {call: model, inputs: [x], outputs: y}
replay: [mlp]
"""
MODEL = """
from torch import nn

def build():
    return nn.Sequential(*(layer for _ in range(10) for layer in (nn.Linear(64, 64), nn.ReLU())))
"""


def main() -> int:
    """Print both times, in microseconds of the host, and their ratio; 1 if a run costs more than the callable."""
    reason = load_torch_npu()
    if reason is not None:
        sys.stderr.write(f"{reason}\n")
        return 3
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        (Path(folder) / "model.py").write_text(MODEL)
        (Path(folder) / "model.yaml").write_text(SPEC)
        ratio = compare(Path(folder) / "model.yaml")
    return 0 if ratio <= 1 else 1


def compare(path: Path) -> float:
    """Time both on one model, and print. Raises SystemExit if they give different results."""
    x = torch.randn(8, 64, device="npu")
    with graphspec.open(path, device="npu") as runner:
        npu: Any = torch.npu  # type: ignore[attr-defined]
        callable_ = npu.make_graphed_callables(runner.model, (torch.randn_like(x),))
        # The callable replaces the module's forward, which a run never calls.
        if not torch.equal(runner.run(x=x)["y"], callable_(x)):
            raise SystemExit("the two give different results")
        ways: dict[str, Callable[[], object]] = {"run": lambda: runner.run(x=x), "callable": lambda: callable_(x)}
        times: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(ROUNDS):
            for name in sorted(ways, reverse=number % 2 == 1):
                times[name].append(_round(ways[name], npu.synchronize))
    medians = {name: statistics.median(each) for name, each in times.items()}
    ratio = medians["run"] / medians["callable"]
    print(f"run {medians['run']:.1f} us, make_graphed_callables {medians['callable']:.1f} us, ratio {ratio:.2f}")
    return ratio


def _round(call: Callable[[], object], synchronize: Callable[[], None]) -> float:
    """Median microseconds of one call; the device is idle at the start."""
    for _ in range(WARMUP):
        call()
    synchronize()
    taken = []
    for _ in range(CALLS):
        start = time.perf_counter_ns()
        call()
        taken.append((time.perf_counter_ns() - start) / 1_000)
    synchronize()
    return statistics.median(taken)


if __name__ == "__main__":
    sys.exit(main())
