"""`graphspec check`: a spec against its model, on fake tensors.

The largest bucket is rehearsed like before a capture: a warm-up, a judged dry run, what follows it, and a second run
with other params that must call the same operators with the same arguments. The laws are those of the capture. Of the
other buckets only the smallest is judged too, and for each padded dim one more size is rehearsed to see along which
axes its rows lie: what holds at both ends holds in between.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from graphspec import plan as plans
from graphspec import spec as language
from graphspec.backends.updates import bind_updates
from graphspec.compiler import compile_spec
from graphspec.errors import Diagnostic, HazardError, ModelError
from graphspec.finding import finding
from graphspec.loading import no_collections
from graphspec.plan import Bucket, Event
from graphspec.recording.comparison import parting
from graphspec.report.check_values import CheckReport, TracedRegion, TracedValue
from graphspec.runtime.building.devices import without_broken_torch_npu
from graphspec.runtime.fake.build import build_fake
from graphspec.runtime.fake.judged import JudgedDevice
from graphspec.runtime.fake.placement import Placement
from graphspec.runtime.fake.session import FakeSession
from graphspec.runtime.fake.tensors import FakeTensors
from graphspec.runtime.fake.world import FakeWorld
from graphspec.runtime.hazards import hook_findings
from graphspec.runtime.holdings.stance import compiled_as_eager
from graphspec.runtime.inline.found import find_modules, inner_hooks
from graphspec.runtime.laws import registry as laws
from graphspec.runtime.laws.evidence import Facts, Pair, Resized
from graphspec.runtime.opened.context import Context
from graphspec.runtime.opened.regions import bind_regions
from graphspec.runtime.rehearsal.observation import EagerCall, Observation, Rehearsal
from graphspec.runtime.rehearsal.param_symbols import ParamSymbols
from graphspec.runtime.rehearsal.rehearser import Rehearser
from graphspec.runtime.rehearsal.unread import Unread
from graphspec.runtime.training.optimizers import Flags, dampened, of_states, optimizers, state_tensors
from graphspec.runtime.values.buffers import Buffers, owned_input, owned_tensors
from graphspec.runtime.values.eager_copies import EagerCopies

Progress = Callable[[str], None]


def check_spec(spec: language.Spec, device: str | None = None, progress: Progress = lambda _: None) -> CheckReport:
    """Rehearse every region of ``spec`` and report what a capture on ``device`` would refuse.

    ``device`` is that of the spec, or another one; no device is used. Raises ModelError if the factory fails.
    """
    label = (device or spec.device).partition(":")[0]
    plan = compile_spec(spec)
    tensors, placement = FakeTensors(), Placement(active=label != "cpu")
    with no_collections(), without_broken_torch_npu(), warnings.catch_warnings(), compiled_as_eager():
        # torch itself asks for it where a tensor is copied.
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        progress(f"build {spec.model.factory}")
        model = build_fake(plan, tensors, placement)
        regions, wrong = bind_regions(plan, model)
        with tensors.entered():
            buffers = Buffers(plan, torch.device("cpu"))
            with contextlib.suppress(ModelError):  # which is found below
                buffers.adopt_inputs(model)
        backend: Any = JudgedDevice(label, handlers=bool(spec.npu.handlers))
        context = Context(plan, model, regions, buffers, backend)
        checked = _Checked(context, FakeWorld(tensors, placement, FakeSession(context.roots)), label, progress)
        hooked = [plan.regions[name].declared.hooks == "refuse" for name in regions if not plan.regions[name].eager]
        inline, unmatched = find_modules(plan, model)
        found = [*laws.unbound(plan, [*wrong, *unmatched]), *(hook_findings(model) if any(hooked) else ())]
        for region, name, module in inline:
            if plan.regions[region].declared.hooks != "allow":
                found += inner_hooks(name, module)
        found += checked.findings()
        parameters = _parameters(model)
        return CheckReport(
            spec.name,
            label,
            sum(each.numel() for each in parameters),
            sum(each.numel() * each.dtype.itemsize for each in parameters),
            checked.summary(),
            _each_once(found),
        )


class _Checked:
    """A spec in the fake world."""

    def __init__(self, context: Context, world: FakeWorld, label: str, progress: Progress) -> None:
        self._context = context
        self._plan = context.plan
        self._world = world
        self._label = label
        self._progress = progress
        self._rehearser = Rehearser(context, context.first_variant(), world, EagerCopies(context.plan, {}))
        self._symbols = ParamSymbols(context, self._rehearser)
        self._unread = Unread(self._rehearser, lambda *runs: laws.judge_runs(self._opened(), *runs))
        self._judged: Rehearsal | None = None

    def findings(self) -> list[Diagnostic]:
        """Everything that the laws find at the largest bucket and the smallest."""
        largest, smallest = self._plan.buckets[0], self._plan.buckets[-1]
        first_steps = self._first_steps(largest) if self._plan.trains else []
        warm = self._warm_up(largest, number=2)
        first, found = self._judge(largest)
        self._judged = first
        found += [*first_steps, *self._unmatched()]
        again = warm if _same_operators(first, warm) else self._again(largest)
        said = {each.region for each in first.observations() if _said(each, found)}
        found += self._params(largest, first, again, said)
        if not laws.refused(found) and not first.params:
            found += self._first_calls(largest, warm, first)
        last = first
        if smallest != largest:
            last, more = self._judge(smallest)
            found += more
        for dim in _padded_dims(self._plan):
            found += self._rows(dim, first, last)
        return found

    def summary(self) -> list[TracedRegion]:
        """Each region at the largest bucket."""
        assert self._judged is not None
        return [_summary(seen) for seen in self._judged.seen if isinstance(seen, (Observation, EagerCall))]

    def _first_steps(self, bucket: Bucket) -> list[Diagnostic]:
        """See which gradients there are, and have every optimizer make its state: a capture begins from there.

        Whether a first step is what a later one is from some state, only values show; of momentum it is known.
        """
        self._rehearser.trial(bucket, self._events(bucket))
        created = of_states(self._world.reach, self._world.changes().created)
        self._rehearser.calls.rewind()
        self._world.forget(created)
        steps = [each for _, each in optimizers(self._world.reach)]
        flags = Flags(steps)
        first = self._rehearser.warm_up(bucket, self._events(bucket))
        flipped = flags.flipped()
        self._rehearser.calls.rewind()
        for optimizer, key in flipped:
            self._world.settle_flag(optimizer, key, value=False)
        self._rehearser.kept.settle(tensor for each in steps for _, tensor in state_tensors(each))
        later = self._warm_up(bucket)
        if not any(map(dampened, steps)):
            return []
        opened = self._opened()
        return [each for one, two in self._pairs(first, later) for each in laws.judge_first_call(opened, one, two)]

    def _warm_up(self, bucket: Bucket, *, number: int = 1) -> Rehearsal:
        """A pass that is only recorded; what it changed is put back."""
        warm = self._rehearser.warm_up(bucket, self._events(bucket), number=number)
        self._rehearser.calls.rewind()
        return warm

    def _again(self, bucket: Bucket) -> Rehearsal:
        """A second run with other params."""
        again = self._rehearser.again(bucket, self._events(bucket))
        self._world.rewind()
        return again

    def _judge(self, bucket: Bucket) -> tuple[Rehearsal, list[Diagnostic]]:
        events = self._events(bucket)
        run = self._rehearser.judged(bucket, events, self._judging)
        unread = self._unread.slots(bucket, events, run)
        if unread is not None:
            self._rehearser.calls.rewind()
            run = replace(self._rehearser.judged(bucket, events), unread=unread)
        found = laws.judge_pass(self._opened(), run)
        if not laws.refused(found) and run.leaves_something:
            found += laws.judge_next_run(self._opened(), run, self._rehearser.following(bucket, events))
        self._rehearser.calls.rewind()
        return run, found

    def _judging(self, event: Event) -> None:
        self._progress(f"trace {event.region}" + (f" {event.bucket}" if event.bucket.sizes else ""))

    def _events(self, bucket: Bucket) -> tuple[Event, ...]:
        """Every region at a bucket, which need not be one of the plan's: captured ones at their first place."""
        steps = [step for sequence in self._plan.sequences.values() for step in sequence.steps]
        regions = [self._plan.regions[step] for step in dict.fromkeys(steps)]
        return tuple(Event(region.name, bucket.project(region.dims), None, new=True) for region in regions)

    def _opened(self) -> Facts:
        inputs = self._context.buffers.input_storages
        kept = self._context.buffers.kept_rows(self._context.model)
        return Facts(self._plan, self._context.backend, self._label, inputs, self._world.reach, kept)

    def _first_calls(self, bucket: Bucket, warm: Rehearsal, first: Rehearsal) -> list[Diagnostic]:
        """What the very first call does otherwise than later ones, if they do so outside of a capture too."""
        differing = list(self._pairs(warm, first))
        if not any(laws.judge_first_call(self._opened(), one, later) for one, later in differing):
            return []
        again = self._warm_up(bucket)
        opened = self._opened()
        return [each for one, later in self._pairs(warm, again) for each in laws.judge_first_call(opened, one, later)]

    def _params(self, bucket: Bucket, first: Rehearsal, again: Rehearsal, said: set[str]) -> list[Diagnostic]:
        """Host values that a graph would freeze; not of regions of which something is ``said`` already."""
        found = []
        for region, each in self._symbols.trace(self._events(bucket), first):
            found.append(each)
            said = said | {region}
        for one, other in self._pairs(first, again):
            if one.region not in said:
                found += self._second_run(one, other, first, again)
        return found

    def _second_run(self, one: Observation, other: Observation, first: Rehearsal, again: Rehearsal) -> list[Diagnostic]:
        declared = self._plan.regions[one.region].declared
        try:
            bindings = bind_updates(declared, other.recording, again.params, first.params, self._context.backend)
        except HazardError:
            return []  # the first run has said so
        event = Event(one.region, one.bucket, None, new=True)
        pair = Pair(
            one,
            other,
            (first.params, again.params),
            bindings,
            self._rehearser.calls.taken(one.region),
            self._symbols.probes(first.params),
            self._symbols.passed(event),
        )
        return laws.judge_pair(self._opened(), pair)

    def _pairs(self, one: Rehearsal, other: Rehearsal) -> Iterator[tuple[Observation, Observation]]:
        """The captured regions that returned in both passes."""
        for seen in one.observations():
            match = other.of(seen.region)
            if seen.ended is None and match is not None:
                yield seen, match

    def _rows(self, dim: str, first: Rehearsal, last: Rehearsal) -> Iterator[Diagnostic]:
        """What mixes the rows of one padded dim, by a pass in which only this dim has another size."""
        largest, smallest = self._plan.buckets[0], self._plan.buckets[-1]
        for size in _other_sizes(self._plan, dim, largest[dim]):
            bucket = Bucket(tuple((name, size if name == dim else old) for name, old in largest.sizes))
            other = last if bucket == smallest else self._warm_up(bucket)
            alike = [(one, two) for one, two in _matched(first, other) if _alike(one, two)]
            for one, two in alike:
                if isinstance(one, Observation):
                    seen = Resized(one.region, dim, (largest[dim], size), one.recording, two.recording)
                    yield from laws.judge_sizes(self._opened(), seen)
            if len(alike) == len(first.seen):
                return

    def _unmatched(self) -> Iterator[Diagnostic]:
        """States and inputs of the model that are not there after the warm-up, and inputs that are not as declared."""
        for name, buffer in self._plan.buffers.items():
            if buffer.declared.attr is not None:
                try:
                    if buffer.role == "input":
                        owned_input(self._context.model, buffer)
                    else:
                        owned_tensors(self._context.model, buffer.declared)
                except ModelError as error:
                    path = ("buffers", name, "attr")
                    yield finding(self._plan.document, "GS740", error.message, path, hint=error.hint)


