"""Seeds to outcomes: each draw judged, and one in so many replayed by the plain Python replayer too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from random_models.draw import draw
from random_models.interpret import source, spec_text
from random_models.judge import Outcome, judge
from random_models.language import Draw
from random_models.statistics import Tally

#: Every so many draws, one is also replayed by the plain Python replayer.
BOTH = 10


def first_seed() -> int:
    """The seed with which the draws of CI begin, from the file beside this package."""
    lines = (Path(__file__).parents[1] / "FIRST_SEED").read_text(encoding="utf-8").splitlines()
    (number,) = (line for line in lines if not line.startswith("#"))
    return int(number)


def faults(seeds: Iterable[int], tally: Tally) -> Iterator[tuple[int, str]]:
    """Each seed whose draw breaks the law, with what there is to read about it; ``tally`` counts every draw."""
    for seed in seeds:
        drawn = draw(seed)
        outcome = judge(drawn)
        if seed % BOTH == 0 and outcome.kind == "ran":
            tally.both += 1
            outcome = both_ways(drawn, outcome)
        tally.add(drawn, outcome)
        if outcome.faulty:
            yield seed, shown(seed, drawn, outcome)


def both_ways(drawn: Draw, outcome: Outcome) -> Outcome:
    """The outcome of the plain Python replayer; a fault if its results are other bits than those from C++."""
    again = judge(drawn, replayer="python")
    if again.kind != "ran" or same_bits(outcome.results, again.results):
        return again
    return Outcome("wrong", detail="replayed from Python, the results are other bits than replayed from C++")


def same_bits(one: object, other: object) -> bool:
    """Whether two nested results are equal, element for element; nan equals nan."""
    match one, other:
        case torch.Tensor(), torch.Tensor():
            return one.dtype == other.dtype and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
        case dict(), dict():
            return one.keys() == other.keys() and all(same_bits(one[key], other[key]) for key in one)
        case ((tuple() | list()), (tuple() | list())):
            return len(one) == len(other) and all(map(same_bits, one, other))
    return False


def shown(seed: int, drawn: Draw, outcome: Outcome) -> str:
    """A fault as one reads it, and how to see it again."""
    again = f"python -m random_models {seed} --shrink"
    return f"seed {seed}: {outcome.kind} {outcome.code}\n{outcome.detail}\n{source(drawn)}{spec_text(drawn)}# {again}"
