"""What a training loop gets from make_graphed_callables and from inline regions, each against plain eager.

    python benchmarks/graphed_callables.py            # on an NPU, or the emulated one: see tests/npu

Prints a table: for each thing that a loop may do, the largest difference from eager, or the error that was raised.
"""

from __future__ import annotations

import contextlib
import copy
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import graphspec
from graphspec.backends.npu import load_torch_npu

DEVICE = "npu"
SHAPE = (3, 4)
#: One way to have graphs for a model: from the model, a context with the model to call.
Way = Callable[[nn.Module, torch.Tensor], Any]


class Two(nn.Module):
    """Two results of one module."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Both from the same tensor."""
        return self.first(x), self.second(x)


class Holder(nn.Module):
    """A model around the module that has graphs."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> Any:
        """What the module returns."""
        return self.part(x)


def chain() -> nn.Module:
    """Layers whose backward reads what their forward saved."""
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))


@contextlib.contextmanager
def theirs(model: Any, sample: torch.Tensor) -> Iterator[nn.Module]:
    """torch_npu's own: the module's forward is replaced by that of its graphs."""
    npu: Any = torch.npu  # type: ignore[attr-defined]  # there is no stub of what torch_npu adds
    model.part = npu.make_graphed_callables(model.part, (sample,))
    yield model


@contextlib.contextmanager
def ours(model: Any, sample: torch.Tensor) -> Iterator[nn.Module]:
    """An inline region, with its graphs captured by two passes whose gradients are dropped."""
    state = copy.deepcopy(model.state_dict())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.yaml"
        path.write_text(
            "graphspec: 1\nmodel: {factory: model.py:build, mode: train}\n"
            "regions: {part: {call: model.part, inline: true, backward: true}}\n"
        )
        (Path(folder) / "model.py").write_text("def build(): ...\n")
        with graphspec.apply(model, path) as applied:
            for _ in range(2):
                first(model(sample)).sum().backward()
            assert applied.stats.captures == 1
            model.load_state_dict(state)
            model.zero_grad()
            yield model


def first(result: Any) -> torch.Tensor:
    """The tensor, or the first of several."""
    return result if isinstance(result, torch.Tensor) else result[0]


def batches(count: int, *shape: int, seed: int = 1) -> list[torch.Tensor]:
    """Inputs, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator).to(DEVICE) for _ in range(count)]


def micro_batches(model: Any, count: int, *, set_to_none: bool) -> list[Any]:
    """Weights after three steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(3):
        optimizer.zero_grad(set_to_none=set_to_none)
        for x in batches(count, *SHAPE, seed=number):
            model(x).square().sum().backward()
        optimizer.step()
    return list(model.parameters())


def held_gradient(model: Any) -> list[Any]:
    """Gradients that were kept before another step."""
    one, two = batches(2, *SHAPE)
    model(one).square().sum().backward()
    held = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    model(two).square().sum().backward()
    return held


def batch_norm(model: Any) -> list[Any]:
    """The statistics after one step."""
    model(batches(1, *SHAPE)[0]).square().sum().backward()
    return list(model.buffers())


def another_shape(model: Any) -> list[Any]:
    """A result of one row."""
    return [model(batches(1, 1, 4)[0])]


def two_forwards(model: Any) -> list[Any]:
    """Gradients of two forwards before their backwards."""
    losses = [model(x).square().sum() for x in batches(2, *SHAPE)]
    for loss in losses:
        loss.backward()
    return [parameter.grad for parameter in model.parameters()]


def unused_output(model: Any) -> list[Any]:
    """Gradients where the loss uses one result of two."""
    model.zero_grad()
    model(batches(1, *SHAPE)[0])[0].square().sum().backward()
    return [parameter.grad for parameter in model.parameters()]


def deepcopied(model: Any) -> list[Any]:
    """The result of a copy whose weights are zero."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    return [other(batches(1, *SHAPE)[0])]


def written_weight(model: Any) -> list[Any]:
    """Gradients after a weight was written between forward and backward, where eager raises."""
    loss = model(batches(1, *SHAPE)[0]).square().sum()
    with torch.no_grad():
        model.part[2].weight.mul_(2)
    loss.backward()
    return [parameter.grad for parameter in model.parameters()]


