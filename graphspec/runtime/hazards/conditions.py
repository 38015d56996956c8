"""The conditions that rows of the hazard table name: predicates over one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import resolve_name

_MASKS = (torch.bool, torch.uint8)
#: Functions that make a number of the host into a 0-d tensor, which every device takes as a kernel argument.
NUMBER_MAKERS = ("tensor", "as_tensor", "asarray", "scalar_tensor")


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """One call of a torch function or of a dispatcher operator.

    ``within`` is the torch function that the model called, if a function mode saw it, around an operator.
    ``is_host`` says whether a tensor is a number of the host: made from a Python number, without a device.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    is_host: Callable[[Tensor], bool]
    within: FunctionCall | None = None

    @property
    def function(self) -> str:
        """The name of the torch function the model called, without the leading ``torch.``; empty if unseen."""
        call = self.within or self
        return function_name(call.target)

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument given by position or by name."""
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)


@lru_cache(maxsize=4096)
def function_name(function: Any) -> str:
    """The name of a torch function, e.g. ``Tensor.item`` or ``nn.functional.one_hot``; empty for an operator."""
    if isinstance(function, OpOverload):
        return ""
    return str(resolve_name(function) or getattr(function, "__name__", "")).removeprefix("torch.")


def tensors(values: Any) -> Iterator[Tensor]:
    """Every tensor in nested sequences."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from tensors(value)


def is_number(value: Any) -> bool:
    """Whether a value is one number of the host, of Python or numpy."""
    return isinstance(value, Number | np.generic | torch.SymInt | torch.SymFloat | torch.SymBool)


def names_device(device: Any) -> bool:
    """Whether a ``device`` argument asks for the region's own device.

    ``x.device`` is a device object and means wherever the region runs, also when that is the CPU today; the text
    "cpu" means the host everywhere.
    """
    return device is not None and not (isinstance(device, str) and torch.device(device).type == "cpu")


def makes_on_host(call: FunctionCall, result: Any) -> bool:
    """Whether this function call made a tensor of several elements on the host, out of nothing but numbers.

    What is built from a list of Python numbers is host data, which has a finding of its own.
    """
    if not isinstance(result, Tensor) or not result.dim() or result.device.type != "cpu":
        return False
    function = function_name(call.target)
    if function in NUMBER_MAKERS or function.startswith("Tensor.") or names_device(call.kwargs.get("device")):
        return False
    return not any(True for _ in tensors((*call.args, *call.kwargs.values())))


def makes_number(call: FunctionCall, result: Any) -> bool:
    """Whether this function call turned a number of the host into a 0-d tensor that stays on the host."""
    function = function_name(call.target)
    if function not in NUMBER_MAKERS or not isinstance(result, Tensor) or result.dim() or result.device.type != "cpu":
        return False
    position = {"as_tensor": 2, "asarray": 2}.get(function, len(call.args) + 1)
    return is_number(call.argument(0, "data")) and not names_device(call.argument(position, "device"))


def _target(call: FunctionCall) -> Any:
    """The device that a call of ``Tensor.to`` names, None if it names none."""
    first = call.kwargs.get("device", call.args[1] if len(call.args) > 1 else None)
    return first if isinstance(first, str | torch.device | int) and not isinstance(first, bool) else None


def _to_host(call: FunctionCall) -> bool:
    target, tensor = _target(call), call.args[0]
    if target is None or isinstance(target, int) or torch.device(target).type != "cpu":
        return False
    return isinstance(target, str) or tensor.device.type != "cpu"


def _number_to_device(call: FunctionCall) -> bool:
    return not call.args[0].dim() and _to_device(call)


def _to_device(call: FunctionCall) -> bool:
    target = _target(call)
    other = call.args[1] if len(call.args) > 1 else call.kwargs.get("other")
    return (target is not None and names_device(target)) or (isinstance(other, Tensor) and not call.is_host(other))


def _host_to_device(call: FunctionCall) -> bool:
    made: Tensor = call.args[0]
    if not made.dim():
        return False
    return function_name(call.target) in ("Tensor.cuda", "Tensor.npu") or _to_device(call)


def _has_mask(indices: Any) -> bool:
    return any(index.dtype in _MASKS for index in tensors(indices))


def _writes_number(call: FunctionCall) -> bool:
    """Whether a masked write is one mask and one number of the host, which devices turn into a masked fill."""
    given = [index for index in call.args[1] if index is not None]
    return len(given) == 1 and not call.argument(3, "accumulate", default=False)


def _assigned_number(call: FunctionCall) -> bool:
    return call.function == "Tensor.__setitem__" and call.within is not None and is_number(call.within.args[2])


def _mask_write(call: FunctionCall) -> bool:
    if not _has_mask(call.args[1]):
        return False
    value = call.argument(2, "values")
    return not (_writes_number(call) and (_assigned_number(call) or call.is_host(value)))


def _mask_write_number(call: FunctionCall) -> bool:
    return _has_mask(call.args[1]) and _writes_number(call) and _assigned_number(call)


def _host_data(call: FunctionCall) -> bool:
    made: Tensor = call.args[0]
    if made.numel() == 0:
        return False  # nothing to copy
    if made.dim() or call.within is None:
        return True
    if call.function == "Tensor.__setitem__":
        return False  # the assigned number; writing it is judged where it is written
    return not makes_number(call.within, made)


CONDITIONS: Mapping[str, Callable[[FunctionCall], bool]] = {
    "tensor_dims": lambda call: isinstance(call.argument(2, "dims"), Tensor),
    "tensor_sections": lambda call: isinstance(
        call.argument(1, "indices_or_sections", call.kwargs.get("tensor_indices_or_sections")), Tensor
    ),
    "one_hot_without_classes": lambda call: call.argument(1, "num_classes", -1) == -1,
    "to_host": _to_host,
    "number_to_device": _number_to_device,
    "host_to_device": _host_to_device,
    "tensor_std": lambda call: isinstance(call.argument(1, "std"), Tensor),
    "tensor_bounds": lambda call: any(True for _ in tensors(call.args[:2])),
    "histogram_without_range": lambda call: call.argument(2, "min", 0) == call.argument(3, "max", 0),
    "fill_with_tensor": lambda call: (
        isinstance(call.argument(2, "value"), Tensor) and not call.is_host(call.argument(2, "value"))
    ),
    "mask_index": lambda call: _has_mask(call.args[1]),
    "mask_write": _mask_write,
    "mask_write_number": _mask_write_number,
    "element_write_number": lambda call: call.args[0].dim() == 0 and _assigned_number(call),
    "repeats_without_size": lambda call: call.kwargs.get("output_size") is None,
    "host_data": _host_data,
}
