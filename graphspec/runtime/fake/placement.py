"""Which memory would stay on the host, were the model on a device: a label of graphspec's own, carried along a trace.

On a build for the CPU every tensor is on ``cpu``. What tells host from device is how memory came to be: a tensor made
without ``device`` is the host's, until ``.to(device)`` moves it (``model.to`` moves parameters and buffers so, and
whatever else a model's ``_apply`` passes on); one made with ``device=x.device`` is the device's. The text "cpu" means
the host, unless the factory has asked which devices there are. Where that leaves a doubt the tensor counts as the
device's: nothing is reported wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from graphspec.recording.source import Site, site
from graphspec.runtime.fake.device_names import any_device, asked_for_devices, module_to_any_device, names_device
from graphspec.runtime.hazards.conditions import function_name
from graphspec.runtime.holdings.storages import key_of, storage_of, weak

_MOVES = frozenset({"Tensor.cuda", "Tensor.npu"})
_DEVICE = torch.ops.prim.device.default
_LIFT = torch.ops.aten.lift_fresh.default


@dataclass(frozen=True)
class HostMemory:
    """One storage of the host. ``inside``: the region that is being traced made it, of nothing but numbers.

    ``source`` is the tensor of the host it was computed from, where that is older than the region.
    """

    ref: StorageWeakRef
    made: Site
    inside: bool
    source: torch.Tensor | None = None


@dataclass(frozen=True)
class Meeting:
    """An operator that takes a tensor, or a numpy number, of the host together with tensors of the device.

    ``copies``: it would copy the tensor to the device. ``made`` is where a tensor with no other name was made.
    """

    value: Any
    operator: str
    place: Site
    copies: bool = False
    made: Site | None = None


@dataclass(frozen=True)
class _Call:
    """The torch function being called: whether it was given a device, and tensors."""

    device: Any
    tensors: bool


class Placement:
    """The labels of one fake world. Not ``active``: everything is meant for the CPU, and nothing is labelled."""

    def __init__(self, *, active: bool = True) -> None:
        self._active = active
        self._host: dict[int, HostMemory] = {}
        self._met: list[Meeting] | None = None
        self._call: _Call | None = None
        self._building = False
        self._making = False
        self._asked = False  # the model has asked which devices there are

    @contextmanager
    def building(self) -> Iterator[None]:
        """Labels what a factory makes."""
        self._building = True
        try:
            with self.followed(), module_to_any_device(), asked_for_devices(self.note_asked):
                yield
        finally:
            self._building = False

    @contextmanager
    def making(self) -> Iterator[None]:
        """Inside `building`, the call of the factory itself: what it makes lies on the host until it is moved."""
        self._making = True
        try:
            yield
        finally:
            self._making = False

    def note_asked(self) -> None:
        """The factory knows of devices: from here on the text "cpu" is the device it runs on."""
        self._asked = True

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Keeps the labels up to date with the regions that run inside."""
        if not self._active:
            yield
            return
        with _PlacingFunctions(self), _PlacingOperators(self):
            yield

    @contextmanager
    def judged(self) -> Iterator[list[Meeting]]:
        """Inside `followed`, for a captured region; gives what met in it, in order."""
        met: list[Meeting] = []
        self._met = met
        try:
            yield met
        finally:
            self._met = None
            self._host = {key: replace(it, inside=False) for key, it in self._host.items()}

    def function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call of a torch function, with every device replaced by the CPU."""
        if isinstance(func, OpOverload):  # a dispatch mode passing its call on: not the model's
            return func(*args, **kwargs)
        name = function_name(func)
        if func is torch.device:
            return any_device(args, kwargs)
        device = kwargs.get("device")
        if device is not None and self._names_device(device):
            kwargs = {**kwargs, "device": torch.device("cpu")}
        if name in _MOVES:
            func, args, kwargs, device = torch.Tensor.to, (args[0], torch.device("cpu")), {}, "device"
        elif name in ("Tensor.to", "Tensor.type_as"):
            device, args = self._target(name, args, kwargs)
        if self._met is not None:
            self._numbers(name, args, kwargs)
        outer, self._call = self._call, _Call(device, any(isinstance(arg, torch.Tensor) for arg in _flat(args, kwargs)))
        try:
            result = func(*args, **kwargs)
        finally:
            self._call = outer
        if device is not None and name in (*_MOVES, "Tensor.to", "Tensor.type_as") and self._names_device(device):
            return self._moved(args[0], result, name)
        return result

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call of the dispatcher."""
        if func is _DEVICE:
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if func is _LIFT:
            # Data of the host inside a region has a finding of its own; a number there is legal everywhere.
            if self._building and (self._call is None or self._is_hosts_own()):
                self._add(result)
            return result
        given = [value for value in _flat(args, kwargs) if isinstance(value, torch.Tensor)]
        hosts = [tensor for tensor in given if self._is_host(tensor)]
        if not given:
            if self._is_hosts_own():
                self._add(result)
        elif hosts and len(hosts) == len(given):
            self._add(result, next((self._root(tensor) for tensor in hosts if not self._is_inside(tensor)), None))
        elif hosts and self._met is not None:
            self._meet(func, hosts)
        return result

    def _target(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
        """The device a ``to`` or ``type_as`` goes to, None if it only casts; and its arguments, on the CPU."""
        target = kwargs.get("device", kwargs.get("other", args[1] if len(args) > 1 else None))
        if isinstance(target, torch.Tensor):
            return ("cpu" if self._is_host(target) else target.device), args
        if name == "Tensor.type_as" or not isinstance(target, (str, torch.device, int)) or isinstance(target, bool):
            return None, args
        if len(args) > 1 and args[1] is target and self._names_device(target):
            args = (args[0], torch.device("cpu"), *args[2:])
        return target, args

    def _moved(self, before: Any, after: Any, name: str) -> Any:
        """What a move to the device gives: in a factory the same memory, from now on the device's; in a call a copy."""
        if not self._is_host(before):
            self._host.pop(_key(after), None)
            return after
        if self._building:
            for tensor in (before, after):
                self._host.pop(_key(tensor), None)
            return after
        if self._met is not None and not (before.dim() == 0 and self._is_inside(before)):
            self._met.append(self._meeting(before, name, copies=True))
        copied = after.clone() if _key(before) == _key(after) else after
        self._host.pop(_key(copied), None)
        return copied

    def _meet(self, func: Any, hosts: list[torch.Tensor]) -> None:
        assert self._met is not None
        for tensor in hosts:
            if tensor.dim() == 0 and self._is_inside(tensor):
                continue  # a number that the region itself makes: the same on every run, and taken by every operator
            self._met.append(self._meeting(tensor, str(func.name()).removesuffix(".default")))

    def _meeting(self, tensor: torch.Tensor, operator: str, *, copies: bool = False) -> Meeting:
        found = self._host.get(_key(tensor))
        return Meeting(self._root(tensor), operator, site(), copies, found.made if found is not None else None)

    def _numbers(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert self._met is not None
        for value in _flat(args, kwargs):
            if isinstance(value, np.generic):
                operator = name if name.startswith("Tensor.") else f"torch.{name}"
                self._met.append(Meeting(value, operator, site()))

    def _names_device(self, device: Any) -> bool:
        return self._asked or names_device(device, building=self._making)

    def _is_hosts_own(self) -> bool:
        """Whether what the current call makes of nothing is the host's. In doubt it is not."""
        call = self._call
        if call is None or call.tensors:
            return False
        return call.device is None or not self._names_device(call.device)

    def _is_host(self, tensor: torch.Tensor) -> bool:
        return type(tensor) in (torch.Tensor, torch.nn.Parameter) or _key(tensor) in self._host

    def _is_inside(self, tensor: torch.Tensor) -> bool:
        found = self._host.get(_key(tensor))
        return found is not None and found.inside

    def _root(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the region computed a tensor of the host from; the tensor itself if it is older."""
        found = self._host.get(_key(tensor))
        return tensor if found is None or found.source is None else found.source

    def _add(self, result: Any, source: torch.Tensor | None = None) -> None:
        inside = self._met is not None and source is None
        for tensor in _flat((result,), {}):
            storage = storage_of(tensor) if isinstance(tensor, torch.Tensor) else None
            if storage is not None and key_of(storage) not in self._host:
                self._host[key_of(storage)] = HostMemory(
                    weak(storage), site(), inside, source if self._met is not None else None
                )


class _PlacingFunctions(TorchFunctionMode):
    def __init__(self, placement: Placement) -> None:
        super().__init__()
        self._placement = placement

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        return self._placement.function(func, args, kwargs or {})


class _PlacingOperators(TorchDispatchMode):
    def __init__(self, placement: Placement) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._placement = placement

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        return self._placement.operator(func, args, kwargs or {})


def _flat(args: Any, kwargs: dict[str, Any]) -> Iterator[Any]:
    for value in (*args, *kwargs.values()):
        if isinstance(value, (list, tuple)):
            yield from _flat(value, {})
        else:
            yield value


def _key(tensor: torch.Tensor) -> int:
    storage = storage_of(tensor)
    return key_of(storage) if storage is not None else 0
