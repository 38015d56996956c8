"""What a replay saves of a whole training step on the CPU: specs/train-step against eager, one thread, batch 1.

    python benchmarks/training.py             # medians and their ratio
    python benchmarks/training.py --check     # exit code 1 where a replayed step is not twice as fast as eager

Both ways take turns in short rounds, in one process. Eager is the model's own code and nothing else; a run checks its
inputs, copies them in, and leaves loss, weights and `.grad` as eager would.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

SPEC = Path(__file__).resolve().parent.parent / "specs/train-step/model.yaml"
REQUIRED = 2.0
ROUNDS, CALLS = 40, 5


def main() -> int:
    """Measure, print, and with ``--check`` compare with what is promised."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail where a replay is not as fast as promised")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

    import torch

    import graphspec

    torch.set_num_threads(1)
    with graphspec.open(SPEC, device="cpu") as runner:
        step = runner["step"]
        inputs = runner.sample("step")
        model, tensors = runner.model, {name: inputs[name] for name in ("tokens", "labels")}

        def eager() -> None:
            model.learn(**tensors)
            model.update()

        ways: dict[str, Callable[[], object]] = {"eager": eager, "replay": lambda: step(**inputs)}
        taken: dict[str, list[int]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, call in ways.items():
                call()
                for _ in range(CALLS):
                    began = time.perf_counter_ns()
                    call()
                    taken[name].append(time.perf_counter_ns() - began)
    medians = {name: statistics.median(each) / 1_000 for name, each in taken.items()}
    ratio = medians["eager"] / medians["replay"]
    sys.stdout.write(f"a whole step: eager {medians['eager']:.0f} us, run {medians['replay']:.0f} us, {ratio:.2f}x\n")
    return int(options.check and ratio < REQUIRED)


if __name__ == "__main__":
    sys.exit(main())
