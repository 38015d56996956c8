"""Random small models and specs, each drawn from a seed, are refused with a finding or equal eager, run after run.

To see one draw again, in this folder: ``python -m random_models SEED`` prints its model, spec and runs and what became
of it; with ``--shrink`` it is made smaller while it fails. GRAPHSPEC_DRAWS (2000) says how many are drawn,
GRAPHSPEC_FIRST_DRAW (0) with which seed they begin. What was found is kept in test_found.py.
"""

from __future__ import annotations

import os

import pytest
import torch
from random_models.draw import draw
from random_models.interpret import source, spec_text
from random_models.judge import Outcome, judge
from random_models.language import Draw
from random_models.statistics import Tally

DRAWS = int(os.environ.get("GRAPHSPEC_DRAWS", "2000"))
FIRST = int(os.environ.get("GRAPHSPEC_FIRST_DRAW", "0"))
BATCH = 100
#: Every so many draws, one is also replayed by the plain Python replayer.
BOTH = 10


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("first", range(FIRST, FIRST + DRAWS, BATCH))
def test_random_models_are_refused_or_equal_eager(first, record_property):
    tally, faults = Tally(), []
    for seed in range(first, first + BATCH):
        drawn = draw(seed)
        outcome = judge(drawn)
        if seed % BOTH == 0 and outcome.kind == "ran":
            tally.both += 1
            outcome = both_ways(drawn, outcome)
        tally.add(drawn, outcome)
        if outcome.faulty:
            faults.append(shown(seed, drawn, outcome))
    record_property("random models", tally.values())
    assert not faults, "\n\n".join(faults)
    legal = BATCH - sum(count for kind, count in tally.outcomes.items() if "illegal" in kind)
    assert tally.outcomes["ran"] >= 0.6 * BATCH, f"too few draws run to prove much: {tally.outcomes}, {tally.refused}"
    assert tally.outcomes["invalid"] <= 0.03 * legal, f"too many draws do not run in plain PyTorch: {tally.outcomes}"
    assert tally.outcomes["refused, illegal"] > 0


def both_ways(drawn: Draw, outcome: Outcome) -> Outcome:
    """The outcome of the plain Python replayer; a fault if its results are other bits than those from C++."""
    again = judge(drawn, replayer="python")
    if again.kind != "ran" or same_bits(outcome.results, again.results):
        return again
    return Outcome("wrong", detail="replayed from Python, the results are other bits than replayed from C++")


def same_bits(one, other) -> bool:
    """Whether two nested results are equal, element for element; nan equals nan."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_bits(one[key], other[key]) for key in one)
    return len(one) == len(other) and all(map(same_bits, one, other))


def shown(seed: int, drawn: Draw, outcome: Outcome) -> str:
    """A fault as one reads it, and how to see it again."""
    again = f"python -m random_models {seed} --shrink"
    return f"seed {seed}: {outcome.kind} {outcome.code}\n{outcome.detail}\n{source(drawn)}{spec_text(drawn)}# {again}"
