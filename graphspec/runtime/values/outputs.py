"""What a region returned: its structure, and whether it is what the spec declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from graphspec.errors import CaptureError
from graphspec.plan import ANY, BufferPlan
from graphspec.runtime.values.trees import Tree, UnknownTypeError, flatten


class MisfitError(CaptureError):
    """A result is not what the spec says of it: of its ``declared`` shape or dtype, or of the path to it."""

    def __init__(self, message: str, output: str, *, declared: bool = False, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.output = output
        self.declared = declared


def trees_of(region: str, outputs: Mapping[str, Any]) -> dict[str, Tree]:
    """Each output taken apart. Raises MisfitError for a type that cannot be."""
    try:
        return {name: flatten(value, place=f"output '{name}'") for name, value in outputs.items()}
    except UnknownTypeError as error:
        hint = "return tensors, or dicts, lists, tuples and dataclasses of them"
        raise MisfitError(f"region '{region}': {error}", ", ".join(outputs), hint=hint) from None


def check_condition(region: str, name: str, value: Any, *, eager: bool) -> None:
    """What a loop goes by must be a tensor of one bool; an eager region may return a bool. Raises MisfitError."""
    if isinstance(value, torch.Tensor) and value.dtype == torch.bool and value.numel() == 1:
        return
    if eager and isinstance(value, bool):
        return
    what = f"a {type(value).__name__}"
    if isinstance(value, torch.Tensor):
        what = f"{list(value.shape)} of {value.dtype}"
    message = f"region '{region}': a loop goes by '{name}', a tensor of one bool, and the call returned {what}"
    raise MisfitError(message, name, declared=True, hint=f"return {name}.any(), or another bool of one element")


def check_output(region: str, buffer: BufferPlan, value: Any, shape: tuple[int, ...]) -> None:
    """A declared output or state must be a tensor of exactly the declared shape and dtype. Raises MisfitError."""
    what = f"region '{region}': '{buffer.name}'"
    if not isinstance(value, torch.Tensor):
        message = f"{what} is declared as a tensor, and the call returned a {type(value).__name__}"
        raise MisfitError(
            message, buffer.name, declared=True, hint="give a path to the tensor: outputs: {NAME: logits}"
        )
    if buffer.shape is not None and not _fits(value.shape, shape):
        declared = ", ".join(map(str, buffer.shape))
        here = ", ".join("_" if size == ANY else str(size) for size in shape)
        message = f"{what} is declared [{declared}], here [{here}], and the call returned {list(value.shape)}"
        raise MisfitError(message, buffer.name, declared=True)
    if buffer.dtype is not None and value.dtype != getattr(torch, buffer.dtype):
        message = f"{what} is declared {buffer.dtype}, and the call returned {value.dtype}"
        raise MisfitError(message, buffer.name, declared=True)


def _fits(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    return len(shape) == len(wanted) and all(want in (have, ANY) for have, want in zip(shape, wanted, strict=True))
