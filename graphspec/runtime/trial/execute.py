"""`graphspec run` on an opened spec: one run for its results, the check against eager, the timing; one report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

import graphspec
from graphspec.report.run_values import Check, Counts, Output, ReportedGraph, RunReport, Timing
from graphspec.runtime.holdings.random_state import Ambient
from graphspec.runtime.holdings.reach import reach
from graphspec.runtime.opened.compilers import has_compiled
from graphspec.runtime.opened.context import GraphInfo
from graphspec.runtime.runner import Runner, open_spec
from graphspec.runtime.trial.check import check
from graphspec.runtime.trial.feed import Feed, Fixed
from graphspec.runtime.trial.subject import Progress, Subject, largest
from graphspec.runtime.trial.timing import measure
from graphspec.runtime.values.trees import owned
from graphspec.runtime.verify.carried import Carried, written_by
from graphspec.runtime.verify.compare import leaves
from graphspec.units import seconds


@dataclass(frozen=True)
class RunOptions:
    """``steps`` of the check and of the timing; ``fixed``: what the caller gave; ``check``: whether to compare."""

    steps: int = 20
    fixed: Fixed = field(default_factory=Fixed)
    check: bool = True


@dataclass(frozen=True)
class Executed:
    """The report, and the results of the first run by name."""

    report: RunReport
    results: Mapping[str, torch.Tensor]


def execute(runner: Runner, options: RunOptions, progress: Progress = lambda *_: None) -> Executed:
    """Run, check and time an opened spec. States and random streams are afterwards as before.

    The first run, whose results are reported, starts from the states there are, at the largest bucket or the fixed
    sizes. After a mismatch nothing is timed.
    """
    subject = _subject(runner, options.fixed)
    results = _first_results(subject)
    found = check(subject, options.steps, progress) if options.check else _skipped(runner)
    if runner.plan.check.every and found.failure is None:
        found = replace(found, notes=(*found.notes, _net(subject)))
    if found.failure is None:
        total, each = _timed(subject, options, progress)
    else:
        total, each = Timing("all sequences", "", 0, None, None, None), ()
    report = RunReport(
        version=graphspec.__version__,
        spec=runner.plan.name,
        device=str(runner.device),
        graphs=_graphs(runner),
        check=found,
        steps=options.steps,
        total=total,
        sequences=each,
        outputs={name: _output(value) for name, value in results.items()},
        counts=_counts(runner),
        warnings=runner.warnings,
        inline=_inline(runner),
    )
    return Executed(report, {name: value for name, value in results.items() if isinstance(value, torch.Tensor)})


def _timed(subject: Subject, options: RunOptions, progress: Progress) -> tuple[Timing, tuple[Timing, ...]]:
    """Replays against eager; where regions are compiled, against the same regions uncompiled too."""
    runner = subject.runner
    if not has_compiled(runner.plan):
        return measure(subject, options.steps, progress)
    progress("capture uncompiled, to compare", 0, 1)
    with open_spec(runner.plan, model=runner.model, device=str(runner.device), compile=False) as other:
        return measure(subject, options.steps, progress, _subject(other, options.fixed))


def _subject(runner: Runner, fixed: Fixed) -> Subject:
    feed = Feed(runner, runner.plan, fixed)
    generators = tuple(generator for _, generator in reach({"model": runner.model}).generators)
    calls = [
        partial(sequence.eager, feed(sequence.plan, largest(runner.plan, fixed, sequence), 0))
        for sequence in runner.sequences.values()
    ]
    carried = Carried(runner.plan, runner.state, *written_by(runner.model, calls))
    return Subject(runner, carried, feed, generators)


def _first_results(subject: Subject) -> dict[str, Any]:
    """The leaves of the results of every sequence, run once in declared order.

    Where two sequences give a result of one name, it is the last one's; the earlier is ``SEQUENCE.NAME``.
    """
    before, ambient = subject.carried.save(), Ambient.take(subject.generators)
    found: dict[str, dict[str, Any]] = {}
    for name, sequence in subject.runner.sequences.items():
        found[name] = owned(sequence.run(subject.feed(sequence.plan, subject.largest(sequence), 0)))
    subject.carried.restore(before)
    ambient.restore()
    last = {name: sequence for sequence, results in found.items() for name in results}
    return {
        place: leaf
        for sequence, results in found.items()
        for name, value in results.items()
        for place, leaf in leaves(value, name if last[name] == sequence else f"{sequence}.{name}")
    }


def _net(subject: Subject) -> str:
    """What the net costs: every sequence is verified once."""
    runner, every = subject.runner, subject.runner.plan.check.every
    before, ambient, verified = subject.carried.save(), Ambient.take(subject.generators), runner.stats.verify_s
    for sequence in runner.sequences.values():
        sequence.verify(**subject.feed(sequence.plan, subject.largest(sequence), 0))
    subject.carried.restore(before)
    ambient.restore()
    taken = (runner.stats.verify_s - verified) / len(runner.sequences)
    one = f"every {every:,}th run" if every > 1 else "every run"
    return f"{one} is repeated by eager: {seconds(taken)} more then, {seconds(taken / every)} a run; not in the times"


def _skipped(runner: Runner) -> Check:
    return Check("skipped", runner.plan.check.rtol, runner.plan.check.atol)


def _graphs(runner: Runner) -> tuple[ReportedGraph, ...]:
    """In the order of the plan; graphs of further variants (optional inputs, specialized params) after their first."""
    order = {(graph.region, graph.bucket): place for place, graph in enumerate(runner.plan.graphs)}
    found = sorted(runner.graphs, key=lambda graph: order[graph.region, graph.bucket])
    several = len({graph.variant for graph in found}) > 1
    return tuple(_reported(graph, (str(graph.variant) or "every input") if several else "") for graph in found)


def _inline(runner: Runner) -> tuple[ReportedGraph, ...]:
    return () if runner.inline is None else tuple(_reported(graph, "") for graph in runner.inline.graphs)


def _reported(graph: GraphInfo, variant: str) -> ReportedGraph:
    sizes = dict(graph.bucket.sizes)
    return ReportedGraph(
        graph.region, sizes, graph.pool, graph.operators, graph.bytes, graph.capture_s, variant, graph.compile_s
    )


def _output(value: Any) -> Output:
    if not isinstance(value, torch.Tensor):
        number = isinstance(value, int | float) and math.isfinite(value)
        return Output((), type(value).__name__, float(value) if number else None)
    mean = math.nan
    if value.numel() and not value.dtype.is_complex:
        mean = float(value.detach().cpu().to(torch.float64).mean())
    return Output(tuple(value.shape), str(value.dtype).removeprefix("torch."), mean if math.isfinite(mean) else None)


def _counts(runner: Runner) -> Counts:
    stats = runner.stats
    return Counts(stats.replays, dict(stats.bucket_hits), stats.padded_fraction, stats.fallbacks)
