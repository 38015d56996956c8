"""What tells two calls of a module apart for a graph. A graph of one serves every call of an equal signature."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from graphspec.runtime.inline.arguments import Arguments, Key

#: Shape, strides, dtype, device and requires_grad.
Form = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device, bool]


class Autocast(NamedTuple):
    """Whether autocast is on for a device type, and its dtype. Its weight cache makes no other numbers."""

    enabled: bool
    dtype: torch.dtype | None


class Signature(NamedTuple):
    """``parameters`` has requires_grad of each parameter, ``training`` the flag of each module below."""

    arguments: Key
    tensors: tuple[Form, ...]
    parameters: tuple[bool, ...]
    training: tuple[bool, ...]
    grad: bool
    inference: bool
    autocast: Autocast

    @property
    def differentiates(self) -> bool:
        """Whether eager would make a graph of autograd for such a call."""
        return self.grad and (any(self.parameters) or any(form[4] for form in self.tensors))

    def difference(self, other: Signature) -> str:
        """The first thing in which two differ, in words."""
        if self.arguments != other.arguments:
            return "other arguments that are no tensors, or another structure of them"
        for number, (mine, its) in enumerate(zip(self.tensors, other.tensors, strict=True)):
            for word, have, want in zip(_WORDS, mine, its, strict=True):
                if have != want:
                    return f"tensor {number} of its arguments has {word} {_shown(have)}, captured with {_shown(want)}"
        for name in ("parameters", "training", "grad", "inference", "autocast"):
            have, want = getattr(self, name), getattr(other, name)
            if have != want:
                return _FLAGS[name]
        return "nothing"


_WORDS = ("shape", "strides", "dtype", "device", "requires_grad")
_FLAGS = {
    "parameters": "requires_grad of its parameters is another",
    "training": "it, or a module in it, is in another mode (train or eval)",
    "grad": "autograd is on in one and off in the other",
    "inference": "inference mode is on in one and off in the other",
    "autocast": "another autocast is on",
}


class Outline:
    """The parameters and modules of one module, flattened once."""

    def __init__(self, module: nn.Module) -> None:
        self.parameters = tuple(module.parameters())
        self.modules = tuple(module.modules())

    def thawed(self) -> tuple[bool, ...]:
        """Which parameters require gradients, now."""
        return tuple([parameter.requires_grad for parameter in self.parameters])

    def modes(self) -> tuple[bool, ...]:
        """Which modules are in train mode, now."""
        return tuple([module.training for module in self.modules])

    def signature(self, given: Arguments, device: torch.device) -> Signature:
        """That of a call with these arguments, here and now. ``device`` is that of the graphs, for autocast."""
        kind = device.type
        enabled = torch.is_autocast_enabled(kind)
        return Signature(
            given.key,
            tuple([(leaf.size(), leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad) for leaf in given.leaves]),
            self.thawed(),
            self.modes(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            Autocast(enabled, torch.get_autocast_dtype(kind) if enabled else None),
        )


def _shown(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)
