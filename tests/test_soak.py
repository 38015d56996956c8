"""What only shows after a long time."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from torch import nn

import graphspec

MLP = Path(__file__).parents[1] / "specs" / "mlp" / "model.yaml"
MEBIBYTE = 2**20


def opened():
    """The example with two layers in place of its ten: what leaks, leaks by the replay and by the run."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval()
    return graphspec.open(MLP, model=model, device="cpu")


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.takes(10)
def test_a_million_replays_keep_memory_flat():
    with opened() as runner:
        graph = runner.graph("mlp", {"batch": 1})
        for _ in range(10_000):
            graph.replay()
        gc.collect()
        before = resident()
        for _ in range(1_000_000):
            graph.replay()
        gc.collect()
        assert resident() - before < 2 * MEBIBYTE


@pytest.mark.takes(5)
def test_a_hundred_thousand_runs_keep_memory_flat():
    with opened() as runner:
        inputs = [{"x": torch.randn(rows, 64)} for rows in (1, 3, 8, 20)]
        for step in range(4_000):
            runner.run(**inputs[step % 4])
        gc.collect()
        before = resident()
        for step in range(100_000):
            runner.run(**inputs[step % 4])
        gc.collect()
        assert resident() - before < 2 * MEBIBYTE
