"""Captures by recording, lays out each pool when the round of captures is complete, and links every recording."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol
from weakref import WeakSet

import torch

from graphspec.backends.base import CaptureRequest, Inlet, Serve, Slot, other_device
from graphspec.backends.cpu.compiling import build
from graphspec.backends.cpu.compiling.library import Library, LibraryReplayer, operator
from graphspec.backends.cpu.compiling.lowering import lower, obstacles, overlaps
from graphspec.backends.cpu.constants import constants, written
from graphspec.backends.cpu.interpreter import Interpreter, UnsupportedProgramError
from graphspec.backends.cpu.issue import Issue, issues
from graphspec.backends.cpu.out_kernels import OutKernels, TryingRecorder
from graphspec.backends.cpu.pieces import Pieces, pieces
from graphspec.backends.cpu.program import Location, link
from graphspec.backends.cpu.python_replayer import PythonReplayer
from graphspec.backends.cpu.selftest import interpreter_fault
from graphspec.backends.layout import ArenaLayout, Life, lives
from graphspec.errors import CaptureError, DeviceError
from graphspec.levers import pulled
from graphspec.recording.calls import Call, Recording, Ref, refs_in
from graphspec.recording.eager import is_eager


class Replayer(Protocol):
    """Issues one linked program."""

    kind: str

    def run(self) -> None:
        """Issue every call once, in order."""


@dataclass(eq=False)
class Arena:
    """The memory of one pool for one round of captures, and beside it what its graphs' constants take.

    It lives as long as a graph of that round.
    """

    pool: str
    memory: torch.Tensor
    owner: object = None
    constant_bytes: int = 0


@dataclass
class CpuGraph:
    """One captured region. ``replayer`` and final ``outputs`` come with `CpuBackend.seal`.

    ``issues`` are made in every replay, ``constants`` were made once, into memory of their own.
    """

    request: CaptureRequest
    recording: Recording
    refs: tuple[Ref, ...]
    issues: list[Issue]
    constants: list[Issue]
    slots: Sequence[Slot]
    outputs: Sequence[torch.Tensor]
    links: Mapping[int, tuple[CpuGraph, int]]
    offsets: Mapping[int, int] = field(default_factory=dict)
    bytes: int = 0
    replayer: Replayer | None = None
    arena: Arena | None = None
    library: Library | None = None
    compile_s: float | None = None
    _writers: tuple[Any, ...] = ()

    @property
    def operators(self) -> int:
        """How many calls a replay issues."""
        return len(self.issues)

    def replay(self) -> None:
        """Issue the recorded calls on the present contents of everything they read."""
        assert self.replayer is not None, "replayed before the round of captures was sealed"
        if torch._C._is_any_autocast_enabled():  # what was recorded is already cast; autocast would cast it again
            with torch._C._DisableAutocast():
                self.replayer.run()
        else:
            self.replayer.run()

    @property
    def memory(self) -> torch.UntypedStorage:
        """The storage of its pool's arena."""
        assert self.arena is not None
        return self.arena.memory.untyped_storage()

    def update(self, slot: int, value: Any) -> None:
        """Use ``value`` for a slot from the next replay on."""
        self._writers[slot](value)

    def serving(self, inlets: Sequence[Inlet], results: Sequence[torch.Tensor]) -> Serve | None:
        """A replay with all that is copied around it in one call into C++, where it is replayed from there."""
        if not isinstance(self.replayer, Interpreter):
            return None
        try:
            return self.replayer.serving(inlets, results)
        except (UnsupportedProgramError, RuntimeError):
            return None


