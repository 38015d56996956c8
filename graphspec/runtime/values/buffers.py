"""Static buffers: allocated once at their largest size, one view a bucket, the address never changes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, MutableMapping
from functools import cached_property
from typing import Any

import torch

from graphspec import plan as plans
from graphspec import spec as language
from graphspec.errors import DeviceError, ModelError
from graphspec.plan import Bucket, concrete
from graphspec.runtime.values.blocks import Block, bytes_at
from graphspec.runtime.values.inputs import check_copy
from graphspec.runtime.values.paths import matching

_ATTR_HINT = "attr is a path from what the factory returned: model.layers.*.cache"
_FORMATS = {
    "contiguous": torch.contiguous_format,
    "channels_last": torch.channels_last,
    "channels_last_3d": torch.channels_last_3d,
}

#: torch counts elements and bytes in signed 64 bits.
_LARGEST = 2**63 - 1


def strides_of(shape: tuple[int, ...], layout: str | None) -> tuple[int, ...]:
    """The strides of a dense tensor in a declared layout. Worked out here: not every device makes every format."""
    return torch.empty(shape, device="meta", memory_format=_FORMATS[layout or "contiguous"]).stride()


class StaticBuffer:
    """One declared buffer. ``view(bucket)`` is what graphs of that bucket read; all views share one allocation.

    The view of an input is dense in its own layout; that of a state, and of an input in a tensor of the model's, keeps
    every element where the largest bucket has it, so that row i is row i in every bucket.
    """

    def __init__(self, layout: plans.BufferPlan, device: torch.device) -> None:
        assert layout.shape is not None
        assert layout.largest is not None
        self.declared = layout.declared
        self.name = layout.name
        self.dims = layout.dims
        self.dtype: torch.dtype = getattr(torch, str(layout.dtype))
        self.whole = self._allocated(layout, device)
        self.block = Block(layout.name, lambda: bytes_at(self.whole.untyped_storage(), 0, self.whole.nbytes))
        self.largest = self._dense(layout.largest)
        self._in_place = layout.role == "state" or layout.declared.attr is not None
        self._views: dict[Bucket, torch.Tensor] = {}

    def lie_in(self, tensor: torch.Tensor) -> None:
        """Be this tensor of the model's, of the largest shape."""
        self.whole = self.largest = tensor.detach()
        self._views.clear()

    def view(self, bucket: Bucket, constants: Mapping[str, int]) -> torch.Tensor:
        """The tensor that graphs of ``bucket`` read or write."""
        own = bucket.project(self.dims)
        view = self._views.get(own)
        if view is None:
            shape = concrete(self.declared.shape or (), {**constants, **dict(own.sizes)})
            view = self._views[own] = self._cut(shape) if self._in_place else self._dense(shape)
        return view

    def fill(self, value: Any) -> None:
        """Write a number, or a nested list of the largest shape; None is zero."""
        if isinstance(value, (list, tuple)):
            self.largest.copy_(torch.tensor(value, dtype=self.dtype))
        else:
            self.whole.fill_(0 if value is None else value)

    def _allocated(self, layout: plans.BufferPlan, device: torch.device) -> torch.Tensor:
        try:
            return torch.zeros(math.prod(layout.largest or ()), dtype=self.dtype, device=device)
        except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
            if device.type != "cpu" and not isinstance(error, torch.OutOfMemoryError):
                raise  # a device that failed says so itself
            needs = f"{layout.bytes:,} bytes for the shape {list(layout.largest or ())}"
            message = f"buffer '{self.name}' needs {needs}, and they cannot be allocated on {device}"
            raise DeviceError(message, hint="`graphspec plan` lists the bytes of every buffer") from None

    def _dense(self, shape: tuple[int, ...]) -> torch.Tensor:
        flat = self.whole[: math.prod(shape)]
        return flat.as_strided(shape, strides_of(shape, self.declared.layout))

    def _cut(self, shape: tuple[int, ...]) -> torch.Tensor:
        return self.largest[tuple(slice(0, size) for size in shape)]


