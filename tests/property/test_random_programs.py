"""Random programs over values: several sequences, pools, variants and fallbacks, eager regions that keep, write, alias
and reshape, results that are read late, errors in between. Each run equals a plain interpreter's (`plain`), and each
refusal is right by its books.

To see programs again, in this folder: ``python -m random_programs FIRST COUNT``. GRAPHSPEC_DRAWS (2000) says how many
are drawn, GRAPHSPEC_FIRST_DRAW (the number in FIRST_SEED) with which seed they begin. Programs share a spec in fours.
What was found is kept in tests/cases/test_found_by_draws.py.
"""

from __future__ import annotations

import os

import pytest
import torch
from random_models.seeds import first_seed
from random_programs.draw import SHARED
from random_programs.judge import Tally, faults

DRAWS = int(os.environ.get("GRAPHSPEC_DRAWS", "2000"))
FIRST = int(os.environ.get("GRAPHSPEC_FIRST_DRAW", first_seed())) // SHARED * SHARED
BATCH = 200


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(before)


@pytest.mark.takes(10)
@pytest.mark.parametrize("first", range(FIRST, FIRST + DRAWS, BATCH))
def test_random_programs_equal_plain_python_and_are_refused_for_a_reason(first):
    tally = Tally()
    found = [text for _, text in faults(range(first, first + BATCH), tally)]
    assert not found, "\n\n".join(found)
    assert tally.programs["ran"] >= 0.5 * BATCH, f"too few programs run to prove much: {tally}"
    assert tally.refused["OrderError"] + tally.refused["read late"] > 0
