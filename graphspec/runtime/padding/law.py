"""Padded rows touch nothing that is not the run's: what real values show of it, right after graphs were captured.

Each bucket is run once with the most padding that still takes it, within the session of the capture, which puts
everything back. `graphspec run` does the same at all sizes and on many inputs, by the same code.

First as served, against eager at the real sizes. A fresh cache is filled with numbers before: zeros that padded rows
write over zeros would not show. Then with two contents of the rows of inputs that declare no `pad`: what a `pad` is
chosen for, only the user knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from graphspec.errors import CaptureError, Diagnostic, GraphSpecError, InputError, ModelError, OrderError
from graphspec.finding import placed
from graphspec.plan import Plan, Sequence, Variant
from graphspec.runtime.holdings.preserve import Session
from graphspec.runtime.laws import registry as laws
from graphspec.runtime.laws.evidence import PaddedRun
from graphspec.runtime.opened.context import Context, GraphSet
from graphspec.runtime.opened.states import States
from graphspec.runtime.padding.cases import Case, cases
from graphspec.runtime.padding.proof import Trial, prove
from graphspec.runtime.replay.gate import Gate
from graphspec.runtime.replay.request import Remembered
from graphspec.runtime.replay.sequence import BoundSequence, Opened
from graphspec.runtime.replay.stats import Stats
from graphspec.runtime.values.memory import Memory
from graphspec.runtime.verify.bench import Bench, Fills, Values
from graphspec.runtime.verify.carried import Carried, written
from graphspec.runtime.verify.compare import Tolerance, described
from graphspec.spec import DimSize, FromSize


def padded_runs(context: Context, graphs: GraphSet, session: Session) -> Iterator[Diagnostic]:
    """GS752 and GS753 of every padded run of graphs that were just captured; nothing is left of them.

    A warning where a size cannot be run by eager, so that there is nothing to be equal to.
    """
    plan = context.plan
    padded = {
        name: [case for case in cases(sequence, _unshown(plan, sequence), plan.exact) if case.padded]
        for name, sequence in plan.sequences.items()
    }
    if not any(padded.values()):
        return
    stage = _Stage(context, graphs, session)
    try:
        for name, each in padded.items():
            for case in each:
                found = stage.judged(name, case)
                yield from found
                if any(one.severity == "error" for one in found):  # smaller buckets would repeat it
                    break
    finally:
        stage.leave()


def _unshown(plan: Plan, sequence: Sequence) -> dict[str, int]:
    """The dims that nothing shows which a run is given: it has all rows of them."""
    shapes = [plan.buffers[name].shape or () for name in sequence.inputs]
    shapes += [plan.params[name].shape for name in sequence.params]
    shown = {axis.dim for shape in shapes for axis in shape if isinstance(axis, DimSize)}
    return {dim: plan.largest[dim] for dim in sequence.dims if dim not in shown}


class _Given:
    """The one set of graphs there is, in the place of all variants."""

    def __init__(self, graphs: GraphSet) -> None:
        self._graphs = graphs
        self.forget: list[Callable[[], None]] = []

    def graphs(self, variant: Variant) -> GraphSet:  # noqa: ARG002 - there is one
        return self._graphs

    def check(self, variant: Variant) -> None:
        """Nothing has moved since the capture."""

    def guard(self, variant: Variant) -> None:
        """Nothing to ask, so these runs go the long way."""


class _Stage:
    """Sequences over graphs that nobody has run yet, with a memory of their own."""

    def __init__(self, context: Context, graphs: GraphSet, session: Session) -> None:
        self._context = context
        self._graphs = graphs
        self._session = session
        self._memory = memory = Memory(
            context.plan,
            context.buffers,
            context.shared.clock,
            aliases=False,  # a rewind knows storages, not memory
        )
        self._states = States(context.plan, context.buffers, memory, context.shared)
        gate = Gate(context.backend, context.shared)
        gate.captured = True
        given: Any = _Given(graphs)
        opened = Opened(context, memory, gate, given, Remembered(), Stats(), _no_net)
        self._sequences = {name: BoundSequence(opened, each) for name, each in context.plan.sequences.items()}
        self._generators = tuple(generator for _, generator in session.reach.generators)
        others = written(session, session.written)
        self._carried = Carried(context.plan, self._states, {**others, **self._written()})
        self._fresh = [tensor for tensor in self._written().values() if _is_fresh(tensor)]

    def judged(self, name: str, case: Case) -> list[Diagnostic]:
        """What one padded run shows; a warning where eager or the samples do not go with its sizes."""
        plan = self._context.plan
        bench = Bench(self._replay(name, case), self._eager(name, case), self._carried, self._generators)
        tolerance = Tolerance.of(plan.check, resized=True)
        self._rewind()
        try:
            values = self._values(plan.sequences[name], case)
            return _judged(self, Trial(plan, bench, case, values, tolerance, chosen=False), name)
        except (ModelError, InputError, OrderError, CaptureError) as error:
            return [_unproven(plan, name, case, error)]
        finally:
            self._rewind()

    def _rewind(self) -> None:
        """Back to the capture; also what eager code has created, which a capture would take for lazily made."""
        created = self._session.rewind().created
        if created:
            self._session.forget(created)

    def leave(self) -> None:
        """Forget that anything ran."""
        self._memory.vanish()
        for captured in self._graphs.regions.values():
            captured.homes.stamp.at = 0

    def _values(self, sequence: Sequence, case: Case) -> dict[str, Any]:
        """Sampled inputs of the real sizes, and params that choose these graphs."""
        context = self._context
        sizes = {**context.plan.largest, **dict(case.sizes)}
        absent = self._graphs.variant.absent
        names = tuple(name for name in sequence.inputs if name not in absent)
        inputs = context.sample_inputs(names, sizes, context.plan.seed)
        special = dict(self._graphs.variant.special)
        return {**inputs, **{name: special[name] for name in sequence.params if name in special}}

    def _begin(self, name: str, case: Case) -> None:
        """The state there was at the capture, and what ``name`` reads of other sequences, made at the same sizes."""
        self._rewind()
        self._session.expect_writes(tensor for each in self._recordings() for tensor in each.written_outside())
        self._memory.rewound()
        with torch.no_grad():
            for number, tensor in enumerate(self._fresh):
                tensor.copy_(_numbers(tensor, number))
        for other in _before(self._context.plan, name):
            sizes = dict(case.sizes)
            sequence = self._context.plan.sequences[other]
            own = Case(tuple((dim, sizes.get(dim, self._context.plan.largest[dim])) for dim in sequence.dims), None)
            self._sequences[other].run(self._values(sequence, own))

    def _replay(self, name: str, case: Case) -> Callable[[Values, Fills | None], Mapping[str, Any]]:
        def replay(values: Values, fills: Fills | None) -> Mapping[str, Any]:
            self._begin(name, case)
            return self._kept(self._sequences[name].run(values, fills))

        return replay

    def _eager(self, name: str, case: Case) -> Callable[[Values], Mapping[str, Any]]:
        def eager(values: Values) -> Mapping[str, Any]:
            self._begin(name, case)
            return self._kept(self._sequences[name].eager(values))

        return eager

    def _kept(self, results: Mapping[str, Any]) -> Mapping[str, Any]:
        self._session.keep(results)
        return results

    def _recordings(self) -> Iterator[Any]:
        return (captured.graph.recording for captured in self._graphs.regions.values())

    def _written(self) -> dict[str, torch.Tensor]:
        """The tensors of the model that the graphs write, one name for each storage."""
        keys = {tensor.untyped_storage()._cdata for each in self._recordings() for tensor in each.written_outside()}
        found: dict[int, tuple[str, torch.Tensor]] = {}
        for slot, tensor in self._session.reach.tensors:
            if tensor.layout is torch.strided and tensor.untyped_storage()._cdata in keys:
                found.setdefault(tensor.untyped_storage()._cdata, (slot.name, tensor))
        return dict(found.values())

    def writer(self, label: str) -> str | None:
        """The region whose graphs write a tensor, by the name that a message gives it."""
        keys = {name: tensor.untyped_storage()._cdata for name, tensor in self._written().items()}
        keys |= {
            path if path != name else f"state {name}": tensor.untyped_storage()._cdata
            for name in self._states
            for path, tensor in self._states.tensors(name).items()
        }
        for captured in self._graphs.regions.values():
            written = captured.graph.recording.written_outside()
            if any(tensor.untyped_storage()._cdata == keys.get(label) for tensor in written):
                return captured.plan.region
        return None


def _is_fresh(tensor: torch.Tensor) -> bool:
    """Whether nobody has written a tensor of floats since it was made with zeros."""
    return tensor.is_floating_point() and tensor.itemsize > 1 and not bool(tensor.any())


def _numbers(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """Numbers between a half and one in the shape of a tensor."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(tensor.shape, generator=generator, dtype=torch.float32) / 2 + 0.5
    return drawn.to(tensor.device, tensor.dtype)


