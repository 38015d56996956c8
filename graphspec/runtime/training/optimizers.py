"""The optimizers that regions step: found, and what they hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.optim import Optimizer

from graphspec.runtime.holdings.columns import Columns
from graphspec.runtime.holdings.expectations import Expectation, Held, Members
from graphspec.runtime.holdings.places import Place
from graphspec.runtime.holdings.reach import Reach

_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def optimizers(found: Reach) -> list[tuple[str, Optimizer]]:
    """Every optimizer that was reached, with its first name."""
    named: dict[int, tuple[str, Optimizer]] = {}
    for part in found.parts:
        if isinstance(part.owner, Optimizer):
            named.setdefault(id(part.owner), (part.name, part.owner))
    return list(named.values())


def state_tensors(optimizer: Optimizer) -> Iterator[tuple[Any, torch.Tensor]]:
    """The tensors of an optimizer's state: (parameter, tensor) for each."""
    for parameter, held in optimizer.state.items():
        values = held.values() if isinstance(held, dict) else (held,)
        for value in values:
            for tensor in value if isinstance(value, list | tuple) else (value,):
                if isinstance(tensor, torch.Tensor):
                    yield parameter, tensor


def of_states(found: Reach, names: Iterable[str]) -> list[str]:
    """Those of these names that are entries in the state of an optimizer."""
    states = tuple(f"{name}.state[" for name, _ in optimizers(found))
    return [name for name in names if name.startswith(states)]


def members(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """The parameters of all groups."""
    for group in optimizer.param_groups:
        yield from group["params"]


@dataclass(frozen=True, eq=False)
class GroupNumber(Held):
    """A number or flag of a parameter group, which a graph froze."""

    heading: ClassVar[str] = "were captured with other numbers of an optimizer"
    way_out: ClassVar[str | None] = (
        "a number that changes is written into a tensor: make the optimizer with lr=torch.tensor(0.1), and fill that, "
        "or let a param be written into it before each run, `bind: {model.optimizer.param_groups.0.lr: lr}`"
    )


@dataclass(frozen=True, eq=False)
class Groups(Expectation):
    """The parameter groups of an optimizer, and the parameters in each."""

    name: str
    optimizer: Optimizer
    groups: tuple[tuple[dict[str, Any], tuple[torch.Tensor, ...]], ...]
    heading: ClassVar[str] = "step other parameters than they did"

    def difference(self) -> Iterator[str]:  # noqa: D102 - the base says it
        now = self.optimizer.param_groups
        if len(now) != len(self.groups) or any(one is not two for one, (two, _) in zip(now, self.groups, strict=True)):
            yield f"{self.name}.param_groups has others than it had"
            return
        for index, (group, parameters) in enumerate(self.groups):
            held = group["params"]
            if len(held) != len(parameters) or any(one is not two for one, two in zip(held, parameters, strict=True)):
                yield f"{self.name}.param_groups[{index}]['params'] has others than it had"

    def compile(self, quick: Columns) -> None:  # noqa: D102 - the base says it
        groups = self.optimizer.param_groups
        quick.attribute(self.optimizer, "param_groups", groups)
        quick.length(groups)
        for index, group in enumerate(groups):
            quick.item(groups, index, group)
            quick.entry(group, "params", group["params"])
            quick.length(group["params"])
            for at, parameter in enumerate(group["params"]):
                quick.item(group["params"], at, parameter)


def group_containers(found: Reach) -> frozenset[int]:
    """The identities of the containers of all groups: what is expected of them, `expected_of_training` says."""
    every = [each.param_groups for _, each in optimizers(found)]
    inner = [container for groups in every for group in groups for container in (group, group["params"])]
    return frozenset(map(id, (*every, *inner)))


def expected_of_training(found: Reach, read: Iterable[tuple[Place, torch.Tensor]]) -> Iterator[Expectation]:
    """What a step was captured with: the groups of every optimizer, their numbers, and what is trained of ``read``."""
    for name, optimizer in optimizers(found):
        groups = optimizer.param_groups
        yield Groups(name, optimizer, tuple((group, tuple(group["params"])) for group in groups))
        for kind in _HOOKS:
            hooks = vars(optimizer).get(kind)
            if hooks is not None:
                yield Members(f"{name}.{kind}", hooks, list(hooks), ordered=False)
        for index, group in enumerate(groups):
            for key, value in group.items():
                if key != "params" and not isinstance(value, torch.Tensor):
                    yield GroupNumber(Place(f"{name}.param_groups[{index}][{key!r}]", group, key, "item"), value)
    flags: dict[int, Place] = {}
    for place, tensor in read:
        if tensor.is_leaf and tensor.is_floating_point():
            flags.setdefault(id(tensor), Place(f"{place.name}.requires_grad", tensor, "requires_grad", "attribute"))
    yield from (Trained(place, place.get()) for place in flags.values())


@dataclass(frozen=True, eq=False)
class Trained(Held):
    """Whether a tensor that a graph reads is trained."""

    heading: ClassVar[str] = "train other tensors than they did"


class Flags:
    """The flags of optimizers before a step: by some they remember that they have checked their parameters once."""

    def __init__(self, steps: Iterable[Optimizer]) -> None:
        self._set = [(each, key) for each in steps for key, value in vars(each).items() if value is True]

    def flipped(self) -> list[tuple[Optimizer, str]]:
        """Those that the step has taken back, of what is no business of the user's."""
        return [(each, key) for each, key in self._set if key.startswith("_") and vars(each).get(key) is False]


def dampened(optimizer: Optimizer) -> bool:
    """Whether the first step of an optimizer keeps its whole gradient, of which later ones keep a part."""
    return any(group.get("momentum") and group.get("dampening") for group in optimizer.param_groups)
