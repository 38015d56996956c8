"""Statements tried before they are drawn: the program so far, alive at several sizes at once.

The first world holds plain values. The second and third hold the same values, followed in every bucketed dim by rows of
garbage (two different ones), as a padded bucket would. The last is as small as a run may be. A statement is taken if it
runs in all of them, gives finite values, and, where rows may be padded, the same values in the real rows of each.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from random_models.language import Axis

#: Sizes of the worlds by dim: no static size is one of them, and no small multiple of one is another.
SIZES: Mapping[str, tuple[int, int]] = {"b": (5, 7), "s": (9, 13)}
MOST_ELEMENTS = 600
LARGEST = 1e4

GLOBALS: dict[str, Any] = {}
exec(  # noqa: S102  what a generated module imports
    "import random, time\nimport numpy as np\nimport torch\nimport torch.nn.functional as F", GLOBALS
)


@dataclass(frozen=True)
class Known:
    """What is known of a value: its axes are None where no dim explains them."""

    name: str
    dtype: torch.dtype
    axes: tuple[Axis, ...] | None
    tensor: torch.Tensor


@dataclass
class World:
    """One copy of the program. ``named`` are the values of the spec, ``local`` those of the region being drawn."""

    sizes: Mapping[str, int]
    model: torch.nn.Module
    named: dict[str, Any]
    local: dict[str, Any]

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor there is."""
        found = [*self.named.values(), *self.local.values(), *vars(self.model).values()]
        inside = [item for value in found if isinstance(value, tuple | list) for item in value]
        owned = [*self.model.parameters(), *self.model.buffers()]
        return [value for value in (*found, *inside, *owned) if isinstance(value, torch.Tensor)]


class Worlds:
    """The worlds of one draw. ``padded``: rows must not mix."""

    def __init__(
        self, make: Callable[[], torch.nn.Module], dims: tuple[str, ...], least: Mapping[str, int], *, padded: bool
    ):
        self.padded = padded
        base, large = ({dim: SIZES[dim][i] for dim in dims} for i in (0, 1))
        sizes = [base, large, large, dict(least)] if dims else [{}]
        self.all = [World(each, make(), {}, {}) for each in sizes]
        self.inputs: set[str] = set()

    @property
    def base(self) -> World:
        """The world of plain values."""
        return self.all[0]

    def define(self, name: str, make: Callable[[World, int], Any]) -> None:
        """Add a value of the spec; ``make`` gives it for a world and its number."""
        values = [make(world, number) for number, world in enumerate(self.all)]
        if self.padded:
            for value in values[1:3]:
                if isinstance(value, torch.Tensor) and isinstance(values[0], torch.Tensor):
                    _corner(value, values[0]).copy_(values[0])
        for world, value in zip(self.all, values, strict=True):
            world.named[name] = value

    def enter(self, arguments: Mapping[str, Callable[[World], Any]]) -> None:
        """Begin a region: its parameters and nothing else."""
        for world in self.all:
            world.local = {"self": world.model, **{name: take(world) for name, take in arguments.items()}}

    def attempt(self, line: str, *, writes: bool = True, mixing: bool = False) -> bool:
        """Run a statement everywhere and keep what it did if it may stay; else everything is as before.

        ``writes``: it may change tensors there are. ``mixing``: rows may mix, as in an eager region.
        """
        saved = [_Saved(world, self.inputs, writes=writes) for world in self.all]
        code = compile(line, "<draw>", "exec")
        ran = all(_ran(code, world) for world in self.all)
        unwritten = "resize" in line and any(each.grew() for each in saved)  # what it grows by, nobody has written
        if ran and not unwritten and self._may_stay(saved, writes=writes, mixing=mixing):
            return True
        for each in saved:
            each.restore()
        return False

    def known(self) -> list[Known]:
        """The tensors of the region being drawn, and the model's."""
        names = [name for name in self.base.local if name != "self"]
        local = [self._known(name, [world.local[name] for world in self.all]) for name in names]
        owned = {**self.base.model._parameters, **self.base.model._buffers}
        return [
            *(each for each in local if each is not None),
            *(Known(f"self.{name}", value.dtype, tuple(value.shape), value) for name, value in owned.items()),
        ]

    def axes(self, values: list[Any]) -> tuple[Axis, ...] | None:
        """The axes of a value, from its shapes in the first two worlds."""
        shapes = [tuple(value.shape) for value in values[:2]]
        if len(shapes) == 1:
            return shapes[0]
        axes = tuple(self._axis(*sizes) for sizes in zip(*shapes, strict=True))
        return None if None in axes else axes  # type: ignore[return-value]

    def same_rows(self) -> None:
        """After an eager region, which sees real rows only: the same values in the real rows of every world."""
        ours = self.base.tensors()
        for world in self.all[1:3]:
            for own, other in zip(ours, world.tensors(), strict=True):
                if own.dtype == other.dtype and not other.requires_grad and own.dim() == other.dim() and _dense(other):
                    _corner(other, own).copy_(own)

    def _axis(self, first: int, second: int) -> Axis | None:
        if first == second:
            return first
        for dim, size in self.base.sizes.items():
            factor, rest = divmod(first, size)
            if factor and not rest and second == factor * self.all[1].sizes[dim]:
                return dim, factor
        return None

    def _known(self, name: str, values: list[Any]) -> Known | None:
        if not all(isinstance(value, torch.Tensor) for value in values):
            return None
        return Known(name, values[0].dtype, self.axes(values), values[0])

    def _may_stay(self, saved: list[_Saved], *, writes: bool, mixing: bool) -> bool:
        fresh = [name for name, value in self.base.local.items() if saved[0].local.get(name) is not value]
        for name in fresh:
            values = [world.local.get(name) for world in self.all]
            if not _alike(values) or not _sane(values[0]) or self._unlike(values):
                return False
            if self.padded and isinstance(values[0], torch.Tensor):
                apart = mixing or all(_same_corner(values[0], other) for other in values[1:3])
                if self.axes(values) is None or not apart:
                    return False
        if not writes:
            return True
        if any(self._unlike(world.local.get(name) for world in self.all) for name in self.base.local):
            return False
        if saved[0].wrote() or not all(_sane(value) for value in self.base.tensors()):
            return False
        return not self.padded or mixing or self._apart()

    def _unlike(self, values: Iterable[Any]) -> bool:
        """Whether a value has axes in one world that it has not in the others: squeezed where a size was 1, say."""
        found = [value for value in values if isinstance(value, torch.Tensor)]
        if len(found) < len(self.all) or (axes := self.axes(found)) is None:
            return len({value.dim() for value in found}) > 1
        least = self.all[-1].sizes
        return tuple(found[-1].shape) != tuple(a if isinstance(a, int) else a[1] * least[a[0]] for a in axes)

    def _apart(self) -> bool:
        """Whether garbage has reached no real row."""
        ours = self.base.tensors()
        for world in self.all[1:3]:
            others = world.tensors()
            if len(ours) != len(others) or not all(map(_same_corner, ours, others)):
                return False
        return True


