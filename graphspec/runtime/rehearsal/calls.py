"""The named values of one bucket in one pass, and the calls of regions on them: what all passes share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from graphspec.plan import ANY, Bucket, Event, RegionPlan, Variant
from graphspec.recording.source import ModuleNames
from graphspec.runtime.breaks.named import meeting
from graphspec.runtime.breaks.parts import Parts
from graphspec.runtime.opened.binds import write_bound
from graphspec.runtime.opened.context import Context
from graphspec.runtime.opened.regions import BoundRegion
from graphspec.runtime.opened.sharing import SharedModel
from graphspec.runtime.rehearsal.observation import StaleRead
from graphspec.runtime.rehearsal.world import World
from graphspec.runtime.training.gradients import trainable
from graphspec.runtime.values.eager_copies import EagerCopies
from graphspec.runtime.values.outputs import MisfitError, check_condition, check_output
from graphspec.runtime.values.trees import Tree
from graphspec.runtime.values.write_back import StaleViews, apart, leaves_of


@dataclass
class PassValues:
    """The named values of one bucket in one pass. ``origins`` says which value a storage was made for.

    ``copies`` are what the region that is called next has in the place of values of the other kind: a captured one of
    what eager ones made, an eager one of static buffers. ``twins`` are the copies of buffers, one for the whole pass,
    each with the tensor that eager regions are given of it, which they may reshape. ``parts`` are those that the region
    called last leaves eager.
    """

    bucket: Bucket
    env: dict[str, Any]
    params: dict[str, Any]
    copies: dict[str, Any] = field(default_factory=dict)
    twins: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    origins: dict[int, str] = field(default_factory=dict)
    views: StaleViews = field(default_factory=StaleViews)
    stale: list[StaleRead] = field(default_factory=list)
    misfits: list[MisfitError] = field(default_factory=list)
    parts: Parts | None = None

    def given(self, names: Iterable[str]) -> dict[str, Any]:
        """What a region that reads these names is given, as far as it is there."""
        return {name: self.copies.get(name, self.env.get(name)) for name in names}


class RegionCalls:
    """Starts passes, and calls regions on their values. ``created_eagerly``: what eager regions made on the model."""

    def __init__(self, context: Context, variant: Variant, world: World, copies: EagerCopies) -> None:
        self._context = context
        self._copies = copies
        self._variant = variant
        self._special = dict(variant.special)
        self._world = world
        self._results = context.plan.results
        self._conditions = context.plan.conditions
        self.created_eagerly: set[str] = set()
        #: What is called in the place of a region at a bucket.
        self.standins: Mapping[tuple[str, Bucket], BoundRegion] = {}

    def rewind(self) -> None:
        """Begin again from where the session began. What eager regions created goes too: they will create it again."""
        self._world.rewind()
        if self.created_eagerly:
            self._world.forget(self.created_eagerly)

    def start(self, bucket: Bucket, *, number: int) -> PassValues:
        """Fresh inputs in the static buffers, and every name a region of this bucket can read before any has run.

        ``number`` 1 and 2 have other inputs and other params.
        """
        buffers, absent = self._context.buffers, self._variant.absent
        params = self.params(bucket, number=number)
        env: dict[str, Any] = dict(params)
        for name in buffers.static:  # static outputs too: their views must not be made inside a recording
            # An alias: x.t_() in a region changes its own.
            env[name] = None if name in absent else buffers.view(name, bucket).detach()
        self._world.fill(bucket, env, params, number)
        if self._context.plan.trains:
            self._context.gradients.begin(self.leaves())
        return PassValues(bucket, env, params)

    def params(self, bucket: Bucket, *, number: int) -> dict[str, Any]:
        """The params of a pass: their defaults in the first, others within their range in the second.

        Where an example of the spec gives them, both are examples.
        """
        context, full = self._context, self._context.full_bucket(bucket)
        params = context.default_params(full, self._special, context.plan.seed + number)
        if number == 1:
            return params
        return context.other_params(params, full, {*self._special, *context.examples.params})

    def taken(self, region: str) -> frozenset[str]:
        """The params that a region is given and that may change between replays of its graph."""
        wires = self._context.plan.regions[region].reads
        return frozenset(wire.value for wire in wires if wire.source == "param").difference(self._special)

    def missing(self, region: str, values: PassValues) -> tuple[str, ...]:
        """What a region reads and nobody has made."""
        reads = self._context.plan.regions[region].reads
        return tuple(wire.value for wire in reads if wire.value not in values.env)

    def read(self, region: str, values: PassValues) -> list[torch.Tensor]:
        """The tensors that a region is given."""
        read = values.given(wire.value for wire in self._context.plan.regions[region].reads)
        return [leaf for value in read.values() for leaf in leaves_of(value)]

    def give(self, event: Event, values: PassValues) -> None:
        """Before anything else of a call: fill the copies that a captured region has of what eager regions made.

        And those that an eager region is given of static buffers: what it keeps of them is its own.
        """
        region = self._context.plan.regions[event.region]
        values.copies = self._twins(event, values) if region.eager else self._copies.fill(event, values.env)
        if region.declared.bind and event.region in self._context.regions:
            write_bound(self._context.regions[event.region].bound(), values.params)
        if region.declared.trains:
            self._context.gradients.offer(event.region, self.leaves())

    def leaves(self) -> list[tuple[str, torch.Tensor]]:
        """What may have a gradient, frozen parameters included: each once, by the first name it has in the model."""
        return trainable(self._world.reach)

    def parts(self, event: Event, values: PassValues) -> Parts:
        """What a region that is about to be called leaves eager, and what changes on the host while that runs."""
        inputs = self._context.buffers.input_storages
        changed = lambda: frozenset(change.name for change in self._world.changes().rebound)  # noqa: E731
        return Parts(event.region, values.params, inputs=inputs, changes=changed)

    def call(
        self,
        event: Event,
        values: PassValues,
        given: Mapping[str, Any] | None = None,
        parts: Parts | None = None,
    ) -> dict[str, Any]:
        """Call a region on named values, write back its states, and make its outputs known.

        ``given`` values go before the pass's own; ``parts`` meet what the region leaves eager. Raises ModelError, and
        MisfitError for a result that is not what the spec declares, where the world does not go on without.
        """
        context = self._context
        plan = context.plan.regions[event.region]
        values.stale += (StaleRead(*each) for each in values.views.reads(wire.value for wire in plan.reads))
        trial = plan.declared.trains and not self._context.gradients.knows(event.region)
        tried = self._context.gradients.tried(event.region, self.leaves()) if trial else nullcontext()
        values.parts = parts or Parts(event.region, values.params)
        breaks = self._breaks(plan, values.parts)
        with self._eager_creations(eager=plan.eager), tried, breaks:
            region = self.standins.get((event.region, event.bucket), context.regions[event.region])
            returned = region({**values.env, **values.copies, **(given or {})})
        if plan.eager:
            self._flush(values)
        statics = context.buffers.static
        written = {name: context.buffers.view(name, values.bucket) for name in returned if name in statics}
        outputs = apart(returned, written) if written else returned
        for name, value in outputs.items():
            if self._fits(event, name, value, values):
                if name in written:
                    outputs[name] = written[name].copy_(value).detach()  # an alias, which a later region may reshape
                values.env[name] = outputs[name]
            else:
                self.declare(name, values)
        values.views.note(event.region, outputs.keys(), written, values.env)
        return {name: value for name, value in outputs.items() if name in values.env}

    def _breaks(self, plan: RegionPlan, parts: Parts) -> AbstractContextManager[None]:
        if not plan.declared.breaks:
            return nullcontext()
        return meeting(plan.declared.breaks, self._names, parts.call)

    @cached_property
    def _names(self) -> ModuleNames:
        return ModuleNames(self._context.model)

    def _twins(self, event: Event, values: PassValues) -> dict[str, Any]:
        names = [wire.value for wire in self._context.plan.regions[event.region].reads]
        for name in names:
            buffer = values.env.get(name)
            if name in self._context.buffers.static and isinstance(buffer, torch.Tensor):
                if name in values.twins:
                    values.twins[name][0].copy_(buffer)
                else:
                    twin = buffer.clone(memory_format=torch.preserve_format)
                    values.twins[name] = twin, twin.detach()
        return {name: values.twins[name][1] for name in names if name in values.twins}

    def _flush(self, values: PassValues) -> None:
        """What an eager region wrote into its copies is written into the buffers."""
        for name, (twin, _) in values.twins.items():
            self._context.buffers.view(name, values.bucket).copy_(twin)

    def declare(self, output: str, values: PassValues) -> None:
        """Make an output known as it is declared, as far as that is said."""
        buffers, buffer = self._context.buffers, self._context.plan.buffers.get(output)
        values.env.pop(output, None)
        if output in buffers.static:
            values.env[output] = buffers.view(output, values.bucket)
        elif buffer is not None and buffer.shape is not None and buffer.dtype is not None:
            shape = self._context.shape(buffer.shape, values.bucket)
            if ANY in shape:
                return
            made = torch.empty(shape, dtype=getattr(torch, buffer.dtype), device=self._context.device)
            values.env[output] = made
            values.origins[made.untyped_storage()._cdata] = output

    def declare_all(self, region: str, values: PassValues, made: Collection[str] = ()) -> None:
        """The same for all outputs of a region that it has not ``made``."""
        for output in self._context.plan.regions[region].outputs:
            if output not in made:
                self.declare(output, values)

    def note_origins(self, trees: Mapping[str, Tree], values: PassValues) -> None:
        """Remember which value the memory of each output was made for, to recognise it where another region reads it.

        Of several outputs in one memory it is a result, if one of them is.
        """
        for name, tree in trees.items():
            for leaf in tree.leaves:
                key = leaf.untyped_storage()._cdata
                if key not in values.origins or (name in self._results and values.origins[key] in trees):
                    values.origins[key] = name

    def _fits(self, event: Event, output: str, value: Any, values: PassValues) -> bool:
        """Whether an output is what the spec declares; where the world goes on without, a misfit is noted."""
        buffer = self._context.plan.buffers.get(output)
        try:
            if output in self._conditions:
                check_condition(event.region, output, value, eager=self._context.plan.regions[event.region].eager)
            if buffer is not None:
                shape = self._context.shape(buffer.shape or (), values.bucket)
                check_output(event.region, buffer, value, shape)
        except MisfitError as error:
            if not self._world.goes_on:
                raise
            values.misfits.append(error)
            return False
        return True

    @contextmanager
    def _eager_creations(self, *, eager: bool) -> Iterator[None]:
        """What an eager region creates on the model goes again after the capture: its first run is the caller's."""
        if not eager:
            yield
            return
        before = set(self._world.changes().created)
        with SharedModel.inside():  # it may run another runner
            yield
        self.created_eagerly.update(set(self._world.changes().created) - before)
