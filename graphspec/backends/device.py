"""What CUDA and NPU graphs share: capture on a stream of their own into pools of the device's allocator, and replay.

The two APIs have the same shape. A subclass says which module of torch it is, how a graph is captured, and what its
graphs can do beyond replaying.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _pop_mode

from graphspec.backends.base import CaptureRequest, EagerParts, Inlet, Serve, Slot, other_device
from graphspec.backends.cutting import Cutting, PiecedGraph, cut, pieced
from graphspec.backends.layout import peak_bytes
from graphspec.errors import CaptureError, DeviceError, GraphSpecError
from graphspec.recording.calls import Call, Recorder, Recording
from graphspec.spec import CaptureOptions


class DeviceGraph:
    """One captured device graph, with the tensors on its memory that must outlive the capture."""

    def __init__(
        self, backend: DeviceBackend, request: CaptureRequest, graph: Any, recording: Recording, outputs: Any
    ) -> None:
        self._module, self._device = backend.module, backend.device
        self._current_device = backend.current_device()
        self.request = request
        self.compile_s = request.compile_s
        self.graph = graph
        self._pool: DevicePool | None = None
        self.recording = recording
        self.outputs = tuple(output.detach() for output in outputs)
        refs = [recording.ref(output) for output in outputs]
        self.born = [o for o, ref in zip(self.outputs, refs, strict=True) if recording.is_born(ref.storage)]
        self.operators = sum(1 for call in recording.calls if call.born or call.writes)
        self.bytes = peak_bytes(recording, refs)
        self.slots: Sequence[Slot] = request.slots(recording)

    def replay(self) -> None:
        """Launch the graph on the current stream of its device, whichever device is current."""
        if self._current_device() == self._device.index:
            self.launch()
            return
        with self._module.device(self._device):
            self.launch()

    def launch(self) -> None:
        """Launch the graph, on its device."""
        self.graph.replay()

    def update(self, slot: int, value: Any) -> None:
        """Use ``value`` for a slot from the next replay on."""
        raise NotImplementedError

    def join(self, pool: DevicePool) -> None:
        """The graph has memory in this pool until it is reset."""
        self._pool = pool
        pool.graphs += 1

    def serving(self, inlets: Sequence[Inlet], results: Sequence[torch.Tensor]) -> Serve | None:  # noqa: ARG002 - always
        """None: copies and the replay are queued one by one, and the device works meanwhile."""
        return None

    def reset(self) -> None:
        """Give the graph and its pool back to the device."""
        if self._pool is not None:
            self._pool.graphs -= 1
            self._pool = None
        self.outputs = ()
        self.born = []
        self.graph.reset()


class DevicePool:
    """A pool of the device's allocator. It is freed with the last of its graphs, so the next one begins a new pool."""

    def __init__(self) -> None:
        self.graphs = 0
        self._handle: Any = None

    def handle(self, module: Any) -> Any:
        """What names the pool to the allocator."""
        if self.graphs == 0:
            self._handle = module.graph_pool_handle()
        return self._handle


