"""Every rule, in one list. A new rule is a function here, a code in `graphspec.codes`, and a golden test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from graphspec.errors import Diagnostic
from graphspec.rules import (
    compilers,
    files,
    graphs,
    paths,
    references,
    roles,
    sequences,
    sizes,
    states,
    support,
    training,
    unsaid,
    updates,
    values,
    variants,
)
from graphspec.spec import Spec

Rule = Callable[[Spec], Iterator[Diagnostic]]

#: Rules that hold for any spec that passed the schema.
RULES: Final[tuple[Rule, ...]] = (
    references.unknown_values,
    references.model_owned_arguments,
    references.scratch_rows,
    references.names_with_two_meanings,
    references.written_inputs,
    references.unmade_outputs,
    references.unknown_dims,
    references.unknown_params,
    references.unused,
    sequences.unknown_regions,
    sequences.pools,
    sequences.pool_names,
    sequences.missing_replay,
    sequences.inline_in_replay,
    sequences.never_replayed,
    sequences.unknown_conditions,
    sequences.conditions,
    sequences.nested_loops,
    paths.outside_model,
    paths.stray_globs,
    files.missing_functions,
    files.weights,
    files.samples,
    roles.keys_of_other_roles,
    roles.missing_keys,
    roles.model_owned,
    roles.contradictions,
    roles.region_keys,
    roles.pads,
    roles.layouts,
    values.params,
    values.buffers,
    values.samples,
    values.sources,
    values.copies,
    values.tolerances,
    sizes.lists,
    sizes.runs,
    sizes.combinations,
    sizes.padding,
    sizes.free_axes,
    updates.operators,
    updates.occurrences,
    updates.spread,
    updates.overlaps,
    updates.specialized,
    compilers.options,
    compilers.modes,
    compilers.devices,
    compilers.engines,
    compilers.updates,
    support.not_yet,
)

#: Rules that follow values through regions, and so need every name to resolve.
RESOLVED_RULES: Final[tuple[Rule, ...]] = (
    sequences.loops_that_cannot_end,
    variants.combinations,
    graphs.uncuttable_results,
    graphs.too_many,
    graphs.fallback_with_state,
    unsaid.uncut_reads,
    unsaid.unnamed_sizes,
    graphs.buffers_over_budget,
    training.padded_training,
)

#: Rules that only warn of what a spec leads to, and say so of one that holds: a mistake elsewhere may be the reason.
ADVICE: Final[tuple[Rule, ...]] = (
    states.padded_states,
    states.one_way,
)

#: Findings after which some name stands for nothing, or for two things.
_NAME_CODES: Final = frozenset({"GS201", "GS202", "GS205", "GS210", "GS211", "GS401", "GS402", "GS403", "GS404"})


def breaks_names(finding: Diagnostic) -> bool:
    """Whether rules that follow names would mislead after this finding."""
    return finding.severity == "error" and finding.code in _NAME_CODES
