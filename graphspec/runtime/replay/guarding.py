"""The guard over everything the captured graphs read and graphspec did not allocate."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from graphspec.runtime.holdings.guard import Guard
from graphspec.runtime.holdings.places import Place
from graphspec.runtime.holdings.reach import Reach, reach
from graphspec.runtime.holdings.touched import Touched, remembered
from graphspec.runtime.holdings.which import HostValues, read_tensors
from graphspec.runtime.opened.context import Context, GraphSet


def guard_for(context: Context, graphs: GraphSet) -> Guard:
    """Checks, before a replay of ``graphs``, that nothing they read from outside was moved, replaced or flipped.

    Outside tensors that no place of the model leads to are kept alive by the graphs, and warned of.
    """
    found = reach(context.roots)
    starts = [value for name, value in context.roots.items() if name != "model" or callable(value)]
    code = remembered(found, graphs.code)
    touched = Touched(found, starts, code)
    tensors = list(read_tensors(_places(context, graphs, found), touched))
    covered = [place for expectation in tensors for place in expectation.places]
    moving = graphs.moving | graphs.rebound | set(_versions(graphs, found))
    values = HostValues(found, touched, code, moving, covered)
    guard = Guard((*tensors, *values.expected()))
    context.warn(*(f"{name} is too large to be compared on every run: do not change it" for name in values.unwatched))
    return guard


def _places(context: Context, graphs: GraphSet, found: Reach) -> list[tuple[list[Place], torch.Tensor]]:
    """Every tensor that a graph reads from outside and others hold, with the places that hold it or a view of it."""
    own = _own_storages(context, graphs)
    outside: dict[int, torch.Tensor] = {}
    for captured in graphs.regions.values():
        recording = captured.graph.recording
        for index, seen in recording.outside.items():
            if index not in recording.literals and seen.storage._cdata not in own:
                outside.setdefault(seen.storage._cdata, seen.tensor)
    expected: dict[int, tuple[list[Place], torch.Tensor]] = {}
    for tensor in outside.values():
        places = [place for place in found.slots_of_storage(tensor) if place.name not in graphs.rebound]
        for place in places:
            held = place.get()
            expected.setdefault(id(held), ([], held))[0].append(place)
        if not places:
            context.warn(
                f"a graph reads a tensor {list(tensor.shape)} that no attribute, closure or global leads to; it is "
                "kept alive, but nobody can see it replaced"
            )
    return list(expected.values())


def _versions(graphs: GraphSet, found: Reach) -> Iterator[str]:
    """The versions of tensors that a replay writes: they move with it."""
    for captured in graphs.regions.values():
        for tensor in captured.graph.recording.written_outside():
            yield from (f"{place.name}._version" for place in found.slots_of_storage(tensor))


def _own_storages(context: Context, graphs: GraphSet) -> frozenset[int]:
    """Storages that graphspec itself allocated."""
    statics = [buffer.whole for buffer in context.buffers.static.values() if buffer.declared.attr is None]
    copies = [tensor for copy in graphs.copies.values() for tensor in copy.tensors]
    return frozenset(tensor.untyped_storage()._cdata for tensor in (*statics, *copies))
