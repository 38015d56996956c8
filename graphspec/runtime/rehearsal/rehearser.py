"""Passes over the regions of a bucket: what is called, what is watched, and what is kept of it as an observation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from graphspec import spec as language
from graphspec.errors import GraphSpecError, ModelError
from graphspec.plan import Bucket, Event, Variant
from graphspec.recording.calls import Recorder, Recording
from graphspec.recording.source import ModuleNames
from graphspec.runtime.hazards import TraceEnded, Watch, inside_capture, watch
from graphspec.runtime.hazards.fake import lacks_value
from graphspec.runtime.holdings.code_names import CodeNames
from graphspec.runtime.holdings.preserve import Changes
from graphspec.runtime.holdings.storages import Layout, layout_of
from graphspec.runtime.opened.context import Context
from graphspec.runtime.opened.regions import attribute
from graphspec.runtime.rehearsal.calls import PassValues, RegionCalls
from graphspec.runtime.rehearsal.kept import KeptInputs
from graphspec.runtime.rehearsal.observation import (
    EagerCall,
    NothingToReplayError,
    Observation,
    OutputSeen,
    Rehearsal,
    Skipped,
)
from graphspec.runtime.rehearsal.world import World
from graphspec.runtime.training.gradients import Generosity, GradientSeen, offered
from graphspec.runtime.values.eager_copies import EagerCopies
from graphspec.runtime.values.outputs import trees_of
from graphspec.runtime.values.trees import Tree
from graphspec.runtime.values.write_back import leaves_of

#: Called with each region whose call is judged.
Judging = Callable[[Event], None]
Keep = Callable[[Event, Mapping[str, Tree]], None]
_Seen = Observation | EagerCall
_Call = Callable[[Event, PassValues], _Seen | None]


class Rehearser:
    """Rehearses the regions of a spec in one world. ``kept`` knows what earlier calls made from their inputs.

    ``code`` collects the names that captured regions load, ``eager_code`` those of eager ones.
    """

    def __init__(self, context: Context, variant: Variant, world: World, copies: EagerCopies) -> None:
        self._context = context
        self.world = world
        self.copies = copies
        self.calls = RegionCalls(context, variant, world, copies)
        self.kept = KeptInputs()
        self.code, self.eager_code = CodeNames(), CodeNames()
        updates = (update for region in context.plan.regions.values() for update in region.updates)
        inside = any(update.within is not None for update in updates)
        #: The names of modules, where an update asks in which one an operator is called.
        self.names = ModuleNames(context.model) if inside else None

    # -- passes

    def warm_up(
        self, bucket: Bucket, events: Sequence[Event], *, number: int = 1, keep: Keep = lambda *_: None
    ) -> Rehearsal:
        """A pass in which models make what they make lazily; calls are recorded and not judged."""
        return self._pass(bucket, events, number, partial(self._recorded, keep=keep), eager=self._called)

    def trial(self, bucket: Bucket, events: Sequence[Event]) -> Rehearsal:
        """A pass that shows which tensors get a gradient in which region: the first of a capture.

        An optimizer may fail where a parameter has a gradient that had none in its steps before: it is given fewer.
        """
        levels: tuple[Generosity, ...] = ("all", "trained", "made")
        for generous in levels:
            self._context.gradients.forget(generous)
            run = self.warm_up(bucket, events)
            if run.ended is None or generous == levels[-1]:
                return run
            self.calls.rewind()
        raise AssertionError

    def judged(
        self, bucket: Bucket, events: Sequence[Event], judging: Judging = lambda _: None, keep: Keep = lambda *_: None
    ) -> Rehearsal:
        """A pass under watch. Of regions whose graphs a larger bucket has, only the values are made.

        ``keep`` is given what a region returned, before another one may write into it.
        """

        def call(event: Event, values: PassValues) -> Observation | None:
            if not event.new:
                self._unseen(event, values)
                return None
            judging(event)
            return self._watched(event, values, keep)

        return self._pass(bucket, events, 1, call)

    def again(self, bucket: Bucket, events: Sequence[Event]) -> Rehearsal:
        """A second run on other params, to be compared with a judged one: its calls are made as in a capture too."""
        return self._pass(bucket, events, 2, partial(self._recorded, captured=True), eager=self._called)

    def plainly(self, bucket: Bucket, events: Sequence[Event]) -> Rehearsal:
        """The same calls with nothing watched and nothing recorded: a compiler compiles here."""
        return self._pass(bucket, events, 2, self._called, eager=self._called)

    def following(self, bucket: Bucket, events: Sequence[Event]) -> Rehearsal:
        """A run after another, with no rewind between: what one left on the host must not show in the next.

        Its inputs are in other memory, so that an input which the first run kept is told from this run's own.
        """
        return self._pass(bucket, events, 1, self._recorded, moved=True)

    def _pass(
        self,
        bucket: Bucket,
        events: Sequence[Event],
        number: int,
        call: _Call,
        *,
        eager: _Call | None = None,
        moved: bool = False,
    ) -> Rehearsal:
        seen: list[_Seen | Skipped] = []
        with self.world.entered():
            values = self.calls.start(bucket, number=number)
            if moved:
                self._context.buffers.move_inputs(values.env)
            for event in events:
                one = self._step(event, values, call, eager or self._eager)
                if one is None:
                    continue
                seen.append(one)
                if not isinstance(one, Skipped) and one.ended is not None:
                    if not self.world.goes_on:
                        break
                    self.calls.declare_all(event.region, values)
            left = self._changes().rebound if moved else ()
        loaded = self.eager_code.loaded() if eager is None else frozenset[str]()
        return Rehearsal(bucket, values.params, tuple(seen), loaded, left)

    def _step(self, event: Event, values: PassValues, call: _Call, eager: _Call) -> _Seen | Skipped | None:
        if event.region not in self._context.regions:  # the model has no such path, which is said elsewhere
            self.calls.declare_all(event.region, values)
            return None
        if missing := self.calls.missing(event.region, values):
            self.calls.declare_all(event.region, values)
            return Skipped(event.region, missing)
        self.calls.give(event, values)
        return (eager if self._context.plan.regions[event.region].eager else call)(event, values)

    # -- calls

    def _called(self, event: Event, values: PassValues) -> EagerCall:
        """An eager region, called and nothing more."""
        recording, trees = Recording(), dict[str, Tree]()
        ended: BaseException | None = None
        try:
            if self.world.goes_on:  # there are no values: a region that reads some ends
                with self._watch(event.region) as watched:
                    recorder = self._recorder(event.region, run=watched.operator)
                    recording = recorder.recording
                    with recorder:
                        outputs = self.calls.call(event, values)
            else:
                outputs = self.calls.call(event, values)
            trees = trees_of(event.region, outputs)
            self.calls.note_origins(trees, values)
        except (GraphSpecError, TraceEnded) as error:
            ended = error
        return EagerCall(event.region, event.bucket, recording, _seen(trees), ended=ended)

    def _eager(self, event: Event, values: PassValues) -> EagerCall:
        """An eager region between captured ones, which read copies of what it makes."""
        before = self._layouts(event, values)
        with self.eager_code.watching():
            seen = self._called(event, values)
        changes = self._changes()
        changed = {change.name for change in changes.rebound} | ({"host random"} if changes.host_random else set())
        return replace(seen, changed=frozenset(changed), layouts=(before, self._layouts(event, values)))

    def _unseen(self, event: Event, values: PassValues) -> None:
        outputs = self.calls.call(event, values)
        self.calls.note_origins(trees_of(event.region, outputs), values)

    def _recorded(
        self, event: Event, values: PassValues, *, keep: Keep = lambda *_: None, captured: bool = False
    ) -> Observation:
        """A call outside of any capture; inside of one where it cannot be made otherwise, since it reads values."""
        compiled = (event.region, event.bucket) in self.calls.standins
        recorder = self._recorder(event.region, compiled=compiled)
        read = frozenset(tensor.untyped_storage()._cdata for tensor in self.calls.read(event.region, values))
        origins, copies = dict(values.origins), dict(self.copies.storages())
        gradients = self._gradients(event)
        try:
            try:
                with inside_capture(event.region) if captured else nullcontext(), recorder:
                    outputs = self.calls.call(event, values)
            except ModelError as error:
                if not lacks_value(error.__cause__ or error):
                    raise
                recorder = self._recorder(event.region, compiled=compiled)
                with inside_capture(event.region), recorder:
                    outputs = self.calls.call(event, values)
            trees = trees_of(event.region, outputs)
        except (GraphSpecError, TraceEnded) as error:
            return Observation(event.region, event.bucket, recorder.recording, ended=error)
        self.kept.note(recorder.recording, read)
        keep(event, trees)
        self.calls.note_origins(trees, values)
        return Observation(
            event.region,
            event.bucket,
            recorder.recording,
            values.params,
            outputs=_seen(trees),
            origins=origins,
            copies=copies,
            parts=values.parts.seen if values.parts is not None else (),
            gradients=gradients(recorder.recording),
        )

    def _watched(self, event: Event, values: PassValues, keep: Keep) -> Observation:
        recording, trees = Recording(), dict[str, Tree]()
        ended: BaseException | None = None
        see = self.seeing(event, values)
        try:
            generators = declared_generators(self._context.model, self._context.plan.regions[event.region].declared)
        except ModelError as error:
            return see(recording, trees, ended=error)
        with self.world.judged() as met, self._watch(event.region, generators) as watched:
            around_kernels = partial(self._around_kernels, watched)
            recorder = self._recorder(event.region, self.names, watched.operator, around_kernels=around_kernels)
            recording = recorder.recording
            try:
                with recorder, self.code.watching():
                    parts = self.calls.parts(event, values)
                    trees = trees_of(event.region, self.calls.call(event, values, parts=parts))
                if not recording.calls and not any(tree.leaves for tree in trees.values()):
                    what = "records no operator and returns no tensor: there is nothing to replay"
                    hint = "mark it `eager: true`, or leave it out of `replay`"
                    raise NothingToReplayError(f"region '{event.region}' {what}", hint=hint)
            except (GraphSpecError, TraceEnded) as error:
                ended = error
        seen = see(recording, trees, met=tuple(met), hazards=tuple(watched.findings), ended=ended)
        self.kept.note(recording, seen.read)
        if ended is None:
            keep(event, trees)
        return seen

    def seeing(self, event: Event, values: PassValues) -> Callable[..., Observation]:
        """To be called before a captured region is; gives what makes its observation, afterwards."""
        read = frozenset(tensor.untyped_storage()._cdata for tensor in self.calls.read(event.region, values))
        before, origins, copies = self._layouts(event, values), dict(values.origins), dict(self.copies.storages())
        originals = self._originals(values)
        values.stale.clear()
        values.misfits.clear()
        gradients = self._gradients(event)

        def see(recording: Recording, trees: Mapping[str, Tree], **more: Any) -> Observation:
            self.calls.note_origins(trees, values)
            parts, changes = values.parts, self._changes()
            moved = parts.changed if parts is not None else frozenset()
            if moved:  # what stays eager may change what it likes, as an eager region may
                kept = tuple(change for change in changes.rebound if change.name not in moved)
                changes = replace(changes, rebound=kept)
            return Observation(
                event.region,
                event.bucket,
                recording,
                values.params,
                self.calls.params(values.bucket, number=2),
                _seen(trees),
                read,
                (before, self._layouts(event, values)),
                origins,
                copies,
                originals,
                tuple(values.stale),
                tuple(self.kept.reads(recording, read)),
                misfits=tuple(values.misfits),
                changes=changes,
                parts=parts.seen if parts is not None else (),
                moved=moved,
                loaded=self.code.loaded(),
                gradients=gradients(recording),
                **more,
            )

        return see

    def _gradients(self, event: Event) -> Callable[[Recording], tuple[GradientSeen, ...]]:
        """To be called before a region is; gives what makes of its recording what it did with gradients."""
        if not self._context.plan.regions[event.region].declared.trains:
            return lambda _: ()
        leaves = self.calls.leaves()
        there = offered(leaves)
        return lambda recording: self._context.gradients.seen(event.region, leaves, there, recording)

    def counted(self) -> frozenset[str]:
        """The numbers of the host that are bound to params: regions may count on, every call begins with the param."""
        reach = self.world.reach
        return frozenset(name for each in self._context.counters() for name in each.names(reach))

    def _changes(self) -> Changes:
        """What differs on the host since the pass began, but for what is counted.

        And but for gradients where regions train: a run leaves what eager would have left.
        """
        changes, counted, trains = self.world.changes(), self.counted(), self._context.plan.trains
        rebound = (each for each in changes.rebound if each.name not in counted)
        return replace(changes, rebound=tuple(each for each in rebound if not (trains and each.name.endswith(".grad"))))

    def _originals(self, values: PassValues) -> dict[int, str]:
        """The storages in which the eager values lie that a region has copies of; of a copied buffer, the buffer's."""
        buffers = self._context.buffers
        twins = {
            twin.untyped_storage()._cdata: buffers.static[name].whole.untyped_storage()._cdata
            for name, (twin, _) in values.twins.items()
        }
        leaves = [(name, leaf) for name in values.copies for leaf in leaves_of(values.env[name])]
        keys = [(name, leaf.untyped_storage()._cdata) for name, leaf in leaves if leaf.layout is torch.strided]
        return {twins.get(key, key): name for name, key in keys}

    def _layouts(self, event: Event, values: PassValues) -> dict[str, Layout]:
        """Shape, strides and address of each plain tensor that a region reads."""
        given = values.given(wire.value for wire in self._context.plan.regions[event.region].reads)
        found = {name: layout_of(value) for name, value in given.items() if isinstance(value, torch.Tensor)}
        return {name: layout for name, layout in found.items() if isinstance(layout, Layout)}

    @contextmanager
    def _around_kernels(self, watched: Watch) -> Iterator[None]:
        """Code of the user's that an operator calls is watched like all of it."""
        with watched.inside(), self.code.watching():
            yield

    def _recorder(self, region: str, *names_and_run: Any, **more: Any) -> Recorder:
        return Recorder(region, *names_and_run, whole=self._updated(region), **more)

    def _updated(self, region: str) -> frozenset[str]:
        return self._context.plan.regions[region].declared.updated_operators

    def _watch(self, region: str, generators: Sequence[torch.Generator] = ()) -> AbstractContextManager[Watch]:
        label, root = self._context.backend.name, self._context.model
        declared = self._context.plan.regions[region].declared
        return watch(
            region,
            device_label=label,
            allowed_generators=generators,
            root=root,
            dispatched=False,
            updated=declared.updated_operators,
            trains=declared.trains or declared.eager,
        )


def _seen(trees: Mapping[str, Tree]) -> dict[str, OutputSeen]:
    return {name: OutputSeen.of(tree) for name, tree in trees.items()}


def declared_generators(model: Any, region: language.Region) -> Sequence[torch.Generator]:
    """The objects that ``generators`` of a region names. Raises ModelError for what is no torch.Generator."""
    found = []
    for path in region.generators:
        generator = attribute(model, path, f"region '{region.name}'")
        if not isinstance(generator, torch.Generator):
            message = f"region '{region.name}': {path} is a {type(generator).__name__}, "
            message += "and `generators` names torch.Generator objects"
            raise ModelError(message, hint="give the path of the attribute that holds the generator")
        found.append(generator)
    return found
