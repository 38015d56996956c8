"""GS2xx: sequences and pools name regions that exist and may be there."""

from __future__ import annotations

from collections.abc import Iterator

from graphspec.errors import Diagnostic, KeyPath
from graphspec.finding import finding
from graphspec.nearest import did_you_mean
from graphspec.rules.walk import steps
from graphspec.spec import Spec


def unknown_regions(spec: Spec) -> Iterator[Diagnostic]:
    """GS205: `replay` or a pool names no region."""
    in_pools: Iterator[tuple[str, KeyPath]] = (
        (name, ("pools", pool, index)) for pool, names in spec.pools.items() for index, name in enumerate(names)
    )
    for name, path in (*steps(spec), *in_pools):
        if name not in spec.regions:
            hint = did_you_mean(name, spec.regions, "declare it under regions")
            yield finding(spec.document, "GS205", f"there is no region '{name}'", path, hint=hint)


def pools(spec: Spec) -> Iterator[Diagnostic]:
    """GS206 and GS207: a region is in one pool at most, once, and only if it is captured."""
    homes: dict[str, str] = {}
    for pool, names in spec.pools.items():
        for index, name in enumerate(names):
            region = spec.regions.get(name)
            if region is None:
                continue
            path = ("pools", pool, index)
            if name in homes:
                where = "twice" if homes[name] == pool else f"and in pool '{homes[name]}'"
                message = f"region '{name}' is in pool '{pool}' {where}; a region has one pool"
                yield finding(spec.document, "GS206", message, path, hint="remove one of the two")
            homes.setdefault(name, pool)
            if region.eager:
                message = f"region '{name}' is eager, so it has no graph and no place in pool '{pool}'"
                yield finding(spec.document, "GS207", message, path, hint="take it out of the pool")


def pool_names(spec: Spec) -> Iterator[Diagnostic]:
    """GS208: a pool bears the name of a region that has, or may have, a pool of that name for itself."""
    for pool, names in spec.pools.items():
        if pool in spec.regions and tuple(names) != (pool,):
            message = f"pool '{pool}' has the name of a region, whose own pool would bear it"
            yield finding(spec.document, "GS208", message, ("pools", pool), key=True, hint="rename the pool")


def missing_replay(spec: Spec) -> Iterator[Diagnostic]:
    """GS222: without `replay` there must be one region that it can mean."""
    captured = [name for name, region in spec.regions.items() if not region.inline]
    if not spec.sequences and len(captured) > 1:
        message = f"`replay` is missing, and there are {len(captured)} regions: their order decides what they read"
        yield finding(spec.document, "GS222", message, ("replay",), hint=f"add `replay: [{', '.join(captured[:8])}]`")


def inline_in_replay(spec: Spec) -> Iterator[Diagnostic]:
    """GS223: an inline region is replayed by the user's own loop."""
    for name, path in steps(spec):
        if name in spec.regions and spec.regions[name].inline:
            message = f"region '{name}' is inline: the code that calls the model replays it, not a sequence"
            yield finding(spec.document, "GS223", message, path, hint="take it out of replay")


def never_replayed(spec: Spec) -> Iterator[Diagnostic]:
    """GS209, a warning: a region in no sequence."""
    replayed = {name for names in spec.sequences.values() for name in names}
    for name, region in spec.regions.items():
        if spec.sequences and name not in replayed and not region.inline:
            message = f"region '{name}' is in no sequence of `replay`, so it never runs"
            yield finding(spec.document, "GS209", message, ("regions", name), key=True, severity="warning",
                          hint="add it to replay, or remove it")  # fmt: skip
