"""The capture of every graph of a spec, in the order of its plan, with no trace left on what the user can see.

Four passes, each over all buckets from the largest to the smallest, each from the same starting state:

1. warm-up: lazy initialisations happen here, and what they create stays at its creation value;
2. a dry run under watch: hazards, and the operators and results of each region on one set of inputs and params;
3. the capture, on another set of inputs and params, call by call the same as the dry run or refused;
4. the proof: each graph is replayed on the inputs and params of the dry run and must give the results of the dry run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch

from graphspec import spec as language
from graphspec.backends.base import CaptureRequest, Slot
from graphspec.backends.updates import Binding, bind_updates, refreshed
from graphspec.errors import CaptureError, Diagnostic, HazardError
from graphspec.plan import Bucket, Event, Graph
from graphspec.recording.calls import Recorder, Recording
from graphspec.recording.source import ModuleNames
from graphspec.report.units import human_bytes
from graphspec.runtime.capture import effects
from graphspec.runtime.capture.calls import Calls, Values
from graphspec.runtime.capture.dry_run import DryRun, DryRunner, Seen
from graphspec.runtime.capture.eager_copies import EagerCopies
from graphspec.runtime.capture.outputs import other_constants, trees_of
from graphspec.runtime.capture.param_symbols import ParamSymbols
from graphspec.runtime.capture.proof import differences, first_call, fresh_memory
from graphspec.runtime.context import CapturedRegion, Context, GraphSet, Progress, Variant
from graphspec.runtime.hazards import hook_findings, inside_capture
from graphspec.runtime.holdings.code_names import CodeNames
from graphspec.runtime.holdings.contents import quiet
from graphspec.runtime.holdings.preserve import Session, preserve
from graphspec.runtime.replay.order import Clock
from graphspec.runtime.values.trees import Tree, flatten


def capture_graphs(context: Context, variant: Variant, progress: Progress | None = None) -> GraphSet:
    """Capture every graph of one variant. ``progress`` is called with each as its capture begins.

    Raises HazardError with every finding, ModelError with the user's own exception as its cause, or CaptureError;
    nothing is left behind.
    """
    _refuse_hooks(context)
    try:
        with context.backend.capturing(), preserve(context.roots) as session:
            capturer = _Capturer(context, variant, session, progress or (lambda _: None))
            return capturer.capture()
    except BaseException:
        context.backend.abandon()
        raise


class _Capturer:
    """The four passes. Inside `Backend.capturing` and `preserve`."""

    def __init__(self, context: Context, variant: Variant, session: Session, progress: Progress) -> None:
        self._context = context
        self._session = session
        self._progress = progress
        self._set = GraphSet(variant, {}, {}, Clock(context.plan))
        self._names = ModuleNames(context.model)
        self._calls = Calls(context, variant, session)
        self._copies = EagerCopies(context.plan, self._set.copies)
        self._dry_runner = DryRunner(context, self._calls, self._copies, self._names)
        self._symbols = ParamSymbols(context, self._calls, self._copies, self._names)
        self._eager_code = CodeNames()
        self._first: dict[tuple[str, Bucket], Recording] = {}
        self._dry: dict[tuple[str, Bucket], DryRun] = {}
        self._schedule = context.plan.schedule
        self._last_captures: dict[tuple[str, Bucket], dict[str, int | None]] = {}
        regions = {(graph.pool, graph.index): graph.region for graph in context.plan.graphs}
        for span in context.plan.spans:
            key = (regions[span.pool, span.first], span.bucket)
            self._last_captures.setdefault(key, {})[span.value] = span.last

    def capture(self) -> GraphSet:
        context, session = self._context, self._session
        self._warm_up()
        session.rewind()
        context.buffers.adopt(context.model)
        self._dry_runs()
        code = self._dry_runner.code
        self._set.loaded, self._set.methods = code.loaded(), code.methods()
        self._set.computes_names, self._set.walks = code.computes_names(), code.walks()
        session.rewind()
        if changed := effects.unexplained(session.verify()):
            raise HazardError(changed)
        self._captures()
        with quiet():
            context.backend.seal()
        _refuse_over_budget(context)
        self._prove()
        session.keep([copy.tensors for copy in self._set.copies.values()])
        session.forget(self._calls.created_eagerly)
        return self._set

    # -- the passes

    def _warm_up(self) -> None:
        for bucket, events in self._schedule:
            warmups = [self._region(event).warmup if event.graph else 0 for event in events]
            for number in range(max(warmups)):
                values = self._calls.start(bucket, run=1)
                last = max(at for at, warmup in enumerate(warmups) if number < warmup)
                for event in events[: last + 1]:  # those with less warm-up too: a later one reads what they make
                    if event.graph is None:
                        self._calls.call(event, values)
                        continue
                    read = self._calls.read(event, values)
                    with Recorder(event.region) as recorder:
                        self._calls.call(event, values)
                    self._first.setdefault((event.region, event.bucket), recorder.recording)
                    self._dry_runner.kept.note(recorder.recording, read)

    def _dry_runs(self) -> None:
        for bucket, events in self._schedule:
            self._session.rewind()
            values = self._calls.start(bucket, run=1)
            seen = Seen()
            findings: list[Diagnostic] = []
            for event in events:
                if event.graph is None:
                    self._call_eagerly(event, values)
                    seen.names |= self._set.moving
                elif event.new:
                    self._dry[event.region, event.bucket], found = self._dry_runner.run(
                        event, values, self._session, seen
                    )
                    findings += found
                else:
                    outputs = self._calls.call(event, values)
                    self._calls.note_origins(trees_of(event.region, outputs), values)
            findings += self._host_findings(seen.host)
            if not findings and (self._set.moving or seen.host.rebound):
                findings += self._run_on(bucket, events, seen.host)
            self._set.rebound |= {change.name for _, change in seen.host.rebound}
            recordings = {key: dry.recording for key, dry in self._dry.items()}
            findings += self._symbols.trace(bucket, events, recordings, self._session.rewind)
            if findings:  # the largest bucket shows what the others would repeat
                raise HazardError(findings)

    def _call_eagerly(self, event: Event, values: Values) -> None:
        with self._eager_code.watching():
            self._calls.call(event, values)
        self._set.moving |= effects.changed_names(self._session)  # its own affair: it runs on every replay
        self._copies.keep(event, values.env)

    def _host_findings(self, host: effects.HostChanges) -> list[Diagnostic]:
        errors, warnings = host.judged(self._eager_code.loaded())
        self._context.warn(*warnings)
        return errors

    def _run_on(self, bucket: Bucket, events: Sequence[Event], host: effects.HostChanges) -> list[Diagnostic]:
        """A second run after the first, with no rewind between: what one left on the host must not show in the next.

        Its inputs are in other memory, so that an input which the first run kept is told from this run's own.
        """
        values = self._calls.start(bucket, run=1)
        self._context.buffers.move_inputs(values.env)
        recordings: dict[str, Recording] = {}
        findings: list[Diagnostic] = []
        for event in events:
            if event.graph is None:
                self._call_eagerly(event, values)
                continue
            with Recorder(event.region) as recorder:
                self._calls.call(event, values)
            recordings[event.region] = recorder.recording
            if event.new:
                params = values.params, values.params
                first = self._dry[event.region, event.bucket].recording
                findings += differences(event.region, first, recorder.recording, (), params)
        findings += effects.kept_tensors(host.rebound, recordings, self._session)
        return [*findings, *effects.other_contents(host.rebound, self._session)]

    def _captures(self) -> None:
        findings: list[Diagnostic] = []
        for bucket, events in self._schedule:
            self._session.rewind()
            values = self._calls.start(bucket, run=2)
            seen = Seen()
            for event in events:
                if event.graph is None:
                    self._copies.use(event, values.env)
                elif event.new:
                    findings += self._capture(event, event.graph, values, seen)
                else:
                    self._use_captured(event, values)
                    outputs = self._set.regions[event.region, event.bucket].outputs
                    self._calls.note_origins({name: flatten(values.env[name]) for name in outputs}, values)
            findings += seen.host.judged(self._eager_code.loaded())[0]
        if not findings:  # what every call does otherwise says more than what the first one did
            findings += self._first_calls()
        if findings:
            raise HazardError(findings)
        self._first.clear()

    def _first_calls(self) -> list[Diagnostic]:
        """What the very first call of a region did otherwise than later ones.

        Only the later ones ran as in a capture, which a model may ask for: what differs is called once more without.
        """
        differing = {
            key: first for key, first in self._first.items() if any(first_call(key[0], first, self._dry[key].recording))
        }
        findings: list[Diagnostic] = []
        for bucket, events in self._schedule:
            keys = [(event.region, event.bucket) for event in events]
            if differing.keys().isdisjoint(key for key, event in zip(keys, events, strict=True) if event.new):
                continue
            self._session.rewind()
            values = self._calls.start(bucket, run=1)
            for key, event in zip(keys, events, strict=True):
                with Recorder(event.region) as recorder:
                    self._calls.call(event, values)
                if event.new and key in differing:
                    findings += first_call(key[0], differing[key], recorder.recording)
        return findings

    def _prove(self) -> None:
        """Replay each graph on the inputs of the dry run; other results mean that something was frozen."""
        for bucket, events in self._schedule:
            self._session.rewind()
            values = self._calls.start(bucket, run=1)
            for event in events:
                if event.graph is None:
                    self._calls.call(event, values)
                    self._copies.refresh(event, values.env)
                    continue
                captured = self._set.regions[event.region, event.bucket]
                captured.refresh(values.params)
                self._session.expect_writes(captured.graph.recording.written_outside())
                captured.graph.replay()
                self._use_captured(event, values)
                if event.new:
                    self._context.backend.synchronize()
                    self._refuse_other_results(captured, self._dry[event.region, event.bucket])

    # -- one graph

    def _capture(self, event: Event, graph: Graph, values: Values, seen: Seen) -> list[Diagnostic]:
        context, region = self._context, self._region(event)
        self._progress(event)
        started = time.perf_counter()
        read = self._calls.read(event, values)
        trees: dict[str, Tree] = {}
        bindings: list[Binding] = []

        def call() -> Sequence[torch.Tensor]:
            trees.update(trees_of(region.name, self._calls.call(event, values)))
            return [leaf for tree in trees.values() for leaf in tree.leaves]

        def slots(recording: Recording) -> Sequence[Slot]:
            other = self._calls.params(event.bucket, run=1)
            bindings.extend(bind_updates(region, recording, values.params, other, context.backend))
            return [binding.slot for binding in bindings]

        held = _held(trees, self._last_captures.get((event.region, event.bucket), {}), graph)
        updates = bool(refreshed(region, context.backend.can_update))
        with inside_capture(region.name):
            captured = context.backend.capture(CaptureRequest(graph, call, held, slots, self._names, updates=updates))
        outputs: dict[str, tuple[Tree, tuple[int, ...]]] = {}
        for name, tree in trees.items():
            start = sum(len(positions) for _, positions in outputs.values())
            outputs[name] = (tree, tuple(range(start, start + len(tree.leaves))))
        taken = time.perf_counter() - started
        self._set.regions[event.region, event.bucket] = CapturedRegion(graph, captured, outputs, bindings, taken)
        found = self._compare(event, captured.recording, trees, bindings, values)
        self._calls.note_origins(trees, values)
        found += self._dry_runner.kept.findings(event.region, captured.recording, read)
        seen.recordings[event.region] = captured.recording
        inputs = context.buffers.input_storages
        seen.host += effects.host_changes(
            event.region, self._session, seen.recordings, seen.names, self._set.loaded, inputs
        )
        return found

    def _compare(
        self, event: Event, recording: Recording, trees: Mapping[str, Tree], bindings: list[Binding], values: Values
    ) -> list[Diagnostic]:
        """What the capture did otherwise than the dry run."""
        dry = self._dry[event.region, event.bucket]
        constants = {name: tree.constants for name, tree in trees.items()}
        changing = {(binding.slot.call, binding.slot.position) for binding in bindings}
        params = (self._calls.params(event.bucket, run=1), values.params)
        found = differences(event.region, dry.recording, recording, changing, params)
        found += other_constants(event.region, dry.constants, constants)
        found += self._symbols.compare(event, (dry.recording, recording), params, bindings)
        if not found:
            found += fresh_memory(event.region, dry.recording, recording, (dry.origins, dict(values.origins)))
        return found

    def _use_captured(self, event: Event, values: Values) -> None:
        captured = self._set.regions[event.region, event.bucket]
        for name in captured.outputs:
            if name not in self._context.buffers.static:
                values.env[name] = captured.value(name)

    def _refuse_other_results(self, captured: CapturedRegion, dry: DryRun) -> None:
        check = self._context.plan.check
        for name, wanted in dry.results.items():
            for have, want in zip(captured.tensors(name), wanted, strict=True):
                if have.is_floating_point() and have.itemsize == 1:  # float8 has no kernels to compare
                    have, want = have.float(), want.float()  # noqa: PLW2901
                if torch.allclose(have, want, rtol=check.rtol, atol=check.atol, equal_nan=True):
                    continue
                message = (
                    f"region '{captured.plan.region}': on other inputs than it was captured with, the graph gives "
                    f"other values for '{name}' than eager"
                )
                hint = "something it uses is not an operator on tensors: host state, another library, another thread"
                raise HazardError([Diagnostic("GS723", message, hint=hint)])

    def _region(self, event: Event) -> language.Region:
        return self._context.plan.regions[event.region].declared


def _held(trees: Mapping[str, Tree], last: Mapping[str, int | None], graph: Graph) -> Callable[[int], float]:
    """Until which capture of its pool each output of a graph is held, by the output's position."""

    def until(position: int) -> float:
        for name, tree in trees.items():
            if position < len(tree.leaves):
                end = last.get(name, graph.index)
                return float("inf") if end is None else end
            position -= len(tree.leaves)
        message = f"no output {position}"
        raise IndexError(message)

    return until


def _refuse_over_budget(context: Context) -> None:
    budget = context.plan.capture.memory_budget
    if budget is None:
        return
    parts = {f"pool '{pool}'": size for pool, size in context.backend.pool_bytes().items()}
    parts["the static buffers"] = sum(buffer.whole.nbytes for buffer in context.buffers.static.values())
    total = sum(parts.values())
    if total > budget:
        shown = ", ".join(f"{name} {human_bytes(size)}" for name, size in sorted(parts.items(), key=lambda it: -it[1]))
        message = f"graphs and buffers take {human_bytes(total)}, and `capture.memory_budget` is {human_bytes(budget)}"
        hint = "drop the largest sizes, let more regions share a pool, or raise the budget"
        raise CaptureError(f"{message}: {shown}", hint=hint)


def _refuse_hooks(context: Context) -> None:
    if all(region.declared.hooks == "allow" for region in context.plan.regions.values() if not region.eager):
        return
    if findings := hook_findings(context.model):
        raise HazardError(findings)
