"""The CPU backend alone: what a recorded region does when it is replayed, by both replayers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest
import torch

from graphspec.backends.base import CaptureRequest, Slot
from graphspec.backends.cpu import CpuBackend
from graphspec.backends.cpu import backend as backend_module
from graphspec.backends.cpu.backend import CpuGraph
from graphspec.backends.cpu.selftest import interpreter_fault
from graphspec.plan import Bucket, Graph
from graphspec.recording.calls import Recording
from graphspec.recording.source import ModuleNames

Region = Callable[[], Sequence[torch.Tensor]]
FOREVER = float("inf")


class Captured:
    """Captures regions one after the other into one pool, and seals."""

    def __init__(self, replayer: Literal["interpreter", "python"]) -> None:
        self.backend = CpuBackend(replayer)

    def __call__(
        self,
        *regions: Region,
        held: Callable[[int, int], float] = lambda _graph, _output: FOREVER,
        slots: Callable[[Recording], Sequence[Slot]] = lambda _: (),
    ) -> list[CpuGraph]:
        graphs = []
        with torch.no_grad():
            for index, region in enumerate(regions):
                graph = Graph(f"r{index}", Bucket(), "pool", index)
                until = lambda output, index=index: held(index, output)
                request = CaptureRequest(graph, region, until, slots, ModuleNames(None))
                graphs.append(self.backend.capture(request))
            self.backend.seal()
        return graphs


@pytest.fixture(params=["interpreter", "python"])
def capture(request: pytest.FixtureRequest) -> Captured:
    return Captured(request.param)


def slot_of(op: str, argument: str, value: Any) -> Callable[[Recording], list[Slot]]:
    def slots(recording: Recording) -> list[Slot]:
        call = next(i for i, c in enumerate(recording.calls) if c.op.name().startswith(op))
        names = [a.name for a in recording.calls[call].op._schema.arguments]
        return [Slot(call, names.index(argument), value)]

    return slots


def test_the_self_test_finds_the_c_replayer_right_on_this_torch() -> None:
    assert interpreter_fault() is None


def test_a_replay_reads_new_data_at_the_old_address(capture: Captured) -> None:
    x = torch.ones(3)
    (graph,) = capture(lambda: [(x * 2 + 1).relu()])
    x.copy_(torch.tensor([-5.0, 0.0, 5.0]))
    graph.replay()
    assert graph.outputs[0].tolist() == [0.0, 1.0, 11.0]


def test_a_rebound_variable_does_not_reach_a_replay(capture: Captured) -> None:
    holder = {"x": torch.ones(3)}
    (graph,) = capture(lambda: [holder["x"] + 1])
    holder["x"] = torch.full((3,), 100.0)
    graph.replay()
    assert graph.outputs[0].tolist() == [2.0, 2.0, 2.0]


def test_data_swapped_under_a_tensor_does_not_reach_a_replay(capture: Captured) -> None:
    weight = torch.ones(3)
    (graph,) = capture(lambda: [weight + 1])
    weight.data = torch.full((3,), 100.0)
    graph.replay()
    assert graph.outputs[0].tolist() == [2.0, 2.0, 2.0]


def test_a_number_is_frozen_unless_it_has_a_slot(capture: Captured) -> None:
    x, scale = torch.ones(2), [3.0]
    frozen, updatable = capture(
        lambda: [x * scale[0]],
        lambda: [x * scale[0]],
        slots=slot_of("aten::mul", "other", 3.0),
    )
    scale[0] = 7.0
    updatable.update(0, 5.0)
    frozen.replay()
    updatable.replay()
    assert frozen.outputs[0].tolist() == [3.0, 3.0]
    assert updatable.outputs[0].tolist() == [5.0, 5.0]


@pytest.mark.parametrize(
    ("region", "op", "argument", "first", "then", "want"),
    [
        (lambda x: x.add(x, alpha=2.0), "aten::add", "alpha", 2.0, 10.0, [11.0, 22.0]),
        (lambda x: x.clamp(max=1.5), "aten::clamp", "max", 1.5, 0.5, [0.5, 0.5]),
        (lambda x: torch.full_like(x, 4.0), "aten::full_like", "fill_value", 4.0, 9.0, [9.0, 9.0]),
        (lambda x: x.pow(2.0), "aten::pow", "exponent", 2.0, 3.0, [1.0, 8.0]),
        (lambda x: x.roll([1], [0]), "aten::roll", "shifts", [1], [2], [1.0, 2.0]),
        (lambda x: torch.where(x > 1.5, x, 0.0), "aten::gt", "other", 1.5, 0.5, [1.0, 2.0]),
    ],
)
def test_any_recorded_argument_can_be_updated(
    capture: Captured,
    region: Callable[[torch.Tensor], torch.Tensor],
    op: str,
    argument: str,
    first: Any,
    then: Any,
    want: Any,
) -> None:
    x = torch.tensor([1.0, 2.0])
    (graph,) = capture(lambda: [region(x)], slots=slot_of(op, argument, first))
    graph.update(0, then)
    graph.replay()
    assert graph.outputs[0].tolist() == want
    graph.update(0, first)
    graph.replay()
    assert torch.equal(graph.outputs[0], region(x))


def test_regions_of_a_pool_share_memory_so_that_a_wrong_order_overwrites(capture: Captured) -> None:
    x = torch.arange(4.0)
    first, scratch, last = capture(
        lambda: [x + 1],
        lambda: [(x * 10 + 3).exp().sum().reshape(1)],
        lambda: [x - 1],
        held=lambda graph, _: 0 if graph == 0 else FOREVER,
    )
    first.replay()
    assert torch.equal(first.outputs[0], x + 1)
    scratch.replay()
    assert not torch.equal(first.outputs[0], x + 1)
    last.replay()
    assert torch.equal(last.outputs[0], x - 1)


def test_a_value_held_by_the_plan_survives_the_captures_it_is_held_for(capture: Captured) -> None:
    x = torch.arange(64.0)
    graphs: list[CpuGraph] = []
    value: list[torch.Tensor] = []

    def produce() -> list[torch.Tensor]:
        value.append(x + 1)
        return value

    graphs = capture(
        produce, lambda: [(x * 10).exp()], lambda: [value[0] * 2], held=lambda graph, _: 2 if graph == 0 else graph
    )
    x.copy_(torch.linspace(0, 1, 64))
    for graph in graphs:
        graph.replay()
    assert torch.equal(graphs[2].outputs[0], (x + 1) * 2)


def test_the_arena_is_laid_out_from_lifetimes_and_not_from_the_sum_of_values(capture: Captured) -> None:
    x = torch.ones(1024)

    def chain() -> list[torch.Tensor]:
        y = x
        for _ in range(20):
            y = y.sin()
        return [y]

    (graph,) = capture(chain)
    assert graph.bytes <= 3 * x.nbytes
    assert capture.backend.pool_bytes() == {"pool": graph.bytes}


def test_random_operators_draw_fresh_numbers_from_the_same_generator(capture: Captured) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.ones(8)

    def region() -> list[torch.Tensor]:
        return [torch.nn.functional.dropout(x, 0.5), torch.empty_like(x).uniform_(generator=generator)]

    (graph,) = capture(region)
    torch.manual_seed(3)
    generator.manual_seed(3)
    wanted = [[t.clone() for t in region()] for _ in range(2)]
    torch.manual_seed(3)
    generator.manual_seed(3)
    for want in wanted:
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(graph.outputs, want, strict=True))


def test_foreach_calls_in_place_are_replayed(capture: Captured) -> None:
    xs = [torch.ones(2), torch.ones(3)]
    (graph,) = capture(lambda: (torch._foreach_mul_(xs, 2.0), [torch.zeros(1)])[1])
    assert [t.tolist() for t in xs] == [[2.0, 2.0], [2.0, 2.0, 2.0]]
    graph.replay()
    assert [t.tolist() for t in xs] == [[4.0, 4.0], [4.0, 4.0, 4.0]]


def test_writes_through_views_and_overlapping_reads_are_replayed(capture: Captured) -> None:
    x = torch.arange(6.0)

    def region() -> list[torch.Tensor]:
        y = x.clone().view(2, 3)
        y.t()[1].add_(10)
        y[:, 0] = y[:, 2]
        return [y, y.flatten()[2:]]

    (graph,) = capture(region)
    x.mul_(-1)
    graph.replay()
    want = region()
    assert all(torch.equal(a, b) for a, b in zip(graph.outputs, want, strict=True))
    assert graph.outputs[0].untyped_storage()._cdata == graph.outputs[1].untyped_storage()._cdata


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.uint8, torch.complex64]
)
@pytest.mark.parametrize("number", [2, 2.5, True])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_a_bare_number_promotes_as_it_did_in_eager(
    capture: Captured, dtype: torch.dtype, number: float, shape: tuple[int, ...]
) -> None:
    x = torch.ones(shape, dtype=dtype)
    (graph,) = capture(lambda: [x * number, x + number, x / number])
    x.fill_(3)
    graph.replay()
    for have, want in zip(graph.outputs, (x * number, x + number, x / number), strict=True):
        assert have.dtype == want.dtype
        assert torch.equal(have, want)


def test_lazy_conjugation_and_negation_are_replayed(capture: Captured) -> None:
    x = torch.tensor([1 + 2j, 3 - 1j])
    (graph,) = capture(lambda: [x.conj() * x, x.conj().imag + 1])
    x.copy_(torch.tensor([2j, 5 + 5j]))
    graph.replay()
    assert torch.equal(graph.outputs[0], x.conj() * x)
    assert torch.equal(graph.outputs[1], x.conj().imag + 1)


def test_replay_does_not_depend_on_autocast_grad_mode_or_default_dtype_of_the_caller(capture: Captured) -> None:
    weight = torch.nn.Parameter(torch.ones(4, 4))
    x = torch.linspace(0, 1, 16).view(1, 1, 4, 4) / 3
    kernel = torch.linspace(-1, 1, 9).view(1, 1, 3, 3) / 7
    functional = torch.nn.functional
    (graph,) = capture(
        lambda: [
            x @ weight,
            torch.zeros(2) + 0.1,
            functional.conv2d(x, kernel),
            functional.scaled_dot_product_attention(x, x, x),
            functional.layer_norm(x, (4,)),
        ]
    )
    graph.replay()
    want = [t.clone() for t in graph.outputs]
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.enable_grad():
        graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(graph.outputs, want, strict=True))
    assert not graph.outputs[0].requires_grad


def test_a_program_the_interpreter_cannot_take_is_replayed_from_python_and_said_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backend_module, "interpreter_fault", lambda: "told so by the test")
    captured = Captured("python")
    captured.backend = CpuBackend("auto")
    x = torch.ones(2)
    (graph,) = captured(lambda: [x + 1])
    assert captured.backend.notes == ["region 'r0' is replayed from Python, not from C++: told so by the test"]
    x.fill_(4)
    graph.replay()
    assert graph.outputs[0].tolist() == [5.0, 5.0]


def test_poison_makes_stale_reads_visible(capture: Captured) -> None:
    x = torch.ones(2)
    (graph,) = capture(lambda: [x + 1])
    graph.replay()
    capture.backend.poison()
    assert graph.outputs[0].isnan().all()


@pytest.mark.parametrize("reduction", [1, 2], ids=["mean", "sum"])
@pytest.mark.parametrize("loss", ["binary_cross_entropy", "huber_loss", "mse_loss", "smooth_l1_loss"])
def test_a_kernel_that_uses_its_result_as_scratch_leaves_its_neighbours_alone(
    capture: Captured, loss: str, reduction: int
) -> None:
    x, y = torch.rand(64, 33), torch.rand(64, 33)
    takes = {"binary_cross_entropy": (None, reduction), "huber_loss": (reduction, 1.0), "mse_loss": (reduction,)}

    def region() -> list[torch.Tensor]:
        before = x.sum(0)
        value = getattr(torch.ops.aten, loss)(x, y, *takes.get(loss, (reduction, 1.0)))
        return [before, value, y.sum(0), before * value]

    (graph,) = capture(region)
    for tensor in (x, y):
        tensor.copy_(torch.rand(64, 33))
    graph.replay()
    for have, want in zip(graph.outputs, region(), strict=True):
        assert torch.equal(have, want)


@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
def test_results_that_must_not_share_a_storage_are_right_in_an_arena(capture: Captured, mode: str) -> None:
    x = torch.randn(5, 3)
    (graph,) = capture(lambda: list(torch.linalg.qr(x, mode)))
    x.copy_(torch.randn(5, 3))
    graph.replay()
    for have, want in zip(graph.outputs, torch.linalg.qr(x, mode), strict=True):
        assert torch.equal(have, want)


def test_an_offset_into_a_storage_counts_from_where_the_arena_has_it(capture: Captured) -> None:
    x = torch.arange(12.0)

    def region() -> list[torch.Tensor]:
        padding, y = x + 7, x * 2  # y is not the first in the arena
        scattered = torch.as_strided_scatter(y, torch.zeros(2), (2,), (3,), 1)
        return [padding, torch.as_strided_copy(y, (2, 2), (3, 1), 4), scattered, y]

    (graph,) = capture(region)
    x.copy_(torch.randn(12))
    graph.replay()
    for have, want in zip(graph.outputs, region(), strict=True):
        assert torch.equal(have, want)