class Buffers:
    """Every static buffer of a spec, and the model's own tensors that are states (``attr``)."""

    def __init__(self, plan: plans.Plan, device: torch.device) -> None:
        _refuse_too_large(plan)
        self._plan = plan
        self.constants = plan.constants
        self.static = {
            name: StaticBuffer(buffer, device)
            for name, buffer in plan.buffers.items()
            if buffer.static and (buffer.declared.attr is None or buffer.role == "input")
        }
        self._derived = [
            (name, buffer.declared.source) for name, buffer in self.static.items() if buffer.declared.source is not None
        ]
        self.owned: dict[str, dict[str, torch.Tensor]] = {}
        self._found_anew = True
        self._initial: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        for name, buffer in self.static.items():
            if buffer.declared.role == "state":
                buffer.fill(buffer.declared.init)
                self._remember(name, self.static[name].largest)

    @cached_property
    def addresses(self) -> frozenset[int]:
        """Where the memory of each static buffer starts."""
        return frozenset(buffer.whole.untyped_storage().data_ptr() for buffer in self.static.values())

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Where the memory of each static buffer starts and ends, in ascending order."""
        storages = [buffer.whole.untyped_storage() for buffer in self.static.values()]
        return sorted({(storage.data_ptr(), storage.data_ptr() + storage.nbytes()) for storage in storages})

    @cached_property
    def input_storages(self) -> Mapping[int, str]:
        """The storages of graphspec's own that callers' inputs are copied into, by identity, and the input of each."""
        own = ((name, buffer) for name, buffer in self.static.items() if buffer.declared.attr is None)
        inputs = [(name, buffer.whole) for name, buffer in own if buffer.declared.role == "input"]
        return {whole.untyped_storage()._cdata: name for name, whole in inputs}

    @property
    def blocks(self) -> dict[int, Block]:
        """The blocks of all static buffers, by storage."""
        return {buffer.whole.untyped_storage()._cdata: buffer.block for buffer in self.static.values()}

    def move_inputs(self, values: MutableMapping[str, Any]) -> None:
        """Put every input among ``values`` in other memory: one that an earlier run kept is told from a later run's."""
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and value.untyped_storage()._cdata in self.input_storages:
                values[name] = value.clone(memory_format=torch.preserve_format)

    def adopt(self, model: Any) -> None:
        """Find the states that the model owns, once. After warm-up, since a model may create its caches lazily."""
        if not self._found_anew:
            return
        owning = (buffer.declared for buffer in self._plan.buffers.values() if buffer.declared.attr is not None)
        declared = [buffer for buffer in owning if buffer.role == "state"]
        owned = {buffer.name: owned_tensors(model, buffer) for buffer in declared}
        for buffer in declared:
            for path, tensor in owned[buffer.name].items():
                self._check_owned(buffer, path, tensor)
        before = self._initial
        self._initial = {name: kept for name, kept in before.items() if name in self.static}
        self.owned, self._found_anew = owned, False
        for path, tensor in ((path, tensor) for tensors in owned.values() for path, tensor in tensors.items()):
            known, content = before.get(path, (None, tensor))
            if known is tensor and content.shape == tensor.shape:
                self._initial[path] = before[path]
            else:
                self._remember(path, tensor)

    def adopt_anew(self, model: Any) -> None:
        """Have the next `adopt` find the model's own states again: one that was replaced begins a life of its own."""
        self._found_anew = True
        self.adopt_inputs(model)

    def adopt_inputs(self, model: Any) -> None:
        """Put every input with an ``attr`` where the model has it. Raises ModelError if it does not fit there."""
        for name, buffer in self.static.items():
            if buffer.declared.attr is not None:
                buffer.lie_in(owned_input(model, self._plan.buffers[name]))
        self.__dict__.pop("addresses", None)

    def view(self, name: str, bucket: Bucket) -> torch.Tensor:
        """The view of one static buffer at a bucket."""
        return self.static[name].view(bucket, self.constants)

    def one(self, name: str) -> torch.Tensor:
        """The tensor that a loop goes by, where it lies in a static buffer or is the model's own."""
        return next(iter(self.owned[name].values())) if name in self.owned else self.static[name].largest

    def refresh(self, real: Mapping[str, int], bucket: Bucket, params: Mapping[str, Any]) -> None:
        """Write the buffers that are copies of params or sizes. ``real`` has the sizes of the run, unpadded.

        Raises InputError, with nothing written, for a value that the dtype of a copy would change.
        """
        for name, source in self._derived:
            if isinstance(source, language.FromParam) and source.param in params:
                check_copy(source.param, params[source.param], self.static[name].declared.dtype or "")
        for name, source in self._derived:
            if (source.dim not in real) if isinstance(source, language.FromSize) else (source.param not in params):
                continue  # another sequence reads it
            view = self.view(name, bucket)
            if isinstance(source, language.FromSize):
                view.fill_(bucket[source.dim] if source.bucket else real[source.dim])
                continue
            self._copy_param(name, view, params[source.param], real)

    def _copy_param(self, name: str, view: torch.Tensor, given: Any, real: Mapping[str, int]) -> None:
        """Write one device copy; its own `pad` fills the rows a bucket adds, else they are padded as the param is."""
        buffer, value = self.static[name].declared, torch.as_tensor(given, dtype=view.dtype).expand(view.shape)
        shape = view.shape if buffer.pad is None else concrete(buffer.shape or (), {**self.constants, **real})
        if shape == view.shape:
            view.copy_(value)
            return
        rows = tuple(slice(0, size) for size in shape)
        pad: Any = buffer.pad
        view.fill_(pad)
        view[rows].copy_(value[rows])

    @property
    def has_derived(self) -> bool:
        """Whether some buffer is a copy of a param or a size."""
        return bool(self._derived)

    @property
    def derived(self) -> list[str]:
        """The buffers that are copies of params and sizes."""
        return [name for name, _ in self._derived]

    def states_with_rows(self) -> list[tuple[str, torch.Tensor]]:
        """Every state whose declared shape has bucketed dims, at its largest."""
        found = [(name, buffer.largest) for name, buffer in self.static.items() if buffer.declared.role == "state"]
        owned = [(name, tensor) for name, tensors in self.owned.items() for tensor in tensors.values()]
        return [(name, tensor) for name, tensor in found + owned if self._plan.buffers[name].shape is not None]

    def kept_rows(self, model: Any) -> dict[int, frozenset[str]]:
        """The bucketed dims of the states that the model owns, by storage: their other rows are kept from run to run.

        All dims are, of one with slots that padded rows may write.
        """
        scratch = {name for region in self._plan.regions.values() for name in region.declared.pad_rows}
        found: dict[int, frozenset[str]] = {}
        for name, buffer in self._plan.buffers.items():
            if buffer.declared.attr is None:
                continue
            dims = frozenset(self._plan.dims) if name in scratch else frozenset(buffer.dims)
            with contextlib.suppress(ModelError):  # said where states are looked for
                for tensor in owned_tensors(model, buffer.declared).values():
                    found[tensor.untyped_storage()._cdata] = dims
        return found

    def poison(self) -> None:
        """Fill every input buffer with NaN, or minus one."""
        for buffer in self.static.values():
            if buffer.declared.role == "input":
                floating = buffer.dtype.is_floating_point or buffer.dtype.is_complex
                buffer.whole.fill_(float("nan") if floating else 1 if buffer.dtype == torch.bool else -1)

    def reset(self) -> None:
        """Put every state back to what it was when the spec was opened."""
        with torch.no_grad():
            for tensor, initial in self._initial.values():
                tensor.copy_(initial)

    def _check_owned(self, buffer: language.Buffer, path: str, tensor: torch.Tensor) -> None:
        """A declared shape says which axes of the model's own tensor are bucketed, so it must be the tensor's.

        Where it is bucketed, the tensor may have more rows than the largest bucket; and it has those of `pad_rows`.
        """
        largest, shape = self._plan.buffers[buffer.name].largest, tuple(tensor.shape)
        if buffer.shape is not None and largest is not None and not _holds(shape, buffer.shape, largest):
            declared = ", ".join(map(str, buffer.shape))
            message = f"state '{buffer.name}' is declared [{declared}], and {path} has the shape {list(shape)}"
            raise ModelError(message, hint=f"at the largest buckets it must be {list(largest)}, or have more such rows")
        named = (region.declared.pad_rows.get(buffer.name, ()) for region in self._plan.regions.values())
        beyond = max((row for rows in named for row in rows), default=-1)
        if beyond >= (shape[0] if shape else 0) and beyond >= 0:
            message = f"`pad_rows` names row {beyond} of state '{buffer.name}', and {path} has the shape {list(shape)}"
            raise ModelError(message, hint="its rows are those along the first axis, from 0 on")
        if buffer.name in self._plan.conditions and (tensor.dtype != torch.bool or tensor.numel() != 1):
            message = f"a loop goes by '{buffer.name}', and {path} is {list(tensor.shape)} of {tensor.dtype}"
            raise ModelError(message, hint="name a tensor of one bool")

    def _remember(self, name: str, state: torch.Tensor) -> None:
        self._initial[name] = (state, state.detach().clone())


