"""One sequence at one bucket, ready to run: every step bound to its graph, every result to how it is cut and copied."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from graphspec import plan as plans
from graphspec.errors import GraphSpecError, OrderError, ReplayError
from graphspec.plan import Bucket
from graphspec.runtime.context import CapturedRegion, Context, GraphSet
from graphspec.runtime.replay.order import Clock, Foreign
from graphspec.runtime.sharing import SharedModel
from graphspec.runtime.values.axes import Axes, cut, paste
from graphspec.runtime.values.borrowed import Borrowed
from graphspec.runtime.values.trees import Tree, flatten
from graphspec.runtime.values.write_back import apart
from graphspec.spec import DimSize

#: The real size of each bucketed dim of a run.
Sizes = Mapping[str, int]


class Run:
    """The moving part of one run: params at the sizes of the bucket, what eager regions made, the results so far."""

    __slots__ = ("env", "params", "results")

    def __init__(self, params: Mapping[str, Any]) -> None:
        self.params = params
        self.env: dict[str, Any] = {}
        self.results: dict[str, Any] = {}


class GraphStep:
    """Replays one graph, and copies its results out right after."""

    __slots__ = ("_captured", "_clock", "_foreign", "_replay", "_results", "_sizes", "region")

    def __init__(
        self,
        captured: CapturedRegion,
        results: list[Result],
        clock: Clock | None,
        foreign: Sequence[Foreign],
        sizes: Sizes,
    ) -> None:
        self.region = captured.plan.region
        self._captured = captured
        self._replay = captured.graph.replay
        self._results = results
        self._clock = clock
        self._foreign = foreign
        self._sizes = sizes

    def run(self, run: Run) -> None:
        """Refresh the update slots, replay, and take the results.

        Raises OrderError for a value of another sequence that was not made, or was overwritten; ReplayError for an
        operator that failed.
        """
        if self._captured.bindings:
            self._captured.refresh(run.params)
        if self._clock is not None:
            for read in self._foreign:
                self._clock.require(self.region, read, self._sizes)
        try:
            self._replay()
        except GraphSpecError:
            raise
        except Exception as error:
            raise _failed(self.region, error) from error
        if self._clock is not None:
            self._clock.replayed(self._captured.plan)
            self._clock.ran(self.region, self._captured.plan.bucket, self._sizes)
        for result in self._results:
            run.results[result.name] = result.take()


def _failed(region: str, error: Exception) -> ReplayError:
    reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
    message = f"region '{region}' failed while it was replayed: {reason}"
    return ReplayError(message, hint="an index or a value of this run's inputs may be out of range; try it eagerly")


class Result:
    """How one output of a graph becomes a result: ``tensors`` are its real rows on the graph's memory."""

    __slots__ = ("_lend", "_rebuild", "_tensors", "name")

    def __init__(
        self,
        name: str,
        tree: Tree,
        tensors: list[torch.Tensor],
        lend: Callable[[torch.Tensor], torch.Tensor] | None,
    ) -> None:
        self.name = name
        self._rebuild = tree.rebuild
        self._tensors = tensors
        self._lend = lend

    def take(self) -> Any:
        """The value a caller gets: copies, or the graph's own memory on loan."""
        if self._lend is None:
            return self._rebuild([tensor.clone() for tensor in self._tensors])
        return self._rebuild([self._lend(tensor) for tensor in self._tensors])


