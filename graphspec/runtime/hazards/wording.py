"""How findings name operators, and which advice they give."""

from __future__ import annotations

from dataclasses import replace

from graphspec.hazards import HINTS, Hazard
from graphspec.runtime.hazards.conditions import FunctionCall


def shown(function: str) -> str:
    """A torch function as the model writes it: ``Tensor.item``, ``torch.where``."""
    return function if function.startswith("Tensor.") else f"torch.{function.removeprefix('functional.')}"


def label(operator: str, call: FunctionCall) -> str:
    """The operator as the model knows it: the torch function it called, and what that function called."""
    born = operator == "aten::lift_fresh"
    if call.within is None:
        # Constructors such as torch.Tensor([1.]) and torch.from_numpy pass no function mode.
        return "torch.Tensor(...) or torch.from_numpy" if born else operator
    return shown(call.function) if born else f"{shown(call.function)} ({operator})"


def advised(hazard: Hazard, operator: str, function: str) -> Hazard:
    """The hazard with the advice for this function, if there is a better one."""
    hint = HINTS.get((operator, function))
    return hazard if hint is None else replace(hazard, hint=hint)
