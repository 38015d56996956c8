"""The gradients that a region finds and leaves in ``.grad``, while it is rehearsed and captured.

A graph needs fixed addresses, and ``.grad`` is a new tensor, the same one or None, as the caller likes. So a region is
called with *accumulators* of graphspec's own in ``.grad``, and a run fills them from what is there (replayed.py).
Which tensors get a gradient in a region shows a *trial*, the first call, in which all of them have an accumulator; what
it touches of others is what the region would do with a gradient that nobody expects there. Where the model's own code
fails with so many, some or all have none, and a run refuses a gradient that is found there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch.nn.parameter import is_lazy

from graphspec.recording.calls import Call, Recording, Ref, touched_refs
from graphspec.recording.writes import effect_of
from graphspec.runtime.holdings.reach import Reach

#: What a region does first with the gradient it finds. ``added``: autograd adds to it; ``zeroed``: its content goes.
Touch = Literal["untouched", "added", "zeroed", "read"]
#: What is in ``.grad`` afterwards: the very tensor that was found, nothing, or another tensor.
Left = Literal["given", "none", "new"]

#: Which tensors have a gradient in the trial: all, those that require one, or those for which a region before made one.
Generosity = Literal["all", "trained", "made"]

_ADDS = frozenset({"add", "add_"})
_ZEROES = frozenset({"zero_", "_foreach_zero_"})

Named = tuple[str, torch.Tensor]


@dataclass(frozen=True)
class GradientSeen:
    """What one call of a region did with the gradient of one tensor. ``offered``: there was one when it began."""

    name: str
    tensor: torch.Tensor
    offered: bool
    touch: Touch
    left: Left
    written: bool = False

    @property
    def matters(self) -> bool:
        """Whether it is another one afterwards, or was looked at."""
        return self.touch != "untouched" or self.left != ("given" if self.offered else "none")


def trainable(found: Reach) -> list[Named]:
    """What may have a gradient, frozen parameters included: each tensor once, by its first name."""
    named: dict[int, Named] = {}
    for slot, tensor in found.tensors:
        number = not is_lazy(tensor) and (tensor.is_floating_point() or tensor.is_complex())
        if number and tensor.is_leaf and (tensor.requires_grad or isinstance(tensor, torch.nn.Parameter)):
            named.setdefault(id(tensor), (slot.name, tensor))
    return list(named.values())


class Gradients:
    """The accumulators of an opened spec, one for each tensor, and which tensors get a gradient in which region."""

    def __init__(self) -> None:
        self._accumulators: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._reached: dict[str, set[int]] = {}
        self._tried: dict[str, dict[int, GradientSeen]] = {}
        self._generous: Generosity = "all"

    @property
    def storages(self) -> frozenset[int]:
        """The memory of all accumulators."""
        return frozenset(given.untyped_storage()._cdata for _, given in self._accumulators.values())

    def forget(self, generous: Generosity = "all") -> None:
        """Before a new round of captures: every region is tried again, and has accumulators of its own.

        ``generous``: what has one in the trial.
        """
        self._generous = generous
        self._accumulators.clear()
        self._reached.clear()
        self._tried.clear()

    def accumulator(self, tensor: torch.Tensor) -> torch.Tensor:
        """The accumulator of a tensor: of its shape, strides and dtype."""
        found = self._accumulators.get(id(tensor))
        if found is None or found[1].shape != tensor.shape or found[1].dtype != tensor.dtype:
            with torch.no_grad():
                made = torch.empty_like(tensor.detach(), memory_format=torch.preserve_format)
            found = self._accumulators[id(tensor)] = tensor, made
        return found[1]

    # -- around a call

    @staticmethod
    def begin(leaves: Iterable[Named]) -> None:
        """At the start of a pass nothing has a gradient, whatever the user left there."""
        for _, tensor in leaves:
            tensor.grad = None

    def offer(self, region: str, leaves: Iterable[Named]) -> None:
        """Before a call: an accumulator for each tensor that gets a gradient in it, or has one from a region before.

        A region that reads gradients which no region before it has made finds one for each that it read in its trial.
        """
        leaves = list(leaves)
        reached, tried = self._reached.get(region), self._tried.get(region, {})
        alone = not reached and all(tensor.grad is None for _, tensor in leaves)
        for _, tensor in leaves:
            here = tensor.grad
            read = alone and id(tensor) in tried and tried[id(tensor)].touch != "untouched"
            tried_with = self._generous == "all" or (self._generous == "trained" and tensor.requires_grad)
            wanted = tried_with if reached is None else id(tensor) in reached or read
            if here is None and not wanted:
                continue
            given = self.accumulator(tensor)
            with torch.no_grad():
                fill(given) if here is None else given.copy_(here)
            tensor.grad = given

    def knows(self, region: str) -> bool:
        """Whether a region was tried."""
        return region in self._reached

    @contextmanager
    def tried(self, region: str, leaves: Iterable[Named]) -> Iterator[None]:
        """Around the trial of a region: notes for which tensors autograd makes a gradient."""
        reached: set[int] = set()
        leaves = list(leaves)
        handles = [
            tensor.register_post_accumulate_grad_hook(lambda tensor: reached.add(id(tensor)))
            for _, tensor in leaves
            if tensor.requires_grad
        ]
        try:
            yield
            new = (tensor for _, tensor in leaves if _left(tensor, self.accumulator(tensor)) == "new")
            self._reached[region] = reached.union(map(id, new))
        finally:
            for handle in handles:
                handle.remove()

    def seen(
        self, region: str, leaves: Iterable[Named], there: Collection[int], recording: Recording
    ) -> tuple[GradientSeen, ...]:
        """What a call did, of every tensor whose gradient it touched or changed; the first call is the trial.

        ``there`` are the tensors that had one when it began.
        """
        every = {
            id(tensor): self._seen(region, (name, tensor), recording, offered=id(tensor) in there)
            for name, tensor in leaves
        }
        if region not in self._tried:  # what was not tried may do anything
            self._tried[region] = {key: each if each.offered else _unknown(each) for key, each in every.items()}
        return tuple(each for each in every.values() if each.matters)

    def new(self, leaves: Iterable[Named]) -> dict[int, torch.Tensor]:
        """What lies in ``.grad`` after a call and was made in it, by the identity of the tensor it is of."""
        found = ((tensor, tensor.grad) for _, tensor in leaves)
        return {id(tensor): grad for tensor, grad in found if grad is not None and grad is not self.accumulator(tensor)}

    def tried_on(self, region: str) -> Iterator[GradientSeen]:
        """What the trial did with gradients of tensors that get none in the region."""
        reached = self._reached.get(region, set())
        for key, seen in self._tried.get(region, {}).items():
            if key not in reached:
                yield seen

    def _seen(self, region: str, of: Named, recording: Recording, *, offered: bool) -> GradientSeen:
        name, tensor = of
        given = self.accumulator(tensor)
        if not offered:
            return GradientSeen(name, tensor, offered, "untouched", "none" if tensor.grad is None else "new")
        index = recording.ref(given).storage if recording.knows(given) else None
        written = index is not None and index in recording.written
        touch = _touch(recording, index)
        if touch in ("added", "zeroed") and id(tensor) not in self._reached.get(region, ()):
            touch = "read"  # by an optimizer, which leaves out what has no gradient
        return GradientSeen(name, tensor, offered, touch, _left(tensor, given), written)


def _unknown(seen: GradientSeen) -> GradientSeen:
    return replace(seen, touch="read", left="given")


def fill(accumulator: torch.Tensor) -> None:
    """Fill with what changes nothing when something is added to it, bit by bit: 0.0 + -0.0 would be 0.0."""
    accumulator.fill_(complex(-0.0, -0.0) if accumulator.is_complex() else -0.0)


def offered(leaves: Iterable[Named]) -> set[int]:
    """The tensors that have a gradient now, by identity."""
    return {id(tensor) for _, tensor in leaves if tensor.grad is not None}


def _left(tensor: torch.Tensor, given: torch.Tensor) -> Left:
    return "none" if tensor.grad is None else "given" if tensor.grad is given else "new"


def _touch(recording: Recording, index: int | None) -> Touch:
    if index is None:
        return "untouched"
    calls = (call for call in recording.calls if any(ref.storage == index for ref in touched_refs(call)))
    first = next((call for call in calls if not effect_of(call.op).views), None)
    if first is None:
        return "untouched"
    if first.op._opname in _ZEROES:
        return "zeroed"
    return "added" if first.op._opname in _ADDS and _accumulates(recording, first, index) else "read"


def _accumulates(recording: Recording, call: Call, index: int) -> bool:
    """Whether a call adds to this storage what was computed before: autograd does, weight decay adds a parameter."""
    refs = [each for each in call.args[:2] if isinstance(each, Ref)]
    return len(refs) == 2 and refs[0].storage == index and recording.is_born(refs[1].storage)  # noqa: PLR2004 - of both
