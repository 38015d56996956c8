"""Where params are written before each call and replay of a region: `bind` names tensors, and numbers of the host.

A number decides which way the code goes, so a graph is one value's, and its param is specialized. A call may leave
another number there (a counter); a replay then leaves the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from dataclasses import dataclass
from typing import Any

import torch

from graphspec import spec as language
from graphspec.errors import ModelError
from graphspec.plan import Plan
from graphspec.runtime.holdings.reach import Reach
from graphspec.runtime.values.paths import matching

_KINDS: Mapping[str, tuple[type, ...]] = {"int": (int,), "float": (float,), "bool": (bool,), "str": (str,)}


@dataclass(frozen=True)
class BoundTensor:
    """A tensor that a param is written into, in place."""

    param: str
    tensor: torch.Tensor

    def write(self, value: Any) -> None:
        """Write it."""
        with torch.no_grad():
            if isinstance(value, list | tuple):
                self.tensor.copy_(torch.as_tensor(value))
            else:
                self.tensor.fill_(value)


@dataclass(frozen=True)
class Counter:
    """A number or text of the host, at ``path``: ``key`` of ``owner``, an attribute, an entry or an item."""

    param: str
    path: str
    owner: Any
    key: Any

    def write(self, value: Any) -> None:
        """Put a value there."""
        if isinstance(self.owner, MutableMapping | MutableSequence):
            self.owner[self.key] = value
        else:
            setattr(self.owner, self.key, value)

    def read(self) -> Any:
        """What is there now."""
        inside = isinstance(self.owner, Mapping | MutableSequence)
        return self.owner[self.key] if inside else getattr(self.owner, self.key)

    def names(self, found: Reach) -> Iterator[str]:
        """Every name of the slot among what is reached."""
        for part in found.parts:
            if part.owner is self.owner and self.key in part.read():
                yield part.place(self.key, found.label(self.key), ()).name


Bound = BoundTensor | Counter


def bound_of(region: language.Region, model: Any) -> list[Bound]:
    """What the params of a region's `bind` are written into. Raises ModelError for a path that leads nowhere else."""
    what = f"region '{region.name}' (bind)"
    found: list[Bound] = []
    for pattern, param in region.bind.items():
        for path, value in matching(model, pattern, what).items():
            if isinstance(value, torch.Tensor):
                found.append(BoundTensor(param, value))
            elif isinstance(value, bool | int | float | str):
                found.append(_counter(model, path, param, what))
            else:
                message = f"{what}: {path} is a {type(value).__name__}, and `bind` writes into tensors and numbers"
                raise ModelError(message, hint="name the tensor, or the attribute that holds the number")
    return found


def refuse_unfit(bound: Iterable[Bound], region: language.Region, plan: Plan) -> None:
    """Raise ModelError for a number of the host whose param has one graph for all values, or values of another type."""
    what = f"region '{region.name}' (bind)"
    for each in bound:
        if not isinstance(each, Counter):
            continue
        param, value = plan.params[each.param], each.read()
        if not param.specialize:
            message = f"{what}: {each.path} is a {type(value).__name__} of the host, which decides what the code does"
            hint = f"keep it in a tensor, torch.tensor({value!r}); or give each value graphs of its own, "
            hint += f"`{param.name}: {{..., specialize: true}}`"
            raise ModelError(message, hint=hint)
        if type(value) not in _KINDS[param.type]:
            message = f"{what}: {each.path} is {value!r}, and the param '{param.name}' is of type {param.type}"
            raise ModelError(message, hint="give the param the type of what is there")


def write_bound(bound: Iterable[Bound], params: Mapping[str, Any]) -> None:
    """Write each param where it is bound."""
    for each in bound:
        each.write(params[each.param])


def counted(replay: Callable[[], None], left: Iterable[tuple[Counter, Any]]) -> None:
    """A replay, and then what the captured call left in counters."""
    replay()
    for counter, value in left:
        counter.write(value)


def _counter(model: Any, path: str, param: str, what: str) -> Counter:
    above, _, last = path.rpartition(".")
    (owner,) = matching(model, above, what).values()
    if isinstance(owner, Mapping):
        return Counter(param, path, owner, last if last in owner else int(last))
    return Counter(param, path, owner, int(last) if isinstance(owner, MutableSequence) else last)
