"""GS2xx: sequences and pools name regions that exist and may be there."""

from __future__ import annotations

from collections.abc import Iterator

from graphspec.errors import Diagnostic, KeyPath
from graphspec.finding import finding
from graphspec.nearest import did_you_mean
from graphspec.rules.walk import loops, steps
from graphspec.spec import Spec, reads

#: How deep loops nest.
MOST_LOOPS = 4


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


def unknown_conditions(spec: Spec) -> Iterator[Diagnostic]:
    """GS201: a loop goes by a value that nobody makes."""
    made = {name for region in spec.regions.values() for name in region.outputs}
    for _, loop, path in loops(spec):
        name = loop.condition
        if name not in made | spec.buffers.keys() | spec.params.keys():
            message = f"the loop `while: {name}` names no buffer and no output of a region"
            hint = did_you_mean(name, {*made, *spec.buffers}, "name it under the outputs of a region of the loop")
            yield finding(spec.document, "GS201", message, path, hint=hint)


def loops_that_cannot_end(spec: Spec) -> Iterator[Diagnostic]:
    """GS305: nothing in a loop changes what it goes by."""
    for sequence, loop, path in loops(spec):
        name, body = loop.condition, spec.sequences[sequence][loop.first : loop.stop]
        regions = [spec.regions[each] for each in dict.fromkeys(body) if each in spec.regions]
        buffer = spec.buffers.get(name)
        if buffer is not None and buffer.role == "state":
            changed = buffer.attr is not None or any(name in (*reads(each), *each.outputs) for each in regions)
        else:
            changed = any(name in each.outputs for each in regions)
        if not changed:
            what = "a host value of the caller's" if name in spec.params else "an input of the caller's"
            given = name in spec.params or (buffer is not None and buffer.role == "input")
            why = f": it is {what}" if given else ""
            message = f"no region of the loop `while: {name}` makes '{name}', so the loop could not end{why}"
            hint = f"let a region of the loop return the new '{name}'"
            yield finding(spec.document, "GS305", message, path, hint=hint)


def conditions(spec: Spec) -> Iterator[Diagnostic]:
    """GS306: what a loop goes by is declared as something else than one bool."""
    for _, loop, path in loops(spec):
        buffer = spec.buffers.get(loop.condition)
        if buffer is None or (buffer.role == "state" and "*" in (buffer.attr or "")):
            if buffer is not None:
                message = f"the loop `while: {loop.condition}` goes by a state that may stand for several tensors"
                yield finding(spec.document, "GS306", message, path, hint="give the path of one tensor")
            continue
        wrong = []
        if buffer.dtype not in {None, "bool"}:
            wrong.append(f"of {buffer.dtype}")
        if buffer.shape is not None and any(axis != 1 for axis in buffer.shape):
            wrong.append(f"of the shape [{', '.join(map(str, buffer.shape))}]")
        if wrong:
            message = f"the loop `while: {loop.condition}` goes by one bool, and '{loop.condition}' is declared " + (
                " and ".join(wrong)
            )
            hint = "return a bool of one element from the region that makes it, such as active.any()"
            yield finding(spec.document, "GS306", message, path, hint=hint)


def nested_loops(spec: Spec) -> Iterator[Diagnostic]:
    """GS307: loops in loops, too deep to be followed."""
    for _, loop, path in loops(spec):
        if path[2:].count("do") == MOST_LOOPS:
            message = f"the loop `while: {loop.condition}` stands in {MOST_LOOPS} others; loops nest {MOST_LOOPS} deep"
            yield finding(spec.document, "GS307", message, path, hint="make the inner loops one region, `eager: true`")


def never_replayed(spec: Spec) -> Iterator[Diagnostic]:
    """GS209, a warning: a region in no sequence."""
    replayed = {name for names in spec.sequences.values() for name in names}
    for name, region in spec.regions.items():
        if spec.sequences and name not in replayed and not region.inline:
            message = f"region '{name}' is in no sequence of `replay`, so it never runs"
            yield finding(spec.document, "GS209", message, ("regions", name), key=True, severity="warning",
                          hint="add it to replay, or remove it")  # fmt: skip
