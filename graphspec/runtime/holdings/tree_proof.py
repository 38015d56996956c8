"""Which of the quick answers can be relied on here: it must tell apart, on one of everything, all that it must."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from graphspec.levers import pulled
from graphspec.runtime.holdings.storages import quiet
from graphspec.runtime.holdings.tree import GuardTree
from graphspec.runtime.holdings.words import Words


def quickest() -> type[GuardTree] | None:
    """The quickest kind of check that can be relied on; None: only columns."""
    kinds = (Words, GuardTree) if pulled("words") else (GuardTree,)
    return next((kind for kind in kinds if proven(kind)), None)


@functools.cache
def proven(kind: type[GuardTree]) -> bool:
    """Whether a kind of check tells apart everything that it must, with this torch and on this Python."""
    try:
        return all(_tells(attack, kind) for attack in _ATTACKS)
    except Exception:  # noqa: BLE001 # private: whatever it raises, there is another way
        return False


class _Example:
    """One of everything that a tree compares."""

    def __init__(self) -> None:
        self.base = type("Base", (), {"shared": 1, "hidden": 1})
        self.kind = type("Kind", (self.base,), {"own": 1})
        self.plain = self.kind()
        self.plain.number = 1
        self.module = nn.BatchNorm1d(2)
        self.items = [object(), object()]
        self.tricky = type("Tricky", (), {})()
        vars(self.tricky).update(kind=1, own=1, untouched=1)
        self.weight = torch.zeros(2, 2)
        self.restless = {"here": 1}
        self.strided = torch.zeros(64).as_strided((2, 3), (17, 5), 7)
        self.cell = types.CellType(1)
        self.other_cell = types.CellType(self.items)

        def function(some: Any = self.items, *, other: Any = None) -> None:
            del some, other

        self.function = function

    def expected(self, kind: type[GuardTree]) -> GuardTree:
        """All of it."""
        tree = kind(restless={id(self.restless), id(vars(self.tricky))})
        for name in vars(self.tricky):
            tree.attribute(self.tricky, name, 1)
        tree.kind(self.tricky)
        for name, value in vars(self.module).items():
            tree.attribute(self.module, name, value)
        tree.attributes(self.plain)
        tree.attribute(self.plain, "hidden", 1)
        tree.attribute(self.plain, "shared", 1)
        tree.member(self.kind, "own", 1)
        tree.attributes(self.kind)
        tree.kind(self.plain)
        tree.attribute(self.cell, "cell_contents", 1)
        tree.attribute(self.other_cell, "cell_contents", self.items)
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            tree.attribute(self.function, name, getattr(self.function, name))
        tree.entry(self.module._parameters, "weight", self.module.weight)
        tree.length(self.module._forward_hooks)
        tree.item(self.items, 0, self.items[0])
        tree.length(self.items)
        tree.entry(self.restless, "here", 1)
        tree.tensor(self.weight)
        tree.tensor(self.strided)
        return tree


def _copy_attributes(owner: Any) -> None:
    owner.__dict__ = dict(vars(owner))


def _nothing_expected(example: _Example) -> None:
    example.restless["more"] = 1


#: What is done to an example, and must be told; but for `_nothing_expected`.
_ATTACKS: tuple[Callable[[_Example], Any], ...] = (
    lambda example: example.module.train(mode=False),
    lambda example: setattr(example.module, "extra", 1),
    lambda example: delattr(example.module, "eps"),
    lambda example: setattr(example.module, "weight", nn.Parameter(torch.ones(2))),
    lambda example: example.module.register_parameter("other", None),
    lambda example: example.module.register_forward_hook(lambda *_: None),
    lambda example: _copy_attributes(example.module),
    lambda example: setattr(example.plain, "number", 2),
    lambda example: vars(example.plain).update(number=3),
    lambda example: _copy_attributes(example.plain),
    lambda example: setattr(example.plain, "hidden", 2),
    lambda example: setattr(example.kind, "hidden", 2),
    lambda example: setattr(example.kind, "shared", 2),
    lambda example: setattr(example.base, "shared", 2),
    lambda example: delattr(example.base, "shared"),
    lambda example: setattr(example.kind, "own", 2),
    lambda example: setattr(example.kind, "more", 2),
    lambda example: setattr(example.plain, "__class__", type("Kind", (example.kind,), {})),
    lambda example: setattr(example.tricky, "kind", 2),
    lambda example: setattr(example.tricky, "own", 2),
    lambda example: setattr(example.tricky, "__class__", type("Tricky", (), {})),
    lambda example: setattr(example.cell, "cell_contents", None),
    lambda example: setattr(example.other_cell, "cell_contents", list(example.items)),
    lambda example: delattr(example.other_cell, "cell_contents"),
    lambda example: setattr(example.function, "__code__", example.expected.__code__),
    lambda example: setattr(example.function, "__defaults__", None),
    lambda example: setattr(example.function, "__kwdefaults__", {"other": 1}),
    lambda example: example.items.reverse(),
    lambda example: example.items.append(1),
    lambda example: example.items.extend([1] * 1000),
    lambda example: example.items.clear(),
    lambda example: example.items.__setitem__(0, object()),
    lambda example: example.restless.update(here=2),
    lambda example: example.restless.clear(),
    lambda example: setattr(example.weight, "data", torch.zeros(2, 2)),
    lambda example: setattr(example.weight, "data", example.weight.data.t()),
    lambda example: setattr(example.weight, "data", example.weight.data.view(torch.int32)),
    lambda example: example.weight.unsqueeze_(0),
    lambda example: example.weight.t_(),
    lambda example: example.weight.resize_(4, 4),
    lambda example: example.weight.untyped_storage().resize_(1 << 16),
    lambda example: example.weight.set_(torch.zeros(2, 2).untyped_storage(), 0, (2, 2), (2, 1)),
    lambda example: torch.utils.swap_tensors(example.weight, torch.zeros(2, 2)),
    lambda example: setattr(example.weight, "__class__", nn.Parameter),
    lambda example: example.strided.as_strided_((2, 3), (17, 5), 8),
    lambda example: example.strided.as_strided_((2, 3), (16, 5), 7),
    lambda example: example.strided.as_strided_((2, 3), (17, 4), 7),
    lambda example: example.strided.as_strided_((1, 3), (17, 5), 7),
    lambda example: example.strided.as_strided_((2, 2), (17, 5), 7),
    lambda example: setattr(example.strided, "data", torch.zeros(64).as_strided((2, 3), (17, 5), 7)),
    _nothing_expected,
)


def _tells(attack: Callable[[_Example], Any], kind: type[GuardTree]) -> bool:
    with quiet():
        example = _Example()
        tree = example.expected(kind)
        untouched = tree.build()
        if not untouched() or tree.written():
            return False
        attack(example)
        return untouched() == (attack is _nothing_expected)
