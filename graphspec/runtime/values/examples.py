"""Inputs and params that fit each other: what the function that `sample: {make: ...}` names gives for some sizes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from graphspec.errors import InputError, ModelError
from graphspec.plan import Plan
from graphspec.runtime.importing.references import import_beside
from graphspec.runtime.importing.user_code import call_user_code
from graphspec.runtime.values.inputs import InputCheck, ParamCheck, copies_of
from graphspec.runtime.values.trees import mapped

#: How many sizes and seeds are remembered.
_MOST = 64


class Examples:
    """The examples of a spec, the same for the same sizes and seed.

    ``params`` are the params that some example gave, of which the function alone knows which values go together.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._made: dict[tuple[Any, ...], Mapping[str, Any]] = {}
        self.params: set[str] = set()

    def __call__(self, sizes: Mapping[str, int], seed: int) -> Mapping[str, Any]:
        """Tensors and host values by the names of inputs and params; empty where the spec names no function.

        Raises ModelError for a function that fails, gives no mapping, or a value that is not as declared.
        """
        if self._plan.sample is None:
            return {}
        key = (*sorted(sizes.items()), seed)
        if key not in self._made:
            if len(self._made) >= _MOST:
                self._made.clear()
            made = self._called(sizes, seed)
            try:
                self._made[key] = self._checked(made, sizes)
            except InputError as error:  # no caller's mistake
                raise ModelError(f"sample: {self._plan.sample}: {error.message}", hint=error.hint) from None
        return self._made[key]

    def one(self, reference: str, sizes: Mapping[str, int], seed: int) -> Any:
        """What the function of one input gives."""
        return _call(self._function(reference), f"sample: {reference}", {**self._plan.constants, **sizes}, seed)

    def _called(self, sizes: Mapping[str, int], seed: int) -> Mapping[str, Any]:
        what = f"sample: {self._plan.sample}"
        made = _call(self._whole, what, {**self._plan.constants, **sizes}, seed)
        if not isinstance(made, Mapping):
            message = f"{what} gives a {type(made).__name__}, not a mapping from inputs and params to values"
            raise ModelError(message, hint='return {"tokens": ..., "lengths": ...}')
        return made

    @cached_property
    def _whole(self) -> Callable[..., Any]:
        return self._function(str(self._plan.sample))

    def _function(self, reference: str) -> Callable[..., Any]:
        found: Callable[..., Any] = import_beside(reference, self._plan.folder, self._plan.model.factory)
        return found

    def _checked(self, made: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
        """Values of inputs and params, as a run would take them."""
        plan, shown = self._plan, {dim: (size, "the sizes asked for") for dim, size in sizes.items()}
        inputs = {name for name, each in plan.buffers.items() if each.role == "input" and each.source is None}
        found: dict[str, Any] = {}
        for name, value in made.items():
            if name in inputs:
                found[name] = InputCheck(plan.buffers[name].declared, plan.constants)(value, shown)
            elif name in plan.params:
                check = ParamCheck(plan.params[name], plan.largest, plan.constants, copies_of(plan, name))
                found[name] = mapped(check(value, shown), lambda item: item)
                self.params.add(name)
            else:
                takes = ", ".join((*sorted(inputs), *plan.params))
                message = f"it gives '{name}', which is no input and no param"
                raise InputError(message, hint=f"there are {takes}")
        return found


def _call(function: Callable[..., Any], what: str, sizes: Mapping[str, int], seed: int) -> Any:
    """The function called with the sizes it takes by name, and `seed` if it takes that; random numbers are seeded."""
    takes = inspect.signature(function).parameters
    every = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in takes.values())
    given = {name: size for name, size in {**sizes, "seed": seed}.items() if name in takes or (every and name in sizes)}
    with _disable_current_modes(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return call_user_code(function, what, **given)
