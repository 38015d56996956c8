"""GS217 to GS219: numbers in a spec fit what they are for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from graphspec.errors import Diagnostic
from graphspec.finding import finding
from graphspec.numbers import (
    FLOATS,
    INTEGERS,
    WHOLE,
    default_of,
    extents,
    is_within,
    largest,
    leaves,
    misfit,
    size,
    unkept,
)
from graphspec.spec import Buckets, Buffer, DimSize, FromParam, FromSize, Param, Sample, Spec

_TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}
_PAIR = 2
_MOST_DRAWN = (1 << 63) - 1


def params(spec: Spec) -> Iterator[Diagnostic]:
    """GS217: the keys of a param agree with its type and with each other."""
    for param in spec.params.values():
        for key, message, hint in _param(spec, param):
            yield finding(spec.document, "GS217", message, ("params", param.name, key), hint=hint)


def _param(spec: Spec, param: Param) -> Iterator[tuple[str, str, str]]:
    name, kind = param.name, param.type
    mistyped = list(_of_other_types(param))
    yield from mistyped
    low, high = _bound(spec, param.min), _bound(spec, param.max)
    if low is not None and high is not None and low > high:
        yield "min", f"param '{name}' has min {low} above max {high}", "exchange them"
    elif param.default is not None:
        yield from (("default", message, hint) for message, hint in _default(spec, param, low, high))
    elif kind in {"int", "float"} and not mistyped:
        yield from _without_value(param, low, high)
    if param.specialize and param.shape:
        message = f"param '{name}' has a shape, and `specialize` makes a graph for each single value"
        yield "specialize", message, "remove `specialize`, or give each value a param of its own"


def _of_other_types(param: Param) -> Iterator[tuple[str, str, str]]:
    """Bounds, choices and padding that are no values of the type."""
    name, kind = param.name, param.type
    bounds = {key: bound for key, bound in (("min", param.min), ("max", param.max)) if bound is not None}
    for key, bound in bounds.items():
        if kind in {"bool", "str"}:
            yield key, f"param '{name}' is a {kind}, which has no `{key}`", f"remove `{key}`"
        elif not isinstance(bound, str) and (problem := _mistyped(bound, kind)):
            yield key, f"`{key}` of param '{name}' is {bound!r}, {problem}", f"write a value of type {kind}"
    if param.pad is not None and (problem := _mistyped(param.pad, kind)):
        yield "pad", f"`pad` of param '{name}' is {param.pad}, {problem}", f"write a value of type {kind}"
    for choice in param.choices or ():
        if problem := _mistyped(choice, kind):
            yield "choices", f"the choice {choice!r} of param '{name}' is {problem}", f"write values of type {kind}"


def _without_value(param: Param, low: float | None, high: float | None) -> Iterator[tuple[str, str, str]]:
    """A param that can have no value at all, so that no default can be made for it."""
    for key, bound in (("min", low), ("max", high)):
        if bound is not None and math.isinf(bound):
            yield key, f"`{key}` of param '{param.name}' is {bound}, which no finite number satisfies", "write a number"
            return
    if param.choices is not None and default_of(replace(param, min=low, max=high)) is None:
        limits = [f"{key} {bound}" for key, bound in (("min", low), ("max", high)) if bound is not None]
        message = f"no choice of param '{param.name}' is within its {' and '.join(limits)}"
        yield "choices", message, f"remove `min` and `max`: the choices of '{param.name}' are all its values"


def _default(spec: Spec, param: Param, low: float | None, high: float | None) -> Iterator[tuple[str, str]]:
    name, shown = param.name, f"the default of param '{param.name}'"
    shape = extents(param.default)
    if shape is None or (shape and len(shape) != len(param.shape)):
        yield f"{shown} is not a list of the param's shape", "write one value: it fills the shape"
        return
    bucketed = [axis.dim for axis in param.shape if isinstance(axis, DimSize) and _is_bucketed(spec, axis.dim)]
    if shape and bucketed:
        message = f"{shown} is a list, and a run may have another size of '{bucketed[0]}' than the list"
        yield message, "write one value: it fills the shape"
        return
    wanted = largest(spec, param.shape)
    if shape and any(axis is not None and axis != count for axis, count in zip(wanted, shape, strict=True)):
        yield f"{shown} has the shape {list(shape)}, which is not the param's", "write one value: it fills the shape"
    for value in leaves(param.default):
        if problem := _mistyped(value, param.type):
            yield f"{shown} is {value!r}, {problem}", f"write a value of type {param.type}"
        elif param.choices is not None and value not in param.choices:
            yield f"{shown} is {value}, which is not among its choices", f"write {param.choices[0]}"
        elif param.type in {"int", "float"} and not is_within(value, low, high):
            bound = f"below its min {low}" if low is not None and value < low else f"above its max {high}"
            yield f"{shown} is {value}, {bound}", f"write a default that '{name}' may have"
        else:
            continue
        return


def _mistyped(value: Any, kind: str) -> str | None:
    allowed = _TYPES[kind]
    if (isinstance(value, bool) and kind != "bool") or not isinstance(value, allowed):
        return f"not of its type {kind}"
    return "not a number" if isinstance(value, float) and math.isnan(value) else None


def _is_bucketed(spec: Spec, dim: str) -> bool:
    found = spec.dims.get(dim)
    return isinstance(found, Buckets) and not (found.exact and len(found.sizes) == 1)


def _bound(spec: Spec, bound: float | str | None) -> float | None:
    if isinstance(bound, str):
        return size(spec, bound)
    return None if bound is None or math.isnan(bound) else bound  # nan is reported, and bounds nothing


def buffers(spec: Spec) -> Iterator[Diagnostic]:
    """GS218: `pad` and `init` are values of the dtype, and `init` has the shape."""
    for buffer in spec.buffers.values():
        for key, value in (("pad", buffer.pad), ("init", buffer.init)):
            if value is None or buffer.dtype is None:
                continue
            for each in leaves(value):
                if problem := misfit(each, buffer.dtype):
                    message = f"`{key}` of '{buffer.name}' is {each}: {problem}"
                    yield finding(spec.document, "GS218", message, ("buffers", buffer.name, key),
                                  hint=f"write a value that {buffer.dtype} can hold")  # fmt: skip
                    break
        yield from _shaped(spec, buffer, buffer.init, "init")


def _shaped(spec: Spec, buffer: Buffer, value: Any, *keys: str) -> Iterator[Diagnostic]:
    if not isinstance(value, list) or buffer.shape is None:
        return
    shape, wanted = extents(value), largest(spec, buffer.shape)
    if None not in wanted and shape != wanted:
        read = "is ragged" if shape is None else f"has the shape {list(shape)}"
        message = f"`{'.'.join(keys)}` of '{buffer.name}' {read}, and the buffer has {list(wanted)}"
        path = ("buffers", buffer.name, *keys)
        yield finding(spec.document, "GS218", message, path, hint="write one number for every element, or that shape")


def samples(spec: Spec) -> Iterator[Diagnostic]:
    """GS218: a sample that gives values of the dtype."""
    for buffer in spec.buffers.values():
        if buffer.sample is None or buffer.dtype is None:
            continue
        path = ("buffers", buffer.name, "sample")
        for message, hint in _sample(buffer.sample, buffer.dtype):
            yield finding(spec.document, "GS218", f"the sample of '{buffer.name}' {message}", path, hint=hint)
        if buffer.sample.kind == "value":
            yield from _shaped(spec, buffer, buffer.sample.value, "sample", "value")


def _sample(sample: Sample, dtype: str) -> Iterator[tuple[str, str]]:
    kind, value = sample.kind, sample.value
    if kind in {"normal", "uniform"} and dtype not in FLOATS:
        yield f"is `{kind}`, and {dtype} holds no fractions", "write `randint: [low, high]` or `value: 0`"
    elif kind == "randint" and dtype in FLOATS:
        yield f"is `randint`, and {dtype} is no integer dtype", "write `uniform: [low, high]` or `normal: [0, 1]`"
    elif kind == "value":
        problem = next(filter(None, (misfit(each, dtype) for each in leaves(value))), None)
        if problem is not None:
            yield f"has a value that does not fit: {problem}", f"write values that {dtype} can hold"
    elif isinstance(value, list) and len(value) == _PAIR:
        yield from _range(kind, value[0], value[1], dtype)


def _range(kind: str, first: float, second: float, dtype: str) -> Iterator[tuple[str, str]]:
    if kind == "normal":
        if not second >= 0:
            yield f"has the standard deviation {second}", "write 0 or more"
    elif kind == "uniform" and not first <= second:
        yield f"is uniform from {first} to {second}", "write the lower bound first"
    elif kind == "randint" and not first < second:
        yield f"is randint from {first} to {second}, which holds no integer", "the upper bound is excluded: raise it"
    elif kind == "randint" and dtype in INTEGERS:
        problem = misfit(first, dtype) or misfit(int(second) - 1, dtype)
        if problem is not None:
            yield f"is randint from {first} to {second}: {problem}", f"narrow it to what {dtype} can hold"
        elif second > _MOST_DRAWN:
            problem = f"torch draws integers below {_MOST_DRAWN}"
            yield f"is randint from {first} to {second}: {problem}", f"write an upper bound of at most {_MOST_DRAWN}"


def sources(spec: Spec) -> Iterator[Diagnostic]:
    """GS219: a buffer that is the copy of a param, or holds a size, has a dtype and shape that can take it."""
    for buffer in spec.buffers.values():
        if isinstance(buffer.source, FromSize):
            problems = _of_size(spec, buffer, buffer.source)
        elif isinstance(buffer.source, FromParam) and buffer.source.param in spec.params:
            problems = _of_param(buffer, spec.params[buffer.source.param])
        else:
            continue
        for key, message, hint in problems:
            yield finding(spec.document, "GS219", message, ("buffers", buffer.name, key), hint=hint)


def _of_size(spec: Spec, buffer: Buffer, source: FromSize) -> Iterator[tuple[str, str, str]]:
    most = size(spec, source.dim)
    if buffer.dtype is not None and buffer.dtype not in INTEGERS:
        message = f"'{buffer.name}' holds a size, and {buffer.dtype} is no integer dtype"
        yield "dtype", message, "write `dtype: int64`, and convert it in the model"
    elif buffer.dtype is not None and most is not None and (problem := misfit(most, buffer.dtype)):
        yield "dtype", f"'{buffer.name}' holds the size {most} of '{source.dim}': {problem}", "write `dtype: int64`"
    if buffer.shape not in {(), (1,)}:
        message = f"'{buffer.name}' holds one size, so its shape is [] or [1]"
        yield "shape", message, "write `shape: []` or `shape: [1]`; several values come `from` a param of that shape"


def _of_param(buffer: Buffer, param: Param) -> Iterator[tuple[str, str, str]]:
    name, dtype = buffer.name, buffer.dtype
    if param.type == "str":
        message = f"'{name}' cannot be a copy of '{param.name}', which is a str"
        yield "from", message, f"give the region '{param.name}' itself, or make its values numbers"
        return
    fits = {"int": dtype in INTEGERS or dtype in FLOATS, "float": dtype in FLOATS, "bool": dtype == "bool"}
    if dtype is not None and not fits[param.type]:
        wanted = {"int": "int64", "float": "float32", "bool": "bool"}[param.type]
        message = f"'{name}' is {dtype}, which cannot hold the {param.type} of param '{param.name}'"
        kind = "bool" if dtype == "bool" else "int" if dtype in INTEGERS else "float"
        yield "dtype", message, f"write `dtype: {wanted}`, or `type: {kind}` at the param"
    if buffer.shape != param.shape:
        shapes = [f"[{', '.join(map(str, shape or ()))}]" for shape in (buffer.shape, param.shape)]
        message = f"'{name}' has the shape {shapes[0]}, and the param '{param.name}' it copies {shapes[1]}"
        yield "shape", message, f"write `shape: {shapes[1]}`, or `shape: {shapes[0]}` at the param"


def copies(spec: Spec) -> Iterator[Diagnostic]:
    """GS219: the values a param may have are the same numbers in its device copies."""
    for buffer in spec.buffers.values():
        if not isinstance(buffer.source, FromParam) or buffer.dtype is None:
            continue
        param = spec.params.get(buffer.source.param)
        if param is None or any(True for _ in _of_param(buffer, param)) or any(True for _ in _param(spec, param)):
            continue  # said already
        for key, value, problem in _changed(spec, param, buffer.dtype):
            message = f"`{key}` of param '{param.name}' is {value}, and its copy '{buffer.name}' is {buffer.dtype}"
            hint = f"give '{buffer.name}' a wider dtype, or narrow '{param.name}'"
            yield finding(spec.document, "GS219", f"{message}: {problem}", ("params", param.name, key), hint=hint)


def _changed(spec: Spec, param: Param, dtype: str) -> Iterator[tuple[str, Any, str]]:
    """The values in the keys of a param that its copy cannot hold, at most one a key."""
    whole = WHOLE.get(dtype) if param.type == "int" else None
    for key, bound in (("min", _bound(spec, param.min)), ("max", _bound(spec, param.max))):
        if bound is None:
            continue
        problem = unkept(bound, dtype)
        if problem is None and whole is not None and abs(bound) > whole:
            problem = f"{dtype} holds every integer up to {whole}"
        if problem is not None:
            yield key, bound, problem
    for key, values in (("default", leaves(param.default)), ("pad", [param.pad]), ("choices", param.choices or ())):
        wrong = ((each, unkept(each, dtype)) for each in values if each is not None)
        found = next(((each, problem) for each, problem in wrong if problem is not None), None)
        if found is not None:
            yield key, *found


def tolerances(spec: Spec) -> Iterator[Diagnostic]:
    """GS226: a comparison with an infinite tolerance never fails, with nan it always does."""
    for key, value in (("rtol", spec.check.rtol), ("atol", spec.check.atol)):
        if not math.isfinite(value):
            message = f"`check.{key}` is {value}, which would make the comparison meaningless"
            yield finding(spec.document, "GS226", message, ("check", key), hint="write a finite number, such as 1e-5")
