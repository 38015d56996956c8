"""One run of a region as data: the dispatcher calls it made, on the exact tensors.

A `Recorder` is a dispatch mode. It runs every call and writes it down with each tensor as a `Ref`: which storage,
and where in it. Storages are numbered in order of appearance; the ones that an operator made are *born*, all others
are *outside* (parameters, static buffers, results of other regions) and are kept alive by the recording.

Aliasing is judged by the real storage and never by the schema: several operators that are no views return one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from graphspec.errors import CaptureError
from graphspec.recording.python_kernels import PythonKernels
from graphspec.recording.source import ModuleNames, Site, site
from graphspec.recording.writes import effect_of

if TYPE_CHECKING:
    from torch._ops import OpOverload


class UncapturableError(CaptureError):
    """An operator that no recording can hold; ``site`` is the line of the model that called it."""

    def __init__(self, message: str, site: Site, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.site = site


@dataclass(frozen=True, slots=True)
class Ref:
    """A strided tensor as a place in a storage. ``offset``, ``size`` and ``stride`` count elements."""

    storage: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    conj: bool = False
    neg: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """One dispatcher call. ``args`` and ``kwargs`` are as given, with a `Ref` for each tensor.

    ``outputs`` are the returned values in schema order (a returned list is a tuple of refs; None for what is no
    tensor). ``born`` are the storages this call made, ``modules`` the dotted names of the modules being called.
    """

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[Any, ...]
    born: tuple[int, ...]
    site: Site
    modules: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The dispatcher name, with its overload unless that is the default one."""
        name = str(self.op.name())
        return name.removesuffix(".default")

    @property
    def writes(self) -> bool:
        """Whether it writes into a tensor it was given."""
        return any(True for _ in written_refs(self))

    def arguments(self) -> dict[str, Any]:
        """Every argument by its schema name, defaults filled in."""
        bound: dict[str, Any] = {}
        for position, argument in enumerate(self.op._schema.arguments):
            if position < len(self.args):
                bound[argument.name] = self.args[position]
            elif argument.name in self.kwargs:
                bound[argument.name] = self.kwargs[argument.name]
            else:
                bound[argument.name] = argument.default_value
        return bound


_DEVICE = torch.ops.prim.device.default


@dataclass(frozen=True, slots=True)
class Outside:
    """A storage the region did not make: kept alive, with the tensor through which it was first seen."""

    storage: torch.UntypedStorage
    tensor: torch.Tensor