class _Saved:
    """What a statement may change in one world."""

    def __init__(self, world: World, inputs: set[str], *, writes: bool) -> None:
        self._world = world
        self.local = dict(world.local)
        self._attributes = dict(vars(world.model))
        self._inputs = [(world.named[name], world.named[name]._version, world.named[name].clone()) for name in inputs]
        self._contents: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._shapes: list[Any] = []
        if writes:
            self._save(world.tensors())

    def wrote(self) -> bool:
        """Whether an input has changed."""
        return any(now._version != version or not torch.equal(now, before) for now, version, before in self._inputs)

    def grew(self) -> bool:
        """Whether a storage is larger than it was."""
        return any(storage.nbytes() > content.nbytes() for storage, content in self._contents.values())

    def restore(self) -> None:
        """Put it back."""
        world = self._world
        world.local = self.local
        for key in [key for key in vars(world.model) if key not in self._attributes]:
            del vars(world.model)[key]
        vars(world.model).update(self._attributes)
        with torch.no_grad():
            for storage, content in self._contents.values():
                if storage.nbytes() != content.nbytes():
                    storage.resize_(content.nbytes())
                storage.copy_(content)
            for tensor, *place in self._shapes:
                if tensor.shape != place[2] or tensor.untyped_storage()._cdata != place[0]._cdata:
                    tensor.set_(*place)

    def _save(self, tensors: list[torch.Tensor]) -> None:
        self._shapes = [
            (each, each.untyped_storage(), each.storage_offset(), each.shape, each.stride()) for each in tensors
        ]
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._contents:
                self._contents[storage._cdata] = (storage, storage.clone())


def _ran(code: Any, world: World) -> bool:
    torch.default_generator.manual_seed(0)  # torch.manual_seed seeds devices that are not there, slowly
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(code, GLOBALS, world.local)  # noqa: S102
    except Exception:  # noqa: BLE001  any failure means that the statement does not fit
        return False
    return True


def _alike(values: list[Any]) -> bool:
    first = values[0]
    if not isinstance(first, torch.Tensor):
        return not isinstance(first, list)
    return all(
        isinstance(v, torch.Tensor) and v.dtype == first.dtype and v.dim() == first.dim() and v.numel() <= MOST_ELEMENTS
        and not v.requires_grad
        for v in values
    ) and first.numel() > 0  # fmt: skip


def _sane(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or not (value.dtype.is_floating_point or value.dtype.is_complex):
        return True
    plain = value.detach().abs().to(torch.float32)
    return bool((plain < LARGEST).all()) if plain.numel() else True


def _dense(value: torch.Tensor) -> bool:
    return all(stride > 0 or size == 1 for size, stride in zip(value.shape, value.stride(), strict=True))


def _corner(large: torch.Tensor, small: torch.Tensor) -> torch.Tensor:
    return large[tuple(slice(0, size) for size in small.shape)]


def _same_corner(small: torch.Tensor, large: torch.Tensor) -> bool:
    if small is large:
        return True
    if (
        small.dim() != large.dim()
        or small.dtype != large.dtype
        or any(a > b for a, b in zip(small.shape, large.shape, strict=True))
    ):
        return False
    cut, own = _corner(large.detach(), small.detach()), small.detach()
    if not (own.dtype.is_floating_point or own.dtype.is_complex):
        return torch.equal(cut, own)
    if own.dtype.itemsize == 1:
        cut, own = cut.float(), own.float()
    loose = 1e-4 if own.dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128) else 5e-2
    return torch.allclose(cut, own, rtol=loose, atol=loose)
