"""What is issued once is what eager makes the same in every run; what is issued below autograd is torch's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from graphspec.backends.base import CaptureRequest, Slot
from graphspec.backends.cpu import CpuBackend
from graphspec.backends.cpu.backend import CpuGraph
from graphspec.backends.cpu.below_autograd import all_below_autograd
from graphspec.levers import put_back
from graphspec.plan import Bucket, Graph
from graphspec.recording.calls import Recording

Region = Callable[..., Any]


@pytest.fixture(autouse=True)
def _no_autograd():
    with torch.no_grad():
        yield


def captured(*regions: Callable[[list[CpuGraph]], Sequence[torch.Tensor]], slots: Any = None) -> list[CpuGraph]:
    """Graphs of one pool, captured in order; each region sees the graphs before it."""
    backend, graphs = CpuBackend(), []
    for number, region in enumerate(regions):
        graphs.append(backend.capture(request(lambda region=region: region(graphs), number, slots=slots)))
    backend.seal()
    backend.poison()
    return graphs


def request(call: Any, number: int = 0, pool: str = "pool", slots: Any = None) -> CaptureRequest:
    graph = Graph(f"r{number}", Bucket(), pool, number)
    return CaptureRequest(graph, call, lambda _: float("inf"), slots or (lambda _: ()), None)


def operators(graph: CpuGraph) -> list[str]:
    return [issue.op._opname for issue in graph.issues]


def test_what_reads_only_constants_is_made_once_and_survives_poison() -> None:
    x = torch.ones(4)

    def region(_: object) -> list[torch.Tensor]:
        scale = torch.arange(4.0).mul(0.5).exp()
        return [x * torch.cat([scale[:2], scale[2:]])]

    (graph,) = captured(region)
    assert operators(graph) == ["mul"]
    for value in (1.0, -3.0):
        x.fill_(value)
        graph.replay()
        assert torch.equal(graph.outputs[0], region(None)[0])


@pytest.mark.parametrize(
    ("region", "kept"),
    [
        (lambda x: x + torch.zeros(3).add_(1).add_(x), "written twice"),
        (lambda x: x + torch.rand(3), "random"),
        (lambda x: x + torch.empty(3).uniform_(), "random, in place"),
        (lambda x: x + torch.dropout(torch.ones(3), 0.5, train=True), "random, behind a constant"),
        (lambda x: x + torch.full_like(x, 2.0).add_(torch.arange(3)), "its own input, in place"),
        (lambda x: torch.arange(3.0).index_fill(0, x.long().clamp(0, 2), 7.0), "read where an input says"),
        (lambda x: torch.zeros(3).scatter_(0, x.long().clamp(0, 2), 1.0), "written where an input says"),
        (lambda x: torch.cat([torch.zeros(1), x[1:]]), "half an input"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_may_differ_from_run_to_run_is_made_in_every_replay(region: Region, kept: str) -> None:
    del kept
    x = torch.zeros(3)
    (graph,) = captured(lambda _: [region(x)])
    for seed in range(3):
        x.copy_(torch.tensor([0.0, 1.0, 2.0]) * seed)
        torch.manual_seed(seed)
        wanted = region(x)
        torch.manual_seed(seed)
        graph.replay()
        assert torch.equal(graph.outputs[0], wanted)


def test_what_a_later_graph_writes_into_is_no_constant() -> None:
    x = torch.zeros(2)
    first, second = captured(lambda _: [torch.zeros(2)], lambda graphs: [graphs[0].outputs[0].add_(x)])
    for _ in range(2):
        x.fill_(3)
        first.replay()
        second.replay()
        assert second.outputs[0].tolist() == [3.0, 3.0]


def test_what_an_update_refreshes_is_no_constant() -> None:
    x = torch.zeros(2)

    def slots(recording: Recording) -> list[Slot]:
        at = next(i for i, call in enumerate(recording.calls) if call.op._opname == "mul")
        return [Slot(at, 1, 2.0)]

    (graph,) = captured(lambda _: [torch.ones(2).mul(2.0) + x], slots=slots)
    graph.replay()
    assert graph.outputs[0].tolist() == [2.0, 2.0]
    graph.update(0, 5.0)
    graph.replay()
    assert graph.outputs[0].tolist() == [5.0, 5.0]


def test_constants_are_counted_among_the_bytes_of_their_pool_and_large_ones_are_none() -> None:
    x = torch.zeros(1)
    backend = CpuBackend()
    graphs = []
    for number, size in enumerate((1000, 2_000_000)):
        kept = backend.capture(request(lambda size=size: [torch.ones(size).sum() + x], pool=f"pool{number}"))
        assert bool(kept.constants) == (size == 1000)
        graphs.append(kept)
    backend.seal()
    assert backend.pool_bytes()["pool0"] >= 4000


def test_put_back_nothing_is_constant() -> None:
    x = torch.ones(4)
    with put_back("constants"):
        (graph,) = captured(lambda _: [x * torch.arange(4.0).exp()])
    assert len(graph.issues) > 1
    assert graph.constants == []


def test_what_is_no_kernel_of_torch_s_own_is_issued_from_above_autograd() -> None:
    """An operator may have a kernel for autograd alone."""
    library = torch.library.Library("graphspec_below", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    library.define("alone(Tensor x) -> Tensor")
    library.impl("alone", lambda x: x * 2, "AutogradCPU")
    x = torch.tensor([1.0, 2.0])
    (graph,) = captured(lambda _: [torch.ops.graphspec_below.alone(torch.ops.graphspec_below.twice(x))])
    assert not all_below_autograd([torch.ops.graphspec_below.twice.default])
    assert not all_below_autograd([torch.ops.graphspec_below.alone.default])
    x.fill_(3)
    graph.replay()
    assert graph.outputs[0].tolist() == [12.0, 12.0]


def test_an_operator_of_torch_with_a_kernel_from_python_is_issued_from_above_autograd() -> None:
    x = torch.tensor([1.0, 2.0])
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("erfc", lambda x: torch.ops.aten.mul.Tensor(x, 10), "CPU", allow_override=True)
        (graph,) = captured(lambda _: [torch.erfc(x)])
        assert not all_below_autograd([torch.ops.aten.erfc.default])
        x.fill_(3)
        graph.replay()
        assert graph.outputs[0].tolist() == [30.0, 30.0]
    finally:
        library._destroy()
    assert all_below_autograd([torch.ops.aten.erfc.default])
