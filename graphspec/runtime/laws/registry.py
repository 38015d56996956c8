"""Every law: what a capture refuses, or warns of, with its codes. `run` and `check` judge by these and no others.

A law is a pure function of what was seen. It is asked of one call, of one pass over all regions, of two calls of a
region on other inputs and params, of a run that followed another, of a very first call, or of one region at two sizes.
A new law is a function in this folder, a line here, its code in ``graphspec.codes``, and an example in ``tests/laws``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from graphspec.errors import Diagnostic
from graphspec.finding import placed
from graphspec.plan import Plan
from graphspec.runtime.laws import (
    breaks,
    comparisons,
    compiled,
    gradients,
    host_state,
    host_tensors,
    kept,
    memory,
    params,
    results,
    rows,
)
from graphspec.runtime.laws.evidence import Facts, PaddedRun, Pair, Resized
from graphspec.runtime.opened.regions import UnboundError
from graphspec.runtime.rehearsal.observation import Observation, Rehearsal

#: ``captured ...``: of a capture whose calls were rehearsed and judged before. ``runs``: a pair on the same inputs and
#: params, with no rewind between, so that whatever differs was left by the first.
Evidence = Literal[
    "call", "captured call", "pass", "captured pass", "pair", "runs", "next run", "first call", "sizes",
    "captured sizes", "padded run", "compiled call",
]  # fmt: skip


@dataclass(frozen=True)
class Law:
    """One law and the codes of its findings. ``also``: other evidence of the same form that it is asked of.

    ``last``: it is asked only where no law before it found anything.
    """

    asks: Evidence
    judge: Callable[..., Iterable[Diagnostic]]
    codes: tuple[str, ...]
    also: Evidence | None = None
    last: bool = False


#: In the order in which they are asked.
#: The number of a layer in a name: `model.layers.3.cache`, `caches[3]`.
_NUMBER = re.compile(r"(?<=[a-zA-Z_]\.)\d+\b|(?<=\[)\d+(?=\])")

LAWS: tuple[Law, ...] = (
    Law("call", results.hazards, tuple(results.HAZARD_CODES)),
    Law("call", params.unfit_updates, ("GS510",)),
    Law("call", memory.written_inputs, ("GS724",)),
    Law("call", memory.reshaped_inputs, ("GS724",)),
    Law("call", memory.written_eager_values, ("GS729",)),
    Law("call", memory.written_originals, ("GS750",)),
    Law("call", memory.handed_eager_values, ("GS750",)),
    Law("call", memory.overtaken_outputs, ("GS729",)),
    Law("call", memory.written_results, ("GS729",)),
    Law("call", memory.stale_views, ("GS729",)),
    Law("call", kept.kept_inputs, ("GS720",), also="captured call"),
    Law("call", host_tensors.host_tensors, ("GS746",)),
    Law("call", host_tensors.off_the_device, ("GS746",)),
    Law("call", results.misfits, ("GS742",)),
    Law("call", gradients.found_gradients, ("GS760",)),
    Law("call", compiled.random_numbers, ("GS770",)),
    Law("call", compiled.uncompilable, ("GS771",)),
    Law("call", breaks.unmet_breaks, ("GS754",)),
    Law("compiled call", compiled.lost_updates, ("GS772",)),
    Law("pass", results.ended_calls, ("GS740", "GS741", "GS742", "GS743", "GS744", "GS748", "GS749")),
    Law("pass", memory.reshaped_by_eager, ("GS751",)),
    Law("pass", host_state.changed_host_values, ("GS725",), also="captured pass"),
    Law("pass", host_state.replaced_tensors, ("GS726",), also="captured pass"),
    Law("pass", host_state.put_for_others, ("GS726", "GS745"), also="captured pass"),
    Law("pass", host_state.drawn_on_the_host, ("GS727",), also="captured pass"),
    Law("pair", comparisons.other_calls, ("GS511", "GS721", "GS722"), also="runs"),
    Law("pair", comparisons.other_constants, ("GS722",), also="runs"),
    Law("pair", comparisons.params_passed_on, ("GS510", "GS722")),
    Law("pair", breaks.frozen_arguments, ("GS755",)),
    Law("pair", comparisons.fresh_memory, ("GS720",), last=True),
    Law("next run", host_state.kept_for_the_next_run, ("GS726",)),
    Law("next run", host_state.other_contents, ("GS725",)),
    Law("first call", comparisons.first_call_of_its_own, ("GS721",)),
    Law("sizes", rows.written_rows, ("GS752",), also="captured sizes"),
    Law("sizes", rows.padded_mixing, ("GS747",)),
    Law("padded run", rows.padded_run, ("GS752", "GS753")),
)


def judge_pass(opened: Facts, run: Rehearsal) -> list[Diagnostic]:
    """What the laws find in one judged pass: in each call, then in all of it."""
    found: list[Diagnostic] = []
    for seen in run.observations():
        found += _asked(opened.plan, seen.region, "call", opened, seen)
    return [*found, *_asked(opened.plan, "", "pass", opened, run)]


def judge_pair(opened: Facts, pair: Pair) -> list[Diagnostic]:
    """What the laws find in two calls of a region."""
    return _asked(opened.plan, pair.region, "pair", opened, pair)


def judge_compiled(opened: Facts, uncompiled: Observation, seen: Observation) -> list[Diagnostic]:
    """What the laws find in a compiled call of a region, beside an uncompiled one on the same inputs and params."""
    return _asked(opened.plan, seen.region, "compiled call", opened, uncompiled, seen)


def judge_next_run(opened: Facts, first: Rehearsal, following: Rehearsal) -> list[Diagnostic]:
    """What the laws find in a run that followed ``first`` with no rewind between."""
    found = judge_runs(opened, first, following)
    return [*found, *_asked(opened.plan, "", "next run", opened, first, following)]


def judge_runs(opened: Facts, first: Rehearsal, following: Rehearsal) -> list[Diagnostic]:
    """What the laws find in each region's calls of two passes on the same inputs and params."""
    found: list[Diagnostic] = []
    for seen in following.observations():
        before = first.of(seen.region)
        if before is not None and seen.ended is None:
            pair = Pair(before, seen, (first.params, following.params))
            found += _asked(opened.plan, seen.region, "runs", opened, pair)
    return found


