"""What a region does with the gradients that it finds, held against what it says of them."""

from __future__ import annotations

from collections.abc import Iterator

from graphspec.errors import Diagnostic
from graphspec.runtime.laws.evidence import Facts
from graphspec.runtime.rehearsal.observation import Observation

_DOES = {"added": "adds to", "read": "reads"}


def found_gradients(opened: Facts, seen: Observation) -> Iterator[Diagnostic]:
    """GS760: `grads: overwrite` says that what is there is ignored, and the model's own code would not."""
    if opened.plan.regions[seen.region].declared.grads != "overwrite":
        return
    used = [each for each in seen.gradients if each.touch in _DOES]
    if used:
        first, more = used[0], f", and {len(used) - 1} more" if len(used) > 1 else ""
        message = f"region '{seen.region}' {_DOES[first.touch]} what it finds in {first.name}.grad{more}, and "
        message += "`grads: overwrite` says that this is ignored"
        hint = "call optimizer.zero_grad() before the backward, or write `grads: accumulate`"
        yield Diagnostic("GS760", message, path=("regions", seen.region, "grads"), hint=hint)