def _judged(stage: _Stage, trial: Trial, name: str) -> list[Diagnostic]:
    plan = trial.plan
    found = trial.bench.compared(trial.values, trial.tolerance).first
    if found is not None:
        said = f"at {trial.case}, {described(found, ('in eager', 'in replay'), trial.tolerance)}"
        writer = stage.writer(found.what)
        meant = writer is None and _says_what_padding_is(plan, name)
        return laws.judge_padded(plan, PaddedRun(name, found.what, said, writer, meant=meant))
    proof = prove(trial)
    if proof.failure is None:
        return []
    what = proof.what or ""
    said = f"only what padded rows hold now, zeros, keeps a run right: {proof.failure}"
    return laws.judge_padded(plan, PaddedRun(name, what, said, stage.writer(what), proof.fix, meant=True))


def _says_what_padding_is(plan: Plan, name: str) -> bool:
    """Whether a sequence reads rows whose content the user chose, or the size of the bucket."""
    wires = (wire.value for step in plan.sequences[name].steps for wire in plan.regions[step].reads)
    read = [plan.buffers[each].declared for each in wires if each in plan.buffers]
    padded = any(each.pad is not None and plan.buffers[each.name].dims for each in read)
    return padded or any(isinstance(each.source, FromSize) and each.source.bucket for each in read)


