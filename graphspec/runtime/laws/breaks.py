"""What a captured region leaves eager (`break`)."""

from __future__ import annotations

from collections.abc import Iterator

from graphspec.errors import Diagnostic
from graphspec.runtime.breaks.given import given_params
from graphspec.runtime.laws.evidence import Facts, Pair
from graphspec.runtime.rehearsal.observation import Observation


def unmet_breaks(opened: Facts, seen: Observation) -> Iterator[Diagnostic]:
    """GS754: what `break` names is not called by the region."""
    met = {part.name for part in seen.parts}
    for number, name in enumerate(opened.plan.regions[seen.region].declared.breaks):
        if name not in met and seen.ended is None:
            what = "calls no such operator" if "::" in name else "calls no module at that path"
            hint = "operators are named as the model calls them, such as aten::scaled_dot_product_attention"
            if "::" not in name:
                hint = "give the path from what the factory returned, such as model.layers.*.attn; a module is called"
            path = ("regions", seen.region, "break", number)
            message = f"region '{seen.region}' is to stay eager at '{name}', and {what}"
            yield Diagnostic("GS754", message, path=path, hint=hint)


def frozen_arguments(_: Facts, pair: Pair) -> Iterator[Diagnostic]:
    """GS755: a host value that captured code hands to an eager part differs between runs, and is no param."""
    for given in given_params((pair.first.parts, pair.second.parts), (pair.first.params, pair.second.params)):
        if given.param is None:
            part = pair.second.parts[given.part]
            value = part.host[given.argument]
            message = (
                f"region '{pair.region}' gives '{part.name}' a host value ({type(value).__name__}) that it makes anew,"
                f" at {part.place}: a replay would give it that of the capture"
            )
            hint = "pass it in as a param, or let the part that stays eager read it itself"
            yield Diagnostic("GS755", message, file=part.place.file, line=part.place.line, hint=hint)