_Called = Observation | EagerCall


def _matched(one: Rehearsal, other: Rehearsal) -> Iterator[tuple[_Called, _Called]]:
    """The calls of each region in two passes."""
    found = {seen.region: seen for seen in other.seen if isinstance(seen, (Observation, EagerCall))}
    for seen in one.seen:
        if isinstance(seen, (Observation, EagerCall)) and seen.region in found:
            yield seen, found[seen.region]


def _alike(one: _Called, other: _Called) -> bool:
    """Whether both returned, and called the same operators."""
    if one.ended is not None or other.ended is not None:
        return False
    return parting(one.recording, other.recording, shapes=False) is None


def _same_operators(one: Rehearsal, other: Rehearsal) -> bool:
    return all(_alike(first, second) for first, second in _matched(one, other)) and len(one.seen) == len(other.seen)


def _said(seen: Observation, found: list[Diagnostic]) -> bool:
    """Whether a region is refused already: what else it does otherwise in a second run follows from that."""
    return any(f"region '{seen.region}'" in each.message for each in laws.refused(found))


def _other_sizes(plan: plans.Plan, dim: str, largest: int) -> list[int]:
    """Sizes to rehearse a dim at, until one calls the same operators: real buckets, else one row less."""
    sizes = plan.dims[dim]
    smaller = [size for size in sizes.sizes if size < largest] if isinstance(sizes, language.Buckets) else []
    return list(dict.fromkeys([*smaller[:1], *smaller[-1:]])) or ([largest - 1] if largest > 1 else [])


