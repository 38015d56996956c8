"""One named sequence, bound to its graphs: what `runner.run` and `runner["decode"]` call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from graphspec import plan as plans
from graphspec.plan import Bucket
from graphspec.runtime.opened.context import Context
from graphspec.runtime.opened.sharing import SharedModel
from graphspec.runtime.replay.fallback import directly, repeated, run_eagerly
from graphspec.runtime.replay.foreign import bring
from graphspec.runtime.replay.gate import Gate
from graphspec.runtime.replay.moving import Moving, made_results
from graphspec.runtime.replay.quick import Quick, RunParts, quick
from graphspec.runtime.replay.request import Reader, Remembered, Request, padded_params
from graphspec.runtime.replay.route import Route
from graphspec.runtime.replay.stats import Stats
from graphspec.runtime.replay.variants import Variants
from graphspec.runtime.values.memory import Memory
from graphspec.turns import drive

#: How many real sizes keep their bound steps; beyond, all are bound anew as they come.
MOST_ROUTES = 4096

_NO_SHAPE = torch.Size((-1,))  # of no tensor

#: For the padding proof: what the padded rows of an input hold, in place of its `pad`, at the shape of the bucket.
Fills = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Opened:
    """What the sequences of an opened spec share. Inside of ``plainly`` inline regions run the model's own code."""

    context: Context
    memory: Memory
    gate: Gate
    variants: Variants
    remembered: Remembered
    stats: Stats
    net: Callable[[BoundSequence, Mapping[str, Any]], dict[str, Any]]
    plainly: Callable[[], AbstractContextManager[None]] = nullcontext


