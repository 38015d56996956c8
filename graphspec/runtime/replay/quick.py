"""A run as most runs are: inputs as they were before, at a size that was bound before, nothing unusual around it.

`Quick` is one route with all that does not change from run to run found beforehand: it compares what is given with
what the route takes, asks the guard, and has the backend copy, replay and copy in one call a graph. It does what the
long way (sequence.py) does, or nothing: whatever is out of the ordinary, the long way decides, and says what is wrong.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from graphspec import plan as plans
from graphspec.errors import InputError
from graphspec.levers import pulled
from graphspec.runtime.holdings.guard import Guard
from graphspec.runtime.opened.context import Context
from graphspec.runtime.opened.process import Forks
from graphspec.runtime.opened.sharing import SharedModel
from graphspec.runtime.replay.foreign import bring
from graphspec.runtime.replay.gate import Gate
from graphspec.runtime.replay.moving import Moving, made_results
from graphspec.runtime.replay.request import Reader, Remembered, Request, padded_params
from graphspec.runtime.replay.route import Route
from graphspec.runtime.replay.steps import EagerStep, GraphStep, KeepingStep, ServedStep
from graphspec.runtime.values.memory import Memory

_is_autocast: Any = torch._C._is_any_autocast_enabled
_is_profiled: Any = torch._C._autograd._profiler_enabled
_is_grad, _set_grad = torch.is_grad_enabled, torch._C._set_grad_enabled
_MANY_DIMS = 4  # from here on layouts are looked at


@dataclass(frozen=True)
class RunParts:
    """What all routes of an opened spec share."""

    context: Context
    memory: Memory
    gate: Gate
    remembered: Remembered


class Quick:
    """One bound route. Called with what a run is given, it returns the results, or None with nothing done.

    Raises what the long way raises: GuardError, OrderError, ReplayError, DeviceError.
    """

    __slots__ = (
        "_backend", "_buffers", "_context", "_count", "_forks", "_gate", "_guard", "_inlets", "_memory", "_only",
        "_params", "_reader", "_remembered", "_request", "_route", "_sequence", "_shared", "_starts", "_static",
        "_steps", "_takes", "_tally",
    )  # fmt: skip

    def __init__(
        self,
        around: RunParts,
        sequence: plans.Sequence,
        reader: Reader,
        guard: Guard,
        route: Route,
        request: Request,
        steps: Sequence[GraphStep | EagerStep | KeepingStep | ServedStep],
    ) -> None:
        self._backend = around.context.backend
        self._buffers = around.context.buffers
        self._context = around.context
        self._memory = around.memory
        self._gate = around.gate
        self._shared = around.gate.shared
        self._remembered = around.remembered
        self._reader = reader
        self._guard = guard
        self._route = route
        self._tally = route.tally
        self._steps = steps
        self._sequence = sequence
        self._params = bool(sequence.params)
        self._forks = Forks.count
        self._request = request
        self._takes = [
            (name, tensor.shape, tensor.dtype, tensor.dim() >= _MANY_DIMS) for name, tensor in request.tensors.items()
        ]
        self._count = len(self._takes)
        self._inlets = () if isinstance(steps[0], ServedStep) else [route.inlets[name] for name in request.tensors]
        self._static = self._buffers.ranges
        self._starts = [start for start, _ in self._static]
        (only,) = steps if len(steps) == 1 else (None,)
        self._only = only.alone if isinstance(only, ServedStep) and self._is_plain() else None

    def __call__(self, given: Mapping[str, Any]) -> dict[str, Any] | None:  # noqa: C901, PLR0912 - see below
        """One run."""
        # In one frame, because the caches are cold after a replay: each call costs more than what it does.
        tensors = []
        try:
            for name, shape, dtype, laid_out in self._takes:
                value = given[name]
                if (
                    type(value) is not torch.Tensor
                    or value.dtype is not dtype
                    or value.shape != shape
                    or not value.is_cpu
                    or value.layout is not torch.strided
                    or value.requires_grad
                    or (laid_out and not value.is_contiguous())
                ):
                    return None
                tensors.append(value)
        except (LookupError, RuntimeError):  # it is left out; or a nested tensor, which has no shape
            return None
        request: Request | None = self._request
        if self._params or len(given) != self._count:
            request = self._again(given)
        if request is None or (self._count > 1 and self._in_static_memory(tensors)):
            return None
        if Forks.count != self._forks or SharedModel.held():
            return None
        gate, turn = self._gate, self._shared.turn
        with gate.lock:
            if gate.commons is not None or gate.refusal() is not None or _is_autocast() or _is_profiled():
                return None
            grad, owner = _is_grad(), turn.owner  # from here on as in `BoundSequence._run`
            try:
                gate.busy = True
                turn.owner = threading.get_ident()
                _set_grad(False)
                self._backend.begin()
                self._guard.check()
                if self._only is not None and not self._memory.busy:
                    results = self._only(tensors)
                else:
                    results = self._replayed(tensors, request)
                self._tally.runs += 1
            except RuntimeError as error:
                failure = self._backend.failure(error)
                if failure is None:
                    raise
                raise failure from error
            finally:  # an interrupt may come in any of these calls
                gate.busy = False
                turn.owner = owner  # no property, in which an interrupt could come before the rest
                try:
                    self._backend.end()
                finally:
                    _set_grad(grad)
        return results

    def _replayed(self, tensors: list[torch.Tensor], request: Request) -> dict[str, Any]:
        """What `BoundSequence._replay` does after the guard."""
        route, memory, params = self._route, self._memory, request.params
        if route.foreign:
            bring(route.foreign, memory, route.bucket, request.sizes)
        padded_rows = [(rows, rows.clone()) for rows in route.kept]
        if params and route.padded:
            params = padded_params(self._context, params, route.bucket)
        moving = Moving(params, () if self._inlets else tensors)
        failed = True
        try:
            self._fill(tensors, request, params)
            for step in self._steps:
                step.run(moving)
            failed = False
        finally:
            for rows, content in padded_rows:
                rows.copy_(content)
            if route.with_eager:
                memory.pull(route.kept_blocks)
                moving.end(memory, failed=failed)
        if request.given is not None:
            self._remembered.update(request.given)
        return made_results(self._sequence, moving.results)

    def _fill(self, tensors: Sequence[torch.Tensor], request: Request, params: Mapping[str, Any]) -> None:
        """Copy what the first step does not copy itself."""
        route = self._route
        if self._memory.busy:
            self._memory.drop(route.filled)
        for inlet, tensor in zip(self._inlets, tensors, strict=False):
            if inlet.target is not inlet.view:
                inlet.view.fill_(inlet.pad)
            inlet.target.copy_(tensor)
        if self._buffers.has_derived:
            self._buffers.refresh({**dict(route.bucket.sizes), **request.sizes}, route.bucket, params)

    def _again(self, given: Mapping[str, Any]) -> Request | None:
        """The request with the params of this run; None where something in it is not as before."""
        try:
            return self._reader.again(given, self._request)
        except InputError:
            return None

    def _in_static_memory(self, tensors: list[torch.Tensor]) -> bool:
        """Whether an input lies in a static buffer: filling another one could change it."""
        for tensor in tensors:
            at = tensor.data_ptr()
            place = bisect_right(self._starts, at) - 1
            if place >= 0 and at < self._static[place][1]:
                return True
        return False

    def _is_plain(self) -> bool:
        """Whether a run is its one step and nothing else."""
        route = self._route
        others = route.foreign or route.kept or route.with_eager or self._params
        return not (others or self._buffers.has_derived or self._request.given is not None)


def quick(
    around: RunParts, sequence: plans.Sequence, reader: Reader, guard: Guard, route: Route, request: Request
) -> Quick | None:
    """The quick way of a route; None where the backend serves none of its graphs in one call."""
    if not pulled("routes") or not reader.repeats or sequence.loops:
        return None
    steps: list[GraphStep | EagerStep | KeepingStep | ServedStep] = []
    for position, step in enumerate(route.steps):
        served = None
        if isinstance(step, GraphStep):
            served = step.serving([route.inlets[name] for name in request.tensors] if position == 0 else ())
        steps.append(served or step)
    if not any(isinstance(step, ServedStep) for step in steps):
        return None
    return Quick(around, sequence, reader, guard, route, request, steps)