def _padded_dims(plan: plans.Plan) -> list[str]:
    used = {dim for region in plan.regions.values() if not region.eager for dim in region.dims}
    padded = {name for name, dim in plan.dims.items() if isinstance(dim, language.Buckets) and not dim.exact}
    return [name for name in plan.dims if name in used & padded]


def _summary(seen: _Called) -> TracedRegion:
    outputs = [
        TracedValue(name, shape, str(dtype).removeprefix("torch."))
        for name, output in seen.outputs.items()
        for shape, dtype in output.forms
    ]
    eager = isinstance(seen, EagerCall)
    operators = len(seen.recording.calls)
    return TracedRegion(seen.region, str(seen.bucket), operators, tuple(outputs), eager, seen.ended is not None)


def _parameters(model: Any) -> list[torch.Tensor]:
    if isinstance(model, torch.nn.Module):
        return list(model.parameters())
    members = [value for value in getattr(model, "__dict__", {}).values() if isinstance(value, torch.nn.Module)]
    return list({id(each): each for member in members for each in member.parameters()}.values())


def _each_once(found: list[Diagnostic]) -> list[Diagnostic]:
    """Without what a second bucket repeats; in order of place, those of the spec and the model apart."""
    seen: dict[Any, Diagnostic] = {}
    for each in found:
        said = re.sub(r"\d+", "#", each.message)  # the sizes of the bucket
        seen.setdefault((each.code, each.file, each.line, each.column, said), each)
    return sorted(seen.values(), key=lambda each: (each.file or "", each.line or 0, each.column or 0, each.code))
