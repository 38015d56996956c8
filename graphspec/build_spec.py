"""`Document` to `Spec`: the data of a document that passed the schema, as the values of the language.

Nothing is reported here. Defaults are filled in, runs of sizes are expanded and the several ways to write a value
become one; whether names exist and values make sense is for the rules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from graphspec.build_region import build_region
from graphspec.document import Document
from graphspec.files import STDIN
from graphspec.spec import (
    Axis,
    Buckets,
    Buffer,
    CaptureOptions,
    CheckOptions,
    Constant,
    Dim,
    DimSize,
    Free,
    FromParam,
    FromSize,
    Loop,
    Model,
    NpuOptions,
    Param,
    Sample,
    Shape,
    Spec,
)

_UNITS: Mapping[str, int] = {
    "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
}  # fmt: skip
_PARAM_DTYPES: Mapping[str, str] = {"int": "int64", "float": "float32", "bool": "bool"}


def build(document: Document) -> Spec:
    """The spec that ``document`` says. It must have passed `graphspec.schema.check`."""
    data = document.data
    dims = {name: _dim(each) for name, each in data.get("dims", {}).items()}
    params = {name: _param(name, each, dims) for name, each in data.get("params", {}).items()}
    regions = {name: build_region(name, each, data) for name, each in data["regions"].items()}
    buckets = data.get("buckets")
    sequences: dict[str, list[str]] = {}
    loops: dict[str, list[Loop]] = {}
    for name, steps in _sequences(
        data.get("replay"), [name for name, region in regions.items() if not region.inline]
    ).items():
        _flat(steps, sequences.setdefault(name, []), loops.setdefault(name, []))
    return Spec(
        name=data.get("name", "stdin" if document.path == STDIN else document.path.stem),
        model=_model(data["model"]),
        regions=regions,
        sequences={name: tuple(steps) for name, steps in sequences.items()},
        device=data.get("device", "auto"),
        seed=data.get("seed", 0),
        dims=dims,
        buckets=None if buckets is None else tuple(dict(each) for each in buckets),
        params=params,
        buffers={name: _buffer(name, each, params) for name, each in data.get("buffers", {}).items()},
        pools={name: tuple(each) for name, each in data.get("pools", {}).items()},
        variants=tuple(dict(each) for each in data.get("variants", ())),
        sample=data.get("sample", {}).get("make"),
        capture=_capture(data.get("capture", {})),
        check=CheckOptions(**data.get("check", {})),
        npu=_npu(data.get("npu", {})),
        loops={name: tuple(each) for name, each in loops.items() if each},
        document=document,
    )


def sizes_of(data: list[Any] | Mapping[str, Any]) -> list[int]:
    """The sizes a list or a run stands for, in the order they are written."""
    if isinstance(data, Mapping):
        return list(range(data["from"], data["to"] + 1, data.get("step", 1)))
    return [size for each in data for size in (sizes_of(each) if isinstance(each, Mapping) else [each])]


def axis_of(data: int | str) -> Axis:
    """``64``, ``batch``, ``2*batch`` or ``_``."""
    if isinstance(data, int):
        return data
    if data == "_":
        return Free()
    factor, star, dim = data.partition("*")
    return DimSize(dim.strip(), int(factor)) if star else DimSize(data)


def _shape(data: list[int | str] | None) -> Shape | None:
    return None if data is None else tuple(axis_of(each) for each in data)


def _model(data: Mapping[str, Any]) -> Model:
    return Model(**data)


def _dim(data: int | list[Any] | Mapping[str, Any]) -> Dim:
    if isinstance(data, int):
        return Constant(data)
    exact = isinstance(data, Mapping) and data.get("exact", False)
    sizes = sizes_of(data["sizes"] if isinstance(data, Mapping) and "sizes" in data else data)
    return Buckets(tuple(sorted(set(sizes))), exact)


def _param(name: str, data: Mapping[str, Any], dims: Mapping[str, Dim]) -> Param:
    fields = dict(data)
    for key in ("min", "max"):
        if key in fields:
            fields[key] = _bound(fields[key], key, fields["type"], dims)
    shape = _shape(fields.pop("shape", [])) or ()
    choices = fields.pop("choices", None)
    return Param(name, shape=shape, choices=None if choices is None else tuple(choices), **fields)


def _bound(data: float | str, key: str, kind: str, dims: Mapping[str, Dim]) -> float | str | None:
    """A bound as a number: a dim stands for its largest size. What bounds nothing (`max: .inf`) is no bound."""
    if isinstance(data, str):
        dim = dims.get(data)
        return data if dim is None else dim.value if isinstance(dim, Constant) else max(dim.sizes, default=data)
    return None if kind == "float" and data == (math.inf if key == "max" else -math.inf) else data


def _buffer(name: str, data: Mapping[str, Any], params: Mapping[str, Param]) -> Buffer:
    fields = dict(data)
    source = _source(fields.pop("from", None))
    shape, sample = _shape(fields.pop("shape", None)), _sample(fields.pop("sample", None))
    dtype = fields.pop("dtype", None)
    if isinstance(source, FromSize):
        shape, dtype = () if shape is None else shape, dtype or "int64"
    elif isinstance(source, FromParam) and source.param in params:
        param = params[source.param]
        shape, dtype = param.shape if shape is None else shape, dtype or _PARAM_DTYPES.get(param.type)
    return Buffer(name, shape=shape, dtype=dtype, source=source, sample=sample, **fields)


def _source(data: str | Mapping[str, str] | None) -> FromParam | FromSize | None:
    if data is None:
        return None
    if isinstance(data, str):
        return FromParam(data)
    return FromSize(data["size"]) if "size" in data else FromSize(data["bucket"], bucket=True)


def _sample(data: str | Mapping[str, Any] | None) -> Sample | None:
    if data is None:
        return None
    kind, value = (data, None) if isinstance(data, str) else next(iter(data.items()))
    return Sample(kind, value)  # type: ignore[arg-type]  # the schema knows the kinds


def _sequences(data: list[Any] | Mapping[str, list[Any]] | None, regions: list[str]) -> dict[str, list[Any]]:
    """The key `replay`. Left out, it is the only region that is not inline; with several, the rules refuse it."""
    if data is None:
        return {"replay": regions} if len(regions) == 1 else {}
    return {"replay": data} if isinstance(data, list) else dict(data)


def _flat(steps: list[Any], names: list[str], loops: list[Loop]) -> None:
    """Add the regions of ``steps`` to ``names``, and the loops among them, by their places there, to ``loops``."""
    for step in steps:
        if isinstance(step, str):
            names.append(step)
            continue
        at, first = len(loops), len(names)
        loops.append(Loop(step["while"], first, first))
        _flat(step["do"], names, loops)
        loops[at] = Loop(step["while"], first, len(names), step.get("max"))


def _capture(data: Mapping[str, Any]) -> CaptureOptions:
    fields = dict(data)
    budget = fields.pop("memory_budget", None)
    return CaptureOptions(memory_budget=_bytes(budget), **fields)


def _bytes(data: int | str | None) -> int | None:
    if data is None or isinstance(data, int):
        return data
    number = data.rstrip("BKMGTi ")
    return int(float(number) * _UNITS[data[len(number) :].strip()])


def _npu(data: Mapping[str, Any]) -> NpuOptions:
    fields = dict(data)
    return NpuOptions(handlers=tuple(fields.pop("handlers", ())), **fields)
