"""Address checks: what moved is named, what was only given new values passes."""

from __future__ import annotations

import gc
import types

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from graphspec.errors import GuardError
from graphspec.runtime.holdings import guard as guards
from graphspec.runtime.holdings.guard import Guard
from graphspec.runtime.holdings.reach import reach
from graphspec.runtime.holdings.which import modes, read_tensors

SCALE = torch.ones(2)


def guard_of(**roots):
    found = reach(roots)
    tensors = {id(tensor): tensor for _, tensor in found.tensors}
    entries = read_tensors((found.slots_of(tensor), tensor) for tensor in tensors.values())
    return Guard((*entries, *modes(found.modules)))


def message(guard):
    with pytest.raises(GuardError) as caught:
        guard.check()
    assert "recapture()" in str(caught.value)
    return caught.value.message


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout()
        self.table = torch.ones(4)
        self.cache = {"k": [torch.zeros(1), torch.zeros(2)]}

    def forward(self, x):
        return self.fc(x) + self.table


@pytest.fixture
def model():
    return Net().eval()


@pytest.fixture(params=["C++", "Python"])
def guard(model, request, monkeypatch):
    if request.param == "Python":
        monkeypatch.setattr(guards, "quickest", lambda: None)
    made = guard_of(model=model)
    made.check()
    return made


def test_new_values_in_the_same_memory_pass(model, guard):
    model.load_state_dict({name: torch.full_like(value, 3) for name, value in model.state_dict().items()})
    model.table.copy_(torch.zeros(4))
    model.fc.weight.data.zero_()
    guard.check()


def test_weights_assigned_by_load_state_dict_are_all_named(model, guard):
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    text = message(guard)
    for name, _ in model.named_parameters():
        assert f"model.{name} was rebound" in text
    assert "moved since capture" in text


def test_memory_swapped_through_data_is_named(model, guard):
    model.fc.weight.data = torch.full_like(model.fc.weight, 9.0)
    assert "model.fc.weight: its memory moved" in message(guard)


def test_a_transposed_view_through_data_is_named_by_its_strides(model, guard):
    model.fc.weight.data = model.fc.weight.data.t()
    assert "model.fc.weight: its strides changed from (4, 1) to (1, 4)" in message(guard)


def test_a_changed_shape_on_the_same_address_is_named(model, guard):
    model.table.data = model.table.data[:2]
    assert "model.table: its shape changed" in message(guard)


def test_a_model_cast_in_place_is_named_by_dtype(model, guard):
    model.to(torch.float64)
    assert "model.fc.weight: its dtype changed from torch.float32 to torch.float64" in message(guard)


def test_a_rebound_and_a_deleted_attribute_are_named(model, guard):
    model.table = torch.ones(4)
    assert "model.table was rebound" in message(guard)
    del model.table
    assert "model.table was deleted" in message(guard)


def test_a_replaced_list_item_is_named(model, guard):
    model.cache["k"][1] = torch.zeros(2)
    assert "model.cache['k'][1] was rebound" in message(guard)


def test_a_shortened_list_is_named(model, guard):
    model.cache["k"].pop()
    assert "model.cache['k'][1] was deleted" in message(guard)


def test_an_evicted_entry_is_named_with_what_lay_behind_it(model, guard):
    del model.cache["k"]
    assert "model.cache['k'][0] was rebound with model.cache['k']" in message(guard)


def test_an_equal_tensor_is_not_the_same_tensor():
    owner = types.SimpleNamespace(scalar=torch.tensor(1.0))
    made = guard_of(owner=owner)
    owner.scalar = torch.tensor(1.0)
    assert "owner.scalar was rebound" in message(made)


def test_a_replaced_submodule_is_seen_though_its_own_dicts_are_untouched(model, guard):
    model.fc = nn.Linear(4, 4)
    assert "model.fc.weight was rebound with model.fc" in message(guard)


def test_a_container_replaced_above_its_tensors_is_seen(model, guard):
    model.cache = {"k": [torch.zeros(1), torch.zeros(2)]}
    assert "model.cache['k'][0] was rebound with model.cache" in message(guard)


@pytest.mark.parametrize("name", ["_parameters", "__dict__"])
def test_a_replaced_dict_of_an_object_is_seen(model, guard, name):
    fresh = nn.Linear(4, 4).eval()
    setattr(model.fc, name, getattr(fresh, name))
    assert "model.fc.weight was rebound" in message(guard)


def test_a_shared_submodule_is_watched_under_both_names():
    shared = nn.Linear(1, 1)
    model = nn.ModuleDict({"a": nn.ModuleList([shared]), "b": nn.ModuleList([shared])})
    made = guard_of(model=model)
    model["b"][0] = nn.Linear(1, 1)
    assert "with model.b.0" in message(made)


def test_both_names_of_tied_weights_are_reported_when_both_moved():
    model = nn.ModuleDict({"embed": nn.Embedding(4, 2), "head": nn.Linear(2, 4, bias=False)})
    model["head"].weight = model["embed"].weight
    made = guard_of(model=model)
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    text = message(made)
    assert "model.embed.weight was rebound" in text
    assert "model.head.weight was rebound" in text