@dataclass
class Recording:
    """What a `Recorder` saw. ``bytes`` has the size of every storage; ``outside`` those the region did not make.

    ``written`` are the storages some call wrote, ``literals`` those of ``torch.tensor(NUMBER)`` in the source.
    ``also_written`` are tensors that parts wrote which stay eager, one for each storage, by its identity.
    """

    calls: list[Call] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    outside: dict[int, Outside] = field(default_factory=dict)
    written: set[int] = field(default_factory=set)
    literals: set[int] = field(default_factory=set)
    also_written: dict[int, torch.Tensor] = field(default_factory=dict)
    _keys: dict[int, int] = field(default_factory=dict)
    _alive: list[StorageWeakRef] = field(default_factory=list)
    _born: tuple[int, set[int]] | None = None

    def ref(self, tensor: torch.Tensor) -> Ref:
        """Where a tensor lies. One that no recorded call made, or that was not seen before, is outside."""
        storage = tensor.untyped_storage()
        index = self._index(storage, tensor)
        return Ref(
            index,
            tensor.dtype,
            tuple(tensor.size()),
            tuple(tensor.stride()),
            int(tensor.storage_offset()),
            tensor.is_conj(),
            tensor.is_neg(),
        )

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether the storage of a tensor has been seen."""
        return tensor.untyped_storage()._cdata in self._keys

    def born_keys(self) -> set[int]:
        """The identities of the storages that recorded calls made; unique while this recording knows them."""
        if self._born is None or self._born[0] != len(self.bytes):
            self._born = len(self.bytes), {key for key, index in self._keys.items() if index not in self.outside}
        return self._born[1]

    def is_born(self, index: int) -> bool:
        """Whether a recorded call made this storage."""
        return index not in self.outside

    def written_outside(self) -> list[torch.Tensor]:
        """The tensors from outside that some call, or an eager part, wrote."""
        found = {index: self.outside[index].tensor for index in sorted(self.written & self.outside.keys())}
        known = {self.outside[index].storage._cdata for index in found}
        return [
            *found.values(),
            *(it for key, it in self.also_written.items() if key not in known and self._is_old(key)),
        ]

    def _is_old(self, key: int) -> bool:
        """Whether a storage was there before the recording, by its identity."""
        return key not in self._keys or self._keys[key] in self.outside

    def alive(self, index: int) -> torch.UntypedStorage | None:
        """A storage, while something outside of the recording still holds it. Not after `release`."""
        found: torch.UntypedStorage | None = torch.UntypedStorage._new_with_weak_ptr(self._alive[index].cdata)
        return found

    def release(self) -> None:
        """Forget the identity of born storages, so that their memory can go. Refs stay valid."""
        self.also_written = {key: it for key, it in self.also_written.items() if self._is_old(key)}
        self._keys.clear()
        self._alive.clear()

    def _index(self, storage: torch.UntypedStorage, tensor: torch.Tensor | None) -> int:
        # A weak reference keeps the address of the storage from being used again, so the key stays unique
        # although nothing here keeps born memory alive.
        key = storage._cdata
        index = self._keys.get(key)
        if index is None:
            index = len(self.bytes)
            self._keys[key] = index
            self._alive.append(StorageWeakRef(storage))
            self.bytes.append(storage.nbytes())
            if tensor is not None:
                self.outside[index] = Outside(storage, tensor)
        else:
            self.bytes[index] = max(self.bytes[index], storage.nbytes())
        return index


#: Makes one call of an operator.
Run = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Any]


def _run(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return func(*args, **kwargs)


class Recorder(TorchDispatchMode):
    """Runs the calls of one region and writes each of them into ``recording``.

    With ``names`` every call also carries the modules it was made in. ``run`` makes the call in place of the operator
    itself: who else wants to see every call needs no mode of its own. Of an operator whose kernel is Python the calls
    of that code are recorded, as a device does it, inside of ``around_kernels()``; those named in ``whole`` stay one
    call. A function made by torch.compile is run as the eager code that it was made of, unless it is ``compiled`` by
    graphspec.
    """

    def __init__(
        self,
        region: str,
        names: ModuleNames | None = None,
        run: Run = _run,
        *,
        whole: Collection[str] = (),
        around_kernels: Callable[[], AbstractContextManager[object]] = nullcontext,
        compiled: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._python = PythonKernels(whole)
        self._around_kernels = around_kernels
        self.region = region
        self._run = run
        self._names = names
        self.recording = Recording()
        self.failed: tuple[str, Site, Exception] | None = None
        self._compiled = compiled

    def ignore_compile_internals(self) -> bool:  # type: ignore[override]  # torch asks each mode on its stack
        """Whether compiled code runs below this mode, which sees the operators that it calls."""
        return self._compiled

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _DEVICE or func.namespace == "profiler":  # where a fake tensor is; what names a step of an optimizer
            return func(*args, **kwargs)
        keys = self._python.opened(func, args, kwargs)
        if keys is None:
            return self.record(func, args, kwargs)
        try:
            with self, self._around_kernels():
                return func.redispatch(keys, *args, **kwargs)
        except Exception:
            if not self._python.on_fakes(args, kwargs):
                raise
            return self.record(func, args, kwargs)  # which says what is missing

    def note(self, op: OpOverload, args: tuple[Any, ...], result: list[torch.Tensor], where: Site) -> None:
        """Write down a call that was made out of the sight of this mode; what it returns in new memory, it has made."""
        recording = self.recording
        noted = tuple(self._note(value, op, where) for value in args)
        before = len(recording.bytes)
        outputs = (self._note(result, op, where, born=True),)
        born = tuple(range(before, len(recording.bytes)))
        recording.calls.append(Call(op, noted, {}, outputs, born, where))
        recording.written.update(ref.storage for ref in written_refs(recording.calls[-1]))

    def record(self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run one call and write it down."""
        where = site()
        modules = self._names.inside() if self._names is not None else ()
        recording = self.recording
        noted_args = tuple(self._note(value, func, where) for value in args)
        noted_kwargs = {key: self._note(value, func, where) for key, value in kwargs.items()}
        try:
            result = self._run(func, args, kwargs)
        except Exception as error:
            self.failed = (str(func.name()), where, error)
            raise
        effect = effect_of(func)
        if not effect.reshapes and effect.targets(args, kwargs):
            # `out=` of another size was resized to the result, and a replay must find it so.
            given_args, given_kwargs = noted_args, noted_kwargs
            noted_args = tuple(self._note(value, func, where) for value in args)
            noted_kwargs = {key: self._note(value, func, where) for key, value in kwargs.items()}
            if noted_args != given_args or noted_kwargs != given_kwargs:
                self._refuse_resized(func, where, (given_args, given_kwargs), (noted_args, noted_kwargs))
        before = len(recording.bytes)
        returned = result if isinstance(result, tuple) else (result,)
        outputs = tuple(self._note(value, func, where, born=True) for value in returned)
        born = tuple(range(before, len(recording.bytes)))
        recording.calls.append(Call(func, noted_args, noted_kwargs, outputs, born, where, modules))
        if func is torch.ops.aten.lift_fresh.default:
            recording.literals.update(ref.storage for ref in refs_in(noted_args))
        recording.written.update(ref.storage for ref in written_refs(recording.calls[-1]))
        return result

    def _refuse_resized(
        self,
        func: OpOverload,
        where: Site,
        before: tuple[tuple[Any, ...], Mapping[str, Any]],
        after: tuple[tuple[Any, ...], Mapping[str, Any]],
    ) -> None:
        """An operator that reads an argument and resizes it finds another one on the next replay."""
        for position, argument in enumerate(func._schema.arguments):
            if argument.is_out:
                continue
            first, second = (
                given[0][position] if position < len(given[0]) else given[1].get(argument.name)
                for given in (before, after)
            )
            if first != second:
                message = f"region '{self.region}': {func.name()} resizes '{argument.name}' in place, at {where}"
                hint = f"give it the size of the result, or call {func._opname.rstrip('_')}"
                raise UncapturableError(message, where, hint=hint)

    def _note(self, value: Any, func: OpOverload, where: Site, *, born: bool = False) -> Any:
        if isinstance(value, torch.Tensor):
            wrapped = hasattr(type(value), "__tensor_flatten__") and not isinstance(value, FakeTensor)
            if wrapped or value.layout is not torch.strided or value.is_quantized:
                kind = type(value).__name__ if wrapped else f"{value.layout} tensor"
                message = f"region '{self.region}': {func.name()} works on a {kind}, at {where}"
                hint = "only dense strided tensors can be captured; mark the region eager"
                raise UncapturableError(message, where, hint=hint)
            if born:
                self.recording._index(value.untyped_storage(), None)
            return self.recording.ref(value)
        if isinstance(value, (list, tuple)):
            return tuple(self._note(item, func, where, born=born) for item in value)
        return None if born else value


def refs_in(value: Any) -> Iterator[Ref]:
    """Every `Ref` inside a recorded argument or output."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from refs_in(item)


def written_refs(call: Call) -> Iterator[Ref]:
    """The tensors whose memory a call writes."""
    return refs_in(effect_of(call.op).written(call.args, call.kwargs))


def touched_refs(call: Call) -> Iterator[Ref]:
    """Every tensor a call reads, writes or returns."""
    return refs_in((*call.args, *call.kwargs.values(), *call.outputs))


def map_parts(value: Any, change: Callable[[Ref], Any]) -> Any:
    """A recorded argument with every `Ref` replaced by ``change`` of it; tuples become lists."""
    if isinstance(value, Ref):
        return change(value)
    return [map_parts(item, change) for item in value] if isinstance(value, tuple) else value
