"""Every example on a device: does it match eager, and how fast is a replay against what one would write by hand.

    python benchmarks/device.py                    # on the GPU or NPU that is there
    python benchmarks/device.py --device cuda --no-compile

Each example is checked first (fresh inputs, padded sizes, static memory poisoned between replays), as `graphspec run`
does. Then one sequence at its largest bucket is timed in turns: eager, a run of graphspec, the bare replay of its
graphs, a graph written by hand around the same callable, and torch.compile(mode="reduce-overhead"). Under four minutes
on one GPU. Everything here but the device runs on the CPU too, where the hand-written graph is left out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from graphspec.runtime.runner import Runner

SPECS = Path(__file__).resolve().parent.parent / "specs"
WAYS = ("eager", "run", "replay", "by hand", "compile")
Call = Callable[[], object]


def examples() -> list[Path]:
    """Every spec that runs."""
    return [path for path in sorted(SPECS.glob("*/model.yaml")) if "x-check-only: true" not in path.read_text()]


def check(runner: Runner, steps: int) -> str:
    """What `graphspec run` says of this spec on this device."""
    from graphspec.runtime.trial.execute import RunOptions, execute

    return execute(runner, RunOptions(steps=steps)).report.check.status


def bare_replay(runner: Runner) -> Call:
    """Every graph of the largest bucket, one after the other, with nothing around it."""
    sizes = dict(runner.plan.buckets[0].sizes)
    regions = [name for sequence in runner.plan.sequences.values() for name in sequence.steps]
    plans = runner.plan.regions
    graphs = [
        runner.graph(name, {dim: sizes[dim] for dim in plans[name].dims}) for name in regions if not plans[name].eager
    ]

    def call() -> None:
        for graph in graphs:
            graph.replay()

    return call


def by_hand(call: Call, device: torch.device) -> Call | None:
    """What one writes without graphspec: warm up on a side stream, capture, replay. None on the CPU."""
    import torch

    if device.type == "cpu":
        return None
    module: Any = torch.get_device_module(device)
    graph: Any = module.CUDAGraph() if device.type == "cuda" else module.NPUGraph()
    stream = module.Stream()
    stream.wait_stream(module.current_stream())
    with module.stream(stream):
        for _ in range(3):
            call()
    module.current_stream().wait_stream(stream)
    with module.graph(graph):
        call()
    replay: Call = graph.replay
    return replay


def ways(runner: Runner, *, with_compile: bool) -> dict[str, Call]:
    """Every way to run the spec's first sequence at its largest bucket, by name."""
    import torch

    sequence = next(iter(runner.sequences.values()))
    inputs = runner.sample(sequence.name)
    inputs = {n: v.to(runner.device) if isinstance(v, torch.Tensor) else v for n, v in inputs.items()}
    eager = sequence.direct(inputs)
    found: dict[str, Call] = {
        "eager": eager,
        "run": lambda: sequence.run(inputs),
        "replay": bare_replay(runner),
    }
    if len(runner.plan.regions) == 1:  # what has eager regions in between is no single graph
        hand = by_hand(eager, runner.device)
        if hand is not None:
            found["by hand"] = hand
        if with_compile:
            found["compile"] = torch.compile(eager, mode="reduce-overhead")
    return found


def medians(runner: Runner, found: dict[str, Call], seconds: float) -> dict[str, float]:
    """The median wall time of each way in microseconds, device included, in turns of a few calls for ``seconds``."""
    from graphspec.runtime.trial.timing import synchronizer

    synchronize = synchronizer(runner.device)
    times: dict[str, list[int]] = {name: [] for name in found}
    saved = runner.state.save()
    for call in found.values():
        for _ in range(3):
            call()
        runner.state.restore(saved)
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        for name, call in found.items():
            for _ in range(5):
                start = time.perf_counter_ns()
                call()
                synchronize()
                times[name].append(time.perf_counter_ns() - start)
            runner.state.restore(saved)
    return {name: statistics.median(values) / 1_000 for name, values in times.items()}


def line(name: str, status: str, taken: dict[str, float]) -> str:
    """One row: the check, then each way in microseconds, then what a replay gains over eager."""
    cells = "".join(f"{format(taken[way], '.1f') if way in taken else '-':>10}" for way in WAYS)
    return f"{name:<16}{status:<10}{cells}{taken['eager'] / taken['replay']:>10.2f}x"


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Checks and times every example on a device.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="examples to run (default: all)")
    parser.add_argument("--device", default="auto", help="auto, cuda, npu or cpu (default: auto)")
    parser.add_argument("--steps", type=int, default=10, help="steps of the check (default: 10)")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each example is timed (default: 5)")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    return parser.parse_args()


def main() -> int:
    """Checks, measures and prints; 1 if an example does not match eager or cannot run."""
    chosen = options()
    import graphspec
    from graphspec.errors import GraphSpecError

    print(f"{'us, median':<16}{'check':<10}" + "".join(f"{way:>10}" for way in WAYS) + f"{'gain':>11}")
    failed = False
    for path in examples():
        name = path.parent.name
        if chosen.names and name not in chosen.names:
            continue
        try:
            with graphspec.open(path, device=chosen.device) as runner:
                import torch

                with torch.no_grad():
                    status = check(runner, chosen.steps)
                    found = ways(runner, with_compile=not chosen.no_compile)
                    print(line(name, status, medians(runner, found, chosen.seconds)), flush=True)
                failed |= status != "match"
        except GraphSpecError as error:
            print(f"{name:<16}{type(error).__name__}: {error}", flush=True)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