def judge_first_call(opened: Facts, first: Observation, later: Observation) -> list[Diagnostic]:
    """What the very first call of a region did otherwise than later ones on the same inputs."""
    return _asked(opened.plan, first.region, "first call", opened, first, later)


def judge_sizes(opened: Facts, seen: Resized, *, captured: bool = False) -> list[Diagnostic]:
    """What the laws find in one region at two sizes of a dim; ``captured``: those that a capture asks too."""
    return _asked(opened.plan, seen.region, "captured sizes" if captured else "sizes", opened, seen)


def judge_padded(plan: Plan, run: PaddedRun) -> list[Diagnostic]:
    """What the laws say of a padded run that is not as it should be."""
    return _asked(plan, "", "padded run", plan, run)


def judge_kept(opened: Facts, seen: Observation) -> list[Diagnostic]:
    """What a captured call reads of what earlier calls kept."""
    return _asked(opened.plan, seen.region, "captured call", opened, seen)


def judge_host_state(opened: Facts, run: Rehearsal) -> list[Diagnostic]:
    """What the laws of the host's state find in a pass whose calls were judged before."""
    return _asked(opened.plan, "", "captured pass", opened, run)


def unbound(plan: Plan, errors: Iterable[UnboundError]) -> list[Diagnostic]:
    """GS740: paths of regions that the model does not have."""
    return [placed(plan.document, Diagnostic("GS740", e.message, path=e.path, hint=e.hint)) for e in errors]


def refused(findings: Iterable[Diagnostic]) -> list[Diagnostic]:
    """The errors among findings."""
    return [each for each in findings if each.severity == "error"]


def _asked(plan: Plan, region: str, asks: Evidence, *evidence: Any) -> list[Diagnostic]:
    found: list[Diagnostic] = []
    for law in LAWS:
        if asks in (law.asks, law.also) and not (law.last and found):
            found += (_at_its_place(plan, region, each) for each in law.judge(*evidence))
    return _counted(found)


def _counted(found: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Findings that differ by the number in a name, as those of a model's layers do, as one with a count."""
    groups: dict[tuple[object, ...], list[Diagnostic]] = {}
    for each in found:
        place = (each.code, each.severity, each.file, each.line, each.path)
        groups.setdefault((*place, _NUMBER.sub("#", each.message)), []).append(each)
    return [_one_of(group) for group in groups.values()]


def _one_of(group: Sequence[Diagnostic]) -> Diagnostic:
    first, *others = group
    messages = {each.message for each in group}
    if len(messages) == 1:
        return first
    words = first.message.split(" ")
    differing = next(at for at, word in enumerate(words) if any(each.split(" ")[at] != word for each in messages))
    names = {each.message.split(" ")[differing] for each in others} - {words[differing]}
    words[differing] += f" (and {len(names)} more like it)"
    return replace(first, message=" ".join(words))


def _at_its_place(plan: Plan, region: str, found: Diagnostic) -> Diagnostic:
    """A finding with a line: its own in the model, its key in the spec, or the region that it is about."""
    if found.file is not None:
        return found
    if found.path:
        return placed(plan.document, found, key=len(found.path) == 2)  # noqa: PLR2004 - a region or a buffer as such
    region = region or next((name for name in plan.regions if f"region '{name}'" in found.message), "")
    return placed(plan.document, replace(found, path=("regions", region)), key=True) if region else found


def codes() -> Iterator[str]:
    """Every code that a law may find."""
    yield from dict.fromkeys(code for law in LAWS for code in law.codes)
