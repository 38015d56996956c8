"""A region that a device captures in pieces: a capture ends before each part that stays eager, and begins after it.

Each piece is replayed as soon as it is captured, so that the part after it sees real values. All pieces are in one
pool, and are replayed in the order of their capture: what one makes lies there until it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch

from graphspec.backends.base import CaptureRequest, EagerParts, Inlet, Serve, Slot

if TYPE_CHECKING:
    from graphspec.recording.calls import Recorder, Recording


class Cuttable(Protocol):
    """A backend that captures pieces."""

    def new_graph(self) -> Any:
        """An empty graph object of the device."""

    def graph_context(self, graph: Any, pool: Any, request: CaptureRequest) -> Any:
        """The device's own context manager around a capture."""


class Cutting:
    """One capture in pieces. ``graphs`` are those that have ended, each with the calls that it holds."""

    def __init__(self, backend: Cuttable, request: CaptureRequest, handle: Any, recorder: Recorder) -> None:
        self._backend = backend
        self._request = request
        self._handle = handle
        self._recorder = recorder
        self._context: Any = None
        self._results: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.graphs: list[tuple[Any, range]] = []
        self.open: Any = None
        self._start = 0

    def begin(self) -> None:
        """Begin the capture of a piece."""
        self.open = self._backend.new_graph()
        self._context = self._backend.graph_context(self.open, self._handle, self._request)
        self._context.__enter__()
        self._start = len(self._recorder.recording.calls)

    def end(self) -> None:
        """End it. What eager parts returned is put where the piece reads it."""
        context, self._context = self._context, None
        context.__exit__(None, None, None)
        self.graphs.append((self.open, range(self._start, len(self._recorder.recording.calls))))
        self.open = None
        for target, value in self._results:
            target.copy_(value)
        self._results.clear()

    @contextmanager
    def between(self) -> Iterator[None]:
        """Around an eager part: what comes before it is captured, and has run."""
        self.end()
        graph, calls = self.graphs[-1]
        if calls:
            graph.replay()
        yield
        self.begin()
        self._start += 1  # the part itself is written down next

    def placed(self, result: torch.Tensor) -> torch.Tensor:
        """Memory of the pool for what a part returned, which it gets when the piece that reads it has been captured."""
        target = torch.empty_like(result)
        self._results.append((target, result))
        return target


class PiecedGraph:
    """A captured region in pieces, with the parts between them."""

    compile_s: float | None = None

    def __init__(self, request: CaptureRequest, pieces: Sequence[tuple[Any, range]], parts: EagerParts) -> None:
        self.request = request
        self._pieces = [piece for piece, _ in pieces]
        self._parts = parts
        last = self._pieces[-1]
        self.recording: Recording = last.recording
        self.outputs = last.outputs
        self.bytes, self.operators = last.bytes, last.operators
        self.slots: Sequence[Slot] = [slot for piece in self._pieces for slot in piece.slots]
        self._places = [(piece, number) for piece in self._pieces for number in range(len(piece.slots))]
        steps: list[Callable[[], None]] = []
        for number, (piece, calls) in enumerate(pieces):
            if calls:
                steps.append(piece.replay)
            if number < len(pieces) - 1:
                steps.append(_running(parts, number))
        self._steps = tuple(steps)

    @property
    def born(self) -> list[torch.Tensor]:
        """The tensors on the memory of the graph that outlive a replay."""
        born: list[torch.Tensor] = self._pieces[-1].born
        return born

    def replay(self) -> None:
        """Launch the pieces on the current stream, and run the parts between them."""
        for step in self._steps:
            step()

    def update(self, slot: int, value: Any) -> None:
        """Use ``value`` for a slot from the next replay on."""
        piece, number = self._places[slot]
        piece.update(number, value)

    def serving(self, inlets: Sequence[Inlet], results: Sequence[torch.Tensor]) -> Serve | None:  # noqa: ARG002 - always
        """None: there is Python between the pieces."""
        return None

    def join(self, pool: Any) -> None:
        """The pieces have memory in this pool until they are reset."""
        for piece in self._pieces:
            piece.join(pool)

    def reset(self) -> None:
        """Give the pieces and their pool back to the device."""
        self.outputs = ()
        for part in self._parts.found:
            part.bind((), (), ())
        for piece in self._pieces:
            piece.reset()


def _these(slots: Sequence[Slot], _: Recording) -> Sequence[Slot]:
    return slots


def _running(parts: EagerParts, number: int) -> Callable[[], None]:
    return lambda: parts.run(number)


def pieced(
    request: CaptureRequest,
    parts: EagerParts,
    cutting: Cutting,
    recording: Recording,
    outputs: Sequence[torch.Tensor],
    finish: Callable[[CaptureRequest, Any, Any, range], Any],
) -> PiecedGraph:
    """The finished graph. ``finish`` makes one piece, given its request, its graph, its outputs and its calls."""
    slots = request.slots(recording)
    pieces = []
    for number, (graph, calls) in enumerate(cutting.graphs):
        mine = [slot for slot in slots if slot.call in calls]
        own = replace(request, slots=partial(_these, mine), parts=None)
        last = number == len(cutting.graphs) - 1
        pieces.append((finish(own, graph, outputs if last else (), calls), calls))
    for part in parts.found:
        made = [recording.is_born(recording.ref(tensor).storage) for tensor in part.tensors]
        part.bind(part.tensors, part.results, made)
    return PiecedGraph(request, pieces, parts)


@contextmanager
def cut(parts: EagerParts, cutting: Cutting) -> Iterator[None]:
    """For the time of a capture, parts are met between pieces; the tensors that cross are theirs from then on."""
    before = parts.placed
    parts.cut, parts.placed, parts.holding = cutting.between, cutting.placed, True
    try:
        yield
    finally:
        parts.cut, parts.placed = nullcontext, before
