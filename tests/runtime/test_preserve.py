"""Capture leaves no trace: what a session puts back, what it lets stay, what it reports."""

from __future__ import annotations

import collections
import random
import threading
import types

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from graphspec.runtime.holdings.objects import Change
from graphspec.runtime.holdings.places import MISSING
from graphspec.runtime.holdings.preserve import preserve
from graphspec.runtime.holdings.storages import checksum, mixed_weights

COUNTER = 0
CPU_WEIGHTS = mixed_weights(torch.device("cpu"))


def names(changes, kind=None):
    return [change.name for change in changes if kind in (None, change.kind)]


# Contents of tensors


def test_in_place_writes_are_undone_whole_storage_and_views_included():
    base = torch.arange(6.0)
    owner = types.SimpleNamespace(row=base[2:4])
    with preserve({"owner": owner}) as session:
        owner.row.add_(1)
        torch.add(owner.row, 5, out=base[:2])
        torch._foreach_mul_([owner.row], 3)
    assert base.tolist() == [0, 1, 2, 3, 4, 5]
    assert session.written == ["owner.row"]
    assert session.unexplained == []


def test_running_statistics_of_a_training_batch_norm_are_undone_though_its_schema_hides_them():
    model = nn.BatchNorm1d(2)
    with preserve({"model": model}) as session:
        model(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert model.running_mean.tolist() == [0, 0]
    assert model.running_var.tolist() == [1, 1]
    assert model.num_batches_tracked.item() == 0
    assert "model.running_mean" in session.written
    assert session.unexplained == []


def test_an_eval_batch_norm_writes_nothing():
    model = nn.BatchNorm1d(2).eval()
    with preserve({"model": model}) as session:
        model(torch.ones(2, 2))
    assert session.written == []


def test_the_first_result_is_the_same_after_any_number_of_rewound_calls():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.zeros(()))

        def forward(self, x):
            self.n.add_(1)
            return x + self.n

    for calls in (0, 3):
        model = Counter()
        with preserve({"model": model}) as session:
            for _ in range(calls):
                assert model(torch.zeros(1)).item() == 1
                session.rewind()
        assert model(torch.zeros(1)).item() == 1


def test_a_training_step_leaves_weights_gradients_and_created_optimizer_state_at_their_start():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    weight = model.weight.detach().clone()
    with preserve({"model": model, "optimizer": optimizer}) as session:
        for _ in range(3):
            model(torch.ones(4, 2)).sum().backward()
            optimizer.step()
            session.rewind()
    assert torch.equal(model.weight, weight)
    assert model.weight.grad is None
    assert optimizer.state[model.weight]["step"].item() == 0
    assert optimizer.state[model.weight]["exp_avg"].abs().sum() == 0
    assert "optimizer.state[model.weight]" in session.created


def test_an_accumulated_gradient_keeps_its_tensor_and_its_value():
    model = nn.Linear(1, 1)
    model(torch.ones(1, 1)).sum().backward()
    before = model.weight.grad
    with preserve({"model": model}):
        model(torch.ones(1, 1)).sum().backward()
        model.zero_grad()
    assert model.weight.grad is before
    assert before.item() == 1


def test_what_was_born_inside_goes_back_to_its_value_at_creation():
    owner = types.SimpleNamespace()
    with preserve({"owner": owner}):
        owner.cache = torch.zeros(3)
        owner.cache.add_(1)
        owner.cache.add_(1)
    assert owner.cache.tolist() == [0, 0, 0]


def test_memory_born_uninitialised_counts_as_created_once_it_is_read():
    owner = types.SimpleNamespace()
    with preserve({"owner": owner}):
        owner.noise = torch.empty(4)
        owner.noise[:2] = 5
        owner.noise[2:].fill_(6)
        owner.noise.mul_(1).sum()
        owner.noise.sum()
        owner.noise.add_(1)
    assert owner.noise.tolist() == [5, 5, 6, 6]


def test_kept_results_are_not_taken_back():
    with preserve({}) as session:
        result = torch.zeros(2)
        result.add_(1)
        session.keep({"result": [result]})
    assert result.tolist() == [1, 1]


