"""Random generators by identity and by name.

The dispatcher hands out a new Python object for a generator, so identity is that of the C++ object behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from graphspec.runtime.hazards.conditions import FunctionCall


def same(one: torch.Generator, other: torch.Generator) -> bool:
    """Whether two Python objects are one generator."""
    return bool(getattr(one, "_cdata") == getattr(other, "_cdata"))  # noqa: B009 - not in torch's type stubs


def default_generators() -> tuple[torch.Generator, ...]:
    """The default generator of each device that is loaded."""
    devices = (getattr(torch, name, None) for name in ("cuda", "npu"))
    return (torch.default_generator, *(g for device in devices for g in getattr(device, "default_generators", ())))


def drawn_from(call: FunctionCall) -> Iterator[torch.Generator]:
    """The generators an operator was given, as the object that the model passed where that is known."""
    passed = [value for value in _values(call.within) if isinstance(value, torch.Generator)]
    for value in _values(call):
        if isinstance(value, torch.Generator):
            yield next((given for given in passed if same(given, value)), value)


def attribute_of(root: object, generator: torch.Generator) -> str | None:
    """The dotted name, from ``model``, of an attribute that holds a generator; None if there is none."""
    owners = dict(root.named_modules()) if isinstance(root, nn.Module) else {"": root}
    for path, owner in owners.items():
        for key, value in getattr(owner, "__dict__", {}).items():
            if isinstance(value, torch.Generator) and same(value, generator):
                return ".".join(part for part in ("model", path, key) if part)
    return None


def _values(call: FunctionCall | None) -> Iterable[Any]:
    return () if call is None else (*call.args, *call.kwargs.values())
