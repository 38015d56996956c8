"""A program drawn from a seed: regions that make, keep, write, alias and reshape values, and what is run of them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from random_programs.language import ROWS, Program, Region, Step

#: Programs that share one spec: the steps of each are a script of their own.
SHARED = 4

#: Bodies by kind: ``{a}`` and ``{b}`` are values, ``{s}`` a state, ``{c}`` a number. Rows stay apart in all of them.
CAPTURED = {
    "fresh": "return {a} * {c} + {b}",
    "local": "h = {a} + {c}\nh.mul_(2)\nreturn h - {b}",
    "steps": "return {s} * 0.5 + {a}, {s} + {b}",
    "in place": "{s}.mul_(0.5).add_({a})\nreturn {s} * 1",
    "weights": "self.w.mul_(0.75)\nreturn {a} * self.w",
    "reads": "return {a} + self.w",
    "alias": "return {a}",
    "view": "return {a}.view(-1, 2)",
    "writes": "{a}.mul_(0.5)\nreturn {a} + {b}",
}
EAGER = {
    "fresh": "return {a} * {c} + {b}",
    "keeps": "self.log = [*self.log[-2:], {a}]\nreturn {a} + {c}",
    "keeps its own": "h = {a} * {c}\nself.log = [*self.log[-2:], h]\nreturn h",
    "previous": "h = {a} - self.prev.mean() if self.prev is not None else {a} * 1\nself.prev = {a}\nreturn h",
    "late": "return {a} + sum(each.mean() for each in self.log)",
    "writes": "{a}.mul_(0.5)\nreturn {a} + {b}",
    "writes kept": "for each in self.log:\n    each.add_(1)\nreturn {a} * {c}",
    "state": "{s}.add_({a})\nreturn {s} * 1",
    "steps": "return {s} * 0.5 + {a}, {s} + {b}",
    "alias": "return {a}",
    "view": "return {a}.view(-1, 2)",
    "weights": "self.w.mul_(0.75)\nreturn {a} * self.w",
    "turns": "{a}.t_()\nh = {a}.t() * {c}\n{a}.t_()\nreturn h",
    "reshapes": "{a}.unsqueeze_(0)\nreturn {a}.squeeze(0) * {c}",
    "bomb": "self.log = [*self.log[-2:], {a} * 1]\nif self.bomb:\n    raise ValueError('bomb')\nreturn {a} * {c}",
}
#: What makes a tensor that lies in the memory of another.
ALIASING = frozenset({"alias", "view"})
_RARE = frozenset({"writes", "reshapes", "alias", "view"})


def draw(seed: int) -> Program:
    """The program that this seed and those beside it (`SHARED`) share, with a script for each of them."""
    seed -= seed % SHARED
    rng = random.Random(seed)  # noqa: S311  not for secrets
    sizes = rng.choice(((), (2, 4), (1, 4), (4,)))
    fallback = bool(sizes) and rng.random() < 0.25
    states = () if fallback else ("s",) * (rng.random() < 0.6) + ("t",) * (rng.random() < 0.2)
    optional, param = rng.random() < 0.3, rng.random() < 0.2
    made: list[str] = []
    regions: list[Region] = []
    pools = ("p", "q") if rng.random() < 0.5 else ("p",)
    for number in range(rng.randint(2, 4)):
        region = _region(rng, number, states, made, optional=optional, param=param, pools=pools)
        regions.append(region)
        made += [name for name in region.outputs if name not in states]
    sequences = _sequences(rng, [region.name for region in regions])
    regions = [_shows_rows(region, sequences, regions) for region in regions]
    declared = frozenset(made)
    captured = {name for region in regions if not region.eager for name in region.outputs} - set(states)
    lent = frozenset(name for name in sorted(captured) if rng.random() < 0.3)
    static = frozenset(name for name in made if name not in lent and rng.random() < 0.15)
    program = Program(
        seed, sizes, tuple(regions), sequences, states, optional and _used(regions, "m"), param and _used(regions, "k"),
        fallback, lent, static, declared,
    )  # fmt: skip
    scripts = tuple(_script(random.Random(f"{seed}/{number}"), program) for number in range(SHARED))  # noqa: S311
    return Program(**{**vars(program), "scripts": scripts})


def _region(
    rng: random.Random, number: int, states: Sequence[str], made: Sequence[str], *, optional: bool, param: bool,
    pools: Sequence[str],
) -> Region:  # fmt: skip
    eager = rng.random() < 0.4
    bodies = EAGER if eager else CAPTURED
    kinds = [kind for kind, body in bodies.items() if states or "{s}" not in body]
    kind = rng.choice(kinds)
    if kind in _RARE and rng.random() < 0.4:
        kind = "fresh"
    values = ["x", *made[-3:], *made[-1:]]
    own = [each for each in values if each != "x"]
    if kind in _RARE and not own:
        kind = "fresh"
    a = rng.choice(own if kind in _RARE and rng.random() < 0.95 else values)
    b = rng.choice([*values, *states])
    if kind in ("alias", "view", "keeps") and states and rng.random() < 0.3:
        a = rng.choice(states)
    s = rng.choice(states) if states else ""
    body = bodies[kind].format(a=a, b=b, s=s, c=rng.choice((2, -1, 0.5)))
    reads = [name for name in ("x", "m", *made, *states) if name in (a, b if "{b}" in bodies[kind] else a)]
    reads += [s] if "{s}" in bodies[kind] and s not in reads else []
    if kind == "fresh" and optional and rng.random() < 0.7:
        reads.append("m")
        body = f"if m is None:\n    return {a} * 3\nreturn {a} + m"
    if kind == "fresh" and param and rng.random() < 0.7:
        reads.append("k")
        body = body.replace("return ", "return k * ")
    outputs = (s, f"v{number}") if kind == "steps" else (f"v{number}",)
    used = [name for name in reads if name in body]
    return Region(
        f"r{number}", kind, body, tuple(dict.fromkeys(used)), outputs, eager, None if eager else rng.choice(pools)
    )


def _sequences(rng: random.Random, names: list[str]) -> dict[str, tuple[str, ...]]:
    """All in a row, or cut in two; and sometimes one that repeats some of them."""
    cut = rng.randint(1, len(names) - 1)
    found = {"all": tuple(names)} if rng.random() < 0.4 else {"a": tuple(names[:cut]), "b": tuple(names[cut:])}
    if rng.random() < 0.4:
        again = tuple(name for name in names if rng.random() < 0.6)
        if again and again not in found.values():
            found["c"] = again
    return found


def _shows_rows(region: Region, sequences: dict[str, tuple[str, ...]], regions: Sequence[Region]) -> Region:
    """Every sequence is given rows: where none of its regions reads the input, the first one does."""
    by_name = {each.name: each for each in regions}
    for steps in sequences.values():
        if steps[0] == region.name and not any("x" in by_name[step].reads for step in steps):
            body = region.body if "x" in region.reads else f"x = x * 1\n{region.body}"
            return Region(**{**vars(region), "reads": tuple(dict.fromkeys((*region.reads, "x"))), "body": body})
    return region


def _used(regions: Sequence[Region], name: str) -> bool:
    return any(name in region.reads for region in regions)


def _script(rng: random.Random, program: Program) -> tuple[Step, ...]:
    steps = []
    for _ in range(rng.randint(4, 7)):
        kind = "run"
        if rng.random() < 0.3:
            kinds = ["reset", "write", "scale", "bad", "recapture"]
            kinds += ["read"] * 4 if program.lent else []
            kinds += ["bomb"] * 3 if any(region.kind == "bomb" for region in program.regions) else []
            kind = rng.choice(kinds)
            if kind == "recapture" and rng.random() < 0.6:
                kind = "run"
        most = program.largest + 2 if program.fallback else program.largest
        rows = rng.choice((rng.randint(1, most), program.largest)) if program.sizes else ROWS
        params = (("k", rng.choice((1, 2, 3))),) if program.param and rng.random() < 0.5 else ()
        absent = program.optional and rng.random() < 0.5
        steps.append(Step(kind, rng.choice([*program.sequences]), rows, rng.randrange(10**6), absent, params))
    return tuple(steps)
