"""Each reachable tensor itself: its memory, shape and strides, its autograd flags, ``.grad`` and hooks.

Contents are not looked at here (contents.py). An alias taken at the start keeps the old memory, so ``.data =``,
``set_`` and ``resize_`` can be undone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from graphspec.runtime.holdings.objects import Change
from graphspec.runtime.holdings.reach import Reach
from graphspec.runtime.holdings.storages import layout_of

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


@dataclass(frozen=True)
class _Facts:
    name: str
    tensor: torch.Tensor
    alias: torch.Tensor | None
    layout: tuple[Any, ...]
    leaf: bool
    requires_grad: bool
    grad: torch.Tensor | None
    version: int | None
    hooks: tuple[dict[int, Any] | None, ...]


class TensorState:
    """The facts of every tensor of a `Reach` at one moment. Call its methods with all modes off."""

    def __init__(self, found: Reach) -> None:
        self._facts: dict[int, _Facts] = {}
        self.extend(found)

    def extend(self, found: Reach) -> None:
        """Add the tensors that are not known yet, as they are now."""
        for slot, tensor in found.tensors:
            if id(tensor) not in self._facts:
                self._facts[id(tensor)] = _facts(slot.name, tensor)

    def changes(self) -> tuple[Change, ...]:
        """The tensors whose memory, shape, strides, dtype or gradient differ now."""
        grads = (facts for facts in self._facts.values() if facts.leaf and facts.tensor.is_leaf)
        left = tuple(
            Change(f"{facts.name}.grad", "tensor", facts.grad, facts.tensor.grad)
            for facts in grads
            if facts.tensor.grad is not facts.grad
        )
        pairs = ((facts, layout_of(facts.tensor)) for facts in self._facts.values())
        moved = tuple(Change(facts.name, "memory", facts.layout, now) for facts, now in pairs if facts.layout != now)
        return (*moved, *left)

    def restore(self) -> None:
        """Put everything back. Call it before the contents are restored: a resized storage is resized there."""
        for facts in self._facts.values():
            _restore(facts)

    def settle(self) -> None:
        """Take what could not be put back as it is now: a storage that was resized has moved for good."""
        for key, facts in self._facts.items():
            if layout_of(facts.tensor) != facts.layout:
                self._facts[key] = replace(facts, layout=layout_of(facts.tensor))


def _facts(name: str, tensor: torch.Tensor) -> _Facts:
    try:
        alias = tensor.detach()
    except (NotImplementedError, RuntimeError, ValueError):
        alias = None
    return _Facts(
        name,
        tensor,
        alias,
        layout_of(tensor),
        tensor.is_leaf,
        tensor.requires_grad,
        tensor.grad if tensor.is_leaf else None,
        None if tensor.is_inference() else tensor._version,
        tuple(None if hooks is None else dict(hooks) for hooks in (getattr(tensor, name) for name in _HOOKS)),
    )


def _restore(facts: _Facts) -> None:
    tensor = facts.tensor
    if layout_of(tensor) != facts.layout and facts.alias is not None:
        if tensor.is_leaf:
            tensor.grad = None  # a gradient of another shape or dtype would refuse the assignment below
        tensor.data = facts.alias
    if facts.leaf and not tensor.is_leaf:
        tensor.detach_()  # written in place under autograd: its history would outlive the session
    if facts.leaf and tensor.requires_grad != facts.requires_grad:
        tensor.requires_grad_(facts.requires_grad)
    if facts.leaf and tensor.grad is not facts.grad:
        tensor.grad = facts.grad
    for name, before in zip(_HOOKS, facts.hooks, strict=True):
        now = getattr(tensor, name)
        if now is not None and dict(now) != (before or {}):
            now.clear()
            now.update(before or {})
    if facts.version is not None and tensor._version != facts.version:
        # The content is restored too, so a graph of the user's that saved this tensor may still run backward.
        torch._C._autograd._unsafe_set_version_counter((tensor,), (facts.version,))
