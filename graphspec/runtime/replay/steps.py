"""The steps of a run, bound to their graphs and buffers: a graph replayed, a region called as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from graphspec.backends.base import Inlet, Serve
from graphspec.errors import GraphSpecError, ReplayError
from graphspec.plan import BufferPlan, RegionPlan
from graphspec.runtime.opened.binds import Bound, counted, write_bound
from graphspec.runtime.opened.context import CapturedRegion
from graphspec.runtime.opened.regions import BoundRegion
from graphspec.runtime.opened.sharing import SharedModel
from graphspec.runtime.replay.holders import Holders
from graphspec.runtime.replay.moving import Moving, Sizes
from graphspec.runtime.values.axes import Axes, cut
from graphspec.runtime.values.blocks import Block
from graphspec.runtime.values.memory import Lendable, Made, Memory
from graphspec.runtime.values.trees import Tree, flatten


class Result:
    """How one output of a graph becomes a result: ``tensors`` are its real rows on the graph's memory."""

    __slots__ = ("_lend", "_tensors", "name", "rebuild")

    def __init__(
        self,
        name: str,
        tree: Tree,
        tensors: list[torch.Tensor],
        lend: Callable[[], list[torch.Tensor]] | None,
    ) -> None:
        self.name = name
        self.rebuild = tree.rebuild
        self._tensors = tensors
        self._lend = lend

    @property
    def lends(self) -> bool:
        """Whether the caller gets the graph's own memory."""
        return self._lend is not None

    @property
    def copied(self) -> list[torch.Tensor]:
        """What is copied for the caller."""
        return self._tensors if self._lend is None else []

    def take(self) -> Any:
        """The value a caller gets: copies, or the graph's own memory on loan."""
        return self.taken([tensor.clone() for tensor in self.copied])

    def taken(self, copies: Sequence[torch.Tensor]) -> Any:
        """The same, of copies that were made already."""
        return self.rebuild(copies if self._lend is None else self._lend())


class GraphStep:
    """Replays one graph, and copies its results out right after. ``crossing`` is what later runs may read of it.

    ``bound`` are tensors that a param is written into before.
    """

    __slots__ = (
        "_bound",
        "_captured",
        "_clock",
        "_crossing",
        "_holders",
        "_memory",
        "_replay",
        "_results",
        "_stamp",
    )

    def __init__(
        self,
        captured: CapturedRegion,
        memory: Memory,
        results: list[Result],
        holders: Holders | None,
        crossing: Mapping[str, Made],
        bound: Sequence[Bound] = (),
    ) -> None:
        self._bound = bound
        self._captured = captured
        self._replay = captured.replaying()
        if captured.left:
            self._replay = partial(counted, self._replay, captured.left)
        self._stamp = captured.homes.stamp
        self._clock = memory.clock
        self._memory = memory
        self._results = results
        self._holders = holders
        self._crossing = tuple(crossing.items())

    @property
    def region(self) -> str:
        """The region of the graph."""
        return self._captured.plan.region

    def run(self, moving: Moving) -> None:
        """Refresh the update slots, replay, and take the results. Raises ReplayError for an operator that failed."""
        holders = self._before(moving)
        try:
            self._replay()
        except GraphSpecError:
            raise
        except Exception as error:
            raise failed(self.region, error) from error
        self._after(holders)
        for result in self._results:
            moving.results[result.name] = result.take()

    @property
    def is_plain(self) -> bool:
        """Whether nothing is refreshed, looked after, lent or noted around its replay."""
        looked_after = self._holders is not None and self._holders.always
        written = self._captured.bindings or self._bound or self._crossing
        return not (written or looked_after or any(result.lends for result in self._results))

    def serving(self, inlets: Sequence[Inlet]) -> ServedStep | None:
        """The same step with its inputs and results copied by the backend, in one call; None where it cannot.

        Nor where more than operators is around a replay: gradients, counters of the host, eager parts.
        """
        if self._captured.gradients is not None or self._captured.left or self._captured.parts is not None:
            return None
        serve = self._captured.graph.serving(inlets, [each for result in self._results for each in result.copied])
        return ServedStep(self, serve) if serve is not None else None

    def _before(self, moving: Moving) -> Holders | None:
        if self._captured.bindings or self._captured.parts is not None:
            self._captured.refresh(moving.params)
        if self._bound:
            write_bound(self._bound, moving.params)
        holders = self._holders
        if holders is not None and not (holders.always or self._memory.busy):
            holders = None
        if holders is not None:
            holders.before(moving)
        return holders

    def _after(self, holders: Holders | None) -> None:
        clock = self._clock
        clock.now = self._stamp.at = clock.now + 1
        if holders is not None:
            holders.after()
        for name, made in self._crossing:
            self._memory.make(name, made)


