"""Tensors that warm-up made from its own inputs, and that a graph would go on reading."""

from __future__ import annotations

from collections.abc import Iterator

from graphspec.errors import Diagnostic
from graphspec.runtime.laws.evidence import Facts
from graphspec.runtime.rehearsal.observation import Observation


def kept_inputs(_: Facts, seen: Observation) -> Iterator[Diagnostic]:
    """GS720: what an earlier call computed from an input and kept, read in a later one."""
    for kept in seen.kept:
        message = (
            f"region '{seen.region}' reads a tensor {list(kept.shape)} that an earlier call made from an input and "
            f"kept, at {kept.site}: warm-up's input is not the caller's first one"
        )
        hint = "compute it in every call, or make it in __init__ from what does not depend on inputs"
        yield Diagnostic("GS720", message, file=kept.site.file, line=kept.site.line, hint=hint)