class CpuBackend:
    """Graphs on the CPU. ``replayer`` forces one way of issuing; ``auto`` takes C++ where it proves right."""

    name = "cpu"
    compiles_recordings = True

    def __init__(self, replayer: Literal["auto", "interpreter", "python"] = "auto") -> None:
        self.device = torch.device("cpu")
        self.notes: list[str] = []
        self._replayer = replayer
        self._kernels = OutKernels()
        self._round: list[CpuGraph] = []
        self._arenas: WeakSet[Arena] = WeakSet()
        self._born: dict[int, tuple[CpuGraph, int]] = {}
        self._shared: Mapping[str, str] = {}
        self._commons: dict[str, WeakSet[Arena]] = {}

    def updatable(self, call: Call) -> tuple[str, ...] | None:  # noqa: ARG002 - the same for every call
        """Any argument of any call can be updated."""
        return None

    def can_update(self, op: str, arg: str) -> bool:  # noqa: ARG002 - the same for every operator
        """Any argument can be updated."""
        return True

    def begin(self) -> None:
        """Nothing to prepare."""

    def end(self) -> None:
        """Nothing to put back."""

    @contextmanager
    def active(self) -> Iterator[None]:
        """There is one CPU."""
        yield

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """A recording needs no stream of its own."""
        yield

    def release(self, graphs: Sequence[CpuGraph]) -> None:
        """Nothing to do: arenas go with their graphs."""

    def share(self, other: Any, pools: Mapping[str, str]) -> None:
        """Lay arenas over those of another backend, where they fit in."""
        if other is not None:
            if not isinstance(other, CpuBackend):
                raise other_device(self.name, other)
            self._commons = other._commons
        self._shared = pools
        for arena in self._arenas:
            self._known(arena)

    def give_back(self) -> None:
        """Nothing to do: arenas go with their graphs."""

    def capture(self, request: CaptureRequest) -> CpuGraph:
        """Run the region once and record it. Its memory is laid out when the round is sealed."""
        recorder = TryingRecorder(request.graph.region, request.names, self._kernels, whole=request.updated)
        with warnings.catch_warnings(), recorder:
            # What tries a kernel that resizes is told apart by it; the line it would name is the model's.
            warnings.filterwarnings("ignore", message="An output with one or more elements was resized")
            outputs = tuple(request.call())
        recording = recorder.recording
        refs = tuple(recording.ref(output) for output in outputs)
        links = self._links(recording)
        calls, slots = issues(recording, refs, self._kernels), request.slots(recording)
        once = _constants(calls, recording, refs, slots)
        left = [call for call in calls if id(call) not in set(map(id, once))]
        graph = CpuGraph(request, recording, refs, left, once, slots, outputs, links)
        for output, ref in zip(outputs, refs, strict=True):
            if recording.is_born(ref.storage):
                self._born[output.untyped_storage()._cdata] = (graph, ref.storage)
        self._round.append(graph)
        return graph

    def seal(self) -> None:
        """Lay out the arena of each pool over its captures in order, then bind every recording to it."""
        for graph in self._round:
            self._compile(graph)
        layouts: dict[str, ArenaLayout] = {}
        handed_on = _handed_on(self._round)
        for graph in self._round:
            layout = layouts.setdefault(graph.request.graph.pool, ArenaLayout())
            lives = _lives(graph, handed_on.get(id(graph), {}))
            graph.offsets = layout.place(graph.request.graph.index, lives)
            graph.bytes = max((graph.offsets[life.storage] + life.bytes for life in lives), default=0)
        arenas = {pool: Arena(pool, self._memory(pool, layout.size), self) for pool, layout in layouts.items()}
        self._arenas.update(arenas.values())
        for arena in arenas.values():
            self._known(arena)
        for graph in self._round:
            graph.arena = arenas[graph.request.graph.pool]
        for graph in self._round:
            self._link(graph)
        for graph in self._round:
            graph.recording.release()
            for storage in graph.links:  # the memory it was recorded with; the replay reads the arena
                del graph.recording.outside[storage]
        self.abandon()

    def abandon(self) -> None:
        """Forget the captures of this round."""
        self._round.clear()
        self._born.clear()

    def synchronize(self) -> None:
        """Nothing to wait for: a replay returns when it is done."""

    def failure(self, error: RuntimeError) -> DeviceError | None:  # noqa: ARG002 - the same for every error
        """None: what fails on the CPU is no device."""
        return None

    def poison(self) -> None:
        """Fill every arena with 0xFF: NaN for floats, minus one for integers."""
        for arena in self._arenas:
            arena.memory.fill_(0xFF)

    def pool_bytes(self) -> Mapping[str, int]:
        """Bytes of the arenas of each pool, and of the constants of its graphs."""
        sizes: dict[str, int] = {}
        for arena in self._arenas:
            sizes[arena.pool] = sizes.get(arena.pool, 0) + arena.memory.nbytes + arena.constant_bytes
        return sizes

    def close(self) -> None:
        """Nothing to free: arenas go with their graphs."""
        self.abandon()

    def _memory(self, pool: str, size: int) -> torch.Tensor:
        """Memory for an arena: the largest that other backends have in the same shared pool, or some of its own."""
        if pool in self._shared:
            arenas = [arena for arena in self._commons.get(self._shared[pool], ()) if arena.owner is not self]
            largest = max(arenas, key=lambda arena: arena.memory.nbytes, default=None)
            if largest is not None and largest.memory.nbytes >= size:
                return largest.memory
        return torch.empty(size, dtype=torch.uint8)

    def _known(self, arena: Arena) -> None:
        """Others that share the pool may lie over this arena."""
        if arena.pool in self._shared:
            self._commons.setdefault(self._shared[arena.pool], WeakSet()).add(arena)

    def _compile(self, graph: CpuGraph) -> None:
        """Put one call of a compiled library in the place of all that a graph issues, where its region asks for it."""
        request, recording = graph.request, graph.recording
        if request.compiler is None or not recording.calls:
            return
        region = request.graph.region
        for obstacle in obstacles(recording):
            message = f"region '{region}' cannot be compiled: it {obstacle.what}"
            raise CaptureError(message, hint=obstacle.hint)
        if overlaps(recording):
            message = f"region '{region}' cannot be compiled: tensors that it writes share memory out of torch's sight"
            raise CaptureError(message, hint="give each memory of its own, or remove `compile`")
        lowered = lower(recording, graph.refs)
        built = build.find(lowered, request.compiler)
        if built is None:
            request.compiling()
            built = build.build(lowered, request.compiler, region)
        if built.note is not None:
            self.notes.append(built.note)
        reads, writes = lowered.arguments[: lowered.reads], lowered.arguments[lowered.reads :]
        args = (built.library.number, reads, writes)
        call = Call(operator(), args, {}, (), tuple(ref.storage for ref in lowered.results), recording.calls[-1].site)
        graph.issues, graph.constants = [Issue(call, call.op, args)], []
        graph.library, graph.compile_s = built.library, built.seconds

    def _links(self, recording: Recording) -> dict[int, tuple[CpuGraph, int]]:
        """Outside storages of a recording that an earlier capture of this round made."""
        found = {index: self._born.get(outside.storage._cdata) for index, outside in recording.outside.items()}
        return {index: origin for index, origin in found.items() if origin is not None}

    def _link(self, graph: CpuGraph) -> None:
        own = {each: torch.UntypedStorage(graph.recording.bytes[each]) for each in _written_once(graph)}
        assert graph.arena is not None
        graph.arena.constant_bytes += sum(storage.nbytes() for storage in own.values())

        def locate(storage: int) -> Location:
            if storage in own:
                return own[storage], 0
            if storage in graph.links:
                origin, origin_storage = graph.links[storage]
                return origin.memory, origin.offsets[origin_storage]
            if storage in graph.recording.outside:
                return graph.recording.outside[storage].storage, 0
            return graph.memory, graph.offsets[storage]

        with torch.no_grad(), torch._C._DisableAutocast():
            PythonReplayer(link(graph.constants, (), locate, {})[0]).run()
        updatable = _updatable(graph)
        writers: dict[tuple[int, int], Any] = {}
        steps = []
        for piece in pieces(graph.issues):
            if is_eager(graph.issues[piece.start].op):
                steps.append(_eager_part(graph, graph.issues[piece.start], locate))
                continue
            slots = {(call - piece.start, at): value for (call, at), value in updatable.items() if call in piece}
            program, places = link(graph.issues[piece.start : piece.stop], (), locate, slots)
            for (call, at), place in places.items():
                writers[call + piece.start, at] = partial(program.write, place)
            graph.replayer = self._choose(program, graph.request.graph.region)
            steps.append(graph.replayer.run)
        graph.outputs = link((), graph.refs, locate, {})[0].outputs
        graph._writers = tuple(writers[key] for key in updatable)
        if graph.replayer is None or len(steps) > 1:
            graph.replayer = Pieces(steps)

    def _choose(self, program: Any, region: str) -> Replayer:
        if self._replayer == "python":
            return PythonReplayer(program)
        if self._replayer == "auto" and (library := LibraryReplayer.of(program)) is not None:
            return library
        fault = interpreter_fault()
        if fault is None:
            try:
                return Interpreter(program)
            except (UnsupportedProgramError, RuntimeError) as error:
                fault = str(error).splitlines()[0]
        if self._replayer == "interpreter":
            message = f"region '{region}' cannot be replayed from C++: {fault}"
            raise CaptureError(message)
        self.notes.append(f"region '{region}' is replayed from Python, not from C++: {fault}")
        return PythonReplayer(program)


