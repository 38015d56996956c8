"""The modules that the inline regions of a spec name, and what may not be on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from graphspec.errors import Diagnostic, ModelError
from graphspec.hazards import HOOKED
from graphspec.plan import Plan
from graphspec.runtime.hazards.hooks import MODULE_HOOKS, hooked_modules
from graphspec.runtime.opened.regions import UnboundError
from graphspec.runtime.values.paths import matching
from graphspec.spec import Region

#: Region, path and module of everything that is replaced.
Found = list[tuple[str, str, nn.Module]]


def find_modules(plan: Plan, model: Any) -> tuple[Found, list[UnboundError]]:
    """Every module, and the regions whose paths lead to none, to one that another has, or into another.

    Raises ModelError where reading the model fails.
    """
    wrong: list[UnboundError] = []
    found: Found = []
    for region in (each.declared for each in plan.regions.values() if each.declared.inline):
        try:
            matched = _matched(region, model)
            _refuse_nested(region.name, matched, found)
            found += [(region.name, path, module) for path, module in matched]
        except ModelError as error:  # noqa: PERF203 - every region has its say
            if error.__cause__ is not None:
                raise
            wrong.append(UnboundError(error, ("regions", region.name, "call")))
    return found, wrong


def inner_hooks(path: str, module: nn.Module) -> Iterator[Diagnostic]:
    """GS712 for hooks inside of a module. Its own are run by who calls it, and those of parameters by its backward.

    What its own hooks hold, which may be the whole model, is not inside of it.
    """
    held_by_hooks = tuple(f"{path}.{slot}" for slot in MODULE_HOOKS)
    for name, kind in hooked_modules(module, path):
        if name != path and "gradient hook" not in kind and not name.startswith(held_by_hooks):
            yield Diagnostic(HOOKED.code, f"{name} {HOOKED.does}: a {kind}", hint=HOOKED.hint)


def _matched(region: Region, model: Any) -> list[tuple[str, nn.Module]]:
    what = f"region '{region.name}'"
    matched = matching(model, region.call, what)
    found: dict[int, tuple[str, nn.Module]] = {}
    for path, value in matched.items():
        if isinstance(value, nn.Module):
            found.setdefault(id(value), (path, value))  # a module that the model holds twice is one
    if not found:
        path, value = next(iter(matched.items()))
        message = f"{what}: {path} is a {type(value).__name__}, and an inline region replaces a module"
        raise ModelError(message, hint="name a torch.nn.Module, or a glob over some: model.layers.*")
    return list(found.values())


def _refuse_nested(region: str, matched: Sequence[tuple[str, nn.Module]], found: Found) -> None:
    """A module has one graph, and nothing inside of it another."""
    every = [*found, *((region, path, module) for path, module in matched)]
    for outer, path, module in every:
        below = {id(each) for each in module.modules()} - {id(module)}
        for inner, its, other in every:
            if id(other) in below or (other is module and its != path):
                how = "is also" if other is module else "lies inside of"
                message = f"region '{inner}' ({its}) {how} region '{outer}' ({path})"
                raise ModelError(message, hint="name a module once, and either it or those inside of it")
