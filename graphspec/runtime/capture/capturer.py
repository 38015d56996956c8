"""The capture of every graph of a spec, in the order of its plan, with no trace left on what the user can see.

Four passes, each over all buckets from the largest to the smallest, each from the same starting state:

1. warm-up: lazy initialisations happen here, and what they create stays at its creation value;
2. a dry run under watch: hazards, and the operators and results of each region on one set of inputs and params;
3. the capture, on another set of inputs and params, call by call the same as the dry run or refused;
4. the proof: each graph is replayed on the inputs and params of the dry run and must give the results of the dry run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from graphspec import spec as language
from graphspec.backends.base import CaptureRequest, Slot
from graphspec.errors import CaptureError, Diagnostic, GraphSpecError, HazardError, ModelError
from graphspec.plan import Bucket, Graph
from graphspec.runtime.capture import effects
from graphspec.runtime.capture.handed_on import overtaken
from graphspec.runtime.capture.kept import KeptInputs
from graphspec.runtime.capture.proof import differences, fresh_memory
from graphspec.runtime.capture.recording import Recorder, Recording
from graphspec.runtime.capture.source import ModuleNames
from graphspec.runtime.capture.updates import Binding, bind_updates, refreshed, update_findings
from graphspec.runtime.capture.write_back import StaleViews, apart, leaves_of
from graphspec.runtime.context import CapturedRegion, Context, GraphSet, StaticCopy, Variant
from graphspec.runtime.hazards import hook_findings, inside_capture, watch
from graphspec.runtime.holdings.code_names import CodeNames
from graphspec.runtime.holdings.contents import quiet
from graphspec.runtime.holdings.preserve import Session, preserve
from graphspec.runtime.model import largest_sizes
from graphspec.runtime.regions import attribute
from graphspec.runtime.replay.order import Clock
from graphspec.runtime.symbols import Passed, Runs, Stages, SymbolTracer, Target, plain, second_run
from graphspec.runtime.values.samples import alternative_param, probes
from graphspec.runtime.values.trees import Tree, UnknownTypeError, flatten


@dataclass(frozen=True)
class Event:
    """A region at a bucket of its own dims; ``graph`` None: an eager one."""

    region: str
    bucket: Bucket
    graph: Graph | None


#: Called with each region and bucket as its capture begins.
Progress = Callable[[Event], None]


@dataclass
class DryRun:
    """What one region did on the first set of inputs: its calls, and copies of its results by output name."""

    recording: Recording
    results: dict[str, list[torch.Tensor]]
    constants: dict[str, tuple[Any, ...]]
    origins: dict[int, str]


@dataclass(frozen=True)
class Stage:
    """One step of a pass over one bucket. ``fresh``: its graph is captured in this pass, not in one before."""

    event: Event
    place: tuple[str, int]
    fresh: bool


@dataclass
class _Values:
    """The named values of one bucket in one pass. ``origins`` says which region made a storage."""

    env: dict[str, Any]
    params: dict[str, Any]
    origins: dict[int, str] = field(default_factory=dict)
    stale: StaleViews = field(default_factory=StaleViews)


class Capturer:
    """Captures every graph of one variant."""

    def __init__(self, context: Context, variant: Variant, progress: Progress | None = None) -> None:
        self._context = context
        self._variant = variant
        self._progress = progress or (lambda _: None)
        self._special = dict(variant.special)
        self._dry: dict[tuple[str, Bucket], DryRun] = {}
        self._passed: dict[tuple[str, Bucket], list[Passed]] = {}
        self._set = GraphSet(variant, {}, {}, Clock(context.plan))
        self._names = ModuleNames(context.model)
        self._code = CodeNames()
        self._kept = KeptInputs()
        self._session: Session | None = None
        self._created_eagerly: set[str] = set()
        self._stages = self._plan_stages()
        self._last_captures: dict[tuple[str, Bucket], dict[str, int | None]] = {}
        regions = {(graph.pool, graph.index): graph.region for graph in context.plan.graphs}
        for span in context.plan.spans:
            key = (regions[span.pool, span.first], span.bucket)
            self._last_captures.setdefault(key, {})[span.value] = span.last

    def capture(self) -> GraphSet:
        """Run the four passes. Raises HazardError with every finding, or CaptureError; nothing is left behind."""
        self._refuse_hooks()
        try:
            with self._context.backend.capturing(), preserve(self._context.roots) as session:
                self._session = session
                self._passes(session)
                session.forget(self._created_eagerly)
        except BaseException:
            self._context.backend.abandon()
            raise
        return self._set

    def _passes(self, session: Session) -> None:
        context = self._context
        self._warm_up()
        session.rewind()
        context.buffers.adopt(context.model)
        self._dry_runs(session)
        self._set.loaded = self._code.loaded()
        session.rewind()
        if changed := effects.unexplained(session.verify()):
            raise HazardError(changed)
        self._captures(session)
        with quiet():
            context.backend.seal()
        self._prove(session)
        session.keep([copy.tensors for copy in self._set.copies.values()])

    # -- the passes

    def _warm_up(self) -> None:
        for bucket, stages in self._stages:
            warmups = [self._region(stage.event).warmup if stage.event.graph else 0 for stage in stages]
            for number in range(max(warmups)):
                values = self._start(bucket, run=1)
                last = max(at for at, warmup in enumerate(warmups) if number < warmup)
                for stage in stages[: last + 1]:  # those with less warm-up too: a later one reads what they make
                    if stage.event.graph is None:
                        self._call(stage.event, values)
                        continue
                    read = self._read(stage.event, values)
                    with Recorder(stage.event.region) as recorder:
                        self._call(stage.event, values)
                    self._kept.note(recorder.recording, read)

    def _read(self, event: Event, values: _Values) -> list[torch.Tensor]:
        """The tensors that a region is given."""
        read = [values.env.get(wire.value) for wire in self._context.plan.regions[event.region].reads]
        return [leaf for value in read for leaf in leaves_of(value)]

    def _dry_runs(self, session: Session) -> None:
        for bucket, stages in self._stages:
            session.rewind()
            values = self._start(bucket, run=1)
            seen: set[str] = set()
            findings: list[Diagnostic] = []
            for stage in stages:
                if stage.event.graph is None:
                    self._call(stage.event, values)
                    self._set.moving |= effects.changed_names(session)  # its own affair: it runs on every replay
                    seen |= self._set.moving
                    self._keep_copies(stage, values)
                elif stage.fresh:
                    findings += self._dry_run(stage.event, values, session, seen)
                else:
                    outputs = self._call(stage.event, values)
                    self._note_origins(self._trees(self._region(stage.event), outputs), values)
            findings += self._trace_symbols(bucket, stages, session)
            if findings:  # the largest bucket shows what the others would repeat
                raise HazardError(findings)

    def _dry_run(self, event: Event, values: _Values, session: Session, seen: set[str]) -> list[Diagnostic]:
        context, region = self._context, self._region(event)
        recorder = Recorder(region.name, self._names)
        generators = [_generator(context.model, path, region.name) for path in region.generators]
        before, read = effects.layouts(context, region.name, values.env), self._read(event, values)
        with inside_capture(region.name), self._watch(region, generators) as watched:
            try:
                with recorder, self._code.watching():
                    outputs = self._call(event, values)
            except GraphSpecError as error:
                refused = [finding for finding in watched.findings if finding.severity == "error"]
                if refused:  # what the region did before it failed explains more than how it failed
                    raise HazardError(refused) from error
                raise
        recording = recorder.recording
        trees = self._trees(region, outputs)
        if not recording.calls and not any(tree.leaves for tree in trees.values()):
            message = f"region '{region.name}' records no operator and returns no tensor: there is nothing to replay"
            raise CaptureError(message, hint="mark it `eager: true`, or leave it out of `replay`")
        self._dry[event.region, event.bucket] = DryRun(
            recording,
            {name: [leaf.detach().clone() for leaf in tree.leaves] for name, tree in trees.items()},
            {name: tree.constants for name, tree in trees.items()},
            dict(values.origins),
        )
        results = {name for sequence in context.plan.sequences.values() for name in sequence.results}
        refused = [finding for finding in watched.findings if finding.severity == "error"]
        second = self._params(event.bucket, run=2)
        refused += update_findings(region, recording, values.params, second, context.backend)
        refused += effects.input_writes(context, region, recording)
        refused += effects.input_shapes(region.name, before, effects.layouts(context, region.name, values.env))
        refused += effects.copy_writes(region.name, recording, self._copy_storages())
        refused += overtaken(context, region.name, trees, values.origins)
        refused += effects.result_writes(context, region, recording, values.origins, results)
        refused += self._kept.findings(region.name, recording, read)
        self._kept.note(recording, read)
        loaded = self._code.loaded()
        errors, warnings = effects.host_changes(region.name, session, recording, seen, loaded)
        context.warn(*(str(finding) for finding in watched.findings if finding.severity == "warning"), *warnings)
        self._note_origins(trees, values)
        return refused + errors

    def _trace_symbols(self, bucket: Bucket, stages: Sequence[Stage], session: Session) -> list[Diagnostic]:
        """Where the numbers that captured regions are given go: found by running them once more on symbols."""
        targets = [target for stage in stages if (target := self._target(stage)).params]
        if not targets:
            return []
        values: list[_Values] = []

        def rewind() -> None:
            session.rewind()
            values[:] = [self._start(bucket, run=1)]

        def run(stage: Stage, given: Mapping[str, Any]) -> None:
            (at,) = values
            outputs = self._call(stage.event, _Values({**at.env, **given}, at.params))
            at.env.update({name: plain(value) for name, value in outputs.items()})
            if stage.event.graph is None:
                self._refresh_copies(stage.event, at)

        params = self._params(bucket, run=1)
        tracer = SymbolTracer(Stages(stages, rewind, run), params, largest_sizes(self._context.spec), self._names)
        findings: list[Diagnostic] = []
        for target, judged in tracer.findings(targets, self._probes(params)):
            findings += judged.findings
            self._passed.setdefault((target.step.event.region, target.step.event.bucket), []).extend(judged.passed)
        return list(dict.fromkeys(findings))

    def _target(self, stage: Stage) -> Target[Stage]:
        event, spec = stage.event, self._context.spec
        dry = self._dry.get((event.region, event.bucket))
        taken = self._taken(event) if stage.fresh and dry is not None else frozenset()
        params = tuple(p for name, p in spec.params.items() if name in taken and p.type != "str")
        return Target(stage, self._region(event), params, dry.recording if dry is not None else Recording())

    def _taken(self, event: Event) -> frozenset[str]:
        """The params that a region is given and that may change between replays of its graph."""
        wires = self._context.plan.regions[event.region].reads
        return frozenset(wire.value for wire in wires if wire.source == "param").difference(self._special)

    def _probes(self, params: Mapping[str, Any]) -> dict[str, list[Any]]:
        spec = self._context.spec
        return {name: probes(spec.params[name], value, largest_sizes(spec)) for name, value in params.items()}

    def _captures(self, session: Session) -> None:
        findings: list[Diagnostic] = []
        for bucket, stages in self._stages:
            session.rewind()
            values = self._start(bucket, run=2)
            seen: set[str] = set()
            for stage in stages:
                event = stage.event
                if event.graph is None:
                    self._use_copies(event, values)
                elif stage.fresh:
                    read = self._read(event, values)
                    findings += self._capture(event, event.graph, values)
                    recording = self._set.regions[event.region, event.bucket].graph.recording
                    findings += self._kept.findings(event.region, recording, read)
                    findings += effects.host_changes(event.region, session, recording, seen, self._set.loaded)[0]
                else:
                    self._use_captured(event, values)
                    outputs = self._set.regions[event.region, event.bucket].outputs
                    self._note_origins({name: flatten(values.env[name]) for name in outputs}, values)
        if findings:
            raise HazardError(findings)

    def _capture(self, event: Event, graph: Graph, values: _Values) -> list[Diagnostic]:
        context, region = self._context, self._region(event)
        self._progress(event)
        started = time.perf_counter()
        trees: dict[str, Tree] = {}
        bindings: list[Binding] = []

        def call() -> Sequence[torch.Tensor]:
            trees.update(self._trees(region, self._call(event, values)))
            return [leaf for tree in trees.values() for leaf in tree.leaves]

        def slots(recording: Recording) -> Sequence[Slot]:
            other = self._params(event.bucket, run=1)
            bindings.extend(bind_updates(region, recording, values.params, other, context.backend))
            return [binding.slot for binding in bindings]

        last = self._last_captures.get((event.region, event.bucket), {})
        held = self._held(trees, last, graph)
        with inside_capture(region.name):
            captured = context.backend.capture(
                CaptureRequest(
                    graph, call, held, slots, self._names, updates=bool(refreshed(region, context.backend.can_update))
                )
            )
        outputs: dict[str, tuple[Tree, tuple[int, ...]]] = {}
        for name, tree in trees.items():
            start = sum(len(positions) for _, positions in outputs.values())
            outputs[name] = (tree, tuple(range(start, start + len(tree.leaves))))
        taken = time.perf_counter() - started
        self._set.regions[event.region, event.bucket] = CapturedRegion(graph, captured, outputs, bindings, taken)
        found = self._compare(event, captured.recording, trees, bindings, values)
        self._note_origins(trees, values)
        return found

    def _compare(
        self, event: Event, recording: Recording, trees: Mapping[str, Tree], bindings: list[Binding], values: _Values
    ) -> list[Diagnostic]:
        """What the capture did otherwise than the dry run."""
        dry = self._dry[event.region, event.bucket]
        constants = {name: tree.constants for name, tree in trees.items()}
        refreshed = {(binding.slot.call, binding.slot.position) for binding in bindings}
        params = (self._params(event.bucket, run=1), values.params)
        found = differences(event.region, dry.recording, recording, refreshed, params)
        found += _other_constants(event.region, dry.constants, constants)
        passed = self._passed.get((event.region, event.bucket), ())
        both, taken = (dry.recording, recording), self._taken(event)
        runs = Runs(self._region(event), both, params, taken, self._probes(params[0]), passed)
        found += second_run(runs, bindings)
        if not found:
            found += fresh_memory(event.region, dry.recording, recording, (dry.origins, dict(values.origins)))
        return found

    def _prove(self, session: Session) -> None:
        """Replay each graph on the inputs of the dry run; other results mean that something was frozen."""
        for bucket, stages in self._stages:
            session.rewind()
            values = self._start(bucket, run=1)
            for stage in stages:
                event = stage.event
                if event.graph is None:
                    self._call(event, values)
                    self._refresh_copies(event, values)
                    continue
                captured = self._set.regions[event.region, event.bucket]
                captured.refresh(values.params)
                session.expect_writes(captured.graph.recording.written_outside())
                captured.graph.replay()
                self._use_captured(event, values)
                if stage.fresh:
                    self._context.backend.synchronize()
                    self._refuse_other_results(captured, self._dry[event.region, event.bucket])

    def _use_captured(self, event: Event, values: _Values) -> None:
        captured = self._set.regions[event.region, event.bucket]
        for name in captured.outputs:
            if name not in self._context.buffers.static:
                values.env[name] = captured.value(name)

    def _refuse_other_results(self, captured: CapturedRegion, dry: DryRun) -> None:
        check = self._context.spec.check
        for name, wanted in dry.results.items():
            for have, want in zip(captured.tensors(name), wanted, strict=True):
                if torch.allclose(have, want, rtol=check.rtol, atol=check.atol, equal_nan=True):
                    continue
                message = (
                    f"region '{captured.plan.region}': on other inputs than it was captured with, the graph gives "
                    f"other values for '{name}' than eager"
                )
                hint = "something it uses is not an operator on tensors: host state, another library, another thread"
                raise HazardError([Diagnostic("GS723", message, hint=hint)])

    # -- one region

    def _call(self, event: Event, values: _Values) -> dict[str, Any]:
        """Call a region on named values, write back its states, and make its outputs known."""
        context = self._context
        plan = context.plan.regions[event.region]
        if stale := list(values.stale.findings(event.region, [wire.value for wire in plan.reads])):
            raise HazardError(stale)
        with self._eager_creations() if event.graph is None else nullcontext():
            returned = context.regions[event.region](values.env)
        statics = context.buffers.static
        written = {name: context.buffers.view(name, event.bucket) for name in returned if name in statics}
        outputs = apart(returned, written) if written else returned
        for name, value in outputs.items():
            buffer = context.spec.buffers.get(name)
            if buffer is None:
                values.env[name] = value
                continue
            check_output(event.region, buffer, value, context.shape(buffer.shape or (), event.bucket))
            if name in written:
                outputs[name] = written[name].copy_(value).detach()  # an alias, which a later region may reshape
            values.env[name] = outputs[name]
        values.stale.note(event.region, outputs.keys(), written, values.env)
        return outputs

    @contextmanager
    def _eager_creations(self) -> Iterator[None]:
        """What an eager region creates on the model goes again after the capture: its first run is the caller's."""
        assert self._session is not None
        before = set(self._session.changes().created)
        yield
        self._created_eagerly.update(set(self._session.changes().created) - before)

    def _trees(self, region: language.Region, outputs: Mapping[str, Any]) -> dict[str, Tree]:
        try:
            return {name: flatten(value, place=f"output '{name}'") for name, value in outputs.items()}
        except UnknownTypeError as error:
            message = f"region '{region.name}': {error}"
            hint = "return tensors, or dicts, lists, tuples and dataclasses of them"
            raise CaptureError(message, hint=hint) from None

    def _watch(self, region: language.Region, generators: Sequence[torch.Generator]) -> Any:
        return watch(
            region=region.name,
            device_label=self._context.backend.name,
            allowed_generators=generators,
            root=self._context.model,
        )

    # -- named values

    def _start(self, bucket: Bucket, *, run: int) -> _Values:
        """Fresh inputs in the static buffers, and every name a region of this bucket can read before any has run."""
        context = self._context
        params = self._params(bucket, run=run)
        env: dict[str, Any] = dict(params)
        given = tuple(
            name
            for name, buffer in context.spec.buffers.items()
            if buffer.role == "input" and buffer.source is None and name not in self._variant.absent
        )
        made = context.sample_inputs(given, dict(bucket.sizes), seed=context.spec.seed + run)
        for name in context.buffers.static:  # static outputs too: their views must not be made inside a recording
            if name in self._variant.absent:
                env[name] = None
                continue
            env[name] = context.buffers.view(name, bucket).detach()  # an alias: x.t_() in a region stays its own
            if name in made:
                env[name].copy_(made[name])
        context.buffers.refresh(dict(bucket.sizes), bucket, params)
        return _Values(env, params)

    def _params(self, bucket: Bucket, *, run: int) -> dict[str, Any]:
        """The params of a pass: their defaults in the first, others within their range in the second."""
        context = self._context
        full = context.full_bucket(bucket)
        params = context.default_params(full, self._special)
        if run == 1:
            return params
        largest = dict(full.sizes) | dict(context.plan.constants)
        return {
            name: value if name in self._special else alternative_param(context.spec.params[name], value, largest)
            for name, value in params.items()
        }

    def _plan_stages(self) -> list[tuple[Bucket, list[Stage]]]:
        """For every bucket that has graphs of its own, the steps that lead to them, in replay order."""
        plan = self._context.plan
        graphs = {(graph.region, graph.bucket): graph for graph in plan.graphs}
        done: set[tuple[str, Bucket]] = set()
        passes = []
        for bucket in plan.buckets:
            stages: dict[Any, Stage] = {}
            for sequence in plan.sequences.values():
                for index, name in enumerate(sequence.steps):
                    own = bucket.project(plan.regions[name].dims)
                    graph = graphs.get((name, own))
                    place = (sequence.name, index)
                    key = place if graph is None else (name, own)
                    stages.setdefault(key, Stage(Event(name, own, graph), place, (name, own) not in done))
            if any(stage.fresh and stage.event.graph is not None for stage in stages.values()):
                passes.append((bucket, list(stages.values())))
                done.update((stage.event.region, stage.event.bucket) for stage in stages.values())
        return passes

    def _held(self, trees: Mapping[str, Tree], last: Mapping[str, int | None], graph: Graph) -> Callable[[int], float]:
        def until(position: int) -> float:
            for name, tree in trees.items():
                if position < len(tree.leaves):
                    end = last.get(name, graph.index)
                    return float("inf") if end is None else end
                position -= len(tree.leaves)
            message = f"no output {position}"
            raise IndexError(message)

        return until

    def _note_origins(self, trees: Mapping[str, Tree], values: _Values) -> None:
        """Remember which region made the memory of each output, to recognise it where another one reads it.

        Of several outputs in one memory it is a result, if one of them is.
        """
        results = {name for sequence in self._context.plan.sequences.values() for name in sequence.results}
        for name, tree in trees.items():
            for leaf in tree.leaves:
                key = leaf.untyped_storage()._cdata
                if key not in values.origins or (name in results and values.origins[key] in trees):
                    values.origins[key] = name

    # -- what captured regions read of eager ones

    def _keep_copies(self, stage: Stage, values: _Values) -> None:
        event = stage.event
        for name in self._copied(event):
            if (name, event.bucket) in self._set.copies:
                continue
            tree = flatten(values.env[name], place=f"output '{name}'")
            tensors = tuple(_static_like(leaf) for leaf in tree.leaves)
            self._set.copies[name, event.bucket] = StaticCopy(tree, tensors)
        self._refresh_copies(event, values)

    def _use_copies(self, event: Event, values: _Values) -> None:
        for name in self._copied(event):
            values.env[name] = self._set.copies[name, event.bucket].value

    def _refresh_copies(self, event: Event, values: _Values) -> None:
        for name in self._copied(event):
            copy = self._set.copies[name, event.bucket]
            for static, leaf in zip(copy.tensors, flatten(values.env[name]).leaves, strict=True):
                static.copy_(leaf)
            values.env[name] = copy.value

    def _copy_storages(self) -> dict[int, str]:
        """The memory of every such copy, and whose copy it is."""
        return {
            tensor.untyped_storage()._cdata: name
            for (name, _), copy in self._set.copies.items()
            for tensor in copy.tensors
        }

    def _copied(self, event: Event) -> list[str]:
        """The outputs of an eager region that some captured region reads."""
        plan = self._context.plan
        read = {
            wire.value for region in plan.regions.values() if not region.eager for wire in region.reads
            if wire.source == "eager"
        }  # fmt: skip
        return [name for name in plan.regions[event.region].outputs if name in read]

    def _region(self, event: Event) -> language.Region:
        return self._context.spec.regions[event.region]

    def _refuse_hooks(self) -> None:
        if all(region.hooks == "allow" for region in self._context.spec.regions.values() if not region.eager):
            return
        findings = hook_findings(self._context.model)
        if findings:
            raise HazardError(findings)


