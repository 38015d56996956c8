"""Files made wrong at random, from a seed each: whatever a file holds, it ends in a spec or in findings, at once.

``python tests/property/mutated_specs.py`` judges others, and shows one again. The first seed is in
`mutated_specs.seed`; GRAPHSPEC_MUTATIONS (400) says how many are judged, GRAPHSPEC_FIRST_MUTATION from which seed on.
"""

import os
import shutil
from pathlib import Path

import mutated_specs
import pytest

FIRST = int(os.environ.get("GRAPHSPEC_FIRST_MUTATION") or Path(__file__).with_name("mutated_specs.seed").read_text())
COUNT = int(os.environ.get("GRAPHSPEC_MUTATIONS", "400"))
BATCH = 100


@pytest.fixture(scope="module")
def originals():
    return mutated_specs.originals()


@pytest.fixture(scope="module")
def path():
    home = mutated_specs.folder()
    yield home / "spec.yaml"
    shutil.rmtree(home)


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, BATCH))
def test_a_file_that_is_wrong_in_any_way_ends_in_findings_at_places_it_has(first, originals, path):
    faults = {}
    for seed in range(first, first + BATCH):
        fault = mutated_specs.judge(path, mutated_specs.mutated(seed, originals))
        if fault is not None:
            faults[seed] = fault
    assert not faults


def test_a_seed_stands_for_one_file(originals):
    made = [mutated_specs.mutated(seed, originals) for seed in range(FIRST, FIRST + 50)]
    assert made == [mutated_specs.mutated(seed, originals) for seed in range(FIRST, FIRST + 50)]
    assert len(set(made)) > 40


def test_every_spec_of_the_project_passes_unchanged(originals, path):
    assert {mutated_specs.judge(path, text) for text in originals} == {None}
