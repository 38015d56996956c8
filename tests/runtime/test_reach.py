"""What is reachable, and under which names."""

from __future__ import annotations

import collections
import functools
import threading
import types
from dataclasses import dataclass
from typing import NamedTuple

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from graphspec.runtime.holdings.reach import MISSING, reach

TABLE = torch.arange(3.0)
UNNAMED = torch.arange(3.0)


def names_of(found, tensor):
    return [slot.name for slot in found.slots_of(tensor)]


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


@dataclass
class Box:
    value: object


class Slotted:
    __slots__ = ("__secret", "value")

    def __init__(self, value):
        self.value = value
        self.__secret = value


def test_parameters_buffers_and_plain_attributes_of_nested_modules_are_named_by_their_path():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[0].cache = torch.ones(1)
    found = reach({"model": model})
    kinds = {slot.name: slot.kind for slot, _ in found.tensors}
    assert kinds["model.0.weight"] == "parameter"
    assert kinds["model.1.running_mean"] == "buffer"
    assert kinds["model.0.cache"] == "attribute"
    assert [name for name, _ in found.modules] == ["model", "model.0", "model.1"]


def test_tied_weights_list_both_names():
    model = nn.ModuleDict({"embed": nn.Embedding(4, 2), "head": nn.Linear(2, 4, bias=False)})
    model["head"].weight = model["embed"].weight
    found = reach({"model": model})
    assert names_of(found, model["embed"].weight) == ["model.embed.weight", "model.head.weight"]


def test_views_are_found_by_their_storage_and_strangers_are_not():
    owner = types.SimpleNamespace(cache=torch.zeros(4))
    found = reach({"owner": owner})
    assert [slot.name for slot in found.slots_of_storage(owner.cache[2:])] == ["owner.cache"]
    assert found.slots_of(torch.zeros(4)) == ()
    assert found.slots_of_storage(torch.zeros(4)) == ()


def test_containers_and_objects_of_every_kind_are_walked():
    made = [torch.ones(1) for _ in range(11)]
    root = types.SimpleNamespace(
        a=[made[0]], b=(made[1],), c={"k": [made[2]]}, d={made[3]}, e=Pair(made[4], made[4]), f=Box(made[5]),
        g=Slotted(made[6]), h=functools.partial(max, made[7]), i=collections.deque([made[8]]),
        j=collections.OrderedDict(x=made[9]), k=types.MethodType(lambda _: None, Box(made[10])),
    )  # fmt: skip
    found = reach({"root": root})
    firsts = [names_of(found, tensor)[0] for tensor in made]
    assert firsts[:3] == ["root.a[0]", "root.b[0]", "root.c['k'][0]"]
    assert firsts[4:6] == ["root.e.left", "root.f.value"]
    assert firsts[7:] == ["root.h.args[0]", "root.i[0]", "root.j['x']", "root.k.__self__.value"]
    assert sorted(names_of(found, made[6])) == ["root.g._Slotted__secret", "root.g.value"]
    assert all(slot.get() is tensor for slot, tensor in found.tensors)


def test_closures_defaults_and_the_globals_that_code_names_are_found():
    scale, shift = torch.ones(1), torch.ones(1)

    def step(x, default=shift):
        def inner():
            return TABLE

        return x * scale + default + inner()

    found = reach({"step": step})
    assert names_of(found, scale) == ["step.<closure>.scale"]
    assert names_of(found, shift) == ["step.__defaults__[0]"]
    assert names_of(found, TABLE) == [f"{__name__}.TABLE"]
    assert found.slots_of(TABLE)[0].kind == "global"
    assert names_of(found, UNNAMED) == []


def test_globals_used_by_a_forward_and_by_the_helpers_it_calls_are_found():
    class Net(nn.Module):
        def forward(self, x):
            return self.helper(x)

        def helper(self, x):
            return x + TABLE

        def unused(self):
            return UNNAMED

    found = reach({"model": Net()})
    assert names_of(found, TABLE) == [f"{__name__}.TABLE"]
    assert names_of(found, UNNAMED) == []


def test_a_tensor_of_the_class_is_a_slot_of_the_instance_where_it_would_be_shadowed():
    class Net(nn.Module):
        table = torch.ones(2)

        def forward(self, x):
            return x + self.table

    model = Net()
    (slot,) = reach({"model": model}).slots_of(Net.table)
    assert slot.name == "model.table"
    model.table = torch.zeros(2)
    assert slot.get() is model.table


def test_hooks_and_what_they_close_over_are_found():
    seen = torch.zeros(1)
    model = nn.Linear(1, 1)
    model.register_forward_hook(lambda *_: seen.add_(1))
    assert names_of(reach({"model": model}), seen)


def test_optimizer_state_is_named_by_its_parameter():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    found = reach({"model": model, "optimizer": optimizer})
    momentum = optimizer.state[model.weight]["momentum_buffer"]
    assert names_of(found, momentum) == ["optimizer.state[model.weight]['momentum_buffer']"]
    assert names_of(found, model.weight)[0] == "model.weight"
    assert names_of(found, model.weight.grad) == ["model.weight.grad"]


def test_generators_are_listed_with_their_names():
    model = nn.Linear(1, 1)
    model.noise = torch.Generator()
    assert reach({"model": model}).generators == (("model.noise", model.noise),)


def test_what_is_gone_reads_as_missing():
    root = types.SimpleNamespace(a=torch.ones(1), items=[torch.ones(1)], entries={"k": torch.ones(1)})
    found = reach({"root": root})
    del root.a
    root.items.clear()
    root.entries.clear()
    assert [slot.get() for slot, _ in found.tensors] == [MISSING] * 3


def test_cycles_and_very_deep_structures_do_not_matter():
    inner = torch.ones(1)
    root = [inner]
    for _ in range(5000):
        root = [root]
    root.append(root)
    assert len(reach({"root": root}).slots_of(inner)) == 1


def test_types_locks_threads_and_python_modules_are_not_walked():
    hidden = torch.ones(1)
    thread = threading.Thread(target=lambda: hidden)
    root = types.SimpleNamespace(kind=Box, lock=threading.Lock(), thread=thread, module=types, torch=torch)
    assert reach({"root": root}).tensors == ()


def test_walking_runs_no_property_and_no_getattr_of_the_model():
    class Trap:
        def __init__(self):
            self.value = torch.ones(1)

        @property
        def danger(self):
            raise AssertionError

        def __getattr__(self, name):
            raise AssertionError(name)

    assert len(reach({"trap": Trap()}).tensors) == 1


def test_sparse_quantized_and_meta_tensors_are_listed():
    made = (
        torch.eye(2).to_sparse(),
        torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        torch.ones(2, device="meta"),
    )
    found = reach({"made": made})
    assert [id(tensor) for _, tensor in found.tensors] == [id(tensor) for tensor in made]


leaves = st.builds(lambda: torch.ones(1))
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3)
        | st.tuples(inner)
        | st.builds(Box, inner)
    ),
    max_leaves=12,
)


def flatten(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, Box):
        return flatten(tree.value)
    children = tree.values() if isinstance(tree, dict) else tree
    return [leaf for child in children for leaf in flatten(child)]


@given(trees)
def test_every_tensor_of_any_structure_is_found_once_where_it_is(tree):
    found = reach({"root": tree})
    assert {id(tensor) for _, tensor in found.tensors} == {id(leaf) for leaf in flatten(tree)}
    for slot, tensor in found.tensors:
        assert slot.get() is tensor
        assert eval(slot.name, {"root": tree}) is tensor  # noqa: S307 # a name is also how a user writes it
