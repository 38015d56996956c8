"""The tree that says "nothing was touched" never passes what the expectations refuse, and mostly spares them."""

from __future__ import annotations

import contextlib
import types

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from graphspec.errors import GuardError
from graphspec.runtime.holdings.code_names import LoadedNames
from graphspec.runtime.holdings.guard import PATIENCE, Guard
from graphspec.runtime.holdings.reach import reach
from graphspec.runtime.holdings.touched import Touched
from graphspec.runtime.holdings.tree import GuardTree
from graphspec.runtime.holdings.tree_proof import proven
from graphspec.runtime.holdings.which import HostValues, read_tensors
from graphspec.runtime.holdings.words import Words

NAMES = frozenset({
    "count", "scale", "items", "table", "shared", "options", "mode", "step", "fc", "norm", "plain", "weight", "bias",
})  # fmt: skip


class Base(nn.Module):
    shared = 1


class Net(Base):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.table = torch.ones(4)
        self.count = 0
        self.scale = 1.5
        self.options = {"scale": 2, "mode": "fast"}
        self.items = [1, [torch.ones(2), 3]]
        self.plain = types.SimpleNamespace(step=1, scale=0.5)

    def forward(self, x):
        return self.fc(x) + self.table


class Other(Net):
    pass


class Counting(Guard):
    """A guard that counts how often its tree could not answer."""

    asked = 0

    def _examine(self):
        self.asked += 1
        super()._examine()


def guard_of(model):
    found, code = reach({"model": model}), LoadedNames(NAMES)
    touched = Touched(found, [model], code)
    tensors = {id(tensor): tensor for _, tensor in found.tensors}
    entries = ((found.slots_of(tensor), tensor) for tensor in tensors.values())
    made = Counting((*read_tensors(entries, touched), *HostValues(found, touched, code).expected()))
    made.asked = 0
    return made


@pytest.fixture
def model():
    return Net().eval()


@pytest.fixture
def guard(model):
    return guard_of(model)


@pytest.mark.parametrize("kind", [GuardTree, Words])
def test_each_quick_check_tells_apart_all_it_must(kind):
    assert proven(kind)


def test_the_guards_are_not_asked_while_nothing_is_touched(guard):
    for _ in range(100):
        guard.check()
    assert guard.asked == 0


def test_new_values_in_place_are_no_reason_to_ask(model, guard):
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})
    guard.check()
    assert guard.asked == 0


def test_an_attribute_that_is_written_before_every_run_is_asked_about_once(model, guard):
    for step in range(100):
        model.unrelated = step
        guard.check()
    assert guard.asked <= 2  # the attribute is new, then it is written


def test_what_lies_beside_an_attribute_that_is_written_all_the_time_is_still_watched(model, guard):
    for step in range(3):
        model.unrelated = step
        guard.check()
    model.count = 5
    with pytest.raises(GuardError, match=r"model.count was 0 and is 5"):
        guard.check()
    model.count = 0
    guard.check()
    model.shared = 2
    with pytest.raises(GuardError, match=r"model.shared was 1 and is 2"):
        guard.check()
    del model.shared
    guard.check()
    model.train()
    with pytest.raises(GuardError, match="switched from eval to train"):
        guard.check()


def test_a_caller_who_changes_modes_between_runs_is_asked_about_at_most_once_in_each(guard):
    for _ in range(20):
        for mode in (torch.inference_mode, contextlib.nullcontext, lambda: torch.autocast("cpu", torch.bfloat16)):
            with mode():
                guard.check()
    assert guard.asked <= 2


def test_a_model_that_never_rests_is_compared_by_the_guards_alone(model, guard):
    runs = PATIENCE + 30
    for _ in range(runs):
        model.scale = float("1.5")  # equal, and another object each time
        guard.check()
    assert guard.asked == runs
    model.scale = 1.0
    with pytest.raises(GuardError, match=r"model.scale was 1.5 and is 1.0"):
        guard.check()


