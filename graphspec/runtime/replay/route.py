"""One sequence at one bucket, ready to run: every step bound to its graph, every result to how it is cut and copied."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from graphspec import plan as plans
from graphspec.backends.base import Inlet
from graphspec.plan import Bucket, concrete
from graphspec.runtime.opened.context import CapturedRegion, Context, GraphSet
from graphspec.runtime.replay.conditions import truth
from graphspec.runtime.replay.foreign import Address, Foreign
from graphspec.runtime.replay.holders import Copied, Holders
from graphspec.runtime.replay.lending import lender
from graphspec.runtime.replay.moving import Moving, Sizes
from graphspec.runtime.replay.stats import Stats
from graphspec.runtime.replay.steps import (
    EagerReach,
    EagerSink,
    EagerSource,
    EagerStep,
    GraphStep,
    KeepingStep,
    Result,
)
from graphspec.runtime.values.axes import Axes, cut, paste
from graphspec.runtime.values.blocks import Block
from graphspec.runtime.values.memory import Made, Memory
from graphspec.runtime.values.outputs import check_output
from graphspec.runtime.values.trees import flatten
from graphspec.spec import DimSize, Loop


class Route:
    """One sequence at one bucket and real size, bound to its graphs: everything that does not depend on values.

    Raises OrderError if a result must be cut, and nothing says along which axes.
    """

    def __init__(
        self,
        context: Context,
        memory: Memory,
        graphs: GraphSet,
        sequence: plans.Sequence,
        bucket: Bucket,
        sizes: Sizes,
        stats: Stats,
    ) -> None:
        self.runs = 0
        self.quick: Any = None
        self.bucket = bucket
        self.sizes = {dim: size for dim, size in sizes.items() if dim in sequence.dims}
        real = math.prod(self.sizes.get(dim, size) for dim, size in bucket.sizes)
        self.tally = stats.tally(str(bucket), real, bucket.elements)
        self.padded = any(self.sizes.get(dim, size) != size for dim, size in bucket.sizes)
        self.inlets = {
            name: self._inlet(context, name) for name in sequence.inputs if name not in graphs.variant.absent
        }
        self.filled = [context.buffers.static[name].block for name in (*self.inlets, *context.buffers.derived)]
        self.kept, self.kept_blocks = self._kept(context) if self.padded else ([], [])
        self.with_eager = any(region.eager for region in context.plan.regions.values())
        binder = _Binder(context, memory, graphs, self)
        self.steps: list[GraphStep | EagerStep | KeepingStep] = [*binder.steps(sequence)]
        if self.kept and any(isinstance(step, EagerStep) for step in self.steps):
            self._keep_in_each_step(memory)
        self.program = sequence.program if sequence.loops else None
        self.conditions = binder.conditions
        self.foreign = tuple(binder.foreign)

    def _keep_in_each_step(self, memory: Memory) -> None:
        """Keep rows around the steps that see them, and not around what eager regions do in between."""
        rows, blocks = self.kept, self.kept_blocks
        self.steps = [
            step
            if isinstance(step, KeepingStep) or (isinstance(step, EagerStep) and not step.sees_padding)
            else KeepingStep(step, rows, blocks, memory)
            for step in self.steps
        ]
        self.kept, self.kept_blocks = [], []

    def _inlet(self, context: Context, name: str) -> Inlet:
        buffer, view = context.plan.buffers[name].declared, context.buffers.view(name, self.bucket)
        target = cut(view, Axes.declared(buffer.shape or ()), self.sizes, name) if self.padded else view
        return Inlet(view, view if target.shape == view.shape else target, buffer.pad or 0)

    def _kept(self, context: Context) -> tuple[list[torch.Tensor], list[Block]]:
        """The rows of states that a run has no real rows for: they stay as they were."""
        kept, blocks = [], []
        for name, state in context.buffers.states_with_rows():
            for axis, (dim, factor) in Axes.declared(context.plan.buffers[name].shape or ()).scaled.items():
                if dim in self.sizes:
                    real, all_rows = factor * self.sizes[dim], factor * self.bucket[dim]
                    kept.append(state.narrow(axis, real, all_rows - real))
                    if name in context.buffers.static:
                        blocks.append(context.buffers.static[name].block)
        return kept, blocks


class _Binder:
    """Binds the steps of a sequence. ``foreign`` collects what they read of earlier runs."""

    def __init__(self, context: Context, memory: Memory, graphs: GraphSet, route: Route) -> None:
        self._context = context
        self._memory = memory
        self._graphs = graphs
        self._route = route
        self._ran: Mapping[str, int] = {}
        self._fresh: set[str] = set()
        self._eager_before = False
        self.foreign: list[Foreign] = []
        self.conditions: dict[Loop, Callable[[Moving], bool]] = {}

    def steps(self, sequence: plans.Sequence) -> list[GraphStep | EagerStep]:
        """Every step, in order; and what the loops among them go by."""
        found: list[GraphStep | EagerStep] = []
        ends = {loop.stop for loop in sequence.loops}
        taken = sequence.taken
        for at, self._ran in sequence.certain():
            if isinstance(at, Loop):
                self._loop(at, sequence)
                continue
            if at in ends:
                self._fresh.clear()  # perhaps no turn has filled them
            region = self._context.plan.regions[sequence.steps[at]]
            wanted = [each for each in sequence.results if each in region.outputs and at in taken]
            found.append(self._eager(region, wanted) if region.eager else self._graph(region, wanted))
        return found

    # -- a loop

    def _loop(self, loop: Loop, sequence: plans.Sequence) -> None:
        """Before the steps of a loop are bound: what comes later in a turn comes before them in the next."""
        plan = self._context.plan
        self._fresh.clear()
        self._eager_before |= any(plan.regions[sequence.steps[at]].eager for at in loop.steps)
        wire = plan.condition(loop.condition)
        name, memory = wire.value, self._memory
        if wire.producer is not None and wire.producer not in self._ran:
            address = None if wire.source == "eager" else self._address(wire)
            self.foreign.append(self._foreign(name, wire, address, eager=wire.source == "eager", loop=True))
        if wire.source == "eager":
            self.conditions[loop] = lambda moving: truth(
                name, moving.env[name] if name in moving.env else memory.value(name)
            )
            return
        tensor = self._condition(wire)
        self.conditions[loop] = lambda _: truth(name, tensor)

    def _condition(self, wire: plans.Wire) -> torch.Tensor:
        """The tensor that a loop goes by, where graphs and buffers have it."""
        if wire.source == "graph":
            return self._graphs.regions[str(wire.producer), self._own_bucket(wire)].tensors(wire.value)[0]
        return self._context.buffers.one(wire.value)

    # -- a graph

    def _graph(self, region: plans.RegionPlan, wanted: Sequence[str]) -> GraphStep:
        memory, graphs = self._memory, self._graphs
        captured = graphs.regions[region.name, self._route.bucket.project(region.dims)]
        for wire in region.reads:
            if wire.producer is not None and wire.producer not in self._ran:
                self.foreign.append(self._foreign(region.name, wire, self._address(wire), eager=False))
        results = [self._result(captured, name) for name in wanted if name in captured.outputs]
        crossing = {name: self._graph_made(captured, name) for name in region.outputs if name in memory.crossing}
        bound = self._context.regions[region.name].bound() if region.declared.bind else ()
        return GraphStep(captured, memory, results, self._holders(region, captured), crossing, bound)

    def _holders(self, region: plans.RegionPlan, captured: CapturedRegion) -> Holders | None:
        if not self._route.with_eager and not self._memory.lends:
            return None
        copied = [self._copied(wire) for wire in region.reads if wire.source == "eager" and self._stale(wire.value)]
        if captured.homes.written:
            self._fresh.clear()
        reads = [wire.value for wire in region.reads if wire.source in ("graph", "buffer")]
        homes, sizes, late = captured.homes, self._route.sizes, self._eager_before
        return Holders(region.name, homes, self._memory, copied, reads, sizes, late=late)

    def _stale(self, value: str) -> bool:
        """Whether the copy of an eager value must be filled here: not if nothing can have changed since it was."""
        stale = value not in self._fresh
        self._fresh.add(value)
        return stale

    def _copied(self, wire: plans.Wire) -> Copied:
        own = self._own_bucket(wire)
        return Copied(wire.value, self._graphs.copies[wire.value, own], own)

    def _result(self, captured: CapturedRegion, name: str) -> Result:
        tree, _ = captured.outputs[name]
        leaves = captured.tensors(name)
        if self._route.padded:
            axes_of = self._graphs.axes(self._context, captured.plan.region, name)
            leaves = [cut(leaf, axes, self._route.sizes, name) for leaf, axes in zip(leaves, axes_of, strict=True)]
        borrowed = name in self._context.plan.regions[captured.plan.region].borrowed
        lend = lender(captured, name, leaves, self._memory) if borrowed and self._memory.aliases else None
        return Result(name, tree, leaves, lend)

    def _graph_made(self, captured: CapturedRegion, name: str) -> Made:
        tree, _ = captured.outputs[name]
        axes = self._graphs.axes(self._context, captured.plan.region, name)
        sizes = {**dict(captured.plan.bucket.sizes), **self._sizes_of(captured.plan.region)}
        return Made(captured.plan.region, sizes, tree, captured.tensors(name), axes, captured.homes.outputs[name])

    # -- an eager region

    def _eager(self, region: plans.RegionPlan, wanted: Sequence[str]) -> EagerStep:
        context = self._context
        own = self._route.bucket.project(region.dims)
        places: dict[str, EagerSource] = {}
        for wire in region.reads:
            if wire.source == "param" or wire.value in self._graphs.variant.absent:
                continue
            if wire.producer is not None and wire.producer not in self._ran:
                self.foreign.append(self._foreign(region.name, wire, None, eager=True))
            elif wire.source == "buffer":
                places[wire.value] = self._buffer_place(region, wire.value, own)
            elif wire.source == "graph":
                places[wire.value] = self._graph_place(region, wire)
        self._fresh.clear()
        self._eager_before = True
        targets = {name: self._target(region, name, own) for name in region.outputs if name in context.buffers.static}
        sizes = {**dict(own.sizes), **self._sizes_of(region.name)}
        check = self._check(region, dict(own.sizes) if region.declared.rows == "bucket" else sizes)
        reach = EagerReach(sizes, places, targets, frozenset(wanted), context.plan.buffers, check)
        return EagerStep(context.regions[region.name], region, self._memory, reach)

    def _check(self, region: plans.RegionPlan, sizes: Sizes) -> Callable[[str, Any], None] | None:
        """Raises MisfitError for what a region returns in another shape than is declared at these sizes."""
        plan = self._context.plan
        declared = {name: plan.buffers[name] for name in region.outputs if name in plan.buffers}
        shapes = {
            name: concrete(buffer.shape, {**plan.constants, **sizes})
            for name, buffer in declared.items()
            if buffer.shape is not None
        }
        if not shapes:
            return None

        forms = {name: (shape, getattr(torch, declared[name].dtype or "", None)) for name, shape in shapes.items()}

        def check(name: str, value: Any) -> None:
            form = forms.get(name)
            if form is None or (isinstance(value, torch.Tensor) and (value.shape, value.dtype) == form):
                return
            check_output(region.name, declared[name], value, form[0])

        return check

    def _buffer_place(self, region: plans.RegionPlan, name: str, own: Bucket) -> EagerSource:
        buffers = self._context.buffers
        axes = Axes.declared(self._context.plan.buffers[name].shape or ())
        view = self._rows(region, buffers.view(name, own), axes, name)
        return EagerSource.of(flatten(view), (view,), (buffers.static[name].block,))

    def _graph_place(self, region: plans.RegionPlan, wire: plans.Wire) -> EagerSource:
        captured = self._graphs.regions[str(wire.producer), self._own_bucket(wire)]
        axes_of = self._graphs.axes(self._context, str(wire.producer), wire.value)
        tensors = [
            self._rows(region, tensor, axes, wire.value)
            for tensor, axes in zip(captured.tensors(wire.value), axes_of, strict=True)
        ]
        return EagerSource.of(captured.outputs[wire.value][0], tensors, captured.homes.outputs[wire.value])

    def _rows(self, region: plans.RegionPlan, tensor: torch.Tensor, axes: Axes, name: str) -> torch.Tensor:
        """The real rows, or with ``rows: bucket`` all of them."""
        return cut(tensor, axes, self._route.sizes, name) if region.declared.rows == "real" else tensor

    def _target(self, region: plans.RegionPlan, name: str, own: Bucket) -> EagerSink:
        buffers, sizes = self._context.buffers, self._route.sizes
        view, block = buffers.view(name, own), buffers.static[name].block
        axes = Axes.declared(self._context.plan.buffers[name].shape or ())
        of_run = {**dict(own.sizes), **self._sizes_of(region.name)}
        made = Made(region.name, of_run, flatten(view), (view,), (axes,), (block,))
        if self._context.plan.buffers[name].role == "state" and region.declared.rows == "real":
            rows = cut(view, axes, sizes, name)  # the others are not the run's

            def put(value: Any) -> None:
                rows.copy_(value)

            return EagerSink(block, put, made)
        return EagerSink(block, lambda value: paste(view, value, name, own, sizes), made)

    # -- what earlier runs made

    def _foreign(
        self, reader: str, wire: plans.Wire, address: Address | None, *, eager: bool, loop: bool = False
    ) -> Foreign:
        """What a step or a loop reads of another sequence, or of a run before."""
        producer = self._context.plan.regions[str(wire.producer)]
        dims = producer.dims
        buffer = self._context.plan.buffers.get(wire.value)
        if wire.source == "buffer" and buffer is not None and buffer.shape is not None:
            dims = tuple(axis.dim for axis in buffer.shape if isinstance(axis, DimSize) and axis.dim in dims)
        bucket = None if wire.source == "buffer" else self._route.bucket.project(dims)
        return Foreign(reader, wire.value, producer.name, bucket, dims, address, eager, loop)

    def _address(self, wire: plans.Wire) -> Address | None:
        own = self._own_bucket(wire)
        if wire.source == "graph":
            captured = self._graphs.regions[str(wire.producer), own]
            axes = self._graphs.axes(self._context, str(wire.producer), wire.value)
            homes, (tree, _) = captured.homes, captured.outputs[wire.value]
            return Address(tree, captured.tensors(wire.value), axes, homes.outputs[wire.value], homes.stamp)
        if wire.source == "buffer":
            buffers = self._context.buffers
            axes = [Axes.declared(self._context.plan.buffers[wire.value].shape or ())]
            view = buffers.view(wire.value, own)
            return Address(flatten(view), (view,), axes, (buffers.static[wire.value].block,))
        return None

    def _own_bucket(self, wire: plans.Wire) -> Bucket:
        return self._route.bucket.project(self._context.plan.regions[str(wire.producer)].dims)

    def _sizes_of(self, region: str) -> dict[str, int]:
        """The real sizes of a region's dims."""
        dims = self._context.plan.regions[region].dims
        return {dim: size for dim, size in self._route.sizes.items() if dim in dims}