class EagerStep:
    """Runs a region as it is, on the real rows, at its place in the sequence."""

    def __init__(
        self,
        context: Context,
        graphs: GraphSet,
        region: str,
        bucket: Bucket,
        sizes: Sizes,
        results: frozenset[str],
        foreign: Sequence[Foreign],
    ) -> None:
        self.region = region
        self._sizes = sizes
        self._views: dict[str, Any] = {}
        self._context = context
        self._graphs = graphs
        self._bucket = bucket
        self._plan = context.plan.regions[region]
        self._rows = context.plan.regions[region].declared.rows
        self._results = results
        self._foreign = foreign

    def run(self, run: Run) -> None:
        """Gather what the region reads, call it, hand on what it returns."""
        context = self._context
        for read in self._foreign:
            self._graphs.clock.require(self.region, read, self._sizes)
        env = {wire.value: self._read(wire.value, run) for wire in self._plan.reads}
        with SharedModel.inside():
            returned = context.regions[self.region](env)
        statics = context.buffers.static
        written = {name: context.buffers.view(name, self._bucket) for name in returned if name in statics}
        for name, value in (apart(returned, written) if written else returned).items():
            if name in self._results:
                run.results[name] = self._own(name, value)
            if name in written:  # read from there: a captured region may write it before the next reader
                paste(written[name], value, name, self._bucket, self._sizes)
                continue
            copied = self._graphs.copies.get((name, self._bucket))
            if copied is not None:
                self._refresh(name, copied.tree, copied.tensors, value)
            run.env[name] = value
            if self._graphs.clock.needed:  # another sequence may read it, when the inputs are others
                self._graphs.eager_values[name] = self._off_inputs(value)
        self._graphs.clock.ran(self.region, self._bucket, self._sizes)

    def _read(self, name: str, run: Run) -> Any:
        if name in run.params:
            return run.params[name]
        if name in run.env:
            return run.env[name]
        if name in self._graphs.variant.absent:
            return None
        if name in self._graphs.eager_values:  # made by an eager region of another sequence
            return self._graphs.eager_values[name]
        if name not in self._views:
            self._views[name] = self._view(name)
        tree = flatten(self._views[name])
        return tree.rebuild([leaf.detach() for leaf in tree.leaves])  # aliases, which the region may reshape

    def _view(self, name: str) -> Any:
        """The real rows of a static buffer, or of what a graph makes; with ``rows: bucket``, all of them."""
        context = self._context
        if name in context.buffers.static:
            axes = Axes.declared(context.plan.buffers[name].shape or ())
            return self._cut(context.buffers.view(name, self._bucket), axes, name)
        producer = next((w.producer for w in self._plan.reads if w.value == name), None)
        assert producer is not None
        own = self._bucket.project(context.plan.regions[producer].dims)
        captured = self._graphs.regions.get((producer, own))
        if captured is None:
            message = f"region '{self.region}' reads '{name}', which region '{producer}' has not made in this run"
            raise OrderError(message, hint=f"replay '{producer}' before '{self.region}'")
        tree, _ = captured.outputs[name]
        axes_of = self._graphs.axes(context, producer, name)
        leaves = [self._cut(t, a, name) for t, a in zip(captured.tensors(name), axes_of, strict=True)]
        return tree.rebuild(leaves)

    def _cut(self, tensor: torch.Tensor, axes: Axes, name: str) -> torch.Tensor:
        return cut(tensor, axes, self._sizes, name) if self._rows == "real" else tensor

    def _refresh(self, name: str, tree: Tree, statics: tuple[torch.Tensor, ...], value: Any) -> None:
        given = flatten(value, place=f"output '{name}'")
        if len(given.leaves) != len(statics) or given.constants != tree.constants:
            message = (
                f"region '{self.region}': '{name}' has another structure or other host values than when the graphs "
                "that read it were captured"
            )
            raise OrderError(message, hint="return tensors of fixed structure, or hand host values on as params")
        for static, leaf in zip(statics, given.leaves, strict=True):
            paste(static, leaf, name, self._bucket, self._sizes)

    def _off_inputs(self, value: Any) -> Any:
        """A value of this run that outlives it: what lies in an input buffer is copied."""
        tree = flatten(value)
        inputs = self._context.buffers.input_storages
        return tree.rebuild([x.clone() if x.untyped_storage()._cdata in inputs else x for x in tree.leaves])

    def _own(self, name: str, value: Any) -> Any:
        """A result of its own, real rows only: an eager region may return a view of graph memory."""
        tree = flatten(value)
        leaves = tree.leaves
        buffer = self._context.plan.buffers.get(name)
        if self._rows == "bucket" and buffer is not None and buffer.shape is not None:
            axes = Axes.declared(buffer.shape)
            leaves = tuple(cut(leaf, axes, self._sizes, name) for leaf in leaves)
        return tree.rebuild([leaf.clone() for leaf in leaves])


@dataclass(frozen=True)
class Inlet:
    """Where one input goes: ``view`` at the bucket, and its real rows, ``target``; what else it holds is ``pad``."""

    view: torch.Tensor
    target: torch.Tensor
    pad: Any


