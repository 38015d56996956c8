"""GS601: keys of the language that no backend runs yet. Each is refused here, so that none is silently ignored.

When a feature lands, its row goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from graphspec.errors import Diagnostic, KeyPath
from graphspec.finding import finding
from graphspec.rules.walk import data_at
from graphspec.spec import Spec

#: Regions are called without autograd, so no rewording of a step that trains makes it one that can be captured.
_TRAINING = "regions run without gradients, so train outside of the spec, and capture what only computes forward"

#: Keys of a region, the values that ask for the feature (None: any value), and what to do until it is there.
NOT_YET: Final[tuple[tuple[str, object, str], ...]] = (
    ("engine", "compiled", "remove it: graphspec captures by itself"),
    ("allow_unused", True, f"remove it: {_TRAINING}"),
)
#: The compilers that some backend runs.
BUILT: Final = frozenset({"inductor", "npugraph_ex"})


def not_yet(spec: Spec) -> Iterator[Diagnostic]:
    """GS601: one finding for each such key."""
    for name in spec.regions:
        written = data_at(spec, ("regions", name)) or {}
        for key, value, hint in NOT_YET:
            if key == "grads" and spec.regions[name].inline:
                continue
            if key in written and (value is None or written[key] == value):
                shown = f"{key}: {str(value).lower()}" if value is not None else key
                message = f"`{shown}` is not supported yet: no backend of this version runs it"
                yield finding(spec.document, "GS601", message, ("regions", name, key), key=True, hint=hint)
        yield from _compilers(spec, name)


def _compilers(spec: Spec, name: str) -> Iterator[Diagnostic]:
    region = spec.regions[name]
    path: KeyPath = ("regions", name, "compile")
    hint = "remove `compile`: graphspec captures the callable as it is"
    if region.compile is not None and region.compile.backend not in BUILT:
        message = f"`backend: {region.compile.backend}` is not supported yet: no backend of this version runs it"
        yield finding(spec.document, "GS601", message, (*path, "backend"), hint=hint)
    elif region.compile is not None and (region.inline or region.backward or region.trains):
        kind = "inline" if region.inline else "training"
        message = f"`compile` in the {kind} region '{name}' is not supported yet: no backend of this version runs it"
        yield finding(spec.document, "GS601", message, path, key=True, hint=hint)
