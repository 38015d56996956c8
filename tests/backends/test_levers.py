"""With each lever put back in turn, the examples compute the same, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import graphspec
from graphspec.levers import LEVERS, put_back
from graphspec.runtime.values.trees import flatten

SPECS = sorted(Path(__file__).parents[2].glob("specs/*/model.yaml"))
#: Those that a machine of the tests can hold, and that are run as sequences.
RUNNABLE = [path for path in SPECS if "x-check-only: true" not in path.read_text() and path.parent.name != "gpt-blocks"]


@pytest.mark.takes(3)
@pytest.mark.parametrize("path", RUNNABLE, ids=[path.parent.name for path in RUNNABLE])
def test_every_lever_changes_nothing_that_is_computed(path: Path) -> None:
    wanted = numbers(path)
    assert wanted
    for lever in LEVERS:
        with put_back(lever):
            found = numbers(path)
        assert len(found) == len(wanted)
        assert all(map(torch.equal, found, wanted)), lever


def numbers(path: Path) -> list[torch.Tensor]:
    """What three runs give at every bucket and one below it, and the states after them."""
    with graphspec.open(path, device="cpu") as runner:
        found: list[torch.Tensor] = []
        for name, sequence in runner.sequences.items():
            for bucket in sequence.plan.buckets:
                exact = runner.plan.exact
                below = {dim: size if dim in exact else max(size - 1, 1) for dim, size in bucket.sizes}
                for seed, sizes in enumerate((dict(bucket.sizes), below, dict(bucket.sizes))):
                    torch.manual_seed(seed)
                    results = sequence(**runner.sample(name, sizes, seed))
                    found += [leaf.clone() for value in results.values() for leaf in flatten(value).leaves]
        return found + [content for _, content in runner.state.save()]
