"""A seed to a `Draw`: dims, buffers and params first, then region by region, statement by statement."""

from __future__ import annotations

import contextlib
import copy
from dataclasses import replace
from typing import Any

from random_models.arguments import draw_arguments, taker, unpack
from random_models.body import Body
from random_models.hazards import HAZARDS
from random_models.language import Argument, Draw, RegionDraw, names_in
from random_models.operators import STATEMENTS
from random_models.program import Program, begin
from random_models.returns import draw_returns
from random_models.runs import draw_runs
from random_models.updates import updates_for

#: The part of draws that hold a hazard, and must be refused.
ILLEGAL = 0.12
#: Another value of a param, to see which arguments follow it.
OTHER = {"int": 3, "float": 1.859375}


def draw(seed: int) -> Draw:
    """The random program of a seed."""
    program = begin(seed)
    drawer = _Drawer(program)
    regions = drawer.regions()
    signature, sequences = _used(program, regions), _sequences(program, regions)
    return Draw(
        seed=seed,
        init=signature.init,
        dims=signature.dims,
        params=signature.params,
        buffers=signature.buffers,
        pools=_pools(program, regions),
        regions=regions,
        sequences=sequences,
        runs=draw_runs(program.rng, signature, regions, sequences),
        padded=signature.padded,
        illegal=drawer.illegal,
    )


class _Drawer:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._random_ops = not program.signature.padded and program.rng.random() < 0.3
        self.illegal: str | None = None

    def regions(self) -> tuple[RegionDraw, ...]:
        rng = self._program.rng
        count = rng.choice((1, 1, 2, 2, 3))
        hazardous = rng.randrange(count) if rng.random() < ILLEGAL else None
        return tuple(
            self._region(number, hazardous=number == hazardous, last=number == count - 1) for number in range(count)
        )

    def _region(self, number: int, *, hazardous: bool, last: bool) -> RegionDraw:
        rng, worlds, params = self._program.rng, self._program.worlds, self._program.signature.params
        eager = not hazardous and not last and rng.random() < 0.2
        param = "p0" if "p0" in params and rng.random() < (0.4 if hazardous else 0.6) else None
        arguments = draw_arguments(self._program, param)
        values = {"kind": "lora", **({param: params[param]["default"]} if param else {})}
        worlds.enter({each.name: taker(each.value, values) for each in arguments})
        start: dict[str, Any] | None = None
        if param:
            with contextlib.suppress(RuntimeError):  # the model may hold a view of a parameter, which has no copy
                start = copy.deepcopy(worlds.base.local)
        body = Body(rng, worlds, eager=eager, random_ops=self._random_ops, param=param)
        unpack(self._program, body, arguments)
        if param and not hazardous:
            any(body.statement(rng.choice(STATEMENTS["param"])) for _ in range(8))
        body.fill(rng.choice((1, 2, 3, 4, 5, 7)))
        keys: dict[str, Any] = {"eager": True} if eager else {"warmup": rng.choice((0, 0, 1))}
        if hazardous:
            self._add_hazard(body, arguments, param)
        elif param and not eager:
            arguments, more = self._updated(body, arguments, param, start)
            keys |= more
        if eager and worlds.padded:
            worlds.same_rows()
        returns, outputs = draw_returns(self._program, number, last=last)
        return RegionDraw(f"r{number}", arguments, tuple(body.lines), returns, outputs, rng.random() < 0.3, keys)

    def _updated(
        self, body: Body, arguments: tuple[Argument, ...], param: str, start: dict[str, Any] | None
    ) -> tuple[tuple[Argument, ...], dict[str, Any]]:
        """The key `updates` for a param; where it reaches nothing as it is, a constant of the source in its place."""
        declared = self._program.signature.params[param]
        values = (declared["default"], OTHER[declared["type"]])
        updates = None if start is None else updates_for(start, body.lines, param, values)
        if updates is not None:
            return arguments, {"updates": updates}
        body.lines.insert(0, f"{param} = {declared['default']!r}")
        return tuple(each for each in arguments if each.name != param), {}

    def _add_hazard(self, body: Body, arguments: tuple[Argument, ...], param: str | None) -> None:
        worlds = self._program.worlds
        inputs = [each.name for each in arguments if each.name in worlds.inputs and each.name != "extra"]
        kinds = [
            kind for kind in HAZARDS if ("param" in kind) == (param is not None) and ("input" not in kind or inputs)
        ]
        for _ in range(6):
            kind = self._program.rng.choice(kinds)
            guarded = worlds.inputs
            worlds.inputs = set() if "input" in kind else guarded
            lines = body.hazard(kind, inputs)
            worlds.inputs = guarded
            if lines is not None:
                body.lines += lines
                self.illegal = kind
                return


def _used(program: Program, regions: tuple[RegionDraw, ...]) -> Any:
    """The signature with what the regions read and make, and no more."""
    used = {name for region in regions for each in region.arguments for name in names_in(each.value)}
    for region in regions:
        used.update([region.outputs] if isinstance(region.outputs, str) else region.outputs)
    buffers = {name: buffer for name, buffer in program.buffers.items() if name in used or "attr" in buffer}
    used |= {buffer["from"] for buffer in buffers.values() if isinstance(buffer.get("from"), str)}
    params = {name: param for name, param in program.signature.params.items() if name in used}
    return replace(program.signature, buffers=buffers, params=params)


def _pools(program: Program, regions: tuple[RegionDraw, ...]) -> dict[str, tuple[str, ...]]:
    """One pool for all captured regions, or all but one; or each has its own."""
    rng, captured = program.rng, [region.name for region in regions if not region.eager]
    if len(captured) == 3 and rng.random() < 0.3:
        captured.remove(rng.choice(captured))
    return {"shared": tuple(captured)} if len(captured) > 1 and rng.random() < 0.6 else {}


def _sequences(program: Program, regions: tuple[RegionDraw, ...]) -> dict[str, tuple[str, ...]]:
    """Every region in order, one sometimes twice; sometimes a second sequence of some of them, in any order."""
    rng, names = program.rng, [region.name for region in regions]
    steps = list(names)
    if len(names) > 1 and rng.random() < 0.15:
        again = rng.choice(names)
        steps.insert(rng.randint(names.index(again) + 1, len(steps)), again)
    if len(names) == 1 or rng.random() < 0.8:
        return {"replay": tuple(steps)}
    return {"first": tuple(steps), "second": tuple(rng.sample(names, rng.randint(1, len(names))))}
