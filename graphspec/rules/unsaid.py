"""GS410 and GS411: sizes of a run that nothing says, neither to whoever cuts a value nor to whoever takes a bucket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

from graphspec.compiler.dims import region_dims, shape_dims
from graphspec.compiler.values import is_given, made_values, params_of, unnamed_inputs
from graphspec.errors import Diagnostic, Severity
from graphspec.finding import finding
from graphspec.rules.walk import named_dims, output_place
from graphspec.spec import Buckets, Region, Spec, reads


def uncut_reads(spec: Spec) -> Iterator[Diagnostic]:
    """GS410: an eager region reads real rows of a value of which nothing says where its padded rows are.

    The captures show it only where each dim of the producer has several sizes, and no two of them grow alike.
    """
    dims, made = region_dims(spec), made_values(spec)
    for region in spec.regions.values():
        if not region.eager or region.rows != "real":
            continue
        for name in reads(region):
            producer = spec.regions.get(made.get(name, ""))
            buffer = spec.buffers.get(name)
            if producer is None or producer.eager or (buffer is not None and buffer.shape is not None):
                continue
            if buffer is not None and not all(is_exact(spec, dim) for dim in dims[producer.name]):
                continue  # a result, which GS406 wants the shape of
            why = _alike(spec, dims[producer.name])
            if why is not None:
                yield _uncut(spec, region, producer, name, why)


def _alike(spec: Spec, dims: tuple[str, ...]) -> tuple[str, str, Severity] | None:
    """Why captures at several buckets do not tell the axes of these dims: a dim, the reason, whether it is certain."""
    for dim in dims:
        if len(_sizes(spec, dim)) == 1:
            return dim, "which has one size", "error"
    for one, other in combinations(dims if spec.buckets is not None else (), 2):
        first, *more = spec.buckets or ()
        if all(each[one] * first[other] == each[other] * first[one] for each in more):
            return one, f"which grows as '{other}' does", "warning"  # a value without such axes is none to cut
    return None


def _uncut(spec: Spec, reader: Region, producer: Region, name: str, why: tuple[str, str, Severity]) -> Diagnostic:
    dim, reason, severity = why
    message = (
        f"the eager region '{reader.name}' reads the real rows of '{name}', and nothing says which of its axes have"
        f" the rows of '{dim}', {reason}"
    )
    otherwise = f"let '{reader.name}' read padded rows: `rows: bucket`"
    path, key = output_place(spec, producer, name)
    if name in spec.buffers:
        path, key, hint = ("buffers", name), True, f"add `shape: [{dim}, ...]`, or {otherwise}"
    else:
        declared = f"`{name}: {{role: intermediate, shape: [{dim}, ...], dtype: ...}}`"
        hint = f"declare it under buffers: {declared}, or {otherwise}"
    return finding(spec.document, "GS410", message, path, key=key, hint=hint, severity=severity)


def unnamed_sizes(spec: Spec) -> Iterator[Diagnostic]:
    """GS411, a warning: a run must choose between sizes of a dim that nothing it is given has, so it must state one."""
    dims = region_dims(spec)
    for sequence, steps in spec.sequences.items():
        regions = [spec.regions[name] for name in dict.fromkeys(steps)]
        used = {dim for region in regions for dim in dims[region.name]}
        for dim in sorted(used - given_dims(spec, regions)):
            sizes = _sizes(spec, dim)
            if len(sizes) > 1:
                message = f"no input of sequence '{sequence}' says how large '{dim}' is, so every run must state it"
                path = next((path for each, path in named_dims(spec) if each == dim), ("dims", dim))
                hint = _sized(dim, max(sizes))
                yield finding(spec.document, "GS411", message, path, hint=hint, severity="warning")


def _sized(dim: str, size: int) -> str:
    return (
        f'runs state it, `run(..., sizes={{"{dim}": {size}}})`;'
        f" or name '{dim}' in the shape of an input; or make it a constant, `dims: {{{dim}: {size}}}`;"
        " or write the axis as a multiple of a dim that an input has, such as `2*batch`"
    )


def given_dims(spec: Spec, regions: Iterable[Region]) -> set[str]:
    """The dims whose sizes a run of these regions is told by the inputs and params it is given."""
    names = {name for region in regions for name in reads(region)} | unnamed_inputs(spec)
    shapes = [each.shape or () for each in spec.buffers.values() if each.name in names and is_given(each)]
    shapes += [spec.params[name].shape for region in regions for name in params_of(spec, region)]
    return {dim for shape in shapes for dim in shape_dims(shape)}


def is_exact(spec: Spec, dim: str) -> bool:
    """Whether no run of this dim is padded."""
    found = spec.dims[dim]
    return isinstance(found, Buckets) and found.exact


def _sizes(spec: Spec, dim: str) -> set[int]:
    """The sizes of a bucketed dim that are captured."""
    if spec.buckets is not None:
        return {each[dim] for each in spec.buckets}
    found = spec.dims[dim]
    return set(found.sizes) if isinstance(found, Buckets) else {found.value}
