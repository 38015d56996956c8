"""Random small models and specs, each drawn from a seed, are refused with a finding or equal eager, run after run.

To see one draw again, in this folder: ``python -m random_models SEED`` prints its model, spec and runs and what became
of it; with ``--shrink`` it is made smaller while it fails. GRAPHSPEC_DRAWS (2000) says how many are drawn,
GRAPHSPEC_FIRST_DRAW (the number in FIRST_SEED) with which seed they begin; ``draw.py`` draws from the clock.
What was found is kept in tests/cases/test_found_by_draws.py.
"""

from __future__ import annotations

import os

import pytest
import torch
from random_models.seeds import faults, first_seed
from random_models.statistics import Tally

DRAWS = int(os.environ.get("GRAPHSPEC_DRAWS", "2000"))
FIRST = int(os.environ.get("GRAPHSPEC_FIRST_DRAW", first_seed()))
BATCH = 100


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.takes(6)
@pytest.mark.parametrize("first", range(FIRST, FIRST + DRAWS, BATCH))
def test_random_models_are_refused_or_equal_eager(first, record_property):
    tally = Tally()
    found = [text for _, text in faults(range(first, first + BATCH), tally)]
    record_property("random models", tally.values())
    assert not found, "\n\n".join(found)
    legal = BATCH - sum(count for kind, count in tally.outcomes.items() if "illegal" in kind)
    assert tally.outcomes["ran"] >= 0.6 * BATCH, f"too few draws run to prove much: {tally.outcomes}, {tally.refused}"
    assert tally.outcomes["invalid"] <= 0.03 * legal, f"too many draws do not run in plain PyTorch: {tally.outcomes}"
    assert tally.outcomes["refused, illegal"] > 0