class DeviceBackend:
    """Captures into device graphs. ``module`` is ``torch.cuda`` or ``torch.npu``."""

    name = "device"
    compiles_recordings = False

    def __init__(self, module: Any, index: int, options: CaptureOptions) -> None:
        self.module = module
        self.device = torch.device(self.name, index)
        self.notes: list[str] = []
        self._options = options
        with self.active():
            self._stream = module.Stream()
        self._pools: dict[str, DevicePool] = {}
        self._shared: Mapping[str, str] = {}
        self._graphs: list[DeviceGraph | PiecedGraph] = []
        self._round: list[DeviceGraph | PiecedGraph] = []

    # -- what a subclass says

    def new_graph(self) -> Any:
        """An empty graph object of the device."""
        raise NotImplementedError

    def graph_context(self, graph: Any, pool: Any, request: CaptureRequest) -> Any:
        """The device's own context manager around a capture."""
        raise NotImplementedError

    def current_device(self) -> Callable[[], int]:
        """What tells the current device, at the least cost."""
        current: Callable[[], int] = self.module.current_device
        return current

    def captured(
        self, request: CaptureRequest, graph: Any, recording: Recording, outputs: Any, calls: range | None = None
    ) -> DeviceGraph:
        """The finished graph, which holds these ``calls`` of its recording, or all."""
        del calls
        return DeviceGraph(self, request, graph, recording, outputs)

    def updatable(self, call: Call) -> tuple[str, ...] | None:
        """The arguments of a recorded call that can be updated; None: any."""
        raise NotImplementedError

    def can_update(self, op: str, arg: str) -> bool:
        """Whether an argument of an operator can be updated, as far as names tell."""
        raise NotImplementedError

    # -- the protocol

    def begin(self) -> None:
        """Nothing to prepare."""

    def end(self) -> None:
        """Nothing to put back."""

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make this the current device."""
        if self.module.current_device() == self.device.index:
            yield
            return
        with self.module.device(self.device):
            yield

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Around warm-up and capture: on the capture stream, since library handles belong to a stream."""
        with self.active():
            before = self.module.current_stream()
            self._stream.wait_stream(before)
            with self.module.stream(self._stream):
                yield
            before.wait_stream(self._stream)

    def capture(self, request: CaptureRequest) -> DeviceGraph | PiecedGraph:
        """Capture one region. Nothing runs: the device records the kernels that the operators launch.

        Raises CaptureError naming the region, the operator and the model's line. Stream and modes are as before.
        """
        if self._options.gc:
            gc.collect()
        name = request.graph.pool
        pool = self._pools.setdefault(self._shared.get(name, name), DevicePool())
        recorder = Recorder(request.graph.region, request.names, compiled=request.compiler is not None)
        captured: DeviceGraph | PiecedGraph
        if request.parts is not None:
            captured = self._in_pieces(request, request.parts, pool.handle(self.module), recorder)
        else:
            graph = self.new_graph()
            outputs = self._record(request, graph, pool.handle(self.module), recorder)
            captured = self.captured(request, graph, recorder.recording, outputs)
        captured.join(pool)
        self._round.append(captured)
        return captured

    def seal(self) -> None:
        """Every graph has its memory from its capture on."""
        for graph in self._round:
            graph.recording.release()
        self._graphs += self._round
        self._round = []

    def abandon(self) -> None:
        """Reset the graphs of this round: a capture failed."""
        graphs, self._round = self._round, []
        for graph in graphs:
            quietly(graph.reset)

    def release(self, graphs: Sequence[DeviceGraph | PiecedGraph]) -> None:
        """Reset graphs that nobody will replay again."""
        gone = {id(graph) for graph in graphs}
        self._graphs = [graph for graph in self._graphs if id(graph) not in gone]
        _reset(graphs)

    def share(self, other: Any, pools: Mapping[str, str]) -> None:
        """Capture into the pools of another backend, on its stream: the allocator keeps memory by stream."""
        if other is not None:
            if other.device != self.device:
                raise other_device(self.device, other)
            self._pools, self._stream = other._pools, other._stream
        self._shared = pools

    def give_back(self) -> None:
        """The allocator keeps what freed graphs used until it is told otherwise."""
        self.synchronize()
        self.module.empty_cache()

    def synchronize(self) -> None:
        """Wait for everything on this device."""
        self.module.synchronize(self.device)

    def failure(self, error: RuntimeError) -> DeviceError | None:
        """The device's error with its reason: whatever torch raises around work of graphspec's own came from there."""
        hint = "later runs may work; if they do not, open the spec again, or restart the process"
        return DeviceError(f"{self.device} failed: {reason_of(error)}", hint=hint)

    def poison(self) -> None:
        """Fill what the graphs wrote with NaN, or minus one."""
        for graph in self._graphs:
            for tensor in graph.born:
                tensor.fill_(float("nan") if tensor.is_floating_point() or tensor.is_complex() else -1)

    def pool_bytes(self) -> Mapping[str, int]:
        """The most that any graph of each pool needs."""
        sizes: dict[str, int] = {}
        for graph in self._graphs:
            pool = graph.request.graph.pool
            sizes[pool] = max(sizes.get(pool, 0), graph.bytes)
        return sizes

    def close(self) -> None:
        """Wait for the device, then free every graph and pool. Everything is let go of also where the device fails."""
        try:
            self.synchronize()
        finally:
            graphs, self._graphs, self._round = [*self._round, *self._graphs], [], []
            _reset(graphs)

    # -- one capture

    def _record(self, request: CaptureRequest, graph: Any, pool: Any, recorder: Recorder) -> Sequence[torch.Tensor]:
        stream, depth = self.module.current_stream(), torch._C._len_torch_dispatch_stack()
        raised: list[BaseException] = []
        outputs: list[torch.Tensor] = []
        try:
            with self.graph_context(graph, pool, request):
                try:
                    with recorder:
                        outputs += request.call()
                except BaseException as error:
                    raised.append(error)
                    raise
        except BaseException as error:  # noqa: BLE001 - an interrupt leaves the capture broken too
            # Ending a broken capture raises, and then neither the stream nor the modes of the context are put back.
            while torch._C._len_torch_dispatch_stack() > depth:
                _pop_mode()
            quietly(lambda: self.module.is_current_stream_capturing() and graph.capture_end())  # its begin failed late
            self.module.set_stream(stream)
            quietly(graph.reset)
            raise self._explained(request, recorder, raised[0] if raised else error) from None
        return outputs

    def _in_pieces(self, request: CaptureRequest, parts: EagerParts, handle: Any, recorder: Recorder) -> PiecedGraph:
        stream, depth = self.module.current_stream(), torch._C._len_torch_dispatch_stack()
        cutting = Cutting(self, request, handle, recorder)
        try:
            cutting.begin()
            with cut(parts, cutting), recorder:
                outputs = list(request.call())
            cutting.end()
        except BaseException as error:  # noqa: BLE001 - an interrupt leaves the capture broken too
            while torch._C._len_torch_dispatch_stack() > depth:
                _pop_mode()
            if (broken := cutting.open) is not None:
                quietly(lambda: self.module.is_current_stream_capturing() and broken.capture_end())
                quietly(broken.reset)
            self.module.set_stream(stream)
            for graph, _ in cutting.graphs:
                quietly(graph.reset)
            raise self._explained(request, recorder, error) from error.__cause__

        def finish(own: CaptureRequest, graph: Any, made: Any, calls: range) -> DeviceGraph:
            return self.captured(own, graph, recorder.recording, made, calls)

        return pieced(request, parts, cutting, recorder.recording, outputs, finish)

    def _explained(self, request: CaptureRequest, recorder: Recorder, error: BaseException) -> BaseException:
        """What to raise for a failed capture: the user's own error as it is, the device's refusal with its place."""
        region = request.graph.region
        failed = recorder.failed
        if failed is None or not _caused_by(error, failed[2]):
            if isinstance(error, GraphSpecError) or not isinstance(error, Exception):
                return error
            reason = reason_of(error)
            return CaptureError(f"region '{region}' could not be captured on {self.name}: {reason}")
        call, where, cause = failed
        message = f"region '{region}': {call} cannot be captured on {self.name}, at {where}: {reason_of(cause)}"
        return CaptureError(message, hint=f"mark the region eager, or replace {call}")


