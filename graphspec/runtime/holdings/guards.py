"""Address checks at replay: what a graph reads from outside is still where its capture found it.

A graph holds addresses, not variables. A `Guard` holds, flattened into parallel lists when it is made, every slot the
graph's outside tensors were found in, every slot on the way there from the model, and the training flags. A check
compares identities, then addresses, then shapes, strides and dtypes; it never walks the model, and it is always on.

Invariants:
- The fast comparison may only err towards "something moved"; what it rejects is examined slot by slot, which decides.
- Values written in place (``copy_``, ``load_state_dict``) always pass.
- A tensor held by several slots (tied weights) must still be in all of them.
- The slots' owners and the tensors are held strongly, so an address cannot be reused unnoticed.

The cost is linear (benchmarks/guards.py). Before most replays nothing of this runs: untouched.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from graphspec.errors import GuardError
from graphspec.runtime.holdings.identities import Identities
from graphspec.runtime.holdings.slots import MISSING, Slot, upwards
from graphspec.runtime.holdings.storages import Layout, layout_of, quiet
from graphspec.runtime.holdings.untouched import Tree

__all__ = ["Guard", "aliases", "is_plain"]

_pointer = torch._C.TensorBase.data_ptr  # unbound: no look-up for each tensor


def aliases(tensor: torch.Tensor) -> torch.Tensor:
    """A detached tensor on the same memory: what a replay reads and writes.

    ``tensor.data = other`` gives ``tensor`` another memory and leaves the alias on this one; in-place writes show in
    both.
    """
    with quiet():
        return tensor.detach()


@dataclass(frozen=True)
class _Entry:
    """One outside tensor: its slots, and its layout at the capture."""

    slots: tuple[Slot, ...]
    tensor: torch.Tensor
    layout: tuple[Any, ...]


class Guard:
    """The check of one graph.

    ``entries`` are (slots, tensor) for every outside tensor, ``modules`` (name, module) whose training flag was used,
    ``subject`` says who reads them, for the message: ``region 'decode'``.
    """

    def __init__(
        self,
        entries: Iterable[tuple[Sequence[Slot], torch.Tensor]],
        modules: Iterable[tuple[str, nn.Module]] = (),
        *,
        subject: str = "this graph",
    ) -> None:
        self._subject = subject
        with quiet():
            self._entries = [_Entry(tuple(slots), tensor, layout_of(tensor)) for slots, tensor in entries]
            plain = [entry.tensor for entry in self._entries if is_plain(entry.tensor)]
            self._others = [entry for entry in self._entries if not is_plain(entry.tensor)]
            self._tensors = tuple(plain)
            self._pointers = [tensor.data_ptr() for tensor in plain]
            self._layouts = [_layout(tensor) for tensor in plain]
        self._modules = tuple(modules)
        self._flags = [module.training for _, module in self._modules]
        self._paths = _paths(slot for entry in self._entries for slot in entry.slots)
        self._identities = self._expect()

    def check(self) -> None:
        """Pass, or raise `GuardError` with the name of everything that moved, was replaced or was switched."""
        if self.holds():
            return
        with quiet():
            findings = list(dict.fromkeys(self._examine_tensors()))
            switched = list(self._examine_modes())
        parts = [f"reads what moved since capture: {'; '.join(findings)}"] if findings else []
        parts += [f"was captured in another mode: {'; '.join(switched)}"] if switched else []
        if parts:
            hint = "call runner.recapture(), or put back what was there"
            raise GuardError(f"{self._subject} {' and '.join(parts)}", hint=hint)
        self._identities = self._expect()  # the same in other dicts

    def _expect(self) -> Identities:
        identities = Identities()
        for entry in self._entries:
            for slot in entry.slots:
                identities.expect(slot, entry.tensor)
        for slot, owner in self._paths:
            identities.expect(slot, owner)
        return identities

    def watch(self, tree: Tree) -> None:
        """Have a tree expect all that `check` looks at."""
        self._identities.watch(tree)
        for (_, module), training in zip(self._modules, self._flags, strict=True):
            tree.attribute(module, "training", training)
        tree.tensors(self._tensors)
        if self._others:
            tree.otherwise(self._others_hold)

    def holds(self) -> bool:
        """Whether everything is where it was, by the quick comparison."""
        try:
            return (
                self._identities.hold()
                and list(map(_pointer, self._tensors)) == self._pointers
                and list(map(_layout, self._tensors)) == self._layouts
                and [module.training for _, module in self._modules] == self._flags
                and (not self._others or self._others_hold())
            )
        except Exception:  # noqa: BLE001 # a vanished place raises what its kind raises; the examination names it
            return False

    def _others_hold(self) -> bool:
        return all(layout_of(entry.tensor) == entry.layout for entry in self._others)

    def _examine_tensors(self) -> Iterator[str]:
        """Every tensor that is elsewhere, slot by slot."""
        broken = {id(slot): slot for slot, owner in self._paths if slot.get() is not owner}
        for entry in self._entries:
            held = False
            for slot in entry.slots:
                reason = _reason(slot, entry.tensor, broken)
                held = held or reason is None
                if reason is not None:
                    yield f"{slot.name} {reason}"
            moved = _difference(entry.layout, layout_of(entry.tensor))
            if moved is not None and (held or not entry.slots):
                yield f"{' and '.join(slot.name for slot in entry.slots) or 'a tensor with no name'}: {moved}"

    def _examine_modes(self) -> Iterator[str]:
        for (name, module), before in zip(self._modules, self._flags, strict=True):
            if module.training != before:
                yield f"{name} was switched from {_mode(before)} to {_mode(module.training)}"


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor has one address, and a shape and strides that C++ can compare."""
    if tensor.layout != torch.strided or hasattr(type(tensor), "__tensor_flatten__"):
        return False
    return isinstance(layout_of(tensor), Layout) and not tensor.is_quantized


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Shape, strides and dtype of a plain tensor."""
    return tensor.shape, tensor.stride(), tensor.dtype


def _paths(slots: Iterable[Slot]) -> list[tuple[Slot, Any]]:
    """Every slot on the way to these, with what it holds: rebinding one of them rebinds all that lies behind."""
    paths = {id(above): (above, slot.owner) for slot in upwards(slots) for above in slot.above}
    # What already leads elsewhere at the capture was not the way there.
    return [(above, owner) for above, owner in paths.values() if above.get() is owner]


def _reason(slot: Slot, expected: Any, broken: Mapping[int, Slot]) -> str | None:
    """Why the slot no longer leads to ``expected``; None if it does. ``broken`` are rebound slots on the way."""
    found = slot.get()
    if found is MISSING:
        return "was deleted"
    if found is not expected:
        return "was rebound"
    culprit = next((above for above in upwards([slot]) if id(above) in broken), None)
    return None if culprit is None else f"was rebound with {culprit.name}"


def _difference(before: tuple[Any, ...], now: tuple[Any, ...]) -> str | None:
    """What differs between two layouts of one tensor, most telling first; None if nothing does."""
    if before == now:
        return None
    if isinstance(before, Layout) and isinstance(now, Layout):
        for what in ("dtype", "shape", "strides"):
            old, new = getattr(before, what), getattr(now, what)
            if old != new:
                return f"its {what} changed from {old} to {new}"
    return "its memory moved"


def _mode(training: bool) -> str:  # noqa: FBT001
    return "train" if training else "eval"
