"""Captured calls as part of the caller's autograd: a replay of a forward, and of its backward when that comes.

The graphs of a pass share a pool, so what a forward saved is safe only until another of them is replayed that may use
its memory (rule: a value of capture p, held until capture e, can be read until a replay of some k <= p or k > e). A
forward owns what it saved until its backward, or until nobody can ask for that any more: then its results are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch

from graphspec.errors import OrderError, ReplayError
from graphspec.recording.calls import Recording, refs_in
from graphspec.runtime.holdings.guard import Guard
from graphspec.runtime.inline.arguments import Arguments
from graphspec.runtime.inline.lowering import GRADIENTS, RESULT, TaughtCall
from graphspec.runtime.inline.regions import Joint
from graphspec.runtime.inline.slots import Landing, flat
from graphspec.runtime.opened.context import CapturedRegion
from graphspec.runtime.values.trees import Tree

_MICRO_BATCHES = (
    "call backward after each forward; for several micro-batches before a backward let the first steps after "
    "`graphspec.apply` have as many, and each gets a graph of its own"
)


class Claim:
    """One forward whose backward has not come. ``versions`` are those of what its backward reads of the model."""

    __slots__ = ("__weakref__", "first", "last", "name", "versions")

    def __init__(self, name: str, first: int, last: int, versions: tuple[int, ...]) -> None:
        self.name = name
        self.first, self.last = first, last
        self.versions = versions


class Claims:
    """The forwards of one pool that own what they saved."""

    def __init__(self) -> None:
        self._claims: WeakSet[Claim] = WeakSet()

    def free(self, index: int) -> bool:
        """Whether a replay of capture ``index`` of the pool overwrites nothing that is still wanted."""
        return all(claim.first < index <= claim.last for claim in self._claims)

    def admit(self, index: int, name: str, mine: Claim | None = None) -> None:
        """Raise OrderError where a replay would overwrite what a forward saved; ``mine`` is the one it is for."""
        for claim in self._claims:
            if claim is not mine and not claim.first < index <= claim.last:
                what = "is called again" if claim.name == name else f"is called after region '{claim.name}'"
                message = f"region '{name}' {what} before the backward of that call, whose saved values lie in its way"
                raise OrderError(message, hint=_MICRO_BATCHES)

    def add(self, claim: Claim) -> None:
        """It owns from now on."""
        self._claims.add(claim)

    def end(self, claim: Claim) -> None:
        """Its backward has come."""
        self._claims.discard(claim)

    def owns(self, claim: Claim) -> bool:
        """Whether what it saved is still there."""
        return claim in self._claims


@dataclass(frozen=True)
class Filling:
    """How a tensor gets to a slot."""

    slot: Landing
    buffer: torch.Tensor
    view: torch.Tensor

    def as_it_lies(self, tensor: torch.Tensor) -> None:
        """Copy a tensor of the slot's own strides."""
        self.buffer.copy_(flat(tensor))

    def any(self, tensor: torch.Tensor) -> None:
        """Copy a tensor of any strides."""
        self.view.copy_(tensor)


