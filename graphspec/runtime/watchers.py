"""The guard over everything the captured graphs read by address and graphspec did not allocate."""

from __future__ import annotations

import torch

from graphspec.runtime.context import Context, GraphSet
from graphspec.runtime.guards import Guard
from graphspec.runtime.reach import Slot, reach


def guard_for(context: Context, graphs: GraphSet) -> Guard:
    """Checks, before a replay of ``graphs``, that nothing they read from outside was moved, replaced or flipped.

    Outside tensors that no slot of the model leads to are kept alive by the graphs, and warned of.
    """
    own = _own_storages(context, graphs)
    tensors: dict[int, torch.Tensor] = {}
    for captured in graphs.regions.values():
        recording = captured.graph.recording
        for index, outside in recording.outside.items():
            if index not in recording.literals and outside.storage._cdata not in own:
                tensors.setdefault(outside.storage._cdata, outside.tensor)
    found = reach({"model": context.model})
    expected: dict[int, tuple[list[Slot], torch.Tensor]] = {}
    for tensor in tensors.values():
        slots = found.slots_of_storage(tensor)
        for slot in slots:
            held = slot.get()
            expected.setdefault(id(held), ([], held))[0].append(slot)
        if not slots:
            context.warn(
                f"a graph reads a tensor {list(tensor.shape)} that no attribute, closure or global leads to; it is kept "
                "alive, but nobody can see it replaced"
            )
    return Guard(list(expected.values()), found.modules)


def _own_storages(context: Context, graphs: GraphSet) -> frozenset[int]:
    """Storages that graphspec itself allocated."""
    statics = [buffer.whole for buffer in context.buffers.static.values()]
    copies = [tensor for copy in graphs.copies.values() for tensor in copy.tensors]
    return frozenset(tensor.untyped_storage()._cdata for tensor in (*statics, *copies))
