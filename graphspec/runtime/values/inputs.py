"""What a run is given: exact names, shapes, dtypes and values, and the sizes they stand for.

Nothing is broadcast and nothing is cast in silence: ``copy_`` would accept most wrong inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import torch

from graphspec import spec as language
from graphspec.errors import InputError
from graphspec.numbers import FLOATS, INTEGERS, WHOLE, leaves, unkept
from graphspec.plan import Plan
from graphspec.runtime.values.borrowed import plain


def check_names(given: Iterable[str], known: Iterable[str], sequence: str) -> None:
    """Refuse names a sequence does not take."""
    known = tuple(known)
    for name in given:
        if name not in known:
            import difflib

            close = difflib.get_close_matches(name, known, 1)
            takes = ", ".join(known) or "no inputs"
            hint = f"did you mean '{close[0]}'?" if close else f"it takes {takes}"
            raise InputError(f"sequence '{sequence}' has no input '{name}'", hint=hint)


class InputCheck:
    """The exact form one input buffer accepts."""

    __slots__ = ("_axes", "_dtype", "_format", "_rank", "buffer")

    def __init__(self, buffer: language.Buffer, constants: Mapping[str, int]) -> None:
        self.buffer = buffer
        self._dtype: torch.dtype = getattr(torch, str(buffer.dtype))
        shape = buffer.shape or ()
        self._rank = len(shape)
        fixed = dict(constants)
        self._axes = tuple(
            axis.factor * fixed[axis.dim] if isinstance(axis, language.DimSize) and axis.dim in fixed else axis
            for axis in shape
        )
        self._format = buffer.layout

    def __call__(self, value: Any, sizes: dict[str, tuple[int, str]]) -> torch.Tensor:
        """``value`` as a tensor to copy; adds the sizes of bucketed dims it shows, with the name that showed them.

        Raises InputError naming the buffer, what was expected and what came.
        """
        if not isinstance(value, torch.Tensor):
            self._refuse(f"takes a tensor, and a {type(value).__name__} came", "torch.as_tensor makes one")
        tensor: torch.Tensor = plain(value)
        if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:  # it has more than its numbers
            hint = "pass the plain tensors that it is made of, as inputs of their own"
            self._refuse(
                f"takes a plain tensor, and a {type(tensor).__name__} came, whose own meaning a copy drops", hint
            )
        return self._checked(tensor, sizes)

    def _checked(self, value: torch.Tensor, sizes: dict[str, tuple[int, str]]) -> torch.Tensor:
        if value.layout is not torch.strided or value.is_meta or value.is_nested:
            kind = "nested" if value.is_nested else value.layout
            what = "a meta tensor, which holds no values," if value.is_meta else f"a {kind} tensor"
            self._refuse(f"takes a dense tensor, and {what} came", "pass x.to_dense(), on the CPU or the device")
        if value.requires_grad:
            hint = "pass x.detach(): static buffers are filled without autograd"
            self._refuse("has grad history, and the region is declared without grad", hint)
        if value.dtype != self._dtype:
            value = self._cast(value)
        shape = value.shape
        if len(shape) != self._rank:
            self._refuse_shape(shape)
        for have, axis in zip(shape, self._axes, strict=True):
            if isinstance(axis, language.DimSize):
                self._size(have, axis, shape, sizes)
            elif have != axis:
                self._refuse_shape(shape)
        if self._format is None and self._rank >= 4 and not value.is_contiguous():  # noqa: PLR2004
            self._refuse_channels_last(value)
        return value

    def _size(self, have: int, axis: language.DimSize, shape: torch.Size, sizes: dict[str, tuple[int, str]]) -> None:
        size, rest = divmod(have, axis.factor)
        if rest:
            self._refuse_shape(shape)
        known = sizes.setdefault(axis.dim, (size, self.buffer.name))
        if known[0] != size:
            message = (
                f"inputs disagree on {axis.dim}: '{known[1]}' has {known[0]}, "
                f"'{self.buffer.name}' of shape {list(shape)} has {size}"
            )
            raise InputError(message)

    def _cast(self, value: torch.Tensor) -> torch.Tensor:
        if not self.buffer.cast:
            hint = f"pass x.to({self._dtype}), or declare cast: true for casts that keep every value"
            self._refuse(f"takes {self._dtype}, and {value.dtype} came", hint)
        cast = exact_cast(value, self._dtype)
        if cast is None:
            self._refuse(f"takes {self._dtype}: casting from {value.dtype} would change values")
        return cast

    def _refuse_shape(self, shape: torch.Size) -> NoReturn:
        want = ", ".join(map(str, self._axes))
        self._refuse(f"takes the shape [{want}], and {list(shape)} came")

    def _refuse_channels_last(self, value: torch.Tensor) -> None:
        if value.is_contiguous(memory_format=torch.channels_last if self._rank == 4 else torch.channels_last_3d):  # noqa: PLR2004
            hint = "declare layout: channels_last, or pass x.contiguous()"
            self._refuse(f"is contiguous, and a channels_last tensor of strides {list(value.stride())} came", hint)

    def _refuse(self, what: str, hint: str | None = None) -> NoReturn:
        raise InputError(f"input '{self.buffer.name}' {what}", hint=hint)


def exact_cast(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """``value`` in ``dtype`` if every element keeps its value (NaN counts as kept), else None."""
    if value.dtype.is_complex and not dtype.is_complex:
        return None
    cast = value.to(dtype)
    back = cast.to(value.dtype)
    same = back == value
    if value.dtype.is_floating_point or value.dtype.is_complex:
        same = same | (value.isnan() & back.isnan())
    if not bool(same.all()):
        return None
    if value.dtype.is_complex or dtype.is_complex or value.dtype == torch.bool:
        return cast
    # Casting there and back can hide a change: -1 as uint8 comes back as -1 in int8, and 2**63 - 1 as a float
    # rounds up and saturates back.
    if dtype.is_floating_point and not value.dtype.is_floating_point:
        return cast if bool((cast.to(torch.float64).abs() < 2.0**63).all()) else None
    if not dtype.is_floating_point and not value.dtype.is_floating_point:
        return cast if bool((cast.to(torch.int64) == value.to(torch.int64)).all()) else None
    return cast


def copies_of(plan: Plan, param: str) -> tuple[str, ...]:
    """The dtypes of the buffers that are device copies of a param."""
    source = language.FromParam(param)
    return tuple(str(buffer.dtype) for buffer in plan.buffers.values() if buffer.source == source)


def check_copy(param: str, value: Any, dtype: str) -> None:
    """Refuse a value of a param that would be another number in the dtype of its copy. Raises InputError.

    Fractions are rounded as torch rounds them; integers are not, and no finite number becomes infinite.
    """
    for each in _suspects(value, dtype):
        problem = unkept(each, dtype)
        if problem is not None:
            raise InputError(
                f"param '{param}' is {each}, and its copy is {dtype}: {problem}",
                hint=f"give another value, or declare the buffer `from: {param}` with a wider dtype",
            )


def _suspects(value: Any, dtype: str) -> list[Any]:
    """The numbers that ``dtype`` may not hold: a long list is looked over on every run, so most are passed at once."""
    if not isinstance(value, list) or not value:
        return [] if isinstance(value, list) else [value]
    many = list(leaves(value)) if isinstance(value[0], list) else value
    if not many or isinstance(many[0], bool):
        return []
    low, high = INTEGERS[dtype] if dtype in INTEGERS else (-FLOATS[dtype], FLOATS[dtype])
    if isinstance(many[0], int) and dtype not in INTEGERS:
        low, high = -WHOLE[dtype], WHOLE[dtype]
    return [each for each in many if not low <= each <= high]


class ParamCheck:
    """The exact form one param accepts. ``copies`` are the dtypes of its device copies, which must keep its values."""

    def __init__(
        self,
        param: language.Param,
        largest: Mapping[str, int],
        constants: Mapping[str, int],
        copies: Iterable[str] = (),
    ) -> None:
        self.param = param
        self._copies = tuple(copies)
        self._low = largest[param.min] if isinstance(param.min, str) else param.min
        self._high = largest[param.max] if isinstance(param.max, str) else param.max
        self._constants = constants

    def __call__(self, value: Any, sizes: dict[str, tuple[int, str]]) -> Any:
        """``value`` as a Python scalar or a nested list of its own; adds the sizes of bucketed dims it shows.

        An int given for a float becomes that float.

        Raises InputError naming the param, what was expected and what came.
        """
        if hasattr(value, "tolist"):  # a tensor or an array of numpy
            value = value.tolist()
        taken = self._walk(value, self.param.shape, sizes)
        for dtype in self._copies:
            check_copy(self.param.name, taken, dtype)
        return taken

    def _walk(self, value: Any, shape: language.Shape, sizes: dict[str, tuple[int, str]]) -> Any:
        if not shape:
            self._scalar(value)
            return float(value) if self.param.type == "float" else value
        if not isinstance(value, (list, tuple)):
            want = ", ".join(map(str, self.param.shape))
            self._refuse(f"takes a list of the shape [{want}], and {value!r} came")
        self._length(len(value), shape[0], sizes)
        return [self._walk(item, shape[1:], sizes) for item in value]

    def _length(self, length: int, axis: language.Axis, sizes: dict[str, tuple[int, str]]) -> None:
        if isinstance(axis, language.DimSize) and axis.dim not in self._constants:
            size, rest = divmod(length, axis.factor)
            known = sizes.setdefault(axis.dim, (size, self.param.name))
            if rest or known[0] != size:
                self._refuse(f"has {length} values where {axis} is {known[0]} (by '{known[1]}')")
            return
        want = axis.factor * self._constants[axis.dim] if isinstance(axis, language.DimSize) else axis
        if length != want:
            self._refuse(f"takes {want} values, and {length} came")

    def _scalar(self, value: Any) -> None:
        param = self.param
        kinds = {"int": int, "float": (int, float), "bool": bool, "str": str}
        if not isinstance(value, kinds[param.type]) or (isinstance(value, bool) and param.type != "bool"):  # type: ignore[arg-type]
            self._refuse(f"takes {param.type} values, and {value!r} came")
        if param.choices is not None and value not in param.choices:
            self._refuse(f"is one of {', '.join(map(str, param.choices))}, and {value!r} came")
        if self._low is not None and not value >= self._low:  # so that nan is refused
            self._refuse(f"is at least {self._low}, and {value} came")
        if self._high is not None and not value <= self._high:
            self._refuse(f"is at most {self._high}, and {value} came")

    def _refuse(self, what: str) -> NoReturn:
        raise InputError(f"param '{self.param.name}' {what}")
