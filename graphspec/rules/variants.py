"""GS233: the combinations of specialized params and optional inputs that are said to occur can."""

from __future__ import annotations

from collections.abc import Iterator

from graphspec.compiler.variants import specialized, values_of
from graphspec.errors import Diagnostic
from graphspec.finding import finding
from graphspec.nearest import did_you_mean
from graphspec.plan import occurs
from graphspec.spec import Scalar, Spec


def combinations(spec: Spec) -> Iterator[Diagnostic]:
    """GS233: each names what makes variants, with values it may have, and one is that of all defaults and inputs."""
    special = specialized(spec)
    optional = {each.name for each in spec.buffers.values() if each.optional}
    wrong = False
    for index, combination in enumerate(spec.variants):
        for name, value in combination.items():
            path = ("variants", index, name)
            if name not in special | optional:
                wrong = True
                message = f"'{name}' is neither a specialized param nor an optional input"
                hint = did_you_mean(name, special | optional, "name what makes variants, or remove it")
                yield finding(spec.document, "GS233", message, path, key=True, hint=hint)
            elif (problem := _unfit(spec, name, value)) is not None:
                wrong = True
                yield finding(spec.document, "GS233", problem[0], path, hint=problem[1])
    defaults = {name: values_of(spec.params[name])[0] for name in special}
    if not wrong and not occurs(spec.variants, defaults, (), optional):
        said = ", ".join(f"{name}: {value}" for name, value in sorted(defaults.items()))
        message = f"no combination has every default and every input{f' ({said})' if said else ''}"
        hint = "add that one, or give the params other defaults"
        yield finding(spec.document, "GS233", message, ("variants",), key=True, hint=hint)


def _unfit(spec: Spec, name: str, value: Scalar) -> tuple[str, str] | None:
    if name in spec.buffers:
        if isinstance(value, bool):
            return None
        return f"'{name}' is an input, and a combination says of it whether it is given", "write true or false"
    param = spec.params[name]
    kinds = {"int": int, "float": (int, float), "bool": bool, "str": str}[param.type]
    if not isinstance(value, kinds) or (isinstance(value, bool) and param.type != "bool"):  # type: ignore[arg-type]
        return f"'{name}' is a param of type {param.type}, and {value!r} is none", f"write a value of type {param.type}"
    if param.choices is not None and value not in param.choices:
        return f"{value!r} is no choice of '{name}'", f"its choices are {', '.join(map(str, param.choices))}"
    return None
