"""The guard over everything the captured graphs read and graphspec did not allocate."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import torch

from graphspec.runtime.holdings.guard import Guard
from graphspec.runtime.holdings.places import Place
from graphspec.runtime.holdings.reach import Reach, reach
from graphspec.runtime.holdings.touched import Touched, remembered
from graphspec.runtime.holdings.which import HostValues, read_tensors
from graphspec.runtime.opened.context import CapturedRegion, Context, GraphSet
from graphspec.runtime.training.optimizers import expected_of_training, group_containers

#: Where torch's own optimizers are.
_OPTIMIZERS = f"{os.sep}torch{os.sep}optim{os.sep}"


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
    moving = graphs.moving | graphs.rebound | set(_versions(graphs, found)) | set(_counted(context, found))
    if context.plan.trains:
        moving |= {f"{place.name}.grad" for place, _ in found.tensors}
    trains = context.plan.trains or any(_OPTIMIZERS in each.co_filename for each in graphs.code.codes)
    training = list(expected_of_training(found, _held(covered))) if trains else []
    values = HostValues(found, touched, code, moving, covered, group_containers(found) if trains else ())
    guard = Guard((*tensors, *values.expected(), *training))
    context.warn(*(f"{name} is too large to be compared on every run: do not change it" for name in values.unwatched))
    return guard


def _counted(context: Context, found: Reach) -> Iterator[str]:
    """The numbers of the host that params are written into before each replay."""
    for each in context.counters():
        yield from each.names(found)


def _held(places: Iterable[Place]) -> Iterator[tuple[Place, torch.Tensor]]:
    """The places that hold a tensor, with it."""
    for place in places:
        held = place.get()
        if isinstance(held, torch.Tensor):
            yield place, held


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
    """Storages that graphspec itself allocated, and those in which its graphs leave what others of them read."""
    statics = [buffer.whole for buffer in context.buffers.static.values() if buffer.declared.attr is None]
    copies = [tensor for copy in graphs.copies.values() for tensor in copy.tensors]
    own = frozenset(tensor.untyped_storage()._cdata for tensor in (*statics, *copies))
    return own.union(context.gradients.storages, *(_made_by(captured) for captured in graphs.regions.values()))


def _made_by(captured: CapturedRegion) -> frozenset[int]:
    """The storages of a graph's outputs, but for what it was given and hands on."""
    given = {outside.storage._cdata for outside in captured.graph.recording.outside.values()}
    return frozenset(output.untyped_storage()._cdata for output in captured.graph.outputs) - given