def test_clones_of_dead_temporaries_are_dropped():
    with preserve({}) as session:
        for _ in range(200):
            torch.zeros(1 << 18).add_(1)
        clones = list(session._contents._clones())
    assert sum(clone.numel() for clone in clones) < 80 << 20


def test_a_write_through_numpy_is_reported_by_name():
    owner = types.SimpleNamespace(state=torch.zeros(3))
    with preserve({"owner": owner}) as session:
        owner.state.sum()
        owner.state.numpy()[1] = 7
    assert session.unexplained == ["owner.state"]


def test_a_custom_operator_with_a_lying_schema_is_reported():
    library = torch.library.Library("graphspec_test_preserve", "DEF")
    library.define("lie(Tensor x) -> Tensor")
    library.impl("lie", lambda x: torch.from_numpy(x.numpy().__iadd__(1)).clone(), "CPU")
    owner = types.SimpleNamespace(state=torch.zeros(5, dtype=torch.uint8))
    with preserve({"owner": owner}) as session:
        torch.ops.graphspec_test_preserve.lie(owner.state)
        assert session.verify() == ["owner.state"]
    assert session.unexplained == ["owner.state"]
    library._destroy()


def test_a_write_by_another_thread_is_reported():
    owner = types.SimpleNamespace(state=torch.zeros(3))
    with preserve({"owner": owner}) as session:
        owner.state.sum()
        thread = threading.Thread(target=lambda: owner.state.add_(1))
        thread.start()
        thread.join()
    assert session.unexplained == ["owner.state"]


def test_inputs_that_are_only_read_are_not_reported():
    x = torch.arange(1000.0)[::3]
    with preserve({"x": x}) as session:
        (x * 2).sum()
        torch.sort(x)
    assert session.unexplained == []
    assert session.rebound == []


@given(st.binary(min_size=1, max_size=64), st.data())
def test_the_checksum_sees_every_changed_byte_every_swap_and_every_length(content, data):
    def total(raw):
        return checksum(torch.tensor(list(raw), dtype=torch.uint8), CPU_WEIGHTS)

    place = data.draw(st.integers(0, len(content) - 1))
    changed = bytearray(content)
    changed[place] ^= data.draw(st.integers(1, 255))
    assert total(content) == total(content)
    assert total(content) != total(changed)
    assert total(content) != total(content + b"\0")
    if content != content[::-1]:
        assert total(content) != total(content[::-1])


def test_the_checksum_of_a_large_tensor_depends_on_the_order_of_its_chunks():
    content = torch.zeros(1 << 23, dtype=torch.uint8)
    content[5] = 1
    assert checksum(content, CPU_WEIGHTS) != checksum(content.roll(1 << 21), CPU_WEIGHTS)


# A tensor's own memory and flags


@pytest.mark.parametrize(
    "move",
    [
        lambda t: setattr(t, "data", torch.zeros(2)),
        lambda t: setattr(t, "data", t.data.t()),
        lambda t: t.set_(torch.zeros(7)),
        lambda t: t.resize_(9, 9).zero_(),
        lambda t: t.t_(),
        lambda t: setattr(t, "data", t.data.double()),
    ],
)
def test_moved_memory_is_reported_and_put_back(move):
    owner = types.SimpleNamespace(weight=torch.arange(6.0).view(2, 3))
    with preserve({"owner": owner}) as session:
        move(owner.weight)
        session.rewind()
        assert session.changes().rebound == ()
    assert names(session.rebound, "memory") == ["owner.weight"]
    assert torch.equal(owner.weight, torch.arange(6.0).view(2, 3))


def test_autograd_flags_history_and_hooks_of_tensors_are_put_back():
    weight, buffer = nn.Parameter(torch.ones(2)), torch.zeros(2)
    weight.register_hook(print)
    hooks = dict(weight._backward_hooks)
    with preserve({"weight": weight, "buffer": buffer}):
        buffer.copy_(weight * 2)
        weight.register_hook(lambda grad: grad)
        weight.requires_grad_(requires_grad=False)
    assert (weight.requires_grad, buffer.requires_grad, buffer.is_leaf) == (True, False, True)
    assert dict(weight._backward_hooks) == hooks
    assert buffer.tolist() == [0, 0]


