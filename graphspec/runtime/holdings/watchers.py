"""The guard over everything the captured graphs read by address and graphspec did not allocate."""

from __future__ import annotations

from collections.abc import Callable

import torch

from graphspec.runtime.context import Context, GraphSet
from graphspec.runtime.holdings.frozen import frozen
from graphspec.runtime.holdings.frozen_guard import FrozenGuard
from graphspec.runtime.holdings.guards import Guard
from graphspec.runtime.holdings.reach import Slot, reach
from graphspec.runtime.holdings.untouched import Tree, available

#: How many trees are kept: what is expected of a tensor differs with the caller's inference mode and autocast.
MODES = 4
#: How many trees in a row may never have held before the guards run every time instead.
PATIENCE = 4


class Watchers:
    """What is checked before every replay of one set of graphs: first whether anything was touched, then what."""

    def __init__(self, *guards: Guard | FrozenGuard) -> None:
        self.guards = guards
        self._restless: set[int] = set()
        self._left = PATIENCE if available() else 0
        self._held = True
        self._tree: Tree | None = None
        self._checks: list[Callable[[], bool]] = []  # the one that held last comes first
        self._examine()

    def check(self) -> None:
        """Pass, or raise GuardError naming what moved or changed since capture."""
        try:  # in this very frame: every call counts while the caches are cold
            if self._checks and self._checks[0]():
                self._held = True
                return
        except Exception:  # noqa: BLE001, S110 # a vanished place raises what its kind raises; the guards name it
            pass
        self._check_others()

    def _check_others(self) -> None:
        for place, untouched in enumerate(self._checks[1:], 1):
            if _holds(untouched):
                self._held = True
                self._checks.insert(0, self._checks.pop(place))
                return
        self._examine()

    def _examine(self) -> None:
        """Have the guards decide; what they pass is from now on what is expected."""
        for guard in self.guards:
            guard.check()
        self._left = PATIENCE if self._held and self._left else self._left - 1
        if self._left <= 0:
            self._left, self._checks = 0, []
            return
        self._held = False
        try:
            untouched = self._fresh()
        except Exception:  # noqa: BLE001 # private to torch: whatever it raises, the guards are there
            self._left = 0
            return
        if all(guard.holds() for guard in self.guards):  # else something was written since they passed
            self._checks.insert(0, untouched)
            del self._checks[MODES:]

    def _fresh(self) -> Callable[[], bool]:
        written = self._tree.written() if self._tree is not None else set()
        if written:
            self._restless |= written
            self._checks.clear()  # they expect the versions of before
        self._tree = Tree(self._restless)
        for guard in self.guards:
            guard.watch(self._tree)
        return self._tree.build()


def _holds(untouched: Callable[[], bool]) -> bool:
    try:
        return untouched()
    except Exception:  # noqa: BLE001 # a vanished place raises what its kind raises; the guards name it
        return False


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
    host = frozen(
        found,
        graphs.loaded,
        graphs.moving | graphs.rebound,
        methods=graphs.methods,
        computes_names=graphs.computes_names,
        walks=graphs.walks,
    )
    context.warn(*(f"{name} is too large to be compared on every run: do not change it" for name in host.unwatched))
    return Watchers(Guard(list(expected.values()), found.modules), FrozenGuard(host))


def _own_storages(context: Context, graphs: GraphSet) -> frozenset[int]:
    """Storages that graphspec itself allocated."""
    statics = [buffer.whole for buffer in context.buffers.static.values()]
    copies = [tensor for copy in graphs.copies.values() for tensor in copy.tensors]
    return frozenset(tensor.untyped_storage()._cdata for tensor in (*statics, *copies))
