"""Host time of a run against that of torch_npu's own graphed callable, for the same module and the same input.

    LD_LIBRARY_PATH=tests/cann/_build python benchmarks/npu_host_time.py      # on the emulated CANN, or on a real NPU

Both are called in turns under no_grad, in bursts that do not wait for the device; the time of a burst is divided by its
calls. Reported are medians over all bursts, and over the ratios of neighbouring bursts: by the clock, which counts what
the host waits for (torch_npu's task queue, a full stream), and in processor time of the calling thread. ``run`` checks
its input, copies it in, checks everything the graph reads from outside, replays, and returns a copy of its own; the
callable copies the input where its address differs, replays, and returns the graph's own memory.
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

ROUNDS, CALLS, WARMUP = 60, 30, 5

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
    """Print both times, in microseconds of the host, and their ratios; 1 if a run takes longer by the clock."""
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
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for number in range(ROUNDS):
            for name in sorted(ways, reverse=number % 2 == 1):
                times[name].append(_burst(ways[name], npu.synchronize))
    ratios = []
    for position, what in enumerate(("by the clock", "processor time")):
        run, callable_time = (statistics.median(each[position] for each in times[name]) for name in ways)
        # Of bursts that were neighbours, since the machine may change its speed from second to second.
        pairs = zip(times["run"], times["callable"], strict=True)
        ratios.append(statistics.median(one[position] / other[position] for one, other in pairs))
        print(f"{what}: run {run:.1f} us, make_graphed_callables {callable_time:.1f} us, ratio {ratios[-1]:.2f}")
    return ratios[0]


def _burst(call: Callable[[], object], synchronize: Callable[[], None]) -> tuple[float, float]:
    """Microseconds of one call, by the clock and of the thread's processor time; the device is idle at the start."""
    for _ in range(WARMUP):
        call()
    synchronize()
    clock, processor = time.perf_counter_ns(), time.thread_time_ns()
    for _ in range(CALLS):
        call()
    taken = time.perf_counter_ns() - clock, time.thread_time_ns() - processor
    synchronize()
    return taken[0] / CALLS / 1_000, taken[1] / CALLS / 1_000


if __name__ == "__main__":
    sys.exit(main())