def test_a_graph_of_the_user_still_runs_backward_after_the_session():
    weight, state = nn.Parameter(torch.ones(2)), torch.ones(2)
    loss = (weight * state).sum()
    with preserve({"state": state}):
        state.add_(1)
    loss.backward()
    assert weight.grad.tolist() == [1, 1]


# Python state


def change_of(session, name):
    (change,) = (change for change in session.rebound if change.name == name)
    return change


def test_a_counting_attribute_is_put_back_and_named():
    model = nn.Linear(1, 1)
    model.pos = 0
    with preserve({"model": model}) as session:
        model.pos += 1
    assert model.pos == 0
    assert session.rebound == [Change("model.pos", "scalar", 0, 1)]


def test_a_counter_that_shadows_its_class_a_global_and_a_closure_variable_are_named():
    class Net(nn.Module):
        calls = 0

        def forward(self):
            nonlocal steps
            global COUNTER  # noqa: PLW0603
            self.calls += 1
            steps += 1
            COUNTER += 1

    steps, model = 0, Net()
    with preserve({"model": model}) as session:
        model()
    assert (model.calls, steps, COUNTER) == (0, 0, 0)
    assert {"model.calls", "Net.forward.<closure>.steps", f"{__name__}.COUNTER"} <= set(
        names(session.rebound, "scalar")
    )
    assert "calls" not in vars(model)


def test_a_rebound_tensor_attribute_is_put_back_and_named():
    model = nn.Linear(1, 1)
    model.last = before = torch.zeros(1)
    with preserve({"model": model}) as session:
        model.last = torch.ones(1)
    assert model.last is before
    assert change_of(session, "model.last").kind == "tensor"


def test_containers_are_put_back_in_place_with_their_order():
    owner = types.SimpleNamespace(
        rows=[1, 2], table={"a": 1, "b": 2}, seen={1}, ring=collections.deque([1, 2], maxlen=2),
        lru=collections.OrderedDict(x=1, y=2), array=np.zeros(2),
    )  # fmt: skip
    rows, table = owner.rows, owner.table
    with preserve({"owner": owner}) as session:
        owner.rows.append(3)
        del owner.table["a"]
        owner.table["c"] = 3
        owner.seen.add(2)
        owner.ring.append(3)
        owner.lru.move_to_end("x")
        owner.array += 1
    assert owner.rows is rows
    assert rows == [1, 2]
    assert owner.table is table
    assert list(table.items()) == [("a", 1), ("b", 2), ("c", 3)]
    assert (owner.seen, list(owner.ring), list(owner.lru), owner.array.tolist()) == ({1}, [1, 2], ["x", "y"], [0, 0])
    assert {"owner.rows", "owner.seen", "owner.ring", "owner.array"} <= set(names(session.rebound, "container"))
    assert change_of(session, "owner.table['a']").after is MISSING
    assert session.created == ["owner.table['c']"]


def test_a_deleted_attribute_and_slots_are_put_back():
    class Slotted:
        __slots__ = ("a", "b")

    owner = Slotted()
    owner.a = first = torch.zeros(1)
    with preserve({"owner": owner}) as session:
        del owner.a
        owner.b = 1
    assert owner.a is first
    assert names(session.rebound) == ["owner.a"]
    assert session.created == ["owner.b"]


def test_an_equal_value_assigned_again_is_no_change():
    owner = types.SimpleNamespace(n=1000, name="a b", nan=float("nan"), shape=(1000, 2))
    with preserve({"owner": owner}) as session:
        owner.n = int("1000")
        owner.name = "".join(["a b"])  # noqa: FLY002 # an equal text that is another object
        owner.nan = float("nan")
        owner.shape = (int("1000"), 2)
    assert session.rebound == []


def test_a_number_of_another_type_is_a_change():
    owner = types.SimpleNamespace(flag=True)
    with preserve({"owner": owner}) as session:
        owner.flag = 1
    assert owner.flag is True
    assert names(session.rebound) == ["owner.flag"]