def _holds(shape: tuple[int, ...], declared: language.Shape, largest: tuple[int, ...]) -> bool:
    """Whether a tensor has the rows of the largest buckets, and is as declared along every other axis."""
    return len(shape) == len(largest) and all(
        have == want or (have > want and isinstance(axis, language.DimSize))
        for have, want, axis in zip(shape, largest, declared, strict=True)
    )


def _refuse_too_large(plan: plans.Plan) -> None:
    """Refuse sizes and buffers that no tensor can have, also of fake memory. Raises DeviceError."""
    for name, size in plan.largest.items():
        if size > _LARGEST:
            raise DeviceError(f"dim '{name}' has the size {size}, and no tensor is so large", hint="use smaller sizes")
    for name, layout in plan.buffers.items():
        if layout.bytes is not None and layout.bytes > _LARGEST:
            needs = f"{layout.bytes:,} bytes for the shape {list(layout.largest or ())}"
            message = f"buffer '{name}' needs {needs}, and no memory is so large"
            raise DeviceError(message, hint="`graphspec plan` lists the bytes of every buffer")


def owned_tensors(model: Any, buffer: language.Buffer) -> dict[str, torch.Tensor]:
    """The tensors an ``attr`` pattern names, by their full path. ``*`` stands for any one name or index.

    Raises ModelError if the pattern matches no tensor.
    """
    assert buffer.attr is not None
    where = f"buffer '{buffer.name}'"
    found = matching(model, buffer.attr, where, hint=_ATTR_HINT)
    tensors = {path: value for path, value in found.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        path, value = next(iter(found.items()))
        message = f"{where}: {buffer.attr} leads to no tensor: {path} is a {type(value).__name__}"
        raise ModelError(message, hint=_ATTR_HINT)
    return tensors


def owned_input(model: Any, buffer: plans.BufferPlan) -> torch.Tensor:
    """The tensor of the model's that an input lies in. Raises ModelError for one that is not as declared."""
    ((path, tensor),) = owned_tensors(model, buffer.declared).items()
    dtype: torch.dtype = getattr(torch, str(buffer.dtype))
    if tuple(tensor.shape) != buffer.largest or tensor.dtype != dtype:
        declared = ", ".join(map(str, buffer.shape or ()))
        message = f"input '{buffer.name}' is declared [{declared}] {buffer.dtype}, and {path} has the shape "
        hint = f"at the largest buckets it must be {list(buffer.largest or ())} {dtype}"
        raise ModelError(f"{message}{list(tensor.shape)} and is {tensor.dtype}", hint=hint)
    return tensor