class BoundSequence:
    """A named sequence of an opened spec. Called with inputs and params by name, it returns results by name."""

    def __init__(self, opened: Opened, plan: plans.Sequence) -> None:
        self.plan = plan
        self.name = plan.name
        self._opened = opened
        self._gate = opened.gate
        self._lock = opened.gate.lock
        self._context = context = opened.context
        self._memory = opened.memory
        self._reader = Reader(context, plan, opened.remembered)
        self._routes: dict[Hashable, Route] = {}
        self._quick: dict[torch.Size, Quick] = {}
        self._first = next(iter(plan.inputs), "")
        self._around = RunParts(context, opened.memory, opened.gate, opened.remembered)
        opened.variants.forget += (self._routes.clear, self._quick.clear)
        regions = [context.plan.regions[name].declared for name in plan.steps]
        self._every, self._runs = context.plan.check.every, 0
        self._falls_back = all(region.on_miss == "eager" for region in regions if not region.eager)

    def __call__(self, **inputs: Any) -> dict[str, Any]:
        """Run once; see `Runner.run`."""
        return self.served(inputs)

    def served(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run once, and every N-th time as `verify` does, where the spec says ``check: {every: N}``."""
        if self._every:
            self._runs += 1
            if self._runs % self._every == 0:
                return self._opened.net(self, inputs)
        quick = self._quick.get(getattr(inputs.get(self._first), "shape", _NO_SHAPE))
        if quick is not None and self._gate.commons is None:
            results = quick(inputs)
            if results is not None:
                return results
        return self.run(inputs)

    def verify(self, **inputs: Any) -> dict[str, Any]:
        """Run once and compare with eager; see `Runner.verify`."""
        return self._opened.net(self, inputs)

    def run(self, inputs: Mapping[str, Any], fills: Fills | None = None) -> dict[str, Any]:
        """Run once by replaying graphs; nothing is compared."""
        gate = self._gate
        gate.refuse_other_process()
        if SharedModel.held():
            with gate.shared.queued():
                return self._run(inputs, fills)
        with self._lock:
            return self._run(inputs, fills)

    def eager(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run once by calling the model's own code at the real sizes, advancing the states as eager does."""
        with self._gate.entered(), torch.no_grad(), self._opened.plainly():
            request = self._reader.read(inputs)
            results = run_eagerly(self._context, self._memory, self.plan, request)
            self._remember(request)
            return results

    def read(self, inputs: Mapping[str, Any]) -> Request:
        """What is asked for, checked. Raises InputError."""
        return self._reader.read(inputs)

    def repeated(self, request: Request) -> dict[str, Any]:
        """The results of the model's own code, which afterwards is all that knows of it; see `fallback.repeated`."""
        with self._gate.entered(), torch.no_grad(), self._opened.plainly():
            return repeated(self._context, self._memory, self.plan, request)

    def direct(self, inputs: Mapping[str, Any]) -> Callable[[], None]:
        """The model's own code on these inputs, as a call to be timed: checked once, now; nothing around it later."""
        call = directly(self._context, self.plan, self._reader.read(inputs))
        plainly = self._opened.plainly
        if plainly is nullcontext:
            return call

        def plain() -> None:
            with plainly():
                call()

        return plain

    def _run(self, inputs: Mapping[str, Any], fills: Fills | None) -> dict[str, Any]:
        """One run, in this thread's turn. Nothing is remembered of one that fails."""
        gate, turn, backend = self._gate, self._gate.shared.turn, self._context.backend
        gate.admit()
        grad, owner = torch.is_grad_enabled(), turn.owner
        try:
            gate.busy = True
            turn.owner = threading.get_ident()
            torch._C._set_grad_enabled(False)  # what torch.no_grad() does, at a tenth of its cost
            backend.begin()
            if gate.commons is not None:
                gate.commons.enter(gate)
            return self._served(self._reader.read(inputs), fills)
        except RuntimeError as error:
            failure = backend.failure(error)
            if failure is None:
                raise
            raise failure from error
        finally:  # an interrupt may come in any of these calls
            gate.busy = False
            turn.owner = owner
            try:
                backend.end()
            finally:
                torch._C._set_grad_enabled(grad)

    def _served(self, request: Request, fills: Fills | None) -> dict[str, Any]:
        bucket = request.bucket
        results = self._miss(request) if bucket is None else self._replay(request, bucket, fills)
        self._remember(request)
        return results

    def _remember(self, request: Request) -> None:
        if request.given is not None:
            self._opened.remembered.update(request.given)

    def _miss(self, request: Request) -> dict[str, Any]:
        if not self._falls_back:
            raise self._reader.no_bucket(request.asked)
        self._opened.stats.fallbacks += 1
        return run_eagerly(self._context, self._memory, self.plan, request)

    def _replay(self, request: Request, bucket: Bucket, fills: Fills | None) -> dict[str, Any]:
        route = self._routes.get(request.key)
        if route is None:
            route = self._bind(request, bucket)
        self._opened.variants.check(request.variant)
        if route.foreign:
            bring(route.foreign, self._memory, bucket, request.sizes)
        padded_rows = [(rows, rows.clone()) for rows in route.kept]
        moving = Moving(padded_params(self._context, request.params, bucket) if route.padded else request.params)
        failed = True
        try:
            self._fill(request, route, fills)
            if route.program is not None or torch._C._autograd._profiler_enabled():
                self._opened.stats.turns += _run(route, moving)
            else:
                for step in route.steps:
                    step.run(moving)
            results = made_results(self.plan, moving.results)
            failed = False
        finally:
            for rows, content in padded_rows:
                rows.copy_(content)
            if route.with_eager:
                self._memory.pull(route.kept_blocks)
                moving.end(self._memory, failed=failed)
        route.tally.runs += 1
        if fills is None:
            self._note_quick(request, route)
        return results

    def _note_quick(self, request: Request, route: Route) -> None:
        """From its second run on, a route has a quick way; the last one taken is looked at first.

        Loops have none, nor have runs that state their sizes, which their inputs do not tell.
        """
        if route.program is not None or request.asked is not request.sizes:
            return
        if route.runs == 1:
            guard = self._opened.variants.guard(request.variant)
            if guard is not None:
                route.quick = quick(self._around, self.plan, self._reader, guard, route, request)
        route.runs += 1
        if route.quick is not None:
            first = request.tensors.get(self._first)
            self._quick[_NO_SHAPE if first is None else first.shape] = route.quick

    def _bind(self, request: Request, bucket: Bucket) -> Route:
        graphs = self._opened.variants.graphs(request.variant)
        if len(self._routes) >= MOST_ROUTES:
            self._routes.clear()
            self._quick.clear()
        opened = self._opened
        route = Route(self._context, self._memory, graphs, self.plan, bucket, request.sizes, opened.stats)
        self._routes[request.key] = route
        return route

    def _fill(self, request: Request, route: Route, fills: Fills | None) -> None:
        """Copy the inputs into their static buffers; the rows a bucket adds are filled on every run."""
        self._memory.drop(route.filled)
        tensors, inlets = self._apart(request.tensors), route.inlets
        for name, tensor in tensors.items():
            inlet = inlets[name]
            if inlet.target is not inlet.view:
                if fills is not None and name in fills:
                    inlet.view.copy_(fills[name])
                else:
                    inlet.view.fill_(inlet.pad)
            inlet.target.copy_(tensor)
        buffers = self._context.buffers
        if buffers.has_derived:
            params = padded_params(self._context, request.params, route.bucket)
            buffers.refresh({**dict(route.bucket.sizes), **request.sizes}, route.bucket, params)

    def _apart(self, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Inputs that lie in static memory (results handed out without a copy, views) are copied out first.

        Otherwise filling one buffer could change what another is about to be filled with.
        """
        if len(tensors) <= 1:
            return tensors
        static = self._context.buffers.addresses
        if not any(t.untyped_storage().data_ptr() in static for t in tensors.values()):
            return tensors
        return {name: tensor.clone() for name, tensor in tensors.items()}


def _run(route: Route, moving: Moving) -> int:
    """The steps, loops too, each under the name of its region where a profiler is on; how many turns loops made."""
    named = torch._C._autograd._profiler_enabled()

    def run(at: int) -> None:
        step = route.steps[at]
        if not named:
            step.run(moving)
            return
        with torch.profiler.record_function(step.region):
            step.run(moving)

    program = route.program if route.program is not None else tuple(range(len(route.steps)))
    return drive(program, run, lambda loop: route.conditions[loop](moving))