def test_training_flags_and_module_hooks_are_as_before():
    model = nn.Dropout().eval()
    with preserve({"model": model}) as session:
        model.train()
        model.register_forward_hook(print)
    assert not model.training
    assert not model._forward_hooks
    assert "model.training" in names(session.rebound, "scalar")


def test_a_replaced_parameter_and_submodule_come_back():
    model = nn.Sequential(nn.Linear(1, 1))
    layer, weight = model[0], model[0].weight
    with preserve({"model": model}) as session:
        layer.weight = nn.Parameter(torch.ones(1, 1))
        model[0] = nn.Identity()
    assert model[0] is layer
    assert layer.weight is weight
    assert set(names(session.rebound)) == {"model.0", "model.0.weight"}


class LazyCache:
    def __init__(self):
        self.keys = None
        self.ready = False
        self.length = torch.zeros(())

    def update(self, x):
        if not self.ready:
            self.keys = torch.zeros(3)
            self.width = 3
            self.length = self.length.clone()
            self.ready = True
        self.keys.add_(x)
        self.length.add_(1)


def test_lazy_initialisation_happens_once_and_stays_at_its_creation_value():
    cache = LazyCache()
    with preserve({"cache": cache}) as session:
        cache.update(1)
        session.rewind()
        keys = cache.keys
        assert cache.ready
        cache.update(1)
        second = session.rewind()
    assert second.rebound == second.created == ()
    assert cache.keys is keys
    assert (keys.tolist(), cache.length.item()) == ([0, 0, 0], 0)
    assert "cache.keys" in session.created
    assert session.rebound == []


def test_what_is_assigned_on_every_run_is_not_lazy_and_goes_back_to_none():
    owner = types.SimpleNamespace(last=None)
    with preserve({"owner": owner}) as session:
        for _ in range(3):
            owner.last = torch.ones(1)
            session.rewind()
    assert owner.last is None
    assert names(session.rebound, "tensor") == ["owner.last"]


def test_a_cache_that_grows_on_every_run_is_undone_as_one():
    class Growing(LazyCache):
        def update(self, x):
            self.keys = x if not self.ready else torch.cat([self.keys, x])
            self.ready = True

    cache = Growing()
    with preserve({"cache": cache}) as session:
        for _ in range(4):
            cache.update(torch.ones(1))
            session.rewind()
    assert (cache.keys, cache.ready) == (None, False)
    assert "cache.keys" in names(session.rebound, "tensor")


def test_an_object_created_in_one_run_is_watched_in_the_next():
    owner = types.SimpleNamespace()
    with preserve({"owner": owner}) as session:
        owner.log = [1]
        session.rewind()
        owner.log.append(2)
    assert owner.log == [1]
    assert names(session.rebound, "container") == ["owner.log"]


# Random streams, flags, failures


def test_every_random_stream_is_put_back_and_host_randomness_is_reported():
    noise = torch.Generator().manual_seed(3)
    declared = torch.Generator().manual_seed(4)
    model = nn.Dropout()
    model.noise = noise

    def draw():
        return (
            torch.rand(1).item(),
            torch.rand(1, generator=noise).item(),
            torch.rand(1, generator=declared).item(),
            random.random(),  # noqa: S311
            np.random.rand(),  # noqa: NPY002 # the global stream is the point
        )

    with preserve({"model": model}, generators=[declared]) as session:
        first = draw()
        assert session.changes().host_random == ("random", "numpy.random")
        session.rewind()
        assert draw() == first
    assert draw() == first
    assert session.host_random == ("random", "numpy.random")


def test_device_randomness_alone_is_not_host_randomness():
    with preserve({}) as session:
        torch.rand(1)
    assert session.host_random == ()


def test_ambient_flags_are_as_before():
    with preserve({}):
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.set_autocast_enabled("cpu", True)
        torch.use_deterministic_algorithms(True)
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert not torch.is_autocast_enabled("cpu")
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_exception_of_the_user_comes_through_and_everything_is_put_back():
    owner = types.SimpleNamespace(n=0, state=torch.zeros(1))
    with pytest.raises(KeyError, match="mine"), preserve({"owner": owner}):  # noqa: PT012
        owner.n = 1
        owner.state.add_(1)
        raise KeyError("mine")
    assert (owner.n, owner.state.item()) == (0, 0)