def test_untying_one_name_is_reported_alone():
    model = nn.ModuleDict({"embed": nn.Embedding(4, 2), "head": nn.Linear(2, 4, bias=False)})
    model["head"].weight = model["embed"].weight
    made = guard_of(model=model)
    model["head"].weight = nn.Parameter(torch.ones(4, 2))
    text = message(made)
    assert "model.head.weight was rebound" in text
    assert "model.embed.weight" not in text


def test_a_switched_submodule_is_named_with_both_modes(model, guard):
    model.drop.train()
    assert message(guard) == "the graphs were captured in another mode: model.drop was switched from eval to train"
    model.drop.eval()
    guard.check()


def test_a_rebound_closure_variable_and_a_rebound_global_are_named(monkeypatch):
    scale = torch.ones(2)

    def step(x):
        return x * scale * SCALE

    made = guard_of(step=step)
    scale = torch.zeros(2)
    monkeypatch.setattr(f"{__name__}.SCALE", torch.zeros(2))
    text = message(made)
    assert "step.<closure>.scale was rebound" in text
    assert f"{__name__}.SCALE was rebound" in text


def test_a_class_attribute_shadowed_on_the_instance_is_named():
    class WithTable(nn.Module):
        table = torch.ones(1)

        def forward(self, x):
            return x + self.table

    model = WithTable()
    made = guard_of(model=model)
    model.table = torch.zeros(1)
    assert "model.table was rebound" in message(made)


def test_slots_and_sets_are_watched():
    class Slotted:
        __slots__ = ("value",)

    root, members = Slotted(), {torch.ones(1)}
    root.value = torch.ones(1)
    made = guard_of(root=root, members=members)
    made.check()
    root.value = torch.ones(1)
    members.clear()
    text = message(made)
    assert "root.value was rebound" in text
    assert "members[" in text


def test_a_gradient_that_was_dropped_is_named():
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    made = guard_of(weight=weight)
    weight.grad = None
    assert "weight.grad was" in message(made)


def test_empty_tensors_are_told_apart_by_identity_and_shape():
    owner = types.SimpleNamespace(a=torch.empty(0, 3), b=torch.empty(0))
    made = guard_of(owner=owner)
    made.check()
    owner.a = torch.empty(0, 3)
    owner.b.data = torch.empty(0, 5)
    text = message(made)
    assert "owner.a was rebound" in text
    assert "owner.b: its shape changed" in text


def test_sparse_tensors_are_watched_by_the_memory_of_their_values():
    owner = types.SimpleNamespace(adjacency=torch.eye(3).to_sparse())
    made = guard_of(owner=owner)
    made.check()
    owner.adjacency.data = torch.eye(3).to_sparse()
    assert "owner.adjacency: its memory moved" in message(made)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_the_ambient_mode_of_a_replay_is_no_reason_to_refuse(guard, mode):
    with mode():
        guard.check()


def test_frozen_parameters_and_checks_after_garbage_collection_pass(model, guard):
    model.requires_grad_(requires_grad=False)
    gc.collect()
    guard.check()


def test_a_check_does_not_insert_into_a_defaultdict(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    made = guard_of(model=model, optimizer=optimizer)
    optimizer.state.clear()
    message(made)
    assert not optimizer.state


def test_a_guard_of_nothing_passes():
    Guard(()).check()


def test_an_unnamed_tensor_is_still_checked_by_address():
    tensor = torch.ones(2)
    made = Guard(read_tensors([((), tensor)]))
    made.check()
    tensor.data = torch.ones(2)
    assert message(made) == "the graphs read what moved since capture: a tensor with no name: its memory moved"


ATTACKS = {
    "rebind": lambda model, name: setattr(model, name, nn.Parameter(getattr(model, name).detach())),
    "swap": lambda model, name: setattr(getattr(model, name), "data", getattr(model, name).data.clone()),
    "transpose": lambda model, name: setattr(getattr(model, name), "data", getattr(model, name).data.t()),
    "delete": delattr,
    "narrow": lambda model, name: setattr(getattr(model, name), "data", getattr(model, name).data[:1]),
    "cast": lambda model, name: setattr(getattr(model, name), "data", getattr(model, name).data.double()),
}


@settings(deadline=None)
@given(st.integers(1, 8), st.data())
def test_exactly_the_attacked_tensors_are_named(count, data):
    model = nn.ParameterDict({f"w{place}": nn.Parameter(torch.ones(2, 3)) for place in range(count)})
    made = guard_of(model=model)
    attacked = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    for place in attacked:
        ATTACKS[data.draw(st.sampled_from(sorted(ATTACKS)))](model, f"w{place}")
    text = message(made)
    for place in range(count):
        assert (f"model.w{place}" in text) == (place in attacked)


def test_variables_that_the_decorator_of_a_library_sets_once_are_told_from_those_that_somebody_rebinds():
    from transformers.utils.deprecation import deprecate_kwarg

    from graphspec.runtime.holdings.closures import constant_cells

    made = deprecate_kwarg("old", version="99.0", new_name="new")(lambda new: new)
    cells = dict(zip(made.__code__.co_freevars, made.__closure__, strict=True))
    assert id(cells["new_name"]) in constant_cells([made])

    def counted():
        count = 0

        def add():
            nonlocal count
            count += 1

        return lambda: (count, add)

    own = counted()
    assert not constant_cells([own]) & {id(cell) for cell in own.__closure__}