ACTIONS = {
    "nothing": lambda _: None,
    "scale": lambda model: setattr(model, "scale", float("1.5")),
    "unrelated": lambda model: setattr(model, "unrelated", object()),
    "no longer unrelated": lambda model: vars(model).pop("unrelated", None),
    "count": lambda model: setattr(model, "count", model.count + 1),
    "count back": lambda model: setattr(model, "count", 0),
    "train": lambda model: model.train(),
    "eval": lambda model: model.eval(),
    "part in train": lambda model: model.norm.train(),
    "option": lambda model: model.options.update(scale=3),
    "option back": lambda model: model.options.update(scale=2),
    "option more": lambda model: model.options.update(other=3),
    "option less": lambda model: model.options.pop("other", None),
    "item": lambda model: model.items.__setitem__(0, 2),
    "item back": lambda model: model.items.__setitem__(0, 1),
    "items more": lambda model: model.items.append(1),
    "items less": lambda model: model.items.pop() if len(model.items) > 2 else None,
    "plain": lambda model: setattr(model.plain, "step", 2),
    "plain back": lambda model: setattr(model.plain, "step", 1),
    "hide": lambda model: setattr(model, "shared", 2),
    "show": lambda model: vars(model).pop("shared", None),
    "class": lambda _: setattr(Base, "shared", 2),
    "class back": lambda _: setattr(Base, "shared", 1),
    "between": lambda _: setattr(Net, "shared", 2),
    "between back": lambda _: delattr(Net, "shared") if "shared" in vars(Net) else None,
    "other class": lambda model: setattr(model, "__class__", Other),
    "its class": lambda model: setattr(model, "__class__", Net),
    "method": lambda _: setattr(Net, "step", lambda _: 1),
    "method gone": lambda _: delattr(Net, "step") if "step" in vars(Net) else None,
    "function": lambda model: setattr(model, "mode", torch.relu),
    "hook": lambda model: vars(model).__setitem__("hook", model.fc.register_forward_hook(lambda *_: None)),
    "hook gone": lambda model: model.fc._forward_hooks.clear(),
    "weight": lambda model: setattr(model.fc, "weight", nn.Parameter(model.fc.weight.detach().clone())),
    "data": lambda model: setattr(model.fc.weight, "data", model.fc.weight.data.clone()),
    "transposed": lambda model: setattr(model.fc.weight, "data", model.fc.weight.data.t()),
    "values": lambda model: model.fc.weight.data.zero_(),
    "frozen": lambda model: model.requires_grad_(requires_grad=False),
    "dict": lambda model: setattr(model.fc, "__dict__", dict(vars(model.fc))),
    "parameters": lambda model: setattr(model.fc, "_parameters", dict(model.fc._parameters)),
    "table": lambda model: setattr(model, "table", model.table.clone()),
    "nested": lambda model: model.items[1].reverse(),
}


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.sampled_from(sorted(ACTIONS)), st.booleans()), max_size=12))
def test_after_any_actions_the_verdict_is_that_of_the_guards_alone(actions):
    model = Net().eval()
    guard, alone = guard_of(model), guard_of(model)

    def verdict(examine):
        try:
            examine()
        except GuardError as error:
            return error.message
        return None

    try:
        for action, inference in actions:
            ACTIONS[action](model)
            with torch.inference_mode(mode=inference):
                assert verdict(guard.check) == verdict(alone.examine)
    finally:
        ACTIONS["class back"](model)
        ACTIONS["between back"](model)
        ACTIONS["method gone"](model)


def test_an_attribute_that_comes_where_another_goes_is_told(model, guard):
    model.unrelated = 1
    guard.check()
    del model.unrelated
    model.step = 1
    with pytest.raises(GuardError, match=r"model.step was added, as 1"):
        guard.check()


def test_an_equal_value_is_asked_about_once(model, guard):
    model.scale = float("1.5")
    for _ in range(10):
        guard.check()
    assert guard.asked == 1


def test_an_equal_number_or_text_in_another_object_on_every_run_is_asked_about_once(model, guard):
    model.options["scale"] = 1000
    with pytest.raises(GuardError):
        guard.check()
    model.options["scale"] = 2
    for step in range(20):
        model.options["mode"] = str(b"fast", "ascii")
        model.count = int(str(step)) * 0
        guard.check()
    assert guard.asked <= 4


def test_equal_dicts_in_the_place_of_others_are_asked_about_once(model, guard):
    model.fc._parameters = dict(model.fc._parameters)
    model._modules = dict(model._modules)
    for _ in range(10):
        guard.check()
    assert guard.asked <= 2
    model.fc.weight = nn.Parameter(torch.ones(4, 4))
    with pytest.raises(GuardError, match=r"model.fc.weight was rebound"):
        guard.check()


def test_a_guarded_tensor_may_be_swapped_for_another_which_is_told(model, guard):
    torch.utils.swap_tensors(model.fc.weight, nn.Parameter(torch.ones(4, 4)))
    with pytest.raises(GuardError, match=r"model.fc.weight"):
        guard.check()


def test_a_list_that_moves_in_memory_is_told(model, guard):
    model.items[1].extend([3] * 10_000)
    with pytest.raises(GuardError, match=r"model.items\[1\]"):
        guard.check()
    del model.items[1][2:]
    guard.check()
    model.items[1][0] = torch.ones(2)
    with pytest.raises(GuardError, match=r"model.items\[1\]"):
        guard.check()
