"""The first step of an optimizer, which often takes a path of its own: it makes the state that later ones read.

A graph is one path, so it is captured from a state in which a later step does what the first one does from none: the
state as it is created (Adam: zeros), or zeroed (momentum of SGD, which the first step makes of its gradient). Which of
them does is tried out: the very first step, and one from that state, on the same inputs, must leave the same. Where
neither does, the first differing operator says why.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.optim import Optimizer

from graphspec.errors import Diagnostic
from graphspec.plan import Bucket, Event
from graphspec.runtime.holdings.preserve import Session
from graphspec.runtime.holdings.storages import quiet
from graphspec.runtime.laws import registry as laws
from graphspec.runtime.laws.evidence import Facts
from graphspec.runtime.opened.context import Context
from graphspec.runtime.rehearsal.observation import Observation, Rehearsal
from graphspec.runtime.rehearsal.rehearser import Rehearser
from graphspec.runtime.training.gradients import fill
from graphspec.runtime.training.optimizers import Flags, members, optimizers, state_tensors


class FirstStep:
    """Finds the state from which the regions of one bucket are captured."""

    def __init__(self, context: Context, session: Session, rehearser: Rehearser) -> None:
        self._context = context
        self._session = session
        self._rehearser = rehearser
        self._optimizers = [each for _, each in optimizers(session.reach)]
        self._flipped: list[tuple[Optimizer, str]] = []

    def settle(self, opened: Facts, bucket: Bucket, events: Sequence[Event]) -> tuple[Rehearsal, list[Diagnostic]]:
        """The pass whose calls are those of later steps, and what is found where no state makes it equal the first."""
        before = {id(tensor) for tensor in self._state()}
        first, wanted = self._step(bucket, events)
        for optimizer, key in self._flipped:
            self._session.settle_flag(optimizer, key, value=False)
        created = [tensor for tensor in self._state() if id(tensor) not in before]
        if first.ended is not None or not created:
            return first, []
        self._rehearser.kept.settle(created)
        later, came = self._step(bucket, events)
        if self._same(wanted, came):
            return later, []
        with torch.no_grad():
            for tensor in created:
                if tensor.dim() and (tensor.is_floating_point() or tensor.is_complex()):
                    fill(tensor)
        self._session.adopt(created)
        later, came = self._step(bucket, events)
        return later, [] if self._same(wanted, came) else self._differing(opened, first, later)

    def _step(self, bucket: Bucket, events: Sequence[Event]) -> tuple[Rehearsal, list[torch.Tensor]]:
        """One pass from the beginning, and what it leaves in parameters and state."""
        flags = Flags(self._optimizers)
        run = self._rehearser.warm_up(bucket, events)
        self._flipped = flags.flipped()
        with quiet():
            held = {id(each): each for optimizer in self._optimizers for each in members(optimizer)}
            state = [tensor for tensor in self._state() if tensor.dim()]
            left = [tensor.detach().clone() for tensor in (*held.values(), *state)]
        self._rehearser.calls.rewind()
        return run, left

    def _state(self) -> list[torch.Tensor]:
        return [tensor for optimizer in self._optimizers for _, tensor in state_tensors(optimizer)]

    def _same(self, wanted: Sequence[torch.Tensor], came: Sequence[torch.Tensor]) -> bool:
        """On a device within what the spec allows: kernels may add in any order."""
        allowed = self._context.plan.check
        with quiet():
            if self._context.device.type == "cpu":
                return all(torch.equal(one, other) for one, other in zip(wanted, came, strict=True))
            return all(
                torch.allclose(one, other, rtol=allowed.rtol, atol=allowed.atol, equal_nan=True)
                for one, other in zip(wanted, came, strict=True)
            )

    def _differing(self, opened: Facts, first: Rehearsal, later: Rehearsal) -> list[Diagnostic]:
        found: list[Diagnostic] = []
        for one in first.observations():
            two = later.of(one.region)
            if isinstance(two, Observation) and self._context.plan.regions[one.region].declared.trains:
                found += laws.judge_first_call(opened, one, two)
        return found