class ServedStep:
    """A graph step that one call of the backend serves, with the copies around it.

    ``alone`` is the step as all there is of a run, by its inputs, while nobody holds anything (`Memory.busy`); None
    where there is more to it.
    """

    __slots__ = ("_results", "_serve", "_step", "alone", "region")

    def __init__(self, step: GraphStep, serve: Serve) -> None:
        self.region = step.region
        self._step = step
        self._serve = serve
        self._results = [(result, len(result.copied)) for result in step._results]
        self.alone = self._alone(step) if step.is_plain else None

    def _alone(self, step: GraphStep) -> Callable[[Sequence[torch.Tensor]], dict[str, Any]]:
        serve, clock, stamp = self._serve, step._clock, step._stamp
        rebuilds, at = [], 0
        for result, count in self._results:
            rebuilds.append((result.name, result.rebuild, at, at + count))
            at += count

        def alone(given: Sequence[torch.Tensor]) -> dict[str, Any]:
            try:
                made = serve(given)
            except GraphSpecError:
                raise
            except Exception as error:
                raise failed(self.region, error) from error
            clock.now = stamp.at = clock.now + 1
            return {name: rebuild(made[first:end]) for name, rebuild, first, end in rebuilds}

        return alone

    def run(self, moving: Moving) -> None:
        """What `GraphStep.run` does, for the inputs of this run."""
        step = self._step
        holders = step._before(moving)
        given, moving.given = moving.given, ()  # the first step fills them in
        try:
            made = self._serve(given)
        except GraphSpecError:
            raise
        except Exception as error:
            raise failed(self.region, error) from error
        step._after(holders)
        results, at = moving.results, 0
        for result, count in self._results:
            results[result.name] = result.taken(made[at : at + count])
            at += count


def failed(region: str, error: Exception) -> ReplayError:
    """The error for an operator that failed in a replay."""
    reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
    message = f"region '{region}' failed while it was replayed: {reason}"
    return ReplayError(message, hint="an index or a value of this run's inputs may be out of range; try it eagerly")


@dataclass(frozen=True)
class EagerSource:
    """Where an eager region finds a value: tensors on blocks, cut to the rows that the region is given."""

    tree: Tree
    parts: Sequence[Lendable]

    @classmethod
    def of(cls, tree: Tree, tensors: Sequence[torch.Tensor], blocks: Sequence[Block]) -> EagerSource:
        """A value of this structure."""
        return cls(tree, [Lendable(*part) for part in zip(tensors, blocks, strict=True)])


@dataclass(frozen=True)
class EagerSink:
    """The static buffer that an output of an eager region goes to. ``put`` copies a value in; ``made`` is how it lies.

    ``block`` is that of the buffer.
    """

    block: Block
    put: Callable[[Any], None]
    made: Made


@dataclass(frozen=True)
class EagerReach:
    """What the call of an eager region finds and leaves.

    ``places`` are where it finds what lies in static buffers and graph memory; what is in none, and was not made by an
    eager region of the same run, an earlier run has made. ``targets`` are the buffers of its outputs, ``results`` those
    of its outputs that the run returns, ``declared`` what the spec says of outputs. ``check`` raises for an output that
    is not so.
    """

    sizes: Sizes
    places: Mapping[str, EagerSource]
    targets: Mapping[str, EagerSink]
    results: frozenset[str]
    declared: Mapping[str, BufferPlan]
    check: Callable[[str, Any], None] | None = None