def _eager_part(graph: CpuGraph, issue: Issue, locate: Callable[[int], Location]) -> Callable[[], None]:
    """A part that stays eager, given the tensors of the graph at their final addresses."""
    read, at, _ = issue.args
    results = issue.call.outputs[0]
    tensors = link((), (*read, *results), locate, {})[0].outputs
    parts = graph.request.parts
    assert parts is not None
    made = [graph.recording.is_born(ref.storage) or ref.storage in graph.links for ref in read]
    parts.found[at].bind(tensors[: len(read)], tensors[len(read) :], made)
    return partial(parts.run, at)


def _handed_on(graphs: Sequence[CpuGraph]) -> dict[int, dict[int, float]]:
    """For graphs whose memory later ones return (a view, or the value itself), until when: by graph and storage.

    The hold counts captures of a pool, so memory that a graph of another pool hands on is held for good.
    """
    found: dict[int, dict[int, float]] = {}
    for graph in graphs:
        for number, ref in enumerate(graph.refs):
            if ref.storage not in graph.links:
                continue
            origin, storage = graph.links[ref.storage]
            same = origin.request.graph.pool == graph.request.graph.pool
            until = graph.request.held_until(number) if same else float("inf")
            held = found.setdefault(id(origin), {})
            held[storage] = max(until, held.get(storage, 0))
    return found