def thawed(model: Any) -> list[Any]:
    """Gradients of weights that were frozen when graphs were made."""
    model.part[0].requires_grad_(requires_grad=True)
    model(batches(1, *SHAPE)[0]).square().sum().backward()
    return [parameter.grad for parameter in model.parameters()]


def replaced_data(model: Any) -> list[Any]:
    """The result after the memory of a weight was replaced."""
    weight = model.part[2].weight
    weight.data = torch.ones_like(weight)
    return [model(batches(1, *SHAPE)[0])]


def frozen() -> nn.Module:
    """A chain whose first layer is frozen."""
    made = nn.Sequential(*chain().children())
    made[0].requires_grad_(requires_grad=False)
    return made


CASES: tuple[tuple[str, Callable[[], nn.Module], Callable[[nn.Module], list[Any]]], ...] = (
    ("zero_grad(set_to_none=True), 1 micro-batch", chain, lambda m: micro_batches(m, 1, set_to_none=True)),
    ("zero_grad(set_to_none=True), 2 micro-batches", chain, lambda m: micro_batches(m, 2, set_to_none=True)),
    ("zero_grad(set_to_none=False), 1 micro-batch", chain, lambda m: micro_batches(m, 1, set_to_none=False)),
    ("zero_grad(set_to_none=False), 2 micro-batches", chain, lambda m: micro_batches(m, 2, set_to_none=False)),
    ("a held p.grad, after another step", chain, held_gradient),
    ("BatchNorm's statistics after one step", lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), batch_norm),
    ("[1, 4] where [3, 4] was captured", chain, another_shape),
    ("two forwards, then their backwards", chain, two_forwards),
    ("a result that the loss does not use", Two, unused_output),
    ("a deepcopy with weights of zero", chain, deepcopied),
    ("a weight written before the backward", chain, written_weight),
    ("weights thawed afterwards", frozen, thawed),
    ("`.data` of a weight replaced", chain, replaced_data),
)


def outcome(
    way: Way | None, module: Callable[[], nn.Module], case: Callable[[nn.Module], list[Any]]
) -> list[Any] | str:
    """What a case gives: copies of its tensors, or the error that it raised."""
    torch.manual_seed(0)
    model = Holder(module()).to(DEVICE).train()
    sample = torch.randn(*SHAPE).to(DEVICE)
    try:
        with contextlib.nullcontext(model) if way is None else way(model, sample) as made:
            return [None if each is None else each.detach().cpu().clone() for each in case(made)]
    except (RuntimeError, graphspec.GraphSpecError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def compared(have: list[Any] | str, want: list[Any] | str) -> str:
    """How an outcome differs from eager's."""
    if isinstance(have, str):
        kind = have.partition(":")[0]
        return f"right: {kind}, as eager raises" if isinstance(want, str) else f"refused: {kind}"
    if isinstance(want, str):
        return "no error, and eager raises"
    if any((one is None) != (other is None) for one, other in zip(have, want, strict=True)):
        given = sum(one is None for one in have), sum(one is None for one in want)
        return f"{given[0]} gradients are None, in eager {given[1]}"
    if any(one is not None and one.shape != other.shape for one, other in zip(have, want, strict=True)):
        return f"shape {list(have[0].shape)}, in eager {list(want[0].shape)}"
    pairs = [(one.float(), other.float()) for one, other in zip(have, want, strict=True) if one is not None]
    off = max((one - other).abs().max().item() for one, other in pairs)
    return "right" if off < 1e-4 else f"off {off:.2f}"  # noqa: PLR2004 - rounding of float32


def table() -> list[tuple[str, str, str]]:
    """Each case, what torch_npu's callables give, and what inline regions give."""
    found = []
    for name, module, case in CASES:
        eager = outcome(None, module, case)
        found.append(
            (name, compared(outcome(theirs, module, case), eager), compared(outcome(ours, module, case), eager))
        )
    return found


def main() -> None:
    """Print the table."""
    reason = load_torch_npu()
    if reason is not None:
        sys.exit(reason)
    warnings.filterwarnings("ignore")
    rows = [("a loop does", "make_graphed_callables", "inline regions"), *table()]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for number, row in enumerate(rows):
        print("| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")


if __name__ == "__main__":
    main()
