"""The places of a spec: where in the document a rule's subject stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphspec.errors import KeyPath
from graphspec.places import loop_places, step_places
from graphspec.spec import DictOf, DimSize, ListOf, Loop, Make, Region, Shape, Spec, Value


def data_at(spec: Spec, path: KeyPath) -> Any:
    """What the document says at ``path``; None where it says nothing, or where there is no document."""
    data: Any = spec.document.data if spec.document is not None else None
    for part in path:
        if isinstance(data, Mapping):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            return None
    return data


def arguments(region: Region) -> Iterator[tuple[Value, KeyPath]]:
    """Every argument of a region and of what is called around it, nested ones too, with its place."""
    start: KeyPath = ("regions", region.name)
    yield from _arguments(region.positional, region.keyword, (*start, "inputs"))
    if region.around is not None:
        around = region.around
        yield from _arguments(around.positional or (), around.keyword or {}, (*start, "around", "inputs"))


def _arguments(
    positional: Sequence[Value], keyword: Mapping[str, Value], start: KeyPath
) -> Iterator[tuple[Value, KeyPath]]:
    for index, value in enumerate(positional):
        yield from _nested(value, (*start, index))
    for name, value in keyword.items():
        yield from _nested(value, (*start, name))


def around_places(spec: Spec, region: Region) -> Iterator[tuple[str, KeyPath]]:
    """The paths of what is called around a region, with their places."""
    if region.around is not None:
        start: KeyPath = ("regions", region.name, "around")
        short = not isinstance(data_at(spec, start), Mapping)
        yield region.around.call, start if short else (*start, "call")
        if region.around.after is not None:
            yield region.around.after, (*start, "after")


def _nested(value: Value, path: KeyPath) -> Iterator[tuple[Value, KeyPath]]:
    yield value, path
    match value:
        case ListOf(items):
            for index, item in enumerate(items):
                yield from _nested(item, (*path, "list", index))
        case DictOf(items):
            for key, item in items.items():
                yield from _nested(item, (*path, "dict", key))
        case Make(_, items):
            for key, item in items.items():
                yield from _nested(item, (*path, "with", key))
        case _:
            return


def output_places(spec: Spec, region: Region) -> Iterator[tuple[str, KeyPath, bool]]:
    """Every output name as it is written, with its place, and whether the name is the key there."""
    path: KeyPath = ("regions", region.name, "outputs")
    written = data_at(spec, path)
    if isinstance(written, list):
        yield from ((name, (*path, index), False) for index, name in enumerate(written))
    elif isinstance(written, str):
        yield written, path, False
    else:
        yield from ((name, (*path, name), True) for name in region.outputs)


def output_place(spec: Spec, region: Region, name: str) -> tuple[KeyPath, bool]:
    """The place of one output, and whether the name is the key there."""
    return next((path, key) for each, path, key in output_places(spec, region) if each == name)


def steps(spec: Spec) -> Iterator[tuple[str, KeyPath]]:
    """Every region name under `replay`, with its place."""
    for sequence, names in spec.sequences.items():
        yield from zip(names, step_places(spec, sequence), strict=True)


def loops(spec: Spec) -> Iterator[tuple[str, Loop, KeyPath]]:
    """Every loop under `replay`, with its sequence and its place."""
    for sequence in spec.loops:
        yield from ((sequence, loop, path) for loop, path in loop_places(spec, sequence).items())


def shapes(spec: Spec) -> Iterator[tuple[Shape, KeyPath]]:
    """Every shape of buffers and params, with its place."""
    for buffer in spec.buffers.values():
        if buffer.shape is not None:
            yield buffer.shape, ("buffers", buffer.name, "shape")
    for param in spec.params.values():
        yield param.shape, ("params", param.name, "shape")


def named_dims(spec: Spec) -> Iterator[tuple[str, KeyPath]]:
    """Every use of a dim: in shapes, in `from`, as a bound of a param, and in arguments of the factory."""
    for shape, path in shapes(spec):
        yield from ((axis.dim, (*path, index)) for index, axis in enumerate(shape) if isinstance(axis, DimSize))
    for buffer in spec.buffers.values():
        source = data_at(spec, ("buffers", buffer.name, "from"))
        if isinstance(source, Mapping):
            yield from ((dim, ("buffers", buffer.name, "from", key)) for key, dim in source.items())
    for param in spec.params.values():
        for key, bound in (("min", param.min), ("max", param.max)):
            place: KeyPath = ("params", param.name, key)
            written = data_at(spec, place) if spec.document is not None else bound
            if isinstance(written, str):
                yield written, place
    yield from _dims_in(spec.model.args, ("model", "args"))


def _dims_in(value: Any, path: KeyPath) -> Iterator[tuple[str, KeyPath]]:
    if isinstance(value, Mapping):
        if set(value) == {"dim"} and isinstance(value["dim"], str):
            yield value["dim"], (*path, "dim")
            return
        for key, each in value.items():
            yield from _dims_in(each, (*path, key))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _dims_in(each, (*path, index))
