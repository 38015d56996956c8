"""Which `.out` overloads may write into an arena: those that were seen to write their results and nothing else.

An `.out` kernel is no exact twin of the call it stands for. `huber_loss.out` and others resize the given tensor to hold
what they then reduce, which in an arena is the memory of a neighbour; `linalg_qr.out` goes another way if its two
results are in one storage, as they are in an arena. So each is tried at its capture on what it is recorded with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

from graphspec.backends.layout import ALIGNMENT
from graphspec.recording.calls import Call, Recorder, Recording, Ref
from graphspec.recording.source import ModuleNames


class OutKernels:
    """What was tried, by operator and the form of its arguments."""

    def __init__(self) -> None:
        self._found: dict[Any, OpOverload | None] = {}

    def of(self, recording: Recording, call: Call) -> OpOverload | None:
        """The overload that writes the results of a call into given tensors, if it was tried and is right."""
        return self._found.get(_form(recording, call))

    def attempt(
        self, recording: Recording, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]
    ) -> None:
        """Try the overload for the last call of a recording on what it was given and returned."""
        call = recording.calls[-1]
        if not call.born or torch.Tag.nondeterministic_seeded in call.op.tags:
            return
        if not all(isinstance(ref, Ref) and ref.storage in call.born for ref in call.outputs):
            return
        if any(ref.conj or ref.neg for ref in call.outputs):
            return
        form = _form(recording, call)
        if form not in self._found:
            overload = out_overload(call.op)
            right = overload is not None and _Attempt(overload, args, kwargs, results).is_right(
                born={id(t) for t in _tensors((*args, *kwargs.values())) if recording.is_born(recording.ref(t).storage)}
            )
            self._found[form] = overload if right else None


class TryingRecorder(Recorder):
    """Records, and tries the `.out` overload of each call on the way."""

    def __init__(
        self, region: str, names: ModuleNames | None, kernels: OutKernels, *, whole: Collection[str] = ()
    ) -> None:
        super().__init__(region, names, whole=whole)
        self._out = kernels

    def record(self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Also tries its `.out` overload."""
        result = super().record(func, args, kwargs)
        self._out.attempt(self.recording, args, kwargs, result if isinstance(result, tuple) else (result,))
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


class _Attempt:
    """One overload on the arguments of one call, against the results of that call."""

    def __init__(
        self, overload: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[torch.Tensor]
    ) -> None:
        self._overload = overload
        self._args = args
        self._kwargs = kwargs
        self._results = results

    def is_right(self, born: set[int]) -> bool:
        """Into storages that just fit, which a resize would move; then within one, with the arguments in ``born``."""
        fitting = [_fitting(result) for result in self._results]
        before = [_place(tensor) for tensor in fitting]
        if not self._gives(fitting, self._args, self._kwargs) or before != [_place(tensor) for tensor in fitting]:
            return False
        if len(self._results) == 1 and not born:
            return True
        inputs = [tensor for tensor in _tensors((*self._args, *self._kwargs.values())) if id(tensor) in born]
        arena = _Memory([*inputs, *self._results])
        copies = {id(tensor): arena.copy(tensor) for tensor in inputs}
        args = tuple(_replaced(value, copies) for value in self._args)
        kwargs = {name: _replaced(value, copies) for name, value in self._kwargs.items()}
        return self._gives([arena.like(result) for result in self._results], args, kwargs)

    def _gives(self, given: Sequence[torch.Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        names = [argument.name for argument in self._overload._schema.arguments if argument.is_out]
        try:
            self._overload(*args, **kwargs, **dict(zip(names, given, strict=True)))
        except Exception:  # noqa: BLE001 - whatever it raises, the call itself works
            return False
        return all(map(_same, given, self._results))


class _Memory:
    """One storage with room for all of the storages of some tensors."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        ends = [0]
        self._starts: dict[int, int] = {}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._starts:
                self._starts[storage._cdata] = -(-ends[-1] // ALIGNMENT) * ALIGNMENT
                ends.append(self._starts[storage._cdata] + storage.nbytes())
        self._bytes = torch.empty(ends[-1], dtype=torch.uint8)

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the same form in the room of its storage, with whatever is there."""
        offset = self._starts[tensor.untyped_storage()._cdata] // tensor.itemsize + tensor.storage_offset()
        made = torch.empty(0, dtype=tensor.dtype)
        return made.set_(self._bytes.untyped_storage(), offset, tensor.size(), tensor.stride())

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the same form and content."""
        content = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
        start = self._starts[tensor.untyped_storage()._cdata]
        self._bytes[start : start + content.numel()].copy_(content)
        return self.like(tensor)


def _fitting(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same form in a storage with no byte to spare, which its own may have: a mean of losses has."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    elements = tensor.storage_offset() + last + 1 if tensor.numel() else 0
    storage = torch.empty(elements, dtype=tensor.dtype).untyped_storage()
    return torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()


def _same(tensor: torch.Tensor, result: torch.Tensor) -> bool:
    same_form = tensor.size() == result.size() and tensor.stride() == result.stride()
    return same_form and _bits(tensor).equal(_bits(result))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as bytes: NaN is equal to itself, and 0 is not -0."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _replaced(value: Any, tensors: Mapping[int, torch.Tensor]) -> Any:
    if isinstance(value, (list, tuple)):
        return [_replaced(item, tensors) for item in value]
    return tensors.get(id(value), value)


def _form(recording: Recording, call: Call) -> Any:
    """The operator and its arguments: the form of each tensor, and whether it lies in an arena, for its memory."""
    values = (*call.args, *((name, call.kwargs[name]) for name in sorted(call.kwargs)))
    return call.op, tuple(_form_of(recording, value) for value in values)


def _form_of(recording: Recording, value: Any) -> Any:
    if isinstance(value, Ref):
        return value.dtype, value.size, value.stride, recording.is_born(value.storage)
    if isinstance(value, (tuple, list)):
        return tuple(_form_of(recording, item) for item in value)
    return type(value).__name__, str(value)
