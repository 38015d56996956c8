"""Outputs that are copied into static memory, and what else lies in that memory and would change with it.

In the user's own loop ``a, b = b, a`` or ``return h, h + 1`` rebinds names; here the state is overwritten in place.
So whatever a call returns that lies in a state it also writes back is copied first, as recorded operators.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch

from graphspec.runtime.holdings.storages import layout_of
from graphspec.runtime.values.trees import UnknownTypeError, flatten


def apart(outputs: Mapping[str, Any], views: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """``outputs`` with a copy of every tensor that lies in one of ``views``, the memory about to be written.

    ``views`` is by name of the output that goes there. An output that is its own view stays.
    """
    storages = {view.untyped_storage()._cdata for view in views.values()}
    found = {}
    for name, value in outputs.items():
        if not any(_lies_in(leaf, storages) and not _same_place(leaf, views.get(name)) for leaf in leaves_of(value)):
            found[name] = value
            continue
        tree = flatten(value)
        found[name] = tree.rebuild([leaf.clone() if _lies_in(leaf, storages) else leaf for leaf in tree.leaves])
    return found


class StaleViews:
    """Values of one pass that are views of a state, and that the write-back of a later region has changed."""

    def __init__(self) -> None:
        self._stale: dict[str, tuple[str, str]] = {}

    def note(
        self, region: str, outputs: Collection[str], written: Mapping[str, torch.Tensor], env: Mapping[str, Any]
    ) -> None:
        """``region`` made ``outputs`` and wrote back ``written``, the views of the states by name."""
        for state, view in written.items():
            storages = {view.untyped_storage()._cdata}
            for name, value in env.items():
                if name not in outputs and name != state and any(_lies_in(leaf, storages) for leaf in leaves_of(value)):
                    self._stale.setdefault(name, (state, region))
        for name in outputs:
            self._stale.pop(name, None)

    def reads(self, names: Iterable[str]) -> list[tuple[str, str, str]]:
        """Those of ``names`` that must not be read any more: each with its state, and the region that wrote it."""
        return [(name, *self._stale[name]) for name in names if name in self._stale]


def leaves_of(value: Any) -> tuple[torch.Tensor, ...]:
    """The tensors inside a structured value; none where it cannot be taken apart."""
    try:
        return flatten(value).leaves
    except UnknownTypeError:  # reported where outputs are taken apart
        return ()


def _lies_in(leaf: torch.Tensor, storages: Collection[int]) -> bool:
    return leaf.layout is torch.strided and leaf.untyped_storage()._cdata in storages


def _same_place(leaf: torch.Tensor, view: torch.Tensor | None) -> bool:
    return view is not None and layout_of(leaf) == layout_of(view)
