"""A seed to a `Draw`: dims, buffers and params first, then region by region, statement by statement."""

from __future__ import annotations

import contextlib
import copy
import random
from dataclasses import replace
from typing import Any

import torch

from random_models.body import Body, choose_returns, name_of
from random_models.hazards import HAZARDS
from random_models.interpret import model_from, module_text
from random_models.language import Argument, Draw, RegionDraw, names_in, written
from random_models.runs import draw_runs
from random_models.signature import Signature, draw_signature
from random_models.updates import updates_for
from random_models.values import make_input, make_param
from random_models.worlds import World, Worlds

#: The part of draws that hold a hazard, and must be refused.
ILLEGAL = 0.12


def draw(seed: int) -> Draw:
    """The random program of a seed."""
    return _Drawer(seed).draw()


class _Drawer:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._rng = random.Random(seed)  # noqa: S311
        self._signature: Signature = draw_signature(self._rng)
        self._buffers = {name: dict(buffer) for name, buffer in self._signature.buffers.items()}
        self._random_ops = not self._signature.padded and self._rng.random() < 0.3
        least = {dim: 1 if self._signature.padded else self._signature.sizes(dim)[0] for dim in self._signature.dims}
        text = module_text(self._signature.init, ())
        self._worlds = Worlds(
            lambda: model_from(text, "<draw>", seed), self._signature.bucketed, least, padded=self._signature.padded
        )
        self._values: list[str] = []
        self._results = 0
        self._illegal: str | None = None

    def draw(self) -> Draw:
        self._define_inputs()
        rng = self._rng
        count = rng.choice((1, 1, 2, 2, 3))
        hazardous = rng.randrange(count) if rng.random() < ILLEGAL else None
        regions = [self._region(number, hazardous=number == hazardous, last=number == count - 1) for number in range(count)]
        used = {name for region in regions for each in region.arguments for name in names_in(each.value)}
        used |= {name for region in regions for name in _outputs(region.outputs)}
        buffers = {name: buffer for name, buffer in self._buffers.items() if name in used or "attr" in buffer}
        sources = {buffer.get("from") for buffer in buffers.values() if isinstance(buffer.get("from"), str)}
        params = {name: param for name, param in self._signature.params.items() if name in used | sources}
        sequences = self._sequences(regions)
        signature = replace(self._signature, buffers=buffers, params=params)
        return Draw(
            self._seed, signature.init, self._used_dims(buffers, params), params, buffers, self._pools(regions),
            tuple(regions), sequences, draw_runs(rng, signature, tuple(regions), sequences), signature.padded, self._illegal,
        )  # fmt: skip

    # -- values of the spec

    def _define_inputs(self) -> None:
        worlds = self._worlds
        for name, buffer in self._buffers.items():
            if "attr" in buffer:
                continue
            source = buffer.get("from")
            if isinstance(source, dict):
                dim = next(iter(source.values()))
                number = worlds.base.sizes[dim]
                worlds.define(name, lambda _world, _number, number=number: torch.tensor(number))
            else:
                dtype = {"p1": "float32"}.get(source, "int64") if source else buffer["dtype"]
                made = {**buffer, "dtype": dtype}
                worlds.define(name, lambda world, number, made=made: self._made(made, world, number))
            if buffer.get("role") != "state":
                worlds.inputs.add(name)
            self._values.append(name)

    def _made(self, buffer: dict[str, Any], world: World, number: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self._seed * 31 + number)
        value = make_input(buffer, world.sizes, generator)
        return value * 40 if number in (1, 2) and value.is_floating_point() and self._worlds.padded else value

    # -- regions

    def _region(self, number: int, *, hazardous: bool, last: bool) -> RegionDraw:
        rng, worlds = self._rng, self._worlds
        eager = not hazardous and not last and rng.random() < 0.2
        param = "p0" if "p0" in self._signature.params and rng.random() < 0.6 else None
        if hazardous and rng.random() < 0.4:
            param = None
        arguments = self._arguments(param)
        value = self._signature.params["p0"]["default"] if param else None
        worlds.enter({each.name: self._taker(each.value, value) for each in arguments})
        start: dict[str, Any] | None = None
        if param:
            with contextlib.suppress(RuntimeError):  # the model may hold a view of a parameter, which has no copy
                start = copy.deepcopy(worlds.base.local)
        body = Body(rng, worlds, eager=eager, random_ops=self._random_ops, param=param)
        self._unpack(body, arguments)
        if param and not hazardous:
            self._with_param(body)
        body.fill(rng.choice((1, 2, 3, 4, 5, 7)))
        keys: dict[str, Any] = {"eager": True} if eager else {"warmup": rng.choice((0, 0, 1))}
        if param and not hazardous and not eager:
            updates = None if start is None else self._updates(body, start, param)
            if updates is None:  # the param reaches nothing, or not as it is
                arguments, body.lines = self._without(arguments, body, param)
            else:
                keys["updates"] = updates
        if hazardous:
            self._add_hazard(body, arguments, param)
        if eager and self._worlds.padded:
            worlds.same_rows()
        returns, outputs = self._outputs(number)
        keyword = rng.random() < 0.3
        return RegionDraw(f"r{number}", arguments, tuple(body.lines), returns, outputs, keyword, keys)

    def _arguments(self, param: str | None) -> tuple[Argument, ...]:
        rng = self._rng
        weights = [3.0 if name.startswith(("x0", "h")) else 1.5 if name.startswith("s") else 1.0 for name in self._values]
        chosen = dict.fromkeys(rng.choices(self._values, weights)[0] for _ in range(rng.choice((1, 2, 3, 4))))
        if not any(self._floating(name) for name in chosen) or "extra" in chosen:
            chosen["x0"] = None
        found = [Argument(name, name) for name in chosen]
        if param is not None:
            found.append(Argument(param, param))
        if "kind" in self._signature.params and rng.random() < 0.6:
            found.append(Argument("kind", "kind"))
        if rng.random() < 0.07:
            found.append(Argument("fixed", {"const": rng.choice((0.5, 2, True))}))
        if rng.random() < 0.07:
            found.append(Argument("given", {"attr": rng.choice(("model.buf", "model.idx", "model.k0"))}))
        if rng.random() < 0.1:
            names = list(chosen)
            found.append(Argument("several", rng.choice(({"list": names}, {"dict": {name: name for name in names}}))))
        return tuple(found)

    def _floating(self, name: str) -> bool:
        value = self._worlds.base.named[name]
        return isinstance(value, torch.Tensor) and value.dtype == torch.float32

    def _taker(self, value: Any, param: Any) -> Any:
        """What an argument of the spec is in a world."""
        if isinstance(value, str):
            if value == "kind":
                return lambda _: "lora"
            return (lambda _: param) if value.startswith("p0") else lambda world: world.named[value]
        ((key, inside),) = value.items()
        if key == "const":
            return lambda _: inside
        if key == "attr":
            return lambda world: getattr(world.model, inside.partition(".")[2])
        if key == "list":
            return lambda world: [world.named[name] for name in inside]
        return lambda world: {name: world.named[name] for name in inside}

    def _unpack(self, body: Body, arguments: tuple[Argument, ...]) -> None:
        """Statements that take arguments apart."""
        for each in arguments:
            if each.name == "extra":
                body.statement("extra = x0 if extra is None else extra")
            elif each.name == "kind":
                body.statement("{o} = {f} * 2 if kind == 'lora' else {f} + 1")
            elif each.name == "fixed":
                body.statement("{o} = {f} * fixed")
            elif each.name == "several":
                inside = "several[0]" if "list" in each.value else f"several['{next(iter(each.value['dict']))}']"
                if next(iter(next(iter(each.value.values())))) != "extra":
                    body.statement(f"{{o}} = {inside}")
            elif isinstance(each.value, str) and isinstance(self._worlds.base.named.get(each.value), tuple):
                body.statement(f"{each.name}_0, {each.name}_1 = {each.name}")

    def _with_param(self, body: Body) -> None:
        templates = (
            "{o} = {f} * {P}", "{o} = {f} + {P}", "{o} = {f} - {P}", "{o} = {f} / {P}", "{o} = {f}.clamp(max={P})", "{o} = F.leaky_relu({f}, {P})",
            "{o} = {f}.masked_fill({f} > 0, {P})", "{o} = torch.add({f}, {f2}, alpha={P})", "{o} = torch.full_like({f}, {P})", "{o} = {f}.new_full((2,), {P})",
            "{o} = torch.full((2, self.n), {P})", "{o} = torch.scalar_tensor({P})", "{o} = {f}.abs() ** {P}", "{o} = F.elu({f}, {P})", "{o} = torch.lerp({f}, {f2}, {P})",
            "{o} = {f}.clone().mul_({P})", "{o} = {f}.clone().fill_({P})", "{o} = {P} - {f}", "{o} = {P} / ({f}.abs() + 1)", "{o} = {f} > {P}", "{o} = {f}.fmod({P})",
            "{o} = torch.addcmul({f}, {f2}, {f2}, value={P})", "{o} = F.softplus({f}, {P})", "{o} = F.hardtanh({f}, -1.0, {P})", "{o} = torch._foreach_mul([{f}, {f2}], {P})[0]",
            "{o} = F.layer_norm({f}, (self.n,), eps={P})", "{o} = {f}.tril({P})", "{o} = {f}.roll({P}, -1)", "{o} = {f}.norm({P}, -1)", "{o} = F.pad({f}, (0, 0), value={P})",
            "{o} = torch.where({f} > 0, {f}, {P})", "{o} = {n} * {P}", "{o} = {n} + {P}", "{o} = F.dropout({f}, 0.0, True) * {P}", "{o} = {f}.index_fill(-1, self.idx, {P})",
            "{o} = {f}.pow({P})", "{o} = torch.pow({P}, {f}.clamp(-1, 1))", "{o} = torch.addmm(self.bias, {a}, self.w, beta={P})", "{o} = F.gelu({f}) * {P} + {P}", "{o} = torch.rsub({f}, {P})",
        )  # fmt: skip
        for _ in range(8):
            if body.statement(self._rng.choice(templates)):
                return

    def _updates(self, body: Body, start: Any, param: str) -> list[dict[str, Any]] | None:
        spec = self._signature.params[param]
        values = (spec["default"], 3 if spec["type"] == "int" else 1.859375)
        return updates_for(start, body.lines, param, values)

    def _without(self, arguments: tuple[Argument, ...], body: Body, param: str) -> tuple[tuple[Argument, ...], list[str]]:
        """The region with the param as a constant of the source instead."""
        value = repr(self._signature.params[param]["default"])
        lines = [f"{param} = {value}", *body.lines]
        return tuple(each for each in arguments if each.name != param), lines

    def _add_hazard(self, body: Body, arguments: tuple[Argument, ...], param: str | None) -> None:
        inputs = [each.name for each in arguments if each.name in self._worlds.inputs and each.name != "extra"]
        kinds = [kind for kind in HAZARDS if ("param" not in kind or param) and ("input" not in kind or inputs)]
        if param:
            kinds = [kind for kind in kinds if "param" in kind]
        for _ in range(6):
            kind = self._rng.choice(kinds)
            kept = self._worlds.inputs
            if "input" in kind:
                self._worlds.inputs = set()
            lines = body.hazard(kind, inputs)
            self._worlds.inputs = kept
            if lines is not None:
                body.lines += lines
                self._illegal = kind
                return

    # -- what comes out

    def _outputs(self, number: int) -> tuple[str, Any]:
        """The return expression, and the key `outputs`; the values become known."""
        rng, worlds = self._rng, self._worlds
        known = [each for each in worlds.known() if each.axes is not None and each.name not in self._signature.params]
        chosen = choose_returns(rng, known, rng.choice((1, 1, 2, 3)))
        parts: list[tuple[str, str]] = []
        for at, each in enumerate(chosen):
            name = self._output_name(each, number, at)
            parts.append((name, each.name))
        if rng.random() < 0.15 and len(chosen) > 1 and not self._signature.bucketed:
            parts.append((f"h{number}t", f"({chosen[0].name}, {chosen[1].name})"))
        for name, expression in parts:
            self._publish(name, expression)
        if len(parts) == 1:
            return parts[0][1], parts[0][0]
        names, expressions = zip(*parts, strict=True)
        if rng.random() < 0.25:
            inside = ", ".join(f"'k{at}': {expression}" for at, expression in enumerate(expressions))
            return f"{{{inside}}}", {name: f"k{at}" for at, name in enumerate(names)}
        return f"({', '.join(expressions)})", list(names)

    def _output_name(self, each: Any, number: int, at: int) -> str:
        rng = self._rng
        used = self._written_states
        for name, buffer in self._buffers.items():
            if buffer.get("role") == "state" and "shape" in buffer and name not in used and rng.random() < 0.7:
                if list(buffer["shape"]) == written(each.axes) and buffer["dtype"] == name_of(each.dtype):
                    used.add(name)
                    return name
        declared = self._signature.bucketed or rng.random() < 0.6
        if not declared or rng.random() < 0.2:
            if not self._signature.bucketed or at > 0:
                return f"h{number}_{at}"
        buffer = {"role": "output", "shape": written(each.axes), "dtype": name_of(each.dtype)}
        if rng.random() < 0.15:
            buffer["static"] = True
        if rng.random() < 0.1:
            buffer["copy"] = False
        name = f"h{number}_{at}"
        self._buffers[name] = buffer
        return name

    @property
    def _written_states(self) -> set[str]:
        return self.__dict__.setdefault("_states", set())

    def _publish(self, name: str, expression: str) -> None:
        worlds = self._worlds
        for world in worlds.all:
            value = eval(expression, {}, world.local)  # noqa: S307  an expression of names
            if self._buffers.get(name, {}).get("role") == "state":
                world.named[name].copy_(value)
            elif self._buffers.get(name, {}).get("static"):
                world.named[name] = value.clone()
            else:
                world.named[name] = value
        if name not in self._values:
            self._values.append(name)

    # -- around the regions

    def _pools(self, regions: list[RegionDraw]) -> dict[str, tuple[str, ...]]:
        captured = [region.name for region in regions if not region.eager]
        if len(captured) < 2 or self._rng.random() < 0.4:  # noqa: PLR2004
            return {}
        if len(captured) > 2 and self._rng.random() < 0.3:  # noqa: PLR2004
            captured.remove(self._rng.choice(captured))
        return {"shared": tuple(captured)}

    def _sequences(self, regions: list[RegionDraw]) -> dict[str, tuple[str, ...]]:
        rng, names = self._rng, [region.name for region in regions]
        steps = list(names)
        if len(names) > 1 and rng.random() < 0.15:
            again = rng.choice(names)
            steps.insert(rng.randint(names.index(again) + 1, len(steps)), again)
        if len(names) < 2 or rng.random() < 0.8:  # noqa: PLR2004
            return {"replay": tuple(steps)}
        other = rng.sample(names, rng.randint(1, len(names)))
        return {"first": tuple(steps), "second": tuple(other)}

    def _used_dims(self, buffers: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
        return dict(self._signature.dims)


def _outputs(outputs: Any) -> list[str]:
    return [outputs] if isinstance(outputs, str) else list(outputs)
