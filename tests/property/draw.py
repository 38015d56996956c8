"""Draw random models from the clock, and say which are wrong: ``python tests/property/draw.py 500``.

The first seed is printed at once, so that whatever happens can be repeated: ``--first SEED``. 1 if a draw is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")  # a torch_npu without CANN would fail the import of torch

import torch
from random_models.seeds import faults
from random_models.statistics import Tally, lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, and print the first seed, every fault, what became of the draws, and every wrong seed."""
    parser = argparse.ArgumentParser(prog="draw.py", description="Draw random models and judge them.")
    parser.add_argument("draws", type=int, nargs="?", default=500, help="how many (500)")
    parser.add_argument("--first", type=int, help="the first seed (the clock, in milliseconds)")
    given = parser.parse_args(arguments)
    first = time.time_ns() // 1_000_000 if given.first is None else given.first
    say(f"{given.draws} draws; to repeat them: python tests/property/draw.py {given.draws} --first {first}")
    torch.set_num_threads(1)
    wrong, tally = [], Tally()
    try:
        for seed, text in faults(range(first, first + given.draws), tally):
            wrong.append(seed)
            say(f"\n{text}\n")
    finally:  # interrupted, too
        if tally.draws < given.draws:
            say(f"ended at seed {first + tally.draws}")
        say("\n".join(lines(tally)))
        say(f"wrong seeds: {' '.join(map(str, wrong)) or 'none'}")
    return 1 if wrong else 0


def say(text: str) -> None:
    """Print at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