def test_changes_are_those_since_the_last_rewind_and_asking_changes_nothing():
    owner = types.SimpleNamespace(n=0)
    with preserve({"owner": owner}) as session:
        owner.n = 1
        assert names(session.changes().rebound) == names(session.changes().rebound) == ["owner.n"]
        assert owner.n == 1
        session.rewind()
        assert session.changes().rebound == ()


# Company: other modes, odd tensors


class Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("recorder_is_outside", [True, False])
def test_a_recorder_sees_only_the_operators_of_the_region(recorder_is_outside):
    state, recorder, session = torch.zeros(3), Recorder(), preserve({"state": torch.zeros(1)})
    modes = (recorder, session) if recorder_is_outside else (session, recorder)
    with modes[0], modes[1]:
        state.add_(1)
        (state * 2).sum()
        calls = list(recorder.calls)
    assert calls == ["aten.add_.Tensor", "aten.mul.Tensor", "aten.sum.default"]
    assert recorder.calls == calls


def test_sparse_quantized_meta_and_fake_tensors_are_no_trouble():
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    roots = {"sparse": torch.eye(3).to_sparse(), "meta": torch.ones(2, device="meta"), "quantized": quantized}
    with preserve(roots) as session:
        roots["sparse"].mul_(2)
        roots["meta"].add_(1)
        roots["quantized"].dequantize()
    assert torch.equal(roots["sparse"].to_dense(), torch.eye(3))
    assert session.unexplained == []
    with FakeTensorMode():
        model = nn.BatchNorm1d(2)
        with preserve({"model": model}):
            model(torch.ones(3, 2)).sum().backward()


def test_inference_mode_inside_and_outside_is_no_trouble():
    state = torch.zeros(2)
    with preserve({"state": state}), torch.inference_mode():
        state.add_(1)
    with torch.inference_mode():
        other = torch.zeros(2)
        with preserve({"other": other}):
            other.add_(1)
        assert other.tolist() == [0, 0]
    assert state.tolist() == [0, 0]


OPERATIONS = {
    "add": lambda owner: owner.x.add_(1),
    "view": lambda owner: owner.x[1:].zero_(),
    "out": lambda owner: torch.neg(owner.y, out=owner.x),
    "rebind": lambda owner: setattr(owner, "y", owner.x * 2),
    "swap": lambda owner: setattr(owner.y, "data", torch.ones(4)),
    "resize": lambda owner: owner.y.resize_(6),
    "count": lambda owner: setattr(owner, "n", owner.n + 1),
    "append": lambda owner: owner.log.append(owner.x),
    "drop": lambda owner: owner.log.clear(),
    "draw": lambda owner: owner.x.copy_(torch.rand(4)),
    "create": lambda owner: setattr(owner, "extra", torch.zeros(2)),
}


@settings(deadline=None)
@given(st.lists(st.lists(st.sampled_from(sorted(OPERATIONS)), max_size=6), min_size=1, max_size=4))
def test_any_sequence_of_changes_leaves_no_trace(runs):
    base = torch.arange(4.0)
    owner = types.SimpleNamespace(x=base, y=torch.ones(4), n=0, log=[base])
    x, y, log = owner.x, owner.y, owner.log
    stream = torch.get_rng_state()
    with preserve({"owner": owner}) as session:
        for run in runs:
            for operation in run:
                if owner.y.shape == (4,) or operation != "out":
                    OPERATIONS[operation](owner)
            session.rewind()
            assert owner.n == 0
    assert (owner.x is x, owner.y is y, owner.log is log) == (True, True, True)
    assert (x.tolist(), y.tolist(), owner.n) == ([0, 1, 2, 3], [1, 1, 1, 1], 0)
    assert len(log) == 1
    assert torch.equal(torch.get_rng_state(), stream)
    assert session.unexplained == []
