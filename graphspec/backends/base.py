"""The protocol between the runtime and a backend.

The runtime decides what is captured, in which order and with which tensors; a backend turns one call into a graph
in a pool, replays it, writes update slots, and reports. It knows nothing of specs, names or buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from graphspec import plan
    from graphspec.errors import DeviceError
    from graphspec.recording.calls import Call, Recording
    from graphspec.recording.source import ModuleNames
    from graphspec.spec import Compile


@dataclass(frozen=True)
class Slot:
    """One argument of one recorded operator that is refreshed before replays.

    ``call`` counts recorded calls of the region, ``position`` is the argument's place in the operator's schema,
    ``value`` is what it is captured with.
    """

    call: int
    position: int
    value: Any


class EagerPart(Protocol):
    """A part of a region that stays eager. ``tensors`` it is given, and ``results`` the next graph reads."""

    tensors: Sequence[torch.Tensor]
    results: Sequence[torch.Tensor]

    def bind(self, tensors: Sequence[torch.Tensor], results: Sequence[torch.Tensor], made: Sequence[bool]) -> None:
        """The tensors that it is given, and those that the next graph reads, where they lie in replays.

        ``made``: which of the tensors the graph makes anew in every replay.
        """


class EagerParts(Protocol):
    """The parts of one captured region that stay eager, in order.

    During a capture ``cut`` is entered around each, and ``placed`` makes what the next graph reads in the place of a
    result: a backend that must end its capture before a part sets both. ``holding``: parts hold the tensors that they
    meet then, which are those of replays.
    """

    cut: Callable[[], AbstractContextManager[Any]]
    placed: Callable[[torch.Tensor], torch.Tensor]
    holding: bool

    @property
    def found(self) -> Sequence[EagerPart]:
        """Those that were met."""

    def run(self, at: int) -> None:
        """Run one, in a replay."""


@dataclass(frozen=True)
class CaptureRequest:
    """One graph to capture.

    ``call`` runs the region on its static inputs and returns the tensors whose memory must outlive the call;
    ``held_until`` gives, for each of them, the last capture of the pool during which it must stay untouched.
    ``slots`` picks the updatable arguments, given what was recorded; ``names`` tells the modules of each
    call, ``updated`` the operators whose arguments updates refresh. With a ``compiler`` the graph is one compiled call;
    ``compiling`` is called when that has to be compiled first. ``compile_s``: what its compilation took, where ``call``
    is compiled already. ``parts`` stay eager between the pieces of the graph.
    """

    graph: plan.Graph
    call: Callable[[], Sequence[torch.Tensor]]
    held_until: Callable[[int], float]
    slots: Callable[[Recording], Sequence[Slot]]
    names: ModuleNames | None
    updated: Collection[str] = ()
    compiler: Compile | None = None
    compiling: Callable[[], None] = lambda: None
    compile_s: float | None = None
    parts: EagerParts | None = None


@dataclass(frozen=True)
class Inlet:
    """Where one input goes: ``view`` at the bucket, and its real rows, ``target``; what else it holds is ``pad``."""

    view: torch.Tensor
    target: torch.Tensor
    pad: Any


#: Copies tensors into the inlets of a graph, replays it, and gives copies of its results, in one call.
Serve = Callable[[Sequence["torch.Tensor"]], Sequence["torch.Tensor"]]


class CapturedGraph(Protocol):
    """A graph that was captured. Its outputs and replay are valid once the backend has been sealed."""

    @property
    def recording(self) -> Recording:
        """What the region did while it was captured."""

    @property
    def outputs(self) -> Sequence[torch.Tensor]:
        """The tensors the captured call returned, on the graph's memory."""

    @property
    def bytes(self) -> int:
        """What the graph's values need in their pool."""

    @property
    def operators(self) -> int:
        """How many operators a replay runs."""

    @property
    def compile_s(self) -> float | None:
        """The seconds that its compilation took, 0 if it came from a cache; None where it is not compiled."""

    @property
    def slots(self) -> Sequence[Slot]:
        """What can be updated, in the order of `update`."""

    def replay(self) -> None:
        """Run the graph once on the present contents of everything it reads."""

    def update(self, slot: int, value: Any) -> None:
        """Use ``value`` for a slot from the next replay on."""

    def serving(self, inlets: Sequence[Inlet], results: Sequence[torch.Tensor]) -> Serve | None:
        """A replay with all that is copied before and after it; None where that is no quicker than call by call."""


def other_device(device: object, other: Any) -> DeviceError:
    """What to raise where pools of another device are to be shared."""
    from graphspec.errors import DeviceError

    message = (
        f"pools are shared on one device: the graphs are for {device}, and those of the other runner for {other.device}"
    )
    return DeviceError(message, hint=f"open it with device='{other.device}', or without `pool=`")


class Backend(Protocol):
    """One kind of device."""

    name: str
    #: Whether `capture` compiles what it records; else the call it is given is a compiled one.
    compiles_recordings: bool

    @property
    def device(self) -> torch.device:
        """Where the graphs run."""

    @property
    def notes(self) -> Sequence[str]:
        """What was noticed and is no error."""

    def updatable(self, call: Call) -> tuple[str, ...] | None:
        """The arguments of a recorded call that can be updated; None: any."""

    def can_update(self, op: str, arg: str) -> bool:
        """Whether an argument of an operator can be updated, as far as names tell."""

    def begin(self) -> None:
        """A runner begins to work on the device: to capture, to run, to write states."""

    def end(self) -> None:
        """It ends what `begin` began."""

    def active(self) -> AbstractContextManager[None]:
        """Make this the current device."""

    def capturing(self) -> AbstractContextManager[None]:
        """Around warm-up and capture: what has to be current for them."""

    def release(self, graphs: Sequence[Any]) -> None:
        """Free graphs that nobody will replay again."""

    def share(self, other: Any, pools: Mapping[str, str]) -> None:
        """Capture into the memory of another backend from now on; the first of those that share it has no other.

        ``pools`` has the shared pool of each pool. Whoever shares one sees to it that they are used in turns. Raises
        DeviceError for a backend of another device.
        """

    def give_back(self) -> None:
        """Give the memory of freed graphs back to whoever else is on the device."""

    def capture(self, request: CaptureRequest) -> CapturedGraph:
        """Capture one graph into its pool, after those captured before it."""

    def seal(self) -> None:
        """All captures of this round are made: give every graph its final memory."""

    def abandon(self) -> None:
        """A capture of this round failed: forget the others too."""

    def synchronize(self) -> None:
        """Wait until every replay has finished."""

    def failure(self, error: RuntimeError) -> DeviceError | None:
        """What an error of torch says about the device; None if it says nothing of it."""

    def poison(self) -> None:
        """Overwrite every byte of graph memory whose value no later replay may read. For tests of stale reads."""

    def pool_bytes(self) -> Mapping[str, int]:
        """Bytes held by each pool."""

    def close(self) -> None:
        """Free every graph and pool."""
