"""What one run leaves to the next, to be put back between two runs and compared after them.

These are the declared states, and whatever else of the model a run writes: running statistics, undeclared caches,
the parameters of a training step.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from graphspec.plan import Plan
from graphspec.runtime.holdings.preserve import Session, preserve
from graphspec.runtime.opened.states import States
from graphspec.runtime.training.gradients import Named, trainable

#: Each puts one thing back.
Saved = list[Callable[[], object]]


class Carried:
    """Every tensor that carries something over, by the name a message gives it.

    All of each is compared: the runtime keeps the rows of states that a run has no real rows for, and in what no state
    declares nobody can say which rows they are. Only what `pad_rows` names is anybody's.
    """

    def __init__(
        self, plan: Plan, states: States, others: Mapping[str, torch.Tensor], trained: Sequence[Named] = ()
    ) -> None:
        """``others`` are tensors of the model that a run writes, see `written`; ``trained`` those with a gradient."""
        self._trained = trained if plan.trains else ()
        declared = {
            path if path != name else f"state {name}": (name, tensor)
            for name in states
            for path, tensor in states.tensors(name).items()
        }
        known = {_storage(tensor) for _, tensor in declared.values()}
        self._tensors = {label: tensor for label, (_, tensor) in declared.items()}
        given = {buffer.declared.attr for buffer in plan.buffers.values() if buffer.role == "input"}
        self._tensors |= {
            name: tensor for name, tensor in others.items() if _storage(tensor) not in known and name not in given
        }
        scratch = scratch_rows(plan)
        self._scratch = {label: scratch[name] for label, (name, _) in declared.items() if name in scratch}

    def joined(self, others: Mapping[str, torch.Tensor], trained: Sequence[Named]) -> Carried:
        """The same with more tensors of the model."""
        made = copy.copy(self)
        known = {_storage(tensor) for tensor in self._tensors.values()}
        made._tensors = {**{n: t for n, t in others.items() if _storage(t) not in known}, **self._tensors}
        if made._trained:
            made._trained = list({id(tensor): (name, tensor) for name, tensor in (*trained, *self._trained)}.values())
        return made

    def save(self) -> Saved:
        """Every tensor with a copy of its content."""
        contents = [(tensor, tensor.detach().clone()) for tensor in self._tensors.values()]
        gradients = [(tensor, tensor.grad) for _, tensor in self._trained]
        contents += [(grad, grad.detach().clone()) for _, grad in gradients if grad is not None]
        return [
            *(partial(tensor.copy_, content) for tensor, content in contents),
            *(partial(setattr, tensor, "grad", grad) for tensor, grad in gradients),
        ]

    def restore(self, saved: Saved) -> None:
        """Put back what `save` returned."""
        with torch.no_grad():
            for put_back in saved:
                put_back()

    def contents(self) -> dict[str, torch.Tensor]:
        """A copy of each tensor, and of the gradients, with zeros in the rows that padded rows may write."""
        found = {label: tensor.detach().clone() for label, tensor in self._tensors.items()}
        for label, rows in self._scratch.items():
            found[label] = found[label].index_fill(0, torch.tensor(rows, device=found[label].device), 0)
        gradients = {f"{name}.grad": tensor.grad.clone() for name, tensor in self._trained if tensor.grad is not None}
        return found | gradients


def scratch_rows(plan: Plan) -> dict[str, tuple[int, ...]]:
    """The rows of states that some region's padded rows may write (`pad_rows`)."""
    found: dict[str, tuple[int, ...]] = {}
    for region in plan.regions.values():
        for state, rows in region.declared.pad_rows.items():
            found[state] = tuple(dict.fromkeys((*found.get(state, ()), *rows)))
    return found


def written(session: Session, before: Iterable[str] = ()) -> dict[str, torch.Tensor]:
    """The tensors written in a session since its last rewind, and those of ``before``: one name for each storage."""
    names = {*session.changes().written, *before}
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for slot, tensor in session.reach.tensors:
        if slot.name in names:
            found.setdefault(_storage(tensor), (slot.name, tensor))
    named: dict[str, torch.Tensor] = {}
    for name, tensor in found.values():  # a dict whose keys have no names gives all it holds the same one
        own = next(each for number in itertools.count(1) if (each := _numbered(name, number)) not in named)
        named[own] = tensor
    return named


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name} #{number}"


def written_by(model: Any, calls: Iterable[Callable[[], object]]) -> tuple[dict[str, torch.Tensor], list[Named]]:
    """The tensors of the model that these calls write, and what of it may have a gradient; each leaves no trace.

    What a first call creates, such as the state of an optimizer, stays at its creation value: what the next one writes
    of it is found by making them again.
    """
    every = list(calls)
    for _ in range(2):
        with preserve({"model": model}) as session:
            for call in every:
                call()
            found = written(session), trainable(session.reach)
        if not session.created:
            break
    return found


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
