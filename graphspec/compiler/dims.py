"""Which bucketed dims each region depends on: one graph is captured for each of their combinations."""

from __future__ import annotations

from collections import deque

from graphspec.compiler.buckets import bucketed_dims
from graphspec.compiler.values import is_static, made_values, params_of, unnamed_inputs
from graphspec.spec import Buffer, DimSize, FromSize, Param, Region, Shape, Spec, reads


def region_dims(spec: Spec) -> dict[str, tuple[str, ...]]:
    """The bucketed dims of every region, in declared order.

    They come from the shapes of what a region reads, updates or declares as its output, and from the producers of
    the values it reads: another graph of the producer is another address to read.
    """
    bucketed = bucketed_dims(spec)
    everywhere = unnamed_inputs(spec)
    found = {each.name: _own_dims(spec, each, everywhere) & bucketed.keys() for each in spec.regions.values()}
    _flow(found, _readers(spec))
    return {name: tuple(dim for dim in bucketed if dim in dims) for name, dims in found.items()}


def shape_dims(shape: Shape) -> set[str]:
    """The dims a shape names, constants included."""
    return {axis.dim for axis in shape if isinstance(axis, DimSize)}


def _readers(spec: Spec) -> dict[str, list[str]]:
    """The regions that read at an address which depends on the producer's bucket.

    A static output is not among them: it has one address, and its readers depend on its declared shape.
    """
    made = made_values(spec)
    readers: dict[str, list[str]] = {name: [] for name in spec.regions}
    for region in spec.regions.values():
        for value in reads(region):
            if value in made and not (is_static(spec, value) and spec.buffers[value].shape is not None):
                readers[made[value]].append(region.name)
    return readers


def _flow(found: dict[str, set[str]], readers: dict[str, list[str]]) -> None:
    """Hand every region's dims on to its readers until nothing changes: a region grows at most once a dim."""
    pending = deque(found)
    while pending:
        producer = pending.popleft()
        for reader in readers[producer]:
            if not found[producer] <= found[reader]:
                found[reader] |= found[producer]
                pending.append(reader)


def _own_dims(spec: Spec, region: Region, everywhere: set[str]) -> set[str]:
    named = (*reads(region), *region.outputs, *everywhere)
    declared: list[Buffer | Param] = [spec.buffers[name] for name in named if name in spec.buffers]
    declared += [spec.params[name] for name in params_of(spec, region)]
    return {dim for each in declared for dim in _declared_dims(each)}


def _declared_dims(declared: Buffer | Param) -> set[str]:
    dims = shape_dims(declared.shape or ())
    if isinstance(declared, Buffer) and isinstance(declared.source, FromSize):
        dims.add(declared.source.dim)
    return dims
