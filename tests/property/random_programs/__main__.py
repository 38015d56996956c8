"""``python -m random_programs FIRST COUNT``: draw so many programs, and print every wrong one."""

from __future__ import annotations

import os
import sys

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")  # a torch_npu without CANN would fail the import of torch

import torch

from random_programs.judge import Tally, faults


def main(first: int, count: int) -> int:
    """Print each wrong one, and what became of all. 1 if one is wrong."""
    torch.set_num_threads(1)
    tally, wrong = Tally(), []
    for seed, text in faults(range(first, first + count), tally):
        wrong.append(seed)
        sys.stdout.write(f"{text}\n\n")
    sys.stdout.write(f"{tally}\nwrong seeds: {' '.join(map(str, wrong)) or 'none'}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    with torch.no_grad():
        sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
