"""What surrounds the regions of a draw: dims, static buffers, params, and what the model owns."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: How often an input has which dtype.
DTYPES = {
    "float32": 14, "int64": 4, "bool": 1.5, "float16": 1.5, "bfloat16": 1, "float64": 1, "complex64": 1.5, "int32": 1,
    "uint8": 0.7,
}  # fmt: skip

#: The bucket sizes of a dim. Each costs a capture, so where runs may be padded most draws have one or two, the largest
#: as before; where they may not, all sizes are there to be chosen from.
SIZES = ([2], [1, 2], [2, 4], [1, 3], [1, 2, 4], [3, 4], [2, 3, 6])
SIZES_PADDED = ([2], [1, 2], [4], [3], [1, 2, 4], [3, 4], [6])


@dataclass(frozen=True)
class Signature:
    """``padded``: runs may be smaller than their bucket. ``mixing``: rows may mix, since no row is padded."""

    dims: Mapping[str, Any]
    padded: bool
    buffers: Mapping[str, Mapping[str, Any]]
    params: Mapping[str, Mapping[str, Any]]
    init: tuple[str, ...]

    @property
    def bucketed(self) -> tuple[str, ...]:
        """The dims with several sizes."""
        return tuple(self.dims)

    def sizes(self, dim: str) -> list[int]:
        """The bucket sizes of a dim."""
        written = self.dims[dim]
        return list(written["sizes"] if isinstance(written, dict) else written)


def draw_signature(rng: random.Random) -> Signature:
    """Dims, buffers, params and the lines of ``__init__``."""
    width = rng.choice((3, 4, 4, 6))
    dims, padded = _dims(rng)
    shapes = _Shapes(rng, tuple(dims), width, (2, rng.choice((2, 4))))
    buffers: dict[str, dict[str, Any]] = {}
    for number in range(rng.choice((1, 2, 2, 3))):
        buffers[f"x{number}"] = _input(rng, shapes, padded=padded, first=number == 0)
    if rng.random() < 0.12:  # stands in for x0, so it is like it
        buffers["extra"] = {**buffers["x0"], "optional": True}
    if rng.random() < 0.06:
        shape = [next(iter(dims), 2), 2, width, 2]
        buffers["image"] = {"shape": shape, "dtype": "float32", "layout": "channels_last"}
    for number in range(rng.choice((0, 1, 1, 2))):
        buffers[f"s{number}"] = _state(rng, shapes)
    if rng.random() < 0.2:
        buffers["owned"] = {"role": "state", "attr": rng.choice(("model.buf", "model.count"))}
    for dim in dims:
        if rng.random() < 0.3:
            buffers[f"size_{dim}"] = {"from": {rng.choice(("size", "size", "bucket")): dim}}
    params = _params(rng, dims, buffers)
    return Signature(dims, padded, buffers, params, _init(rng, width))


def _dims(rng: random.Random) -> tuple[dict[str, Any], bool]:
    kind = rng.choices(("fixed", "full", "exact", "padded", "two"), (30, 12, 8, 38, 12))[0]
    if kind == "fixed":
        return {}, False
    padded = kind in ("padded", "two")
    sizes = rng.choice(SIZES_PADDED if padded else SIZES)
    dims: dict[str, Any] = {"b": {"sizes": sizes, "exact": True} if kind == "exact" else sizes}
    if kind == "two":
        dims["s"] = rng.choice(([4], [3], [1, 4]))
    return dims, padded


class _Shapes:
    def __init__(self, rng: random.Random, dims: tuple[str, ...], width: int, others: tuple[int, ...]) -> None:
        self._rng, self._dims, self._width, self._others = rng, dims, width, others

    def first(self) -> list[Any]:
        """That of x0, which shows every dim."""
        n, m = self._width, self._rng.choice(self._others)
        if len(self._dims) > 1:
            return self._rng.choice((["b", "s", n], ["b", "s"], ["s", "b"], ["s", "2*b", n]))
        if not self._dims:
            return self.any()
        return self._rng.choice((["b", n], ["b", n], ["b", m, n], ["b"], [n, "b"], ["2*b", n]))

    def any(self) -> list[Any]:
        """That of another input."""
        rng, n, m = self._rng, self._width, self._rng.choice(self._others)
        if not self._dims:
            return rng.choice(([m, n], [m, n], [n], [2, m, n], [n, n], [], [4, n], [1, n], [m, 1, n]))
        dim = rng.choice(self._dims)
        shapes = ([dim, n], [dim, n], [dim, m, n], [n], [dim], [n, dim], [f"2*{dim}", n], [m, dim, n], ["b", 1])
        return rng.choice(shapes)

    def state(self) -> list[Any]:
        """That of a state."""
        return self.any() if self._rng.random() < 0.7 else self._rng.choice(([self._width], [], [2, self._width]))


def _input(rng: random.Random, shapes: _Shapes, *, padded: bool, first: bool) -> dict[str, Any]:
    dtype = "float32" if first else rng.choices(list(DTYPES), list(DTYPES.values()))[0]
    buffer: dict[str, Any] = {"shape": shapes.first() if first else shapes.any(), "dtype": dtype}
    if "float" not in dtype and dtype not in ("bool", "complex64"):
        buffer["sample"] = {"randint": [0, 3]}
        buffer["pad"] = rng.choice((0, 1))
    elif padded and rng.random() < 0.3 and dtype != "complex64":
        buffer["pad"] = True if dtype == "bool" else rng.choice((1, 0.5, -3))
    if not first and rng.random() < 0.1:
        buffer["hold"] = True
    return buffer


def _state(rng: random.Random, shapes: _Shapes) -> dict[str, Any]:
    dtype = rng.choices(("float32", "int64", "float64", "bfloat16", "bool"), (10, 2, 1, 1, 0.5))[0]
    init = rng.choice((0, 1)) if dtype != "bool" else False
    return {"role": "state", "shape": shapes.state(), "dtype": dtype, "init": init}


def _params(rng: random.Random, dims: Mapping[str, Any], buffers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    params: dict[str, dict[str, Any]] = {}
    if rng.random() < 0.3:
        params["p0"] = rng.choice((
            {"type": "float", "default": 0.625},
            {"type": "float", "min": 0.1, "max": 3, "default": 1.25},
            {"type": "int", "default": 2, "min": 1, "max": 5},
        ))  # fmt: skip
    if rng.random() < 0.1:
        params["kind"] = {"type": "str", "choices": ["none", "lora"], "default": "none", "specialize": True}
    if rng.random() < 0.15:
        params["p1"] = {"type": "float", "default": 0.5}
        buffers["copy_p1"] = {"shape": [], "dtype": "float32", "from": "p1"}
    if dims and rng.random() < 0.15:
        params["lens"] = {"type": "int", "shape": ["b"], "min": 1, "max": 3, "default": 1, "pad": 1}
        buffers["copy_lens"] = {"shape": ["b"], "dtype": "int64", "from": "lens"}
    return params


def _init(rng: random.Random, width: int) -> tuple[str, ...]:
    order = list(range(width))
    rng.shuffle(order)
    return (
        f"self.n = {width}",
        f"self.w = torch.nn.Parameter(torch.randn({width}, {width}) * 0.5)",
        f"self.bias = torch.nn.Parameter(torch.randn({width}))",
        f"self.kernel = torch.nn.Parameter(torch.randn(1, 1, {rng.choice((1, 3))}))",
        f"self.table = torch.nn.Parameter(torch.randn(7, {width}))",
        "self.one = torch.nn.Parameter(torch.ones(1))",
        f"self.register_buffer('idx', torch.tensor({order}))",
        f"self.register_buffer('wi', torch.arange({width * width}).reshape({width}, {width}) % 3)",
        "self.register_buffer('edges', torch.tensor([-1.0, 0.0, 1.0]))",
        f"self.register_buffer('buf', torch.ones({width}))",
        f"self.register_buffer('rm', torch.zeros({width}))",
        f"self.register_buffer('rv', torch.ones({width}))",
        "self.register_buffer('count', torch.zeros((), dtype=torch.int64))",
        "self.register_buffer('k0', torch.tensor(0.5))",
        "self.register_buffer('i0', torch.tensor(2))",
        "self.register_buffer('d0', torch.tensor(1.5, dtype=torch.float64))",
        "self.last = torch.zeros(2)",
        "self.steps, self.seen = 0, []",
        "self.mean0, self.total0 = torch.zeros(()), torch.zeros(())",
        "self.ping, self.pong = torch.zeros(()), torch.ones(())",
    )
