"""What a region returned: its structure, and whether it is what the spec declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from graphspec.errors import CaptureError, Diagnostic
from graphspec.plan import BufferPlan
from graphspec.runtime.values.trees import Tree, UnknownTypeError, flatten


def trees_of(region: str, outputs: Mapping[str, Any]) -> dict[str, Tree]:
    """Each output taken apart. Raises CaptureError for a type that cannot be."""
    try:
        return {name: flatten(value, place=f"output '{name}'") for name, value in outputs.items()}
    except UnknownTypeError as error:
        hint = "return tensors, or dicts, lists, tuples and dataclasses of them"
        raise CaptureError(f"region '{region}': {error}", hint=hint) from None


def check_output(region: str, buffer: BufferPlan, value: Any, shape: tuple[int, ...]) -> None:
    """A declared output or state must be a tensor of exactly the declared shape and dtype. Raises CaptureError."""
    what = f"region '{region}': '{buffer.name}'"
    if not isinstance(value, torch.Tensor):
        message = f"{what} is declared as a tensor, and the call returned a {type(value).__name__}"
        raise CaptureError(message, hint="give a path to the tensor: outputs: {NAME: logits}")
    if buffer.shape is not None and tuple(value.shape) != shape:
        declared = ", ".join(map(str, buffer.shape))
        message = f"{what} is declared [{declared}], here {list(shape)}, and the call returned {list(value.shape)}"
        raise CaptureError(message)
    if buffer.dtype is not None and value.dtype != getattr(torch, buffer.dtype):
        message = f"{what} is declared {buffer.dtype}, and the call returned {value.dtype}"
        raise CaptureError(message)


def other_constants(
    region: str, first: Mapping[str, tuple[Any, ...]], second: Mapping[str, tuple[Any, ...]]
) -> Iterator[Diagnostic]:
    """Numbers and strings inside an output are part of the graph: they must be the same on every run."""
    for name, constants in second.items():
        if constants != first[name]:
            message = f"region '{region}': output '{name}' holds a host value that changes between runs"
            yield Diagnostic("GS722", message, hint="return it as a tensor, or leave it to an eager region")