def _lives(graph: CpuGraph, handed_on: Mapping[int, float]) -> list[Life]:
    """The life of each storage that needs memory, in issued calls."""
    held = dict(handed_on)
    for number, ref in enumerate(graph.refs):
        held[ref.storage] = max(graph.request.held_until(number), held.get(ref.storage, 0))
    calls = [list(refs_in((*issue.args, *issue.copies))) for issue in graph.issues]
    once = _written_once(graph)
    found = lives(graph.recording, calls, held, graph.request.graph.index)
    return [life for life in found if life.storage not in once]


def _constants(
    calls: Sequence[Issue], recording: Recording, outputs: Sequence[Ref], slots: Sequence[Slot]
) -> list[Issue]:
    """The calls that need not be made in every replay."""
    refreshed = {id(recording.calls[slot.call]) for slot in slots}
    return constants(calls, recording, outputs, refreshed) if pulled("constants") else []


def _written_once(graph: CpuGraph) -> set[int]:
    """The storages of a graph's constants."""
    return set().union(*map(written, graph.constants))


def _updatable(graph: CpuGraph) -> dict[tuple[int, int], Any]:
    """The (issue, argument position) of each update slot, with its first value, in slot order."""
    issue_of = {id(issue.call): number for number, issue in enumerate(graph.issues)}
    return {(issue_of[id(graph.recording.calls[slot.call])], slot.position): slot.value for slot in graph.slots}
