"""Random operators: their distributions, eager and in graphs, and that seeds decide them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

npu = torch.npu
COUNT = 4000


def empty(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(COUNT, dtype=dtype, device="npu")


DRAWS: dict[str, tuple[Callable[[], torch.Tensor], float, float]] = {
    "uniform_": (lambda: empty().uniform_(2, 4), 3.0, 0.577),
    "rand": (lambda: torch.rand(COUNT, device="npu"), 0.5, 0.289),
    "normal_": (lambda: empty().normal_(1, 2), 1.0, 2.0),
    "randn": (lambda: torch.randn(COUNT, device="npu"), 0.0, 1.0),
    "random_ between": (lambda: empty(torch.int64).random_(0, 11), 5.0, 3.162),
    "random_ below": (lambda: empty(torch.uint8).random_(), 127.0, 73.6),
    "randint": (lambda: torch.randint(0, 3, (COUNT,), device="npu"), 1.0, 0.816),
    "multinomial": (lambda: torch.multinomial(torch.tensor([1.0, 0, 3]).npu(), COUNT, replacement=True), 1.5, 0.866),
}
CAPTURED = [name for name in DRAWS if name != "multinomial"]
EAGER = {
    "bernoulli_": (lambda: empty().bernoulli_(0.25), 0.25, 0.433),
    "bernoulli": (lambda: torch.bernoulli(torch.full((COUNT,), 0.75, device="npu")), 0.75, 0.433),
    "randperm": (lambda: torch.randperm(COUNT, device="npu"), (COUNT - 1) / 2, COUNT / 12**0.5),
}


def check(values: torch.Tensor, mean: float, deviation: float) -> None:
    values = values.double().cpu()
    assert abs(values.mean() - mean) < 0.06 * deviation
    assert abs(values.std() - deviation) < 0.06 * deviation


@pytest.mark.parametrize("name", [*DRAWS, *EAGER])
def test_eager_draws(name: str) -> None:
    draw, mean, deviation = {**DRAWS, **EAGER}[name]
    npu.manual_seed(5)
    first = draw()
    check(first, mean, deviation)
    assert not torch.equal(draw(), first)
    npu.manual_seed(5)
    assert torch.equal(draw(), first)


@pytest.mark.parametrize("name", CAPTURED)
def test_captured_draws(name: str) -> None:
    draw, mean, deviation = DRAWS[name]
    graph = npu.NPUGraph()
    with npu.graph(graph):
        values = draw()
    npu.manual_seed(5)
    graph.replay()
    first = values.clone()
    check(first, mean, deviation)
    graph.replay()
    assert not torch.equal(values, first)
    npu.manual_seed(5)
    graph.replay()
    assert torch.equal(values, first)


def test_a_captured_multinomial() -> None:
    weights = torch.tensor([1.0, 0, 3]).npu()
    graph = npu.NPUGraph()
    with npu.graph(graph):
        drawn = torch.multinomial(weights, COUNT, replacement=True)
    graph.replay()
    check(drawn, 1.5, 0.866)


def test_randperm_is_a_permutation() -> None:
    assert torch.equal(torch.randperm(50, device="npu").sort().values.cpu(), torch.arange(50))


def test_multinomial_without_replacement() -> None:
    drawn = torch.multinomial(torch.ones(6, device="npu"), 6)
    assert sorted(drawn.tolist()) == list(range(6))
