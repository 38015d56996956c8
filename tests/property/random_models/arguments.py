"""What a region is given: its arguments in the spec, and what they are in a world."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import torch

from random_models.body import Body
from random_models.language import Argument
from random_models.program import Program
from random_models.worlds import World


def draw_arguments(program: Program, param: str | None) -> tuple[Argument, ...]:
    """Values made so far, and sometimes a param, a constant, an object of the model, several values in one."""
    rng = program.rng
    weights = [_weight(name) for name in program.values]
    chosen = list(dict.fromkeys(rng.choices(program.values, weights, k=rng.choice((1, 2, 3, 4)))))
    if "x0" not in chosen and ("extra" in chosen or not any(_floating(program, name) for name in chosen)):
        chosen.append("x0")
    found = [Argument(name, name) for name in chosen]
    if param is not None:
        found.append(Argument(param, param))
    if "kind" in program.signature.params and rng.random() < 0.6:
        found.append(Argument("kind", "kind"))
    return (*found, *_structured(rng, chosen))


def _weight(name: str) -> float:
    return 3.0 if name.startswith(("x0", "h")) else 1.5 if name.startswith("s") else 1.0


def _structured(rng: random.Random, chosen: list[str]) -> list[Argument]:
    found = []
    if rng.random() < 0.07:
        found.append(Argument("fixed", {"const": rng.choice((0.5, 2, True))}))
    if rng.random() < 0.07:
        found.append(Argument("given", {"attr": rng.choice(("model.buf", "model.idx", "model.k0"))}))
    if rng.random() < 0.1:
        found.append(Argument("several", rng.choice(({"list": chosen}, {"dict": {name: name for name in chosen}}))))
    return found


def _floating(program: Program, name: str) -> bool:
    value = program.worlds.base.named[name]
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32


def taker(value: Any, params: Mapping[str, Any]) -> Callable[[World], Any]:
    """What an argument of the spec is in a world; ``params`` gives the values of params."""
    if isinstance(value, str):
        return lambda world: params[value] if value in params else world.named[value]
    ((key, inside),) = value.items()
    return {
        "const": lambda _: inside,
        "attr": lambda world: getattr(world.model, inside.partition(".")[2]),
        "list": lambda world: [world.named[name] for name in inside],
        "dict": lambda world: {name: world.named[name] for name in inside},
    }[key]


def unpack(program: Program, body: Body, arguments: tuple[Argument, ...]) -> None:
    """Statements that take arguments apart, or use those that no other statement would."""
    for each in arguments:
        if each.name == "extra":
            body.statement("extra = x0 if extra is None else extra")
        elif each.name == "kind":
            body.statement("{o} = F.relu({f}) if kind == 'lora' else F.silu({f})")
        elif each.name == "fixed":
            body.statement("{o} = {f} * fixed")
        elif each.name == "several":
            first = next(iter(next(iter(each.value.values()))))
            if first != "extra":
                body.statement("{o} = several[0]" if "list" in each.value else f"{{o}} = several['{first}']")
        elif isinstance(each.value, str) and isinstance(program.worlds.base.named.get(each.value), tuple):
            body.statement(f"{each.name}_0, {each.name}_1 = {each.name}")