def device_index(device: str, count: int, name: str) -> int:
    """The index in ``npu:1``, 0 for ``npu``. Raises DeviceError for a device that is not there."""
    _, _, written = device.partition(":")
    index = int(written) if written else 0
    if index >= count:
        have = f"{name}:0" if count == 1 else f"{name}:0 to {name}:{count - 1}"
        raise DeviceError(f"there is no {device}: this machine has {have if count else f'no {name} device'}")
    return index


def _reset(graphs: Sequence[DeviceGraph | PiecedGraph]) -> None:
    """Reset every graph; the first failure is raised when all have been tried."""
    with ExitStack() as stack:
        for graph in reversed(graphs):
            stack.callback(graph.reset)


def _caused_by(error: BaseException | None, cause: BaseException) -> bool:
    """Whether an exception is, or was raised from, another."""
    while error is not None:
        if error is cause:
            return True
        error = error.__cause__ or error.__context__
    return False


def reason_of(error: BaseException) -> str:
    """What failed, in a line: the first of the message, and the last of the device's own report where there is one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    told = lines[-1] if len(lines) > 1 and _reports(str(error)) else None
    return lines[0] if told is None else f"{lines[0]} ({told})"


def _reports(message: str) -> bool:
    """Whether torch_npu has appended what CANN says about the failure."""
    return "[ERROR]" in message


def quietly(action: Callable[[], Any]) -> None:
    """Clean up after a failure; a second failure would only hide the first."""
    try:
        action()
    except Exception:  # noqa: BLE001 - whatever the device raises for a graph that is broken already
        return
