"""What replays and runs save on the CPU, next to eager, torch.compile and TorchScript: one thread, batch 1.

    python benchmarks/cpu.py             # a table
    python benchmarks/cpu.py --check     # exit code 1 where a replay or a run is not as fast as the project promises

All ways of running a model take turns in short rounds, in one process, so that a machine that speeds up or slows
down meanwhile does so for all of them. Reported are medians over all calls, and ratios of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from graphspec.runtime.runner import Runner

SPECS = Path(__file__).resolve().parent.parent / "specs"
THREADS = 1
WARMUP_CALLS = 5

Call = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One example at batch 1.

    ``calls`` in a round keep the rounds of all cases about equally long; for a decoder they also stay within its
    cache, which is reset before every round. ``required`` is eager over bare replay, ``run_required`` eager over a
    whole run, ``most_added`` a run over its bare replay.
    """

    name: str
    region: str
    buffer: str
    keyword: str | None
    calls: int
    required: float
    run_required: float
    most_added: float


CASES = (
    Case("mlp", region="mlp", buffer="x", keyword=None, calls=100, required=2.2, run_required=1.6, most_added=2.0),
    Case(
        "llama-decode",
        region="decode",
        buffer="tokens",
        keyword="tokens",
        calls=20,
        required=3.5,
        run_required=2.8,
        most_added=1.35,
    ),
    Case(
        "resnet",
        region="classify",
        buffer="image",
        keyword="pixel_values",
        calls=4,
        required=1.0,
        run_required=1.0,
        most_added=1.1,
    ),
)


#: Ways beside replay, run and eager, in the order of the table.
OTHERS = ("compile", "max-autotune", "torchscript")


@dataclass(frozen=True)
class Row:
    """Medians in microseconds of each way that works here; ``wanted`` are ratios with what they must be."""

    name: str
    us: Mapping[str, float]
    wanted: Mapping[str, tuple[float, float]]

    @property
    def good(self) -> bool:
        """Whether every ratio is as required: speedups at least, what a run adds at most."""
        return all(
            have <= want if ratio == "run/replay" else have >= want for ratio, (have, want) in self.wanted.items()
        )


def sample(case: Case) -> torch.Tensor:
    """The input of a case at batch 1."""
    import torch

    if case.name == "llama-decode":
        return torch.tensor([[5]])
    if case.name == "resnet":
        return torch.randn(1, 3, 64, 64).contiguous(memory_format=torch.channels_last)
    return torch.randn(1, 64)


def as_call(model: Callable[..., object], case: Case, value: torch.Tensor) -> Call:
    """The model as a call without arguments, the way the region calls it."""
    return (lambda: model(value)) if case.keyword is None else (lambda: model(**{str(case.keyword): value}))


def subjects(runner: Runner, case: Case, *, with_compile: bool) -> dict[str, Call]:
    """Every way to run the case, by name; each has run already."""
    import torch

    value = sample(case)
    model: Any = runner.model
    ways: dict[str, Call] = {
        "run": lambda: runner.run(**{case.buffer: value}),
        "replay": runner.graph(case.region, {"batch": 1}).replay,
        "eager": as_call(model, case, value),
    }
    if with_compile:
        ways["compile"] = as_call(torch.compile(model, dynamic=False), case, value)
        ways["max-autotune"] = as_call(torch.compile(model, dynamic=False, mode="max-autotune"), case, value)
    try:
        traced = torch.jit.freeze(torch.jit.trace(model, value, check_trace=False, strict=False))
        ways["torchscript"] = lambda: traced(value)
    except Exception:  # noqa: BLE001 # whatever a trace refuses: then there is none to compare with
        ways.pop("torchscript", None)
    return {name: way for name, way in ways.items() if works(name, way, runner)}


def works(name: str, way: Call, runner: Runner) -> bool:
    """Whether a way runs here at all; warms it up. Only those of torch may not."""
    runner.reset()
    try:
        for _ in range(WARMUP_CALLS):
            way()
    except Exception:
        if name not in OTHERS:
            raise
        return False
    return True


def timed(call: Call) -> int:
    """The wall time of one call in nanoseconds."""
    start = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - start


def interleaved(ways: Mapping[str, Call], *, rounds: int, calls: int, reset: Call) -> dict[str, float]:
    """The median wall time of each way in microseconds, over ``rounds`` x ``calls`` calls taken in turns."""
    times: dict[str, list[int]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            reset()
            times[name] += [timed(way) for _ in range(calls)]
    return {name: statistics.median(values) / 1_000 for name, values in times.items()}


def measure(case: Case, *, rounds: int, with_compile: bool) -> Row:
    """Opens the example, and times every way to run it."""
    import torch

    import graphspec

    with graphspec.open(SPECS / case.name / "model.yaml", device="cpu") as runner, torch.no_grad():
        ways = subjects(runner, case, with_compile=with_compile)
        medians = interleaved(ways, rounds=rounds, calls=case.calls, reset=runner.reset)
    wanted = {
        "eager/replay": (medians["eager"] / medians["replay"], case.required),
        "eager/run": (medians["eager"] / medians["run"], case.run_required),
        "run/replay": (medians["run"] / medians["replay"], case.most_added),
    }
    return Row(case.name, medians, wanted)


def table(rows: list[Row]) -> str:
    """The rows as text, aligned."""
    ways = ("replay", "run", "eager", *OTHERS)
    ratios = ("eager/replay", "eager/run", "run/replay")
    lines = [f"{'us, median':<14}" + "".join(f"{way:>14}" for way in ways) + "".join(f"{each:>22}" for each in ratios)]
    for row in rows:
        cells = [f"{row.us[way]:.1f}" if way in row.us else "-" for way in ways]
        shown = [f"{have:.2f} (want {want:.2f})" for have, want in (row.wanted[ratio] for ratio in ratios)]
        lines.append(f"{row.name:<14}" + "".join(f"{c:>14}" for c in cells) + "".join(f"{c:>22}" for c in shown))
    return "\n".join(lines)


def machine() -> str:
    """What was measured on."""
    import platform

    import torch

    return (
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {THREADS} thread, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Times replays and runs on the CPU against eager and others.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="examples to measure (default: all)")
    parser.add_argument("--rounds", type=int, default=20, help="turns each way gets (default: 20)")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out: it needs a C++ compiler")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--check", action="store_true", help="exit 1 when a ratio is not as required")
    chosen = parser.parse_args()
    unknown = set(chosen.names) - {case.name for case in CASES}
    if unknown:
        parser.error(f"no such example: {', '.join(sorted(unknown))}; there are {', '.join(c.name for c in CASES)}")
    return chosen


def main() -> int:
    """Measures and prints; returns the exit code."""
    chosen = options()
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")  # an accelerator's libraries are not needed here
    os.environ["OMP_NUM_THREADS"] = str(THREADS)
    import torch

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    cases = [case for case in CASES if not chosen.names or case.name in chosen.names]
    rows = [measure(case, rounds=chosen.rounds, with_compile=not chosen.no_compile) for case in cases]
    print(json.dumps([asdict(row) for row in rows], indent=2) if chosen.json else f"{machine()}\n{table(rows)}")
    return int(chosen.check and not all(row.good for row in rows))


if __name__ == "__main__":
    sys.exit(main())
