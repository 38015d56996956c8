"""Whether torch's guard tree can be relied on here: it must tell apart, on one of everything, all that it must."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from graphspec.runtime.holdings.storages import quiet
from graphspec.runtime.holdings.tree import GuardTree


@functools.cache
def available() -> bool:
    """Whether the tree of this torch tells apart everything that it must, on this Python."""
    try:
        return all(_tells(attack) for attack in _ATTACKS)
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
        self.cell = types.CellType(1)

    def expected(self) -> GuardTree:
        """All of it."""
        tree = GuardTree(restless={id(self.restless), id(vars(self.tricky))})
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
        tree.entry(self.module._parameters, "weight", self.module.weight)
        tree.length(self.module._forward_hooks)
        tree.item(self.items, 0, self.items[0])
        tree.length(self.items)
        tree.entry(self.restless, "here", 1)
        tree.tensor(self.weight)
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
    lambda example: example.items.reverse(),
    lambda example: example.items.append(1),
    lambda example: example.restless.update(here=2),
    lambda example: example.restless.clear(),
    lambda example: setattr(example.weight, "data", torch.zeros(2, 2)),
    lambda example: setattr(example.weight, "data", example.weight.data.t()),
    lambda example: setattr(example.weight, "data", example.weight.data.view(torch.int32)),
    lambda example: example.weight.unsqueeze_(0),
    _nothing_expected,
)


def _tells(attack: Callable[[_Example], Any]) -> bool:
    with quiet():
        example = _Example()
        tree = example.expected()
        untouched = tree.build()
        if not untouched() or tree.written():
            return False
        attack(example)
        return untouched() == (attack is _nothing_expected)
