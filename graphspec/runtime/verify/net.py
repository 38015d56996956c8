"""The net under everything else: a run repeated by the model's own code, and both compared."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from graphspec.errors import CheckError
from graphspec.plan import Plan
from graphspec.runtime.holdings.preserve import preserve
from graphspec.runtime.holdings.random_state import Ambient
from graphspec.runtime.opened.context import Context
from graphspec.runtime.opened.states import States
from graphspec.runtime.replay.gate import Gate
from graphspec.runtime.replay.request import Request
from graphspec.runtime.replay.sequence import BoundSequence
from graphspec.runtime.replay.stats import Stats
from graphspec.runtime.training.gradients import trainable
from graphspec.runtime.values.trees import owned
from graphspec.runtime.verify.carried import Carried, written
from graphspec.runtime.verify.compare import Tolerance, compare, described


class Net:
    """Runs a sequence once by the model's own code, leaves no trace of that, replays it, and compares.

    What is compared are the results, the declared states, and whatever else of the model eager writes. A padded run
    that draws random numbers is not compared: its bucket draws more of them than eager.
    """

    def __init__(self, context: Context, states: States, gate: Gate, stats: Stats) -> None:
        self._context = context
        self._states = states
        self._gate = gate
        self._stats = stats

    def __call__(self, sequence: BoundSequence, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The results of the replay. Raises CheckError where eager differs, with all that runs carry over put back."""
        with self._gate.turn():
            request = sequence.read(inputs)
            if request.bucket is None:
                return sequence.run(inputs)  # eager anyway, or refused
            return self._compared(sequence, request, inputs)

    def _compared(self, sequence: BoundSequence, request: Request, inputs: Mapping[str, Any]) -> dict[str, Any]:
        plan, began = self._context.plan, time.perf_counter()
        with preserve(self._context.roots) as session:
            generators = tuple(generator for _, generator in session.reach.generators)
            ambient = Ambient.take(generators)
            results = owned(sequence.repeated(request))
            carried = Carried(plan, self._states, written(session), trainable(session.reach))
            expected = {**results, **carried.contents()}
            random = ambient.drawn()
            session.keep(expected)
        before, ambient = carried.save(), Ambient.take(generators)
        replayed = time.perf_counter()
        came = sequence.run(inputs)
        spent = time.perf_counter() - replayed
        padded = _padded(plan, request)
        if not (random and padded):
            tolerance = Tolerance.of(plan.check, resized=padded)
            found = compare(expected, {**owned(came), **carried.contents()}, tolerance)
            self._stats.verified += 1
            if found.first is not None:
                carried.restore(before)
                ambient.restore()
                raise _difference(sequence, request, described(found.first, ("in eager", "in replay"), tolerance))
        self._stats.verify_s += time.perf_counter() - began - spent
        return came


def _padded(plan: Plan, request: Request) -> bool:
    assert request.bucket is not None
    return any(request.sizes.get(dim, size) != size for dim, size in request.bucket.sizes if dim in plan.dims)


def _difference(sequence: BoundSequence, request: Request, said: str) -> CheckError:
    sizes = "".join(f", {dim}={size}" for dim, size in request.sizes.items())
    return CheckError(
        f"replay differs from eager: {said}; sequence '{sequence.name}'{sizes}",
        hint="runner.recapture() captures what the model is now; if it is rounding, raise check.rtol and check.atol",
    )
