"""A sequence run by the model's own code: the reference that replays are compared with, and the fallback.

What its regions make is from then on what the names stand for, as if graphs had made it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import torch

from graphspec import plan as plans
from graphspec import spec as language
from graphspec.errors import InputError
from graphspec.plan import Bucket, RegionPlan, concrete
from graphspec.runtime.opened.binds import write_bound
from graphspec.runtime.opened.context import Context
from graphspec.runtime.replay.conditions import truth
from graphspec.runtime.replay.foreign import Foreign, bring
from graphspec.runtime.replay.moving import Moving, made_results
from graphspec.runtime.replay.request import Request
from graphspec.runtime.replay.steps import EagerReach, EagerSink, EagerSource, EagerStep
from graphspec.runtime.values.axes import Axes, cut
from graphspec.runtime.values.buffers import strides_of
from graphspec.runtime.values.memory import Made, Memory
from graphspec.runtime.values.outputs import check_output
from graphspec.runtime.values.trees import flatten, owned
from graphspec.spec import Loop
from graphspec.turns import drive


def run_eagerly(context: Context, memory: Memory, sequence: plans.Sequence, request: Request) -> dict[str, Any]:
    """Call the regions of a sequence in order on the given tensors, at the real sizes.

    States are the real ones, and are advanced. Raises InputError if a state has fewer rows than the run, OrderError for
    a value of another sequence that was not made.
    """
    fallback = _Fallback(context, memory, sequence, request)
    steps = fallback.steps()
    bring(fallback.read_of_others(), memory, Bucket(), fallback.sizes)
    moving = Moving(request.params)
    moving.env.update(fallback.given())
    failed = True
    try:
        drive(
            sequence.program,
            lambda at: steps[at].run(moving),
            lambda loop: truth(loop.condition, fallback.condition(loop.condition, moving.env)),
        )
        results = made_results(sequence, moving.results)
        failed = False
    finally:
        moving.end(memory, failed=failed)
    return results


def directly(context: Context, sequence: plans.Sequence, request: Request) -> Callable[[], None]:
    """What a user would call without graphspec: the regions in order, on inputs that are in place; for measuring."""
    fallback = _Fallback(context, None, sequence, request)
    regions = [context.regions[name] for name in sequence.steps]
    states, program = fallback.states(), sequence.program
    env = {**request.params, **fallback.given(), **states}

    def call() -> None:
        found = dict(env)

        def run(at: int) -> None:
            write_bound(regions[at].bound(), request.params)
            for name, value in regions[at].direct(found).items():
                found[name] = states[name].copy_(value) if name in states else value

        drive(program, run, lambda loop: truth(loop.condition, fallback.condition(loop.condition, found)))

    return call


def repeated(context: Context, memory: Memory, sequence: plans.Sequence, request: Request) -> dict[str, Any]:
    """The results of a run of the model's own code at the real sizes, after which every name stands for what it did.

    What it writes - states, the model - it has written. Raises OrderError for a value of another sequence that was not
    made.
    """
    fallback = _Fallback(context, memory, sequence, request)
    states = fallback.states()
    found = {**request.params, **fallback.given(), **fallback.foreign(), **states}
    results: dict[str, Any] = {}
    lent: set[str] = set()

    def run(at: int) -> None:
        step = sequence.steps[at]
        write_bound(context.regions[step].bound(), request.params)
        for name, value in context.regions[step](found).items():
            found[name] = states[name].copy_(value) if name in states else value
        region = context.plan.regions[step]
        results.update(owned({name: found[name] for name in region.results if name not in region.borrowed}))
        lent.update(region.borrowed)

    drive(sequence.program, run, lambda loop: truth(loop.condition, fallback.condition(loop.condition, found)))
    return made_results(sequence, {**{name: found[name] for name in lent}, **results})


class _Fallback:
    """One run at its real sizes."""

    def __init__(self, context: Context, memory: Memory | None, sequence: plans.Sequence, request: Request) -> None:
        self._context = context
        self._plan = context.plan
        self._memory = memory
        self._sequence = sequence
        self._request = request
        bucket = dict(request.bucket.sizes) if request.bucket is not None else {}
        self.sizes = {**bucket, **{dim: size for dim, size in request.sizes.items() if dim in sequence.dims}}
        self._all = {**context.plan.constants, **self.sizes}

    def steps(self) -> list[EagerStep]:
        """Every region of the sequence, to be called by Python."""
        steps: list[EagerStep] = []
        taken = self._sequence.taken
        for position, name in enumerate(self._sequence.steps):
            region = self._plan.regions[name]
            wanted = (each for each in self._sequence.results if each in region.outputs)
            ran = self._sequence.steps[:position]
            steps.append(self._step(region, frozenset(wanted if position in taken else ()), ran))
        return steps

    def condition(self, name: str, found: Mapping[str, Any]) -> Any:
        """What a loop goes by: made in this run, in a buffer, or made by an earlier run."""
        wire = self._plan.condition(name)
        if name in found:
            return found[name]
        if wire.source == "buffer":
            return self._context.buffers.one(name)
        return self._memory.value(name) if self._memory is not None else None

    def given(self) -> dict[str, Any]:
        """The inputs as eager would get them, the copies of params and sizes, and None for what was left out."""
        found: dict[str, Any] = {}
        for name, tensor in self._request.tensors.items():
            declared = self._plan.buffers[name].declared
            found[name] = self._placed(tensor, declared) if declared.attr is None else self.state(name).copy_(tensor)
        for step in self._sequence.steps:
            for wire in self._plan.regions[step].reads:
                buffer = self._plan.buffers.get(wire.value)
                if buffer is not None and buffer.source is not None:
                    found[wire.value] = self._derived(buffer, buffer.source)
                elif buffer is not None and buffer.role == "input":
                    found.setdefault(wire.value, None)
        return found

    def read_of_others(self) -> list[Foreign]:
        """What the regions read that their own sequence has not made before."""
        found: list[Foreign] = []
        for at, ran in self._sequence.certain():
            loop = isinstance(at, Loop)
            reader = at.condition if isinstance(at, Loop) else self._sequence.steps[at]
            wires = (self._plan.condition(reader),) if loop else self._plan.regions[reader].reads
            found += (
                Foreign(reader, wire.value, wire.producer, None, (), None, eager=True, loop=loop)
                for wire in wires
                if wire.producer is not None and wire.producer not in ran and not self.is_state(wire.value)
            )
        return found

    def foreign(self) -> dict[str, Any]:
        """The same as values, copied, since who reads them may write into them."""
        assert self._memory is not None
        found = {read.value: read.found(self._memory, self.sizes) for read in self.read_of_others()}
        return {name: made.tree.rebuild([tensor.clone() for tensor in made.real(name)]) for name, made in found.items()}

    def states(self) -> dict[str, torch.Tensor]:
        """The real rows of every state that a region reads or writes back, as views."""
        regions = [self._plan.regions[name] for name in dict.fromkeys(self._sequence.steps)]
        names = [wire.value for region in regions for wire in region.reads if self.is_state(wire.value)]
        return {name: self.state(name) for name in (*names, *(each for one in regions for each in one.write_back))}

    def is_state(self, name: str) -> bool:
        """Whether a name is that of a state of graphspec's own."""
        buffer = self._plan.buffers.get(name)
        return buffer is not None and buffer.role == "state"

    def state(self, name: str) -> torch.Tensor:
        """The real rows of a state, or of an input in a tensor of the model's, as a view."""
        whole = self._context.buffers.static[name].largest
        shape = concrete(self._plan.buffers[name].shape or (), self._all)
        if any(want > have for want, have in zip(shape, whole.shape, strict=True)):
            role = self._plan.buffers[name].role
            raise InputError(f"{role} '{name}' has the shape {list(whole.shape)}, and this run needs {list(shape)}")
        return whole[tuple(slice(0, size) for size in shape)]

    def _step(self, region: RegionPlan, wanted: frozenset[str], ran: Collection[str]) -> EagerStep:
        """``ran`` are the regions that have run before it, of which static outputs are read where they lie."""
        assert self._memory is not None
        places: dict[str, EagerSource] = {}
        for wire in region.reads:
            if self.is_state(wire.value):
                view = self.state(wire.value)
                places[wire.value] = EagerSource.of(
                    flatten(view), (view,), (self._context.buffers.static[wire.value].block,)
                )
            elif wire.producer in ran and (made := self._target(region, wire.value)) is not None:
                places[wire.value] = EagerSource.of(made.made.tree, made.made.tensors, (made.block,))
        targets = {name: self._target(region, name) for name in region.outputs}
        sizes = {dim: size for dim, size in self.sizes.items() if dim in region.dims}
        kept = {name: target for name, target in targets.items() if target is not None}
        reach = EagerReach(sizes, places, kept, wanted, self._plan.buffers, partial(self._check, region.name))
        return EagerStep(self._context.regions[region.name], region, self._memory, reach)

    def _target(self, region: RegionPlan, name: str) -> EagerSink | None:
        """The static buffer of an output, if the run fits in; None for a value on its own."""
        buffer = self._plan.buffers.get(name)
        if buffer is None or name not in self._context.buffers.static:
            return None
        static = self._context.buffers.static[name]
        view = self.state(name) if buffer.role == "state" else self._room(name)
        if view is None:
            return None
        sizes = {dim: size for dim, size in self.sizes.items() if dim in region.dims}

        def put(value: Any) -> None:
            view.copy_(value)

        return EagerSink(static.block, put, Made(region.name, sizes, flatten(view), (view,), blocks=(static.block,)))

    def _check(self, region: str, name: str, value: Any) -> None:
        buffer = self._plan.buffers.get(name)
        if buffer is not None:
            check_output(region, buffer, value, concrete(buffer.shape or (), self._all))

    def _room(self, name: str) -> torch.Tensor | None:
        """The real rows of a static output at the smallest bucket that has them."""
        static = self._context.buffers.static[name]
        fitting = [
            bucket
            for bucket in self._plan.buckets
            if all(self.sizes.get(dim, size) <= size for dim, size in bucket.project(static.dims).sizes)
        ]
        if not fitting:
            return None
        bucket = min(fitting, key=lambda each: each.project(static.dims).elements)
        axes = Axes.declared(self._plan.buffers[name].shape or ())
        return cut(self._context.buffers.view(name, bucket), axes, self.sizes, name)

    def _derived(self, buffer: plans.BufferPlan, source: language.FromParam | language.FromSize) -> torch.Tensor:
        dtype: torch.dtype = getattr(torch, str(buffer.dtype))
        shape = concrete(buffer.shape or (), self._all)
        params = self._request.params
        value = self._all[source.dim] if isinstance(source, language.FromSize) else params[source.param]
        return torch.as_tensor(value, dtype=dtype, device=self._context.device).expand(shape).clone()

    def _placed(self, tensor: torch.Tensor, buffer: language.Buffer) -> torch.Tensor:
        """An input as eager would get it: on the device, in the declared layout."""
        strides = strides_of(tuple(tensor.shape), buffer.layout)
        placed = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=self._context.device)
        return placed.copy_(tensor)
