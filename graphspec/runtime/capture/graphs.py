"""The capture of every graph of a spec, in the order of its plan, with no trace left on what the user can see.

Rehearse, judge, capture, judge, prove; each step over all buckets from the largest to the smallest, each bucket from
the same starting state:

1. warm-up: lazy initialisations happen here, and what they create stays at its creation value;
2. a dry run under watch, and what follows it: judged by the laws, the same by which `check` judges;
3. the capture, on another set of inputs and params, call by call the same as the dry run or refused;
4. the proof: each graph is replayed on the inputs and params of the dry run and must give the results of the dry run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from graphspec.backends.base import CapturedGraph, CaptureRequest, Slot
from graphspec.backends.updates import Binding, bind_updates, refreshed
from graphspec.errors import CaptureError, Diagnostic, HazardError, MismatchError
from graphspec.plan import Bucket, Event, Graph, Variant
from graphspec.recording.calls import Recording
from graphspec.recording.comparison import parting
from graphspec.runtime.breaks.given import given_params
from graphspec.runtime.breaks.parts import Parts
from graphspec.runtime.capture.compiled import CompiledRegions
from graphspec.runtime.capture.first_step import FirstStep
from graphspec.runtime.capture.proof import Results, another_way, other_results, otherwise_trained, unexplained
from graphspec.runtime.hazards import hook_findings, inside_capture
from graphspec.runtime.holdings.preserve import Session, preserve
from graphspec.runtime.holdings.storages import outside_autocast, quiet
from graphspec.runtime.laws import registry as laws
from graphspec.runtime.laws.evidence import Facts, Pair, Resized
from graphspec.runtime.laws.host_state import rebound
from graphspec.runtime.opened.binds import Counter
from graphspec.runtime.opened.context import CapturedRegion, Context, GraphSet, Progress
from graphspec.runtime.opened.regions import BoundRegion
from graphspec.runtime.rehearsal.calls import PassValues
from graphspec.runtime.rehearsal.observation import NO_CHANGES, EagerCall, Observation, Rehearsal
from graphspec.runtime.rehearsal.param_symbols import ParamSymbols
from graphspec.runtime.rehearsal.rehearser import Rehearser
from graphspec.runtime.rehearsal.unread import Unread
from graphspec.runtime.rehearsal.world import RealWorld
from graphspec.runtime.training.optimizers import of_states
from graphspec.runtime.training.replayed import ReplayedGradients, held_gradients
from graphspec.runtime.values.eager_copies import EagerCopies
from graphspec.runtime.values.homes import HomeFinder
from graphspec.runtime.values.outputs import trees_of
from graphspec.runtime.values.trees import Tree, flatten
from graphspec.units import human_bytes

_Key = tuple[str, Bucket]


#: What is asked of graphs once they are captured, within the session that puts everything back.
Asked = Callable[[Context, GraphSet, Session], Iterable[Diagnostic]]


def capture_graphs(
    context: Context, variant: Variant, progress: Progress | None = None, asked: Asked | None = None
) -> GraphSet:
    """Capture every graph of one variant. ``progress`` is called with each as its capture begins.

    Raises HazardError with every finding, ModelError with the user's own exception as its cause, or CaptureError;
    nothing is left behind.
    """
    _refuse_hooks(context)
    try:
        with outside_autocast(context.device), context.backend.capturing(), preserve(context.roots) as session:
            graphs = _Capture(context, variant, session, progress or (lambda _: None)).run()
            if asked is not None:
                _ask(context, asked(context, graphs, session))
            return graphs
    except BaseException:
        context.backend.abandon()
        raise


def _ask(context: Context, found: Iterable[Diagnostic]) -> None:
    found = list(found)
    if refused := laws.refused(found):
        raise HazardError(dict.fromkeys(refused))
    context.warn(*map(str, found))


class _Capture:
    """One capture of all graphs. Inside `Backend.capturing` and `preserve`."""

    def __init__(self, context: Context, variant: Variant, session: Session, progress: Progress) -> None:
        self._context = context
        self._session = session
        self._progress = progress
        self._set = GraphSet(variant, {}, {})
        self._homes = HomeFinder(context.plan, context.buffers.blocks, context.shared.block)
        self._copies = EagerCopies(context.plan, self._set.copies)
        self._rehearser = Rehearser(context, variant, RealWorld(context, variant, session), self._copies)
        self._symbols = ParamSymbols(context, self._rehearser)
        self._unread = Unread(self._rehearser, lambda *runs: laws.judge_runs(self._opened(), *runs))
        self._shown_unread: frozenset[str] = frozenset()
        self._compiled = CompiledRegions(context, session, self._rehearser, self._symbols, self._opened)
        self._first: dict[_Key, Observation] = {}
        self._dry: dict[_Key, Observation] = {}
        self._results: dict[_Key, Results] = {}
        self._trained: dict[_Key, Results] = {}
        self._schedule = context.plan.schedule

    def run(self) -> GraphSet:
        """All steps, in order."""
        context, session, code = self._context, self._session, self._rehearser.code
        self._warm_up()
        session.rewind()
        context.buffers.adopt(context.model)
        for bucket, events in self._schedule:
            self._rehearse(bucket, events)
        self._refuse_written_rows()
        self._set.code = code.so_far()
        session.rewind()
        if changed := list(unexplained(session.verify())):
            raise HazardError(changed)
        if not context.backend.compiles_recordings:
            for bucket, events in self._schedule:
                self._compiled.prepare(bucket, events, self._dry)
            session.rewind()
        with self._compiled.standing_in():
            self._capture_all()
        self._refuse_other_first_calls()  # what every call does otherwise says more than what the first one did
        with quiet():
            context.backend.seal()
        _refuse_over_budget(context)
        self._prove()
        session.keep([copy.tensors for copy in self._set.copies.values()])
        session.forget(self._rehearser.calls.created_eagerly)
        return self._set

    # -- rehearsal

    def _warm_up(self) -> None:
        if self._context.plan.trains:
            self._try_training()
        for bucket, events in self._schedule:
            regions = [self._context.plan.regions[event.region] for event in events]
            warmups = [0 if region.eager else region.declared.warmup for region in regions]
            for number in range(max(warmups)):
                # A counter begins anew with every call, and so must the cache that it counts.
                if self._rehearser.calls.created_eagerly or self._rehearser.counted():
                    self._rehearser.calls.rewind()
                last = max(at for at, warmup in enumerate(warmups) if number < warmup)
                # Those with less warm-up too: a later one reads what they make.
                warm = self._rehearser.warm_up(bucket, events[: last + 1])
                if warm.ended is not None:
                    self._explain(bucket, events, warm)
                for seen in warm.observations():
                    self._first.setdefault((seen.region, seen.bucket), seen)

    def _try_training(self) -> None:
        """See which gradients there are, and begin from a state in which a first step is what a later one is."""
        context, (bucket, events), calls = self._context, self._schedule[0], self._rehearser.calls
        trial = self._rehearser.trial(bucket, events)
        if trial.ended is not None:
            self._explain(bucket, events, trial)
        created = of_states(self._session.reach, self._session.changes().created)
        calls.rewind()
        self._session.forget(created)
        later, found = FirstStep(context, self._session, self._rehearser).settle(self._opened(), bucket, events)
        if found:
            raise HazardError(found)
        if later.ended is not None:
            self._explain(bucket, events, later)
        trained = (seen for seen in later.observations() if context.plan.regions[seen.region].declared.trains)
        self._first.update({(seen.region, seen.bucket): seen for seen in trained})

    def _explain(self, bucket: Bucket, events: Sequence[Event], warm: Rehearsal) -> None:
        """Raise for a warm-up that failed: under watch the same calls may show why."""
        self._rehearser.calls.rewind()
        run = self._rehearser.judged(bucket, events)
        run = run if run.ended is not None else warm
        _raise_ended(run, laws.judge_pass(self._opened(), run))

    def _rehearse(self, bucket: Bucket, events: Sequence[Event]) -> None:
        rehearser, opened = self._rehearser, self._opened
        self._rehearser.calls.rewind()
        judged = partial(rehearser.judged, bucket, events, keep=self._keep)
        run = judged()
        unread = self._unread.slots(bucket, events, run)
        if unread is not None:
            rehearser.calls.rewind()
            run = replace(judged(), unread=unread)
            self._set.rebound |= unread
            self._shown_unread |= unread
        found = laws.judge_pass(opened(), run)
        _raise_ended(run, found)
        if not laws.refused(found) and run.leaves_something:
            found += laws.judge_next_run(opened(), run, rehearser.following(bucket, events))
        for seen in run.observations():
            self._dry[seen.region, seen.bucket] = replace(seen, changes=NO_CHANGES)  # what it held may go
        self._set.moving |= run.moving
        self._set.rebound |= {change.name for _, change in rebound(opened(), run)}
        found += [each for _, each in self._symbols.trace(events, run)]
        if refused := laws.refused(found):  # the largest bucket shows what the others would repeat
            raise HazardError(dict.fromkeys(refused))
        self._context.warn(*map(str, found))

    def _refuse_written_rows(self) -> None:
        """Raise HazardError for what two buckets that differ in one dim show of rows that a bucket adds."""
        found: list[Diagnostic] = []
        largest, *smaller = [bucket for bucket, _ in self._schedule] or [Bucket()]
        for dim in (name for name, _ in largest.sizes if name not in self._context.plan.exact):
            rest = [name for name, _ in largest.sizes if name != dim]
            other = next((each for each in smaller if each.project(rest) == largest.project(rest)), None)
            if other is not None:
                found += self._written_rows(dim, largest, other)
        if found:
            raise HazardError(dict.fromkeys(found))

    def _written_rows(self, dim: str, largest: Bucket, other: Bucket) -> list[Diagnostic]:
        found: list[Diagnostic] = []
        for region in self._context.plan.regions.values():
            pair = [self._dry.get((region.name, bucket.project(region.dims))) for bucket in (largest, other)]
            if dim not in region.dims or None in pair:
                continue
            one, two = (seen.recording for seen in pair if seen is not None)
            if parting(one, two, shapes=False) is None:
                resized = Resized(region.name, dim, (largest[dim], other[dim]), one, two)
                found += laws.judge_sizes(self._opened(), resized, captured=True)
        return found

    def _opened(self) -> Facts:
        context = self._context
        reach, kept = self._session.reach, context.buffers.kept_rows(context.model)
        return Facts(context.plan, context.backend, context.backend.name, context.buffers.input_storages, reach, kept)

    # -- capture

    def _capture_all(self) -> None:
        findings: list[Diagnostic] = []
        for bucket, events in self._schedule:
            self._session.rewind()
            values = self._rehearser.calls.start(bucket, number=2)
            seen: list[Observation | EagerCall] = []
            for event in events:
                if event.graph is None:
                    self._copies.use(event, values.env)
                    static = [name for name in self._outputs(event) if name in self._context.buffers.static]
                    self._rehearser.calls.note_origins({name: flatten(values.env[name]) for name in static}, values)
                    seen.append(EagerCall(event.region, event.bucket, Recording()))
                elif event.new:
                    one, found = self._capture(event, event.graph, values)
                    seen.append(one)
                    findings += found
                else:
                    self._use_captured(event, values)
                    outputs = self._set.regions[event.region, event.bucket].outputs
                    self._rehearser.calls.note_origins({name: flatten(values.env[name]) for name in outputs}, values)
            loaded = self._rehearser.eager_code.loaded()
            run = Rehearsal(bucket, values.params, seen, loaded, unread=self._shown_unread)
            findings += laws.refused(laws.judge_host_state(self._opened(), run))
        if findings:
            raise HazardError(dict.fromkeys(findings))

    def _refuse_other_first_calls(self) -> None:
        if findings := self._first_calls():
            raise HazardError(dict.fromkeys(findings))
        self._first.clear()

    def _capture(self, event: Event, graph: Graph, values: PassValues) -> tuple[Observation, list[Diagnostic]]:
        context, rehearser = self._context, self._rehearser
        region = context.plan.regions[event.region].declared
        self._progress(event)
        started = time.perf_counter()
        rehearser.calls.give(event, values)
        see = rehearser.seeing(event, values)
        trees: dict[str, Tree] = {}
        bindings: list[Binding] = []
        new: dict[int, torch.Tensor] = {}  # gradients that the region leaves in memory of the graph
        other = rehearser.calls.params(event.bucket, number=1)

        parts = rehearser.calls.parts(event, values) if region.breaks else None

        def call() -> Sequence[torch.Tensor]:
            trees.update(trees_of(region.name, rehearser.calls.call(event, values, parts=parts)))
            if region.trains:
                new.update(context.gradients.new(rehearser.calls.leaves()))
            return [*(leaf for tree in trees.values() for leaf in tree.leaves), *new.values()]

        def slots(recording: Recording) -> Sequence[Slot]:
            bindings.extend(bind_updates(region, recording, values.params, other, context.backend))
            return [binding.slot for binding in bindings]

        held = _held(trees, context.plan.last_captures(graph), graph)
        updated = region.updated_operators if refreshed(region, context.backend.can_update) else ()
        with inside_capture(region.name):
            request = CaptureRequest(
                graph,
                call,
                held,
                slots,
                rehearser.names,
                updated,
                compiler=region.compile,
                compiling=partial(context.compiling, graph),
                compile_s=self._compiled.seconds(event),
                parts=parts,
            )
            captured = context.backend.capture(request)
        outputs: dict[str, tuple[Tree, tuple[int, ...]]] = {}
        for name, tree in trees.items():
            start = sum(len(positions) for _, positions in outputs.values())
            outputs[name] = (tree, tuple(range(start, start + len(tree.leaves))))
        taken = time.perf_counter() - started
        homes = self._homes.note(graph, captured, trees)
        seen = see(captured.recording, trees)
        gradients = self._held_gradients(seen, captured, new) if region.trains else None
        self._set.regions[event.region, event.bucket] = CapturedRegion(
            graph, captured, outputs, bindings, homes, taken, gradients, _left(context, event.region), parts
        )
        if parts is not None:
            self._complete(parts, event, self._dry[event.region, event.bucket])
        if (rehearsed := self._compiled.of(event)) is not None:  # its params are proven: these are the same
            pair = Pair(rehearsed, seen, (values.params, values.params), bindings, probes=self._symbols.probes(other))
        else:
            pair = Pair(
                self._dry[event.region, event.bucket],
                seen,
                (other, values.params),
                bindings,
                rehearser.calls.taken(event.region),
                self._symbols.probes(other),
                self._symbols.passed(event),
            )
        return seen, laws.refused([*laws.judge_pair(self._opened(), pair), *laws.judge_kept(self._opened(), seen)])

    def _complete(self, parts: Parts, event: Event, dry: Observation) -> None:
        """Before replays: which arguments of parts are params, and what the region declares around its calls."""
        for place in given_params((dry.parts, parts.seen), (dry.params, parts.params)):
            if place.param is not None:
                parts.found[place.part].params[place.argument] = place.param
        bound = self._context.regions[event.region]
        if bound.has_surroundings:
            surroundings = partial(_surroundings, bound, self._context, self._set, event)
            parts.surroundings = surroundings

    def _held_gradients(
        self, seen: Observation, captured: CapturedGraph, new: Mapping[int, torch.Tensor]
    ) -> ReplayedGradients:
        first = sum(len(output.forms) for output in seen.outputs.values())
        positions = {key: first + number for number, key in enumerate(new)}
        held = held_gradients(seen.region, seen.gradients, positions, self._context.gradients)
        return ReplayedGradients(seen.region, held, lambda: captured.outputs)

    def _first_calls(self) -> list[Diagnostic]:
        """What the very first call of a region did otherwise than later ones.

        Only the later ones ran as in a capture, which a model may ask for: what differs is called once more without.
        Where the way without gives other results than the way of a capture, that is a finding too.
        """
        opened = self._opened()
        firsts = {key: first for key, first in self._first.items() if key in self._dry}
        differing = {key for key, first in firsts.items() if laws.judge_first_call(opened, first, self._dry[key])}
        findings: list[Diagnostic] = []
        for bucket, events in self._schedule:
            if not any(event.new and (event.region, event.bucket) in differing for event in events):
                continue
            self._rehearser.calls.rewind()
            results: dict[_Key, Results] = {}
            again = self._rehearser.warm_up(bucket, events, keep=partial(_copies_into, results))
            for seen in again.observations():
                key = seen.region, seen.bucket
                if key in differing:
                    findings += laws.judge_first_call(self._opened(), firsts[key], seen)
                    ways = self._results[key], results[key]
                    findings += another_way(self._dry[key], seen, ways, self._context.plan.check)
        return findings

    def _outputs(self, event: Event) -> tuple[str, ...]:
        return self._context.plan.regions[event.region].outputs

    def _use_captured(self, event: Event, values: PassValues) -> None:
        captured = self._set.regions[event.region, event.bucket]
        for name in captured.outputs:
            if name not in self._context.buffers.static:
                values.env[name] = captured.value(name)

    # -- proof

    def _prove(self) -> None:
        """Replay each graph on the inputs of the dry run; other results mean that something was frozen."""
        for bucket, events in self._schedule:
            self._rehearser.calls.rewind()
            values = self._rehearser.calls.start(bucket, number=1)
            for event in events:
                self._rehearser.calls.give(event, values)
                if event.graph is None:
                    self._rehearser.calls.call(event, values)
                    continue
                captured = self._set.regions[event.region, event.bucket]
                captured.refresh(values.params)
                self._session.expect_writes(captured.graph.recording.written_outside())
                captured.replaying()()
                self._use_captured(event, values)
                if event.new:
                    self._context.backend.synchronize()
                    wanted, allowed = self._results[event.region, event.bucket], self._context.plan.check
                    found = list(other_results(captured, wanted, allowed))
                    if captured.gradients is not None and not found:
                        trained = self._trained[event.region, event.bucket]
                        found = list(otherwise_trained(event.region, self._weights(), trained, allowed))
                    if found:
                        raise HazardError(found)
        for captured in self._set.regions.values():
            if captured.parts is not None:
                captured.parts.settle()

    def _keep(self, event: Event, trees: Mapping[str, Tree]) -> None:
        """Keep copies of what a judged call returned and trained, before another one may write into it."""
        _copies_into(self._results, event, trees)
        if self._context.plan.regions[event.region].declared.trains:
            self._trained[event.region, event.bucket] = self._weights()

    def _weights(self) -> Results:
        """Copies of what is trained, and of the gradients there are."""
        with quiet():
            leaves = self._rehearser.calls.leaves()
            weights = {name: [leaf.detach().clone()] for name, leaf in leaves}
            return weights | {f"{name}.grad": [leaf.grad.clone()] for name, leaf in leaves if leaf.grad is not None}


def _left(context: Context, region: str) -> list[tuple[Counter, Any]]:
    """What a call has just left in the numbers of the host that are bound to params."""
    return [(each, each.read()) for each in context.counters(region)]


def _copies_into(results: dict[_Key, Results], event: Event, trees: Mapping[str, Tree]) -> None:
    """Keep copies of what a call returned, before another one may write into it."""
    with quiet():
        results[event.region, event.bucket] = {n: [leaf.clone() for leaf in tree.leaves] for n, tree in trees.items()}


def _raise_ended(run: Rehearsal, found: Sequence[Diagnostic]) -> None:
    """Raise for a pass that did not come to its end: what a region did before it failed says more than how it failed.

    Raises HazardError; MismatchError where the model is not what the spec says of it; else the failure itself, which
    has the user's exception as its cause.
    """
    error = run.ended
    if error is None:
        return
    refused = [each for each in laws.refused(found) if each.code != "GS741"]
    if not refused:
        raise error
    kind = HazardError if any(each.code.startswith("GS70") for each in refused) else MismatchError
    raise kind(refused) from error


def _held(trees: Mapping[str, Tree], last: Mapping[str, int | None], graph: Graph) -> Callable[[int], float]:
    """Until which capture of its pool each output of a graph is held, by the output's position."""

    def until(position: int) -> float:
        for name, tree in trees.items():
            if position < len(tree.leaves):
                end = last.get(name, graph.index)
                return float("inf") if end is None else end
            position -= len(tree.leaves)
        return float("inf")  # a gradient, which a run copies out

    return until