def _generator(model: Any, path: str, region: str) -> torch.Generator:
    found = attribute(model, path, f"region '{region}'")
    if not isinstance(found, torch.Generator):
        kind = type(found).__name__
        message = f"region '{region}': {path} is a {kind}, and `generators` names torch.Generator objects"
        raise ModelError(message, hint="give the path of the attribute that holds the generator")
    return found


def check_output(region: str, buffer: language.Buffer, value: Any, shape: tuple[int, ...]) -> None:
    """A declared output or state must be a tensor of exactly the declared shape and dtype. Raises CaptureError."""
    what = f"region '{region}': '{buffer.name}'"
    if not isinstance(value, torch.Tensor):
        message = f"{what} is declared as a tensor, and the call returned a {type(value).__name__}"
        raise CaptureError(message, hint="give a path to the tensor: outputs: {NAME: logits}")
    if buffer.shape is not None and tuple(value.shape) != shape:
        declared = ", ".join(map(str, buffer.shape))
        message = f"{what} is declared [{declared}], here {list(shape)}, and the call returned {list(value.shape)}"
        raise CaptureError(message)
    if buffer.dtype is not None and value.dtype != getattr(torch, buffer.dtype):
        message = f"{what} is declared {buffer.dtype}, and the call returned {value.dtype}"
        raise CaptureError(message)


def _other_constants(
    region: str, first: Mapping[str, tuple[Any, ...]], second: Mapping[str, tuple[Any, ...]]
) -> Iterator[Diagnostic]:
    """Numbers and strings inside an output are part of the graph: they must be the same on every run."""
    for name, constants in second.items():
        if constants != first[name]:
            message = f"region '{region}': output '{name}' holds a host value that changes between runs"
            yield Diagnostic("GS722", message, hint="return it as a tensor, or leave it to an eager region")


def _static_like(tensor: torch.Tensor) -> torch.Tensor:
    """A copy at an address of its own, in the same layout."""
    return tensor.detach().clone(memory_format=torch.preserve_format)
