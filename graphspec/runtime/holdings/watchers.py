"""The guard over everything the captured graphs read by address and graphspec did not allocate."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from graphspec.runtime.context import Context, GraphSet
from graphspec.runtime.holdings.frozen import FrozenGuard, frozen
from graphspec.runtime.holdings.guards import Guard
from graphspec.runtime.holdings.reach import Slot, reach


@dataclass(frozen=True)
class Watchers:
    """What is checked before every replay of one set of graphs."""

    addresses: Guard
    host: FrozenGuard

    def check(self) -> None:
        """Pass, or raise GuardError naming what moved or changed since capture."""
        self.addresses.check()
        self.host.check()


def guard_for(context: Context, graphs: GraphSet) -> Watchers:
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
    found = reach(context.roots)
    expected: dict[int, tuple[list[Slot], torch.Tensor]] = {}
    for tensor in tensors.values():
        slots = [slot for slot in found.slots_of_storage(tensor) if slot.name not in graphs.rebound]
        for slot in slots:
            held = slot.get()
            expected.setdefault(id(held), ([], held))[0].append(slot)
        if not slots:
            context.warn(
                f"a graph reads a tensor {list(tensor.shape)} that no attribute, closure or global leads to; it is "
                "kept alive, but nobody can see it replaced"
            )
    host = frozen(found, graphs.loaded, graphs.moving, walks=graphs.walks)
    context.warn(*(f"{name} is too large to be compared on every run: do not change it" for name in host.unwatched))
    return Watchers(Guard(list(expected.values()), found.modules), FrozenGuard(host))


def _own_storages(context: Context, graphs: GraphSet) -> frozenset[int]:
    """Storages that graphspec itself allocated."""
    statics = [buffer.whole for buffer in context.buffers.static.values()]
    copies = [tensor for copy in graphs.copies.values() for tensor in copy.tensors]
    return frozenset(tensor.untyped_storage()._cdata for tensor in (*statics, *copies))
