"""How each recorded call is issued again so that its results land at the addresses chosen for them.

A call that only writes into its arguments is issued as it was. One that returns new memory is issued through its
``.out`` overload where the CPU has a real kernel for that, and `out_kernels` has seen it to be right; generated
``.out`` kernels compute and then copy. Elsewhere the call itself is issued, and its result copied into place.
Views are not issued at all: every later call already has the exact tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from graphspec.backends.cpu.out_kernels import OutKernels
from graphspec.recording.calls import Call, Recording, Ref, refs_in
from graphspec.recording.eager import is_eager
from graphspec.recording.writes import effect_of

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Number:
    """A Python number given where the schema wants a tensor: a 0-d tensor that promotes as the number did."""

    value: bool | complex
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Issue:
    """One call to make at every replay.

    ``args`` holds every argument of ``op`` in schema order. ``copies`` has one entry a return value: where to copy
    it (a tuple for a returned list), or None where nobody reads it or it lies in place already. ``recorded`` has the
    position in the recorded call of each of ``args``, where they are not its own in its own order.
    """

    call: Call
    op: OpOverload
    args: tuple[Any, ...]
    copies: tuple[Any, ...] = ()
    recorded: tuple[int, ...] | None = None

    def position(self, index: int) -> int:
        """The position in the recorded call of one of ``args``; -1 for what it did not have."""
        return index if self.recorded is None else self.recorded[index]


def issues(recording: Recording, outputs: Iterable[Ref], kernels: OutKernels) -> list[Issue]:
    """The calls a replay makes, in order; ``outputs`` are the tensors that must hold their values at the end."""
    needed = _needed(recording, outputs)
    found = (_issue(recording, call, needed, kernels) for call in recording.calls)
    return [issue for issue in found if issue is not None]


def _needed(recording: Recording, outputs: Iterable[Ref]) -> set[int]:
    """Storages that some call reads, or that are results: a value nobody reads is not copied into place."""
    needed = {ref.storage for ref in outputs}
    for call in recording.calls:
        needed.update(ref.storage for part in (*call.args, *call.kwargs.values()) for ref in refs_in(part))
    return needed


def _issue(recording: Recording, call: Call, needed: set[int], kernels: OutKernels) -> Issue | None:
    if torch.Tag.inplace_view in call.op.tags:
        return None
    born = set(call.born)
    if not born and not call.writes and call.op.namespace not in _COMMUNICATION and not is_eager(call.op):
        return None  # a view, or a call that only reads
    arguments = call.arguments()
    if born and (rewritten := _rewrite(call, arguments)) is not None:
        op, values = rewritten
        return None if op is None else Issue(call, op, values, recorded=_recorded(call, len(values)))
    args = tuple(_numbers_as_tensors(call, arguments))
    if not born:
        return Issue(call, call.op, args)
    if (out := kernels.of(recording, call)) is not None:
        return Issue(call, out, args + call.outputs)
    return Issue(call, call.op, args, tuple(_destination(result, born & needed) for result in call.outputs))


def _destination(result: Any, wanted: set[int]) -> Any:
    if isinstance(result, tuple):
        return tuple(_destination(item, wanted) for item in result)
    return result if isinstance(result, Ref) and result.storage in wanted else None


#: Operators of these namespaces talk to other ranks, whatever their schemas say of tensors.
_COMMUNICATION = frozenset({"c10d", "_c10d_functional"})

# Operators that are exactly one kernel into given memory, although their own ``.out`` is generated or missing.
_FILLS: Mapping[str, Any] = {
    "zeros": 0, "zeros_like": 0, "new_zeros": 0, "ones": 1, "ones_like": 1, "new_ones": 1,
    "full": "fill_value", "full_like": "fill_value", "new_full": "fill_value", "scalar_tensor": "s",
}  # fmt: skip
_COPIES = frozenset({"clone", "_to_copy", "lift_fresh_copy"})


def _rewrite(call: Call, arguments: Mapping[str, Any]) -> tuple[OpOverload | None, tuple[Any, ...]] | None:
    if call.op.namespace != "aten" or len(call.outputs) != 1:
        return None
    name, (out,) = call.op._opname, call.outputs
    if effect_of(call.op).unfilled:
        return None, ()
    if name in _COPIES:
        return aten.copy_.default, (out, arguments["self"], False)
    if name in _FILLS:
        value = _FILLS[name]
        return aten.fill_.Scalar, (out, arguments[value] if isinstance(value, str) else value)
    if name == "relu":  # at::relu is clamp_min(self, 0), and only the latter has a real .out kernel
        return aten.clamp_min.out, (arguments["self"], 0, out)
    return None


def _recorded(call: Call, count: int) -> tuple[int, ...]:
    """Which of the arguments of a rewritten call may be refreshed: the value of a fill."""
    value = _FILLS.get(call.op._opname)
    names = [argument.name for argument in call.op._schema.arguments]
    return tuple(names.index(value) if index == 1 and isinstance(value, str) else -1 for index in range(count))


def _numbers_as_tensors(call: Call, arguments: Mapping[str, Any]) -> Iterable[Any]:
    operands = [value for value in arguments.values() if isinstance(value, Ref)]
    for argument in call.op._schema.arguments:
        value = arguments[argument.name]
        is_number = isinstance(value, (bool, int, float, complex))
        if is_number and str(argument.type) in {"Tensor", "Optional[Tensor]"}:
            yield Number(value, promoting_dtype(value, operands))
        else:
            yield value


def promoting_dtype(number: complex, operands: Iterable[Ref]) -> torch.dtype:
    """The dtype of a 0-d tensor that, beside ``operands``, promotes as the bare number does.

    The number's own dtype comes first: kernels for half precision read such a scalar unrounded.
    """
    likes = [torch.empty(ref.size, dtype=ref.dtype, device="meta") for ref in operands]
    own = torch.tensor(number, dtype=torch.float64 if isinstance(number, float) else None).dtype
    for dtype in (own, torch.get_default_dtype(), *(like.dtype for like in likes)):
        scalar = torch.empty((), dtype=dtype, device="meta")
        if all(torch.result_type(like, scalar) == torch.result_type(like, number) for like in likes):
            return dtype
    return own


def map_refs(value: Any, change: Callable[[Any], Any]) -> Any:
    """``value`` with every `Ref` and `Number` inside replaced by ``change`` of it; tuples become lists."""
    if isinstance(value, (Ref, Number)):
        return change(value)
    if isinstance(value, tuple):
        return [map_refs(item, change) for item in value]
    return value
