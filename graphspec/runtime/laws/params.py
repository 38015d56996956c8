"""Updates against what a region called."""

from __future__ import annotations

from collections.abc import Iterator

from graphspec.backends.updates import bind_updates
from graphspec.errors import Diagnostic, HazardError
from graphspec.runtime.laws.evidence import Facts
from graphspec.runtime.rehearsal.observation import Observation


def unfit_updates(opened: Facts, seen: Observation) -> Iterator[Diagnostic]:
    """GS510: an operator that was not called, an argument it does not take, a value that does not fit."""
    if seen.ended is not None:
        return
    region = opened.plan.regions[seen.region].declared
    try:
        bind_updates(region, seen.recording, seen.params, seen.other_params, opened.backend)
    except HazardError as error:
        yield from error.diagnostics
