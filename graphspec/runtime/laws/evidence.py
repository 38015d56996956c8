"""What laws judge by, beside what was seen: the plan, the device, and what is known of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from graphspec.backends.updates import Binding
from graphspec.plan import Plan
from graphspec.recording.calls import Recording
from graphspec.runtime.holdings.reach import Reach
from graphspec.runtime.rehearsal.observation import Observation
from graphspec.runtime.symbols import Passed


@dataclass(frozen=True)
class Facts:
    """The spec that is judged. ``label`` is the device it is judged for: auto, cpu, cuda or npu.

    ``inputs`` are the storages that callers' inputs are copied into, and the input of each; ``reach`` is what the model
    reaches by the names of its slots. ``kept`` has the bucketed dims of the states that the model owns, by storage:
    the runtime keeps their rows that are not the run's.
    """

    plan: Plan
    backend: Any
    label: str
    inputs: Mapping[int, str]
    reach: Reach
    kept: Mapping[int, frozenset[str]] = field(default_factory=dict)

    def is_shared(self, tensor: torch.Tensor, name: str) -> bool:
        """Whether a slot other than ``name`` holds memory of this tensor too: who reads it may have read that one."""
        storage = tensor.untyped_storage()._cdata
        for slot in self.reach.slots_of_storage(tensor):
            own = slot.name == name or slot.name.startswith((f"{name}[", f"{name}."))
            held = None if own else slot.get()
            if isinstance(held, torch.Tensor) and held.untyped_storage()._cdata == storage:
                return True
        return False


@dataclass(frozen=True)
class Resized:
    """What a region called at two ``sizes`` of one dim, everything else alike: the same operators."""

    region: str
    dim: str
    sizes: tuple[int, int]
    larger: Recording
    smaller: Recording


@dataclass(frozen=True)
class PaddedRun:
    """A padded run of a sequence that is not what eager does, or not the same whatever its padded rows hold.

    ``what`` differs, a result or something that runs carry over, as ``said``; ``writer`` is the region whose graph
    writes it, if it is something carried over. ``fix`` is the way out, where it was shown. ``meant``: the run is
    right with what padded rows hold, or made of it where the user says what that is.
    """

    sequence: str
    what: str
    said: str
    writer: str | None
    fix: str | None = None
    meant: bool = False


@dataclass(frozen=True)
class Pair:
    """Two calls of a region on other inputs and other params, the second of them perhaps the capture itself.

    ``bindings`` are the updates of the second one, ``probes`` further values of each param, ``passed`` what a trace on
    symbols left to be seen here, ``taken`` the params that the region is given.
    """

    first: Observation
    second: Observation
    params: tuple[Mapping[str, Any], Mapping[str, Any]]
    bindings: Sequence[Binding] = ()
    taken: frozenset[str] = frozenset()
    probes: Mapping[str, Sequence[Any]] = ()  # type: ignore[assignment]
    passed: Sequence[Passed] = ()

    @property
    def region(self) -> str:
        """Whose calls they are."""
        return self.first.region

    @property
    def recordings(self) -> tuple[Recording, Recording]:
        """What each of them called."""
        return self.first.recording, self.second.recording

    @property
    def refreshed(self) -> frozenset[tuple[int, int]]:
        """The arguments that updates write, by call and position."""
        return frozenset((binding.slot.call, binding.slot.position) for binding in self.bindings)