class Unit:
    """One captured call. Called with arguments of its signature; ``free`` says whether it can be, now."""

    def __init__(
        self,
        part: TaughtCall,
        forward: CapturedRegion,
        backward: CapturedRegion | None,
        joint: Joint,
        feeds: tuple[Sequence[Filling], Sequence[Filling]],
        guard: Guard,
        claims: Claims,
    ) -> None:
        self.name = part.name
        self._part = part
        self._forward, self._backward = forward, backward
        self._feeds, self._gradient_feeds = feeds
        self._guard, self._claims = guard, claims
        self._results = forward.tensors(part.value(RESULT))
        assert joint.result is not None
        self._tree: Tree = joint.result
        self._moved = _counted(forward.graph.recording)
        self._variables = joint.variables
        if backward is None:
            return
        gradients, positions = backward.outputs[part.value(GRADIENTS)]
        tensors = [backward.graph.outputs[position] for position in positions]
        every, self._rows = gradients.rebuild(tensors)
        wants = [number for number, form in enumerate(part.lesson.signature.tensors) if form[4]]
        by_input = dict(zip(wants, every, strict=True))
        self._returned: list[torch.Tensor | None] = [by_input.get(number) for number in range(len(part.inputs))]
        self._pieces = joint.pieces
        self._asked = tuple(part.gradients)
        self._differentiable = joint.differentiable
        own = {feed.buffer.untyped_storage()._cdata for feed in (*self._feeds, *self._gradient_feeds)}
        outside = backward.graph.recording.outside.values()
        self._read = [seen.tensor for seen in outside if seen.storage._cdata not in own]

    @property
    def free(self) -> bool:
        """Whether a replay overwrites nothing that is still wanted."""
        return self._claims.free(self._forward.plan.index)

    def __call__(self, given: Arguments) -> Any:
        """The result of a replay, in memory of its own. Raises GuardError, OrderError, ReplayError."""
        if self._backward is None:
            with torch.no_grad():
                return self._tree.rebuild(self._replayed(given.leaves))
        joined: Any = _Joined.apply  # torch does not say what it returns
        return self._tree.rebuild(joined(self, len(given.leaves), *given.leaves, *self._variables))

    def forward(self, leaves: Sequence[torch.Tensor]) -> tuple[Claim, list[torch.Tensor]]:
        """Replay the forward: whose the saved values are now, and the results."""
        assert self._backward is not None
        results = self._replayed(leaves)
        versions = tuple([tensor._version for tensor in self._read])
        claim = Claim(self.name, self._forward.plan.index, self._backward.plan.index, versions)
        self._claims.add(claim)
        return claim, results

    def backward(self, claim: Claim, given: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Replay the backward: copies of the gradients of all leaves and variables. Raises as `__call__` does."""
        assert self._backward is not None
        self._refuse(claim, given)
        self._guard.check()
        self._claims.admit(self._backward.plan.index, self.name, claim)
        for feed, number in zip(self._gradient_feeds, self._asked, strict=True):
            gradient = given[number]
            assert gradient is not None
            feed.any(gradient)
        self._replay(self._backward)
        self._claims.end(claim)
        rows = [row.clone() for row in self._rows]
        return [
            *(None if tensor is None else tensor.clone() for tensor in self._returned),
            *(None if piece is None else piece.of(rows) for piece in self._pieces),
        ]

    def constants(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Those of the results that no gradient comes to."""
        return [leaf for leaf, wants in zip(results, self._differentiable, strict=True) if not wants]

    def _refuse(self, claim: Claim, given: Sequence[torch.Tensor | None]) -> None:
        if torch.is_grad_enabled():
            message = f"region '{self.name}': its backward was captured, and is no part of a graph of higher order"
            raise ReplayError(message, hint="leave out create_graph, or take the region out of the spec")
        if not self._claims.owns(claim):
            message = f"region '{self.name}': the backward of this call has run, and what it read was given up"
            raise OrderError(message, hint="call the module again instead of `retain_graph`")
        came = tuple(number for number, gradient in enumerate(given) if gradient is not None)
        if came != self._asked:
            message = (
                f"region '{self.name}': gradients came for its results {list(came)}, and its backward was captured "
                f"for {list(self._asked)}"
            )
            raise ReplayError(message, hint="use the same results in every loss, or leave `backward` out")
        for tensor, version in zip(self._read, claim.versions, strict=True):
            if tensor._version != version:
                message = (
                    f"region '{self.name}': a tensor {list(tensor.shape)} that its backward reads was written in place "
                    "after its forward"
                )
                raise OrderError(message, hint="write into parameters after backward, as an optimizer does")

    def _replayed(self, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        self._guard.check()
        self._claims.admit(self._forward.plan.index, self.name)
        for feed, leaf in zip(self._feeds, leaves, strict=True):
            feed.as_it_lies(leaf)
        self._replay(self._forward)
        if self._moved:
            torch.autograd.graph.increment_version(self._moved)
        return [tensor.clone() for tensor in self._results]

    def _replay(self, captured: CapturedRegion) -> None:
        try:
            captured.replay()
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            message = f"region '{captured.plan.region}' failed while it was replayed: {reason}"
            raise ReplayError(message, hint="an index or a value of its arguments may be out of range") from error


def _counted(recording: Recording) -> list[torch.Tensor]:
    """What a recorded run writes from outside and autograd counts: not what schemas keep quiet about, as eager."""
    written: set[int] = set()
    for call in (call for call in recording.calls if call.writes):
        given = call.arguments()
        for argument in call.op._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                written.update(ref.storage for ref in refs_in(given[argument.name]))
    return [recording.outside[index].tensor for index in sorted(written & recording.outside.keys())]


class _Joined(torch.autograd.Function):
    """A unit in the caller's graph of autograd."""

    @staticmethod
    def forward(ctx: Any, unit: Unit, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)  # a zero in place of None would make optimizers decay what got no gradient
        ctx.unit = unit
        ctx.claim, results = unit.forward(tensors[:count])
        ctx.mark_non_differentiable(*unit.constants(results))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        return (None, None, *ctx.unit.backward(ctx.claim, gradients))
