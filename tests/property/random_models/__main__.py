"""``python -m random_models SEED [--shrink]``: one draw, printed and judged."""

from __future__ import annotations

import sys

import torch

from random_models.draw import draw
from random_models.interpret import source, spec_text
from random_models.judge import judge
from random_models.shrink import shrink


def main() -> None:
    """Print a draw and what became of it."""
    torch.set_num_threads(1)
    found = draw(int(sys.argv[1]))
    outcome = judge(found)
    if "--shrink" in sys.argv and outcome.faulty:
        kind = (outcome.kind, outcome.code)
        found = shrink(found, lambda less: (got := judge(less)).kind == kind[0] and got.code == kind[1])
        outcome = judge(found)
    print(source(found), spec_text(found), *found.runs, outcome.kind, outcome.code, outcome.detail, sep="\n")  # noqa: T201


main()