def _unproven(plan: Plan, name: str, case: Case, error: GraphSpecError) -> Diagnostic:
    message = f"sequence '{name}': that padded rows reach nothing is not shown at {case}: {error.message}"
    found = Diagnostic("GS753", message, severity="warning", path=("replay",), hint=_SAMPLES)
    return placed(plan.document, found, key=True)


_SAMPLES = "give each input a `sample` that fits at every size"


def _before(plan: Plan, name: str) -> list[str]:
    """The other sequences that make what this one reads of earlier runs, in the order in which they run."""
    makers = {step: other for other, each in reversed(list(plan.sequences.items())) for step in each.steps}
    needed: list[str] = []

    def need(sequence: str) -> None:
        made: set[str] = set()
        for step in plan.sequences[sequence].steps:
            region = plan.regions[step]
            for wire in region.reads:
                state = wire.value in plan.buffers and plan.buffers[wire.value].role == "state"
                if wire.producer is None or wire.value in made or wire.producer not in makers or state:
                    continue
                other = makers[wire.producer]
                if other not in (name, sequence, *needed):
                    need(other)
                    needed.append(other)
            made.update(region.outputs)

    need(name)
    return list(dict.fromkeys(needed))


def _no_net(*_: Any) -> dict[str, Any]:
    message = "the proof runs no net"
    raise AssertionError(message)
