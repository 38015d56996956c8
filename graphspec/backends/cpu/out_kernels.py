"""Which `.out` overloads may write into an arena: those that were seen to write their results and nothing else.

`.out` kernels are no exact twin of the call they stand for. `huber_loss.out` and others resize the given tensor to
hold what they then reduce, which in an arena is the memory of a neighbour, and may give other values so. Each one is
tried at its capture, on the arguments that it is recorded with, in memory that just fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

from graphspec.runtime.capture.recording import Call, Recorder, Ref
from graphspec.runtime.capture.source import ModuleNames


class OutKernels:
    """What was tried, by operator and the form of its arguments."""

    def __init__(self) -> None:
        self._found: dict[Any, OpOverload | None] = {}

    def of(self, call: Call) -> OpOverload | None:
        """The overload that writes the results of ``call`` into given tensors, if it was tried and is right."""
        return self._found.get(_form(call))

    def attempt(self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]) -> None:
        """Try the overload for a recorded call on what it was given, and compare with the ``results`` it had."""
        if not call.born or torch.Tag.nondeterministic_seeded in call.op.tags:
            return
        if not all(isinstance(ref, Ref) and ref.storage in call.born for ref in call.outputs):
            return
        if any(ref.conj or ref.neg for ref in call.outputs):
            return
        form = _form(call)
        if form in self._found:
            return
        overload = out_overload(call.op)
        if overload is not None and not _is_right(overload, args, kwargs, results):
            overload = None
        self._found[form] = overload


class TryingRecorder(Recorder):
    """Records, and tries the `.out` overload of each call on the way."""

    def __init__(self, region: str, names: ModuleNames | None, kernels: OutKernels) -> None:
        super().__init__(region, names)
        self._kernels = kernels

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        returned = result if isinstance(result, tuple) else (result,)
        self._kernels.attempt(self.recording.calls[-1], args, kwargs or {}, returned)
        return result


@cache
def out_overload(op: OpOverload) -> OpOverload | None:
    """The overload of ``op`` that takes the same arguments and writes its results into given tensors."""
    packet = op.overloadpacket
    wanted = [(argument.name, str(argument.type)) for argument in op._schema.arguments]
    for name in packet.overloads():
        candidate: OpOverload = getattr(packet, name)
        if name == "unary_out":  # of max and min: TorchScript takes it for max(self, other)
            continue
        given = [(a.name, str(a.type)) for a in candidate._schema.arguments if not a.is_out]
        outs = sum(a.is_out for a in candidate._schema.arguments)
        tensors = all(str(a.type) == "Tensor" for a in candidate._schema.arguments if a.is_out)
        if outs and outs == len(op._schema.returns) and given == wanted and tensors:
            real = torch._C._dispatch_has_kernel_for_dispatch_key(str(candidate._name), "CPU")
            return candidate if real else None
    return None


def _is_right(
    overload: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[torch.Tensor]
) -> bool:
    given = [_uninitialized_like(result) for result in results]
    before = [(tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()) for tensor in given]
    names = [argument.name for argument in overload._schema.arguments if argument.is_out]
    try:
        overload(*args, **kwargs, **dict(zip(names, given, strict=True)))
    except Exception:  # noqa: BLE001 - whatever it raises, the call itself works
        return False
    after = [(tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()) for tensor in given]
    return before == after and all(map(_same, given, results))


def _uninitialized_like(tensor: torch.Tensor) -> torch.Tensor:
    """Of the same form, in a storage that it fills: a resize beyond that moves or grows the storage."""
    count = tensor.untyped_storage().nbytes() // tensor.itemsize
    whole = torch.empty(count, dtype=tensor.dtype)
    return whole.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def _same(tensor: torch.Tensor, result: torch.Tensor) -> bool:
    same_form = tensor.size() == result.size() and tensor.stride() == result.stride()
    return same_form and _bits(tensor).equal(_bits(result))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as bytes: NaN is equal to itself, and 0 is not -0."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _form(call: Call) -> Any:
    """The operator and its arguments, with the dtype, size and strides of each tensor in the place of its memory."""
    values = (*call.args, *((name, call.kwargs[name]) for name in sorted(call.kwargs)))
    return call.op, tuple(_shape_of(value) for value in values)


def _shape_of(value: Any) -> Any:
    if isinstance(value, Ref):
        return value.dtype, value.size, value.stride
    if isinstance(value, (tuple, list)):
        return tuple(_shape_of(item) for item in value)
    return type(value).__name__, str(value)
