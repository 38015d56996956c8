"""GS4xx: bucket sizes and what depends on them, as far as one dim or one buffer can show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from graphspec.build_spec import sizes_of
from graphspec.errors import Diagnostic, KeyPath
from graphspec.finding import finding
from graphspec.nearest import did_you_mean
from graphspec.numbers import INTEGERS
from graphspec.rules.walk import data_at, shapes
from graphspec.spec import Buckets, Constant, DimSize, Free, FromParam, FromSize, Shape, Spec


def _written(spec: Spec) -> Iterator[tuple[str, Any, KeyPath]]:
    """The sizes of every bucketed dim as the document has them: a list, or a run."""
    for name, dim in spec.dims.items():
        if isinstance(dim, Buckets):
            path: KeyPath = ("dims", name)
            data = data_at(spec, path)
            if isinstance(data, Mapping) and "sizes" in data:
                yield name, data["sizes"], (*path, "sizes")
            elif data is not None:
                yield name, data, path


def lists(spec: Spec) -> Iterator[Diagnostic]:
    """GS401 and GS402: sizes ascend, and each is listed once. A list out of order is a slip in one of them."""
    for name, data, path in _written(spec):
        before: set[int] = set()
        top, ordered = 0, f"[{', '.join(str(size) for size in sorted(set(sizes_of(data))))}]"
        disordered = False
        for index, item in enumerate(data if isinstance(data, list) else ()):
            sizes = sizes_of([item])
            for size in sizes:
                if size in before:
                    message = f"dim '{name}' lists the size {size} twice"
                    yield finding(spec.document, "GS402", message, (*path, index), hint=f"write {ordered}")
                    break
                if size < top and not disordered:
                    disordered = True
                    message = f"the sizes of dim '{name}' do not ascend: {size} comes after {top}"
                    yield finding(spec.document, "GS401", message, (*path, index), hint=f"write {ordered}")
            before.update(sizes)
            top = max(top, *sizes) if sizes else top


def free_axes(spec: Spec) -> Iterator[Diagnostic]:
    """GS416: `_` where an axis must have a size: of what is allocated, or cut to the rows of a run."""
    for shape, path in shapes(spec):
        section, name = path[:2]
        buffer = spec.buffers.get(str(name)) if section == "buffers" else None
        if buffer is not None and buffer.is_made and not buffer.static:
            continue
        what = "one of its allocation" if buffer is not None and buffer.static else "that of what it is given or holds"
        for index, axis in enumerate(shape):
            if isinstance(axis, Free):
                message = f"'{name}' has an axis `_`, and each of its axes has a size: {what}"
                yield finding(
                    spec.document, "GS416", message, (*path, index), hint="write a size, or the name of a dim"
                )


def runs(spec: Spec) -> Iterator[Diagnostic]:
    """GS403: a run of sizes that is empty, or that does not end where it says."""
    for name, data, path in _written(spec):
        places = [(data, path)] if isinstance(data, Mapping) else [(each, (*path, i)) for i, each in enumerate(data)]
        for run, place in places:
            if not isinstance(run, Mapping):
                continue
            first, last, step = run["from"], run["to"], run.get("step", 1)
            if last < first:
                message = f"the run of dim '{name}' goes from {first} down to {last}, so it holds no size"
                yield finding(spec.document, "GS403", message, place, hint="exchange `from` and `to`")
            elif (last - first) % step:
                reached = last - (last - first) % step
                message = f"the run of dim '{name}' ends at {reached}, not at {last}"
                hint = f"write `to: {reached}`, or {reached + step} for one size more"
                yield finding(spec.document, "GS403", message, place, hint=hint, severity="warning")


def combinations(spec: Spec) -> Iterator[Diagnostic]:
    """GS404: each listed combination has one size of every bucketed dim, and no other dim."""
    bucketed = {name: dim for name, dim in spec.dims.items() if isinstance(dim, Buckets)}
    seen: set[tuple[tuple[str, int], ...]] = set()
    for index, combination in enumerate(spec.buckets or ()):
        path: KeyPath = ("buckets", index)
        for name, size in combination.items():
            if name not in bucketed:
                why = "is a constant" if isinstance(spec.dims.get(name), Constant) else "does not exist"
                hint = did_you_mean(name, bucketed, "name bucketed dims only")
                yield finding(spec.document, "GS404", f"the dim '{name}' {why}", (*path, name), key=True, hint=hint)
            elif size not in bucketed[name].sizes:
                message = f"{size} is no size of dim '{name}'"
                hint = f"its sizes are {', '.join(map(str, bucketed[name].sizes[:16]))}"
                yield finding(spec.document, "GS404", message, (*path, name), hint=hint)
        for name in bucketed.keys() - combination.keys():
            message = f"this combination has no size for dim '{name}'"
            hint = f"add `{name}: {max(bucketed[name].sizes, default=1)}`"
            yield finding(spec.document, "GS404", message, path, hint=hint)
        key = tuple(sorted(combination.items()))
        if key in seen:
            yield finding(spec.document, "GS404", "this combination is listed twice", path, hint="remove one")
        seen.add(key)


def padded_dims(spec: Spec, shape: Shape | None) -> list[str]:
    """The dims of a shape that a bucket may enlarge: bucketed, and not exact."""
    axes = (axis.dim for axis in shape or () if isinstance(axis, DimSize))
    return [name for name in axes if isinstance(dim := spec.dims.get(name), Buckets) and not dim.exact]


def padding(spec: Spec) -> Iterator[Diagnostic]:
    """GS405: integers say what fills the rows a bucket adds: 0 is a valid token, index or length."""
    for buffer in spec.buffers.values():
        dims = padded_dims(spec, buffer.shape)
        if buffer.role != "input" or buffer.pad is not None or not dims or buffer.dtype not in INTEGERS:
            continue
        if isinstance(buffer.source, FromParam | FromSize):
            continue  # padded as its param is
        message = f"the {buffer.dtype} input '{buffer.name}' has the bucketed dim '{dims[0]}' and no `pad`"
        hint = "add `pad: 0`, or the number that is harmless in the rows a bucket adds"
        yield finding(spec.document, "GS405", message, ("buffers", buffer.name), key=True, hint=hint)
    for param in spec.params.values():
        dims = padded_dims(spec, param.shape)
        if param.type != "int" or not dims or param.pad is not None:
            continue
        copies = [each.pad for each in spec.buffers.values() if each.source == FromParam(param.name)]
        if copies and None not in copies:
            continue  # each copy says it for itself
        if param.default is None:  # a list is refused elsewhere
            message = f"the int param '{param.name}' has the bucketed dim '{dims[0]}' and neither `pad` nor a default"
            hint = "add `pad: 1`, or the number that is harmless in the rows a bucket adds"
            yield finding(spec.document, "GS405", message, ("params", param.name), key=True, hint=hint)