def _refuse_over_budget(context: Context) -> None:
    budget = context.plan.capture.memory_budget
    if budget is None:
        return
    parts = {f"pool '{pool}'": size for pool, size in context.backend.pool_bytes().items()}
    parts["the static buffers"] = sum(
        buffer.whole.nbytes for buffer in context.buffers.static.values() if buffer.declared.attr is None
    )
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


def _surroundings(
    bound: BoundRegion, context: Context, graphs: GraphSet, event: Event, params: Mapping[str, Any]
) -> AbstractContextManager[Any]:
    """What a region declares around its calls, given what it is given in a replay, where that lies."""
    plan, statics = context.plan, context.buffers.static
    found: dict[str, Any] = {}
    for wire in plan.regions[event.region].reads:
        name = wire.value
        own = event.bucket.project(plan.regions[wire.producer].dims) if wire.producer is not None else event.bucket
        if wire.source == "param":
            found[name] = params[name]
        elif wire.source == "graph":
            found[name] = graphs.regions[str(wire.producer), own].value(name)
        elif wire.source == "eager":
            found[name] = graphs.copies[name, own].value
        else:
            absent = name in graphs.variant.absent or name not in statics
            found[name] = None if absent else context.buffers.view(name, event.bucket)
    return bound.surrounded(found)