class Route:
    """One sequence at one bucket and real size, bound to its graphs: everything that does not depend on values.

    Raises OrderError if a result must be cut, and nothing says along which axes.
    """

    def __init__(
        self, context: Context, graphs: GraphSet, sequence: plans.Sequence, bucket: Bucket, sizes: Sizes
    ) -> None:
        self.bucket = bucket
        self.label = str(bucket)
        self.sizes = {dim: size for dim, size in sizes.items() if dim in sequence.dims}
        self.real = math.prod(self.sizes.get(dim, size) for dim, size in bucket.sizes)
        self.elements = bucket.elements
        self.padded = any(self.sizes.get(dim, size) != size for dim, size in bucket.sizes)
        self.inlets = {
            name: self._inlet(context, name) for name in sequence.inputs if name not in graphs.variant.absent
        }
        self.kept = self._kept(context) if self.padded else []
        self.steps = self._steps(context, graphs, sequence)

    def _inlet(self, context: Context, name: str) -> Inlet:
        buffer, view = context.plan.buffers[name].declared, context.buffers.view(name, self.bucket)
        target = cut(view, Axes.declared(buffer.shape or ()), self.sizes, name) if self.padded else view
        return Inlet(view, view if target.shape == view.shape else target, buffer.pad or 0)

    def _kept(self, context: Context) -> list[torch.Tensor]:
        """The rows of states that a run has no real rows for: they stay as they were."""
        kept = []
        for name, state in context.buffers.states_with_rows():
            for axis, (dim, factor) in Axes.declared(context.plan.buffers[name].shape or ()).scaled.items():
                if dim in self.sizes:
                    real, all_rows = factor * self.sizes[dim], factor * self.bucket[dim]
                    kept.append(state.narrow(axis, real, all_rows - real))
        return kept

    def _steps(self, context: Context, graphs: GraphSet, sequence: plans.Sequence) -> list[GraphStep | EagerStep]:
        results = frozenset(sequence.results)
        last_place = {name: position for position, name in enumerate(sequence.steps)}
        clock = graphs.clock if graphs.clock.needed else None
        steps: list[GraphStep | EagerStep] = []
        made: set[str] = set()
        for position, name in enumerate(sequence.steps):
            plan = context.plan.regions[name]
            own = self.bucket.project(plan.dims)
            wanted = results if last_place[name] == position else frozenset[str]()
            foreign = [
                _foreign(context, wire, own)
                for wire in plan.reads
                if wire.producer is not None and wire.value not in made and not (plan.eager and wire.source == "eager")
            ]
            made.update(plan.outputs)
            if plan.eager:
                steps.append(EagerStep(context, graphs, name, own, self.sizes, wanted, foreign))
                continue
            captured = graphs.regions[name, own]
            taken = [self._result(context, graphs, captured, value) for value in captured.outputs if value in wanted]
            steps.append(GraphStep(captured, taken, clock, foreign, self.sizes))
        return steps

    def _result(self, context: Context, graphs: GraphSet, captured: CapturedRegion, name: str) -> Result:
        tree, _ = captured.outputs[name]
        leaves = captured.tensors(name)
        if self.padded:
            axes_of = graphs.axes(context, captured.plan.region, name)
            leaves = [cut(leaf, axes, self.sizes, name) for leaf, axes in zip(leaves, axes_of, strict=True)]
        borrowed = name in context.plan.regions[captured.plan.region].borrowed
        return Result(name, tree, leaves, _lender(graphs, captured, name) if borrowed else None)


def _lender(graphs: GraphSet, captured: CapturedRegion, name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Lends graph memory until the pool rule says that it may have been overwritten."""
    region = captured.plan.region

    def lend(tensor: torch.Tensor) -> torch.Tensor:
        since = graphs.clock.now

        def check() -> None:
            culprit = graphs.clock.overwritten_since(captured.plan, name, since)
            if culprit is not None:
                message = (
                    f"the result '{name}' of region '{region}' is read too late: its memory was lent (copy: false), "
                    f"and region '{culprit.region}' was replayed since"
                )
                raise OrderError(message, hint=f"read '{name}' before the next run, or declare it without copy: false")

        return Borrowed.lend(tensor, check)

    return lend


def _foreign(context: Context, wire: plans.Wire, reader: Bucket) -> Foreign:
    """What a step at a bucket reads of another sequence, or of a run before."""
    dims = context.plan.regions[str(wire.producer)].dims
    if wire.source == "buffer":
        shape = context.plan.buffers[wire.value].shape
        own = (
            dims
            if shape is None
            else tuple(axis.dim for axis in shape if isinstance(axis, DimSize) and axis.dim in dims)
        )
        return Foreign(wire.value, str(wire.producer), None, own, in_pool=False)
    return Foreign(wire.value, str(wire.producer), reader.project(dims), dims, in_pool=wire.source == "graph")