class EagerStep:
    """Runs a region as it is, on the real rows, at its place in the sequence."""

    def __init__(self, bound: BoundRegion, plan: RegionPlan, memory: Memory, reach: EagerReach) -> None:
        self.region = plan.name
        self._bound = bound
        self._plan = plan
        self._memory = memory
        self._reach = reach
        self._padded = plan.declared.rows == "bucket"

    @property
    def sees_padding(self) -> bool:
        """Whether the region works on the rows of the bucket."""
        return self._padded

    def run(self, moving: Moving) -> None:
        """Gather what the region reads, call it, hand on what it returns."""
        memory, targets = self._memory, self._reach.targets
        write_bound(self._bound.bound(), moving.params)
        with SharedModel.inside():
            returned = self._bound({wire.value: self._read(wire.value, moving) for wire in self._plan.reads})
        memory.flush(self.region)
        memory.clock.tick(memory.stamp(self.region))
        if self._reach.check is not None:
            for name, value in returned.items():
                self._reach.check(name, value)
        for name in self._reach.results:
            moving.results[name] = self._own(name, returned[name])
        written = [name for name in returned if name in targets]
        if written:
            moving.let_go([targets[name].block for name in written], memory)
        for name, value in returned.items():
            target = targets.get(name)
            if target is not None:
                target.put(value)
            else:
                moving.lent.pop(name, None)
                moving.env[name] = value
            if name in memory.crossing:
                memory.make(name, target.made if target is not None else self._made(name, value))

    def _read(self, name: str, moving: Moving) -> Any:
        if name in moving.params:
            return moving.params[name]
        if name in moving.env:
            return moving.env[name]
        if name in moving.lent:
            tree, _ = moving.lent[name]
            return tree.rebuild(tree.leaves)
        place = self._reach.places.get(name)
        if place is None:
            made = self._memory.made.get(name)
            if made is None:
                return None  # an optional input that was left out
            tensors = made.tensors if self._padded else made.real(name)
            if made.blocks is None:
                return made.tree.rebuild(tensors)
            place = EagerSource.of(made.tree, tensors, made.blocks)
        return self._lent(name, place, moving)

    def _lent(self, name: str, place: EagerSource, moving: Moving) -> Any:
        """Tensors on the memory of a value: the same ones for every eager region of a run, as in eager."""
        tree = Tree(tuple(map(self._memory.lend, place.parts)), place.tree.rebuild, place.tree.constants)
        moving.lent[name] = tree, place.parts
        for part in place.parts:
            moving.leased.setdefault(part.block, set()).add(name)
        return tree.rebuild(tree.leaves)

    def _made(self, name: str, value: Any) -> Made:
        tree, axes = flatten(value), self._axes(name)
        return Made(self.region, self._reach.sizes, tree, tree.leaves, None if axes is None else [axes])

    def _axes(self, name: str) -> Axes | None:
        """How an output is cut back, where the region works on padded rows."""
        buffer = self._reach.declared.get(name)
        if not self._padded or buffer is None or buffer.shape is None:
            return None
        return Axes.declared(buffer.shape)

    def _own(self, name: str, value: Any) -> Any:
        """A result of its own, real rows only: an eager region may return a view of other memory, or keep it."""
        tree, axes = flatten(value), self._axes(name)
        leaves = tree.leaves
        if axes is not None:
            leaves = tuple(cut(leaf, axes, self._reach.sizes, name) for leaf in leaves)
        return tree.rebuild([leaf.clone() for leaf in leaves])


class KeepingStep:
    """A step that sees rows which are not the run's: afterwards they hold what they held before.

    Kept around each such step and not around the run where an eager region comes in between: what that writes there,
    through a tensor that it has kept of another run, it means.
    """

    __slots__ = ("_blocks", "_memory", "_rows", "_step", "region")

    def __init__(
        self, step: GraphStep | EagerStep, rows: Sequence[torch.Tensor], blocks: Sequence[Block], memory: Memory
    ) -> None:
        self.region = step.region
        self._step = step
        self._rows = rows
        self._blocks = blocks
        self._memory = memory

    def run(self, moving: Moving) -> None:
        """The step, and the rows put back."""
        before = [(rows, rows.clone()) for rows in self._rows]
        try:
            self._step.run(moving)
        finally:
            for rows, content in before:
                rows.copy_(content)
            self._memory.pull(self._blocks)
