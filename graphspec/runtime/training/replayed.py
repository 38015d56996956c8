"""``.grad`` around the replay of a region: found as the caller left it, and left as eager would have left it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from graphspec.errors import GuardError
from graphspec.runtime.training.gradients import Gradients, GradientSeen, Left, fill


@dataclass(frozen=True)
class HeldGradient:
    """What a graph does with the gradient of one tensor.

    ``accumulator``: where it reads and writes what was found; None: it was captured with nothing there, and ``refused``
    says whether it would do something else with one that is. ``needed``: it was captured with a gradient, and does
    something else where there is none. ``written``: it writes into what it found. ``position`` is that of a new
    gradient among the results of the graph.
    """

    name: str
    tensor: torch.Tensor
    accumulator: torch.Tensor | None
    needed: bool
    refused: bool
    written: bool
    left: Left
    position: int | None = None


class ReplayedGradients:
    """The gradients around the replays of one graph, whose results ``outputs`` gives."""

    def __init__(
        self, region: str, held: Sequence[HeldGradient], outputs: Callable[[], Sequence[torch.Tensor]]
    ) -> None:
        self._region = region
        self._held = tuple(held)
        self._outputs = outputs
        self._found: list[torch.Tensor | None] = []

    def around(self, replay: Callable[[], None]) -> None:
        """One replay, under the grad mode of its capture. Raises GuardError as `enter` does."""
        if torch.is_inference_mode_enabled():  # what is left in ``.grad`` is written in place later
            with torch.inference_mode(mode=False):
                self.around(replay)
            return
        self.enter()
        before = torch.is_grad_enabled()
        try:
            torch._C._set_grad_enabled(True)
            replay()
        finally:
            torch._C._set_grad_enabled(before)
        self.leave()

    def enter(self) -> None:
        """Before the replay. Raises GuardError for a gradient that is there, or is not, other than at the capture."""
        found = [each.tensor.grad for each in self._held]
        for each, grad in zip(self._held, found, strict=True):
            if grad is None and each.needed:
                raise self._missing(each)
            if grad is not None and (each.refused or grad.layout is not torch.strided):
                raise self._unexpected(each, grad)
        for each, grad in zip(self._held, found, strict=True):
            if each.accumulator is not None:
                fill(each.accumulator) if grad is None else each.accumulator.copy_(grad)
        self._found = found

    def leave(self) -> None:
        """After the replay: what is left has memory of its own, unless it was there and is written in place."""
        outputs = self._outputs()
        for each, grad in zip(self._held, self._found, strict=True):
            if grad is not None and each.written and each.accumulator is not None:
                grad.copy_(each.accumulator)
            if each.left == "none":
                each.tensor.grad = None
            elif each.position is not None:
                each.tensor.grad = outputs[each.position].detach().clone()
            elif grad is None and each.accumulator is not None:
                each.tensor.grad = each.accumulator.clone()
        self._found = []

    def _missing(self, held: HeldGradient) -> GuardError:
        message = f"region '{self._region}' reads {held.name}.grad, which is None"
        return GuardError(message, hint="run first what computes the gradients, or put some there")

    def _unexpected(self, held: HeldGradient, grad: torch.Tensor) -> GuardError:
        if grad.layout is not torch.strided:
            return GuardError(
                f"{held.name}.grad is a sparse gradient, which no graph can add to",
                hint="make it dense: grad.to_dense()",
            )
        message = f"region '{self._region}' was captured with nothing in {held.name}.grad, and there is a gradient now"
        return GuardError(message, hint=f"set {held.name}.grad = None")


def held_gradients(
    region: str, seen: Iterable[GradientSeen], positions: dict[int, int], gradients: Gradients
) -> list[HeldGradient]:
    """What a captured graph does with each gradient. ``positions`` are those of new ones, by the tensor's identity."""
    found = {
        id(each.tensor): HeldGradient(
            each.name,
            each.tensor,
            gradients.accumulator(each.tensor) if each.offered and each.touch != "untouched" else None,
            needed=each.touch == "read",
            refused=not each.offered,
            written=each.written,
            left=each.left,
            position=positions.get(id(each.tensor)),
        )
        for each in seen
    }
    for each in gradients.tried_on(region):  # what would happen to a gradient where the capture found none
        if id(each.tensor) not in found and each.matters:
            touched = each.touch != "untouched"
            found[id(each.tensor)] = HeldGradient(
                each.name, each.tensor, None, needed=False, refused=touched, written=False, left=each.left
            )
    return list(found.values())
