"""The C++ replayer and the plain one, on every example: the same graphs, the same numbers, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graphspec.backends.cpu import CpuBackend
from graphspec.loading import load
from graphspec.runtime import runner as runner_module
from graphspec.runtime.values.trees import flatten

SPECS = sorted(Path(__file__).parents[2].glob("specs/*/model.yaml"))
#: Inline regions are captured while a loop runs, so they have no graphs to compare yet when a spec is opened.
RUNNABLE = [
    path
    for path in SPECS
    if "x-check-only: true" not in path.read_text() and not any(region.inline for region in load(path).regions.values())
]


@pytest.mark.parametrize("path", RUNNABLE, ids=[path.parent.name for path in RUNNABLE])
def test_both_replayers_give_the_same_results_and_states(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for replayer in ("interpreter", "python"):
        monkeypatch.setattr(runner_module, "open_backend", lambda _device, _spec, kind=replayer: CpuBackend(kind))
        with runner_module.open_spec(load(path)) as runner:
            kinds = {captured.graph.replayer.kind for captured in captures(runner)}
            assert kinds in ({replayer}, {"pieces"})  # of each, with eager parts between
            results.append(list(numbers(runner)))
    assert len(results[0]) > 0
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def captures(runner):
    return [captured for _, captured in runner._variants.all_regions()]


def numbers(runner):
    """Every tensor of three runs at every bucket, and every state after them."""
    for name, sequence in runner.sequences.items():
        for bucket in sequence.plan.buckets:
            for seed in range(3):
                torch.manual_seed(seed)
                results = sequence.run(runner.sample(name, dict(bucket.sizes), seed))
                for value in results.values():
                    yield from flatten(value).leaves
    for _, content in runner.state.save():
        yield content
