"""Ascend NPUs: `torch.npu.NPUGraph` of torch_npu, with host arguments that are updated between replays.

What torch_npu gets wrong in silence is refused or put right here:

- a replay without an update never finishes once a graph has updatable operators, so every replay is preceded by one,
  also with unchanged values;
- an update that comes before the previous replay has taken its own is lost: an event is recorded after each replay,
  and the update stream waits for it, so that runs back to back need no synchronization;
- ``update`` ignores unknown keys, keys of another operator, and spreads a list of one over all records: names are
  checked against the handlers before the first replay, and every record gets its own values.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from graphspec.backends.base import CaptureRequest
from graphspec.backends.device import DeviceBackend, DeviceGraph, device_index, quietly, reason_of
from graphspec.backends.task_queue import TaskQueue, revive
from graphspec.errors import CaptureError, DeviceError
from graphspec.plan import Plan
from graphspec.recording.calls import Call, Recording
from graphspec.spec import CaptureOptions, NpuOptions


class UpdateStream:
    """The stream that updates are launched on, one a device: torch_npu's own belongs to whichever device came first."""

    def __init__(self) -> None:
        self.stream = torch.npu.Stream()

    def renew(self) -> None:
        """After a failed update: wait for the device, and leave the stream: a task update may be open on it."""
        revive()
        quietly(lambda: torch.npu.graph_task_update_end(self.stream))
        self.stream = torch.npu.Stream()


class NpuGraph(DeviceGraph):
    """A captured NPU graph. ``records`` are torch_npu's own records of the updatable operators, in capture order."""

    def __init__(
        self,
        backend: NpuBackend,
        request: CaptureRequest,
        graph: Any,
        recording: Recording,
        outputs: Sequence[torch.Tensor],
        handled: Sequence[int],
    ) -> None:
        super().__init__(backend, request, graph, recording, outputs)
        self._updates = backend.updates
        records = graph.graph_dispatch_mode.graph_dispatch_records
        if len(records) != len(handled):
            raise CaptureError(
                f"region '{request.graph.region}': torch_npu recorded {len(records)} updatable operators where "
                f"{len(handled)} were called"
            )
        self._inputs: list[dict[str, Any]] = [{} for _ in records]
        self._places = []
        for slot in self.slots:
            name = recording.calls[slot.call].op._schema.arguments[slot.position].name
            self._places.append((self._inputs[handled.index(slot.call)], name))
            self.update(len(self._places) - 1, slot.value)
        self._taken = torch.npu.Event() if records else None
        self._launch = _replay_of(graph)

    def update(self, slot: int, value: Any) -> None:
        """Use ``value`` for a slot from the next replay on."""
        record, name = self._places[slot]
        record[name] = value

    def launch(self) -> None:
        """Launch the graph on the current stream, after an update of every updatable operator."""
        if self._taken is None:
            self._launch()
            return
        # An update launches operators inside of a task group: a dispatch mode around it (the watch of the capture, a
        # caller's profiler) would launch its own among them.
        modes = _disable_current_modes() if torch._C._len_torch_dispatch_stack() else contextlib.nullcontext()
        try:
            with modes:
                self._update_and_replay(self._taken)
        except RuntimeError as error:
            self._updates.renew()
            raise device_error(self._device, error) from error

    def _update_and_replay(self, taken: Any) -> None:
        mode = self.graph.graph_dispatch_mode
        mode.update_stream = self._updates.stream
        mode.update_stream.wait_event(taken)
        self.graph.update(self._inputs)
        self._launch()
        taken.record()


class NpuBackend(DeviceBackend):
    """Graphs on one Ascend NPU."""

    name = "npu"

    def __init__(self, index: int, options: CaptureOptions, npu: NpuOptions, folder: Path) -> None:
        super().__init__(torch.npu, index, options)
        self._npu = npu
        self._folder = folder
        self._queue = TaskQueue()
        self._mode = 0
        with self.active():
            self.updates = UpdateStream()

    def current_device(self) -> Callable[[], int]:
        """torch_npu's own function in C++: the device was initialized when this backend was opened."""
        from torch_npu import _C

        current: Callable[[], int] = getattr(_C, "_npu_getDevice", self.module.current_device)
        return current

    def begin(self) -> None:
        """Launch from this thread, not through torch_npu's task queue, which is drained first.

        A replay waits for that queue's thread whenever a copy lies in it, which costs more than launching the copy.
        And a failure on that thread ends the queue: every later operator is skipped in silence. Without it, failures
        are ordinary exceptions.
        """
        self._mode = self._queue.turn_off()

    def end(self) -> None:
        """Give the task queue back to whoever uses it between runs."""
        self._queue.restore(self._mode)

    def new_graph(self) -> Any:
        """An empty graph: one instance captures once."""
        return torch.npu.NPUGraph()

    def graph_context(self, graph: Any, pool: Any, request: CaptureRequest) -> Any:
        """The capture; operators with a handler are recorded for updates where the region has any."""
        return torch.npu.graph(
            graph,
            pool=pool,
            stream=self._stream,
            auto_dispatch_capture=bool(request.updated),
            capture_error_mode=self._options.error_mode,
        )

    def captured(
        self, request: CaptureRequest, graph: Any, recording: Recording, outputs: Any, calls: range | None = None
    ) -> DeviceGraph:
        """The finished graph, after the extras that the spec asks for."""
        held = range(len(recording.calls)) if calls is None else calls
        handled = [i for i in held if request.updated and _handler(recording.calls[i]) is not None]
        captured = NpuGraph(self, request, graph, recording, outputs, handled)
        if self._npu.super_kernel is not None:
            self._optimize(request, graph)
        if self._npu.debug_dump is not None:
            folder = self._folder / self._npu.debug_dump
            folder.mkdir(parents=True, exist_ok=True)
            sizes = "".join(f"-{dim}{size}" for dim, size in request.graph.bucket.sizes)
            graph.debug_dump(str(folder / f"{request.graph.region}{sizes}.json"))
        return captured

    def updatable(self, call: Call) -> tuple[str, ...] | None:
        """The keys that torch_npu's handler of the operator takes; none without a handler."""
        handler = _handler(call)
        if handler is None:
            return ()
        return tuple(key for _, _, key in handler.get_update_specs(call.op.__name__))

    def can_update(self, op: str, arg: str) -> bool:
        """Whether some overload of the operator has a handler that takes this key."""
        _, _, name = op.partition("::")
        return any(
            arg == key
            for handled, handler in _handlers().items()
            if handled.partition(".")[0] == name.partition(".")[0]
            for _, _, key in handler.get_update_specs(handled)
        )

    def failure(self, error: RuntimeError) -> DeviceError | None:
        """The device's error with its reason, and whether operators still run in this process."""
        return device_error(self.device, error)

    def _optimize(self, request: CaptureRequest, graph: Any) -> None:
        options = dict(self._npu.super_kernel or {})
        debug = options.pop("debug", None)
        try:
            graph.super_kernel_optimize(options or None, debug)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            message = f"region '{request.graph.region}': npu.super_kernel was refused by torch_npu: {reason}"
            raise CaptureError(message) from None


def device_error(device: object, error: RuntimeError) -> DeviceError:
    """A failure of the device as one error. Operators run again afterwards, or the error says that they do not."""
    alive = revive()
    hint = "the next run may work; if not, open the spec again" if alive else (
        "restart the process: torch_npu has stopped executing operators in this one"
    )  # fmt: skip
    return DeviceError(f"{device} failed: {reason_of(error)}", hint=hint)


def _replay_of(graph: Any) -> Callable[[], None]:
    """The replay in C++, without the logging that `torch.npu.NPUGraph` puts around it."""
    from torch_npu import _C

    return partial(_C._NPUGraph.replay, graph)


def _handler(call: Call) -> Any:
    """torch_npu's update handler of an operator, if it has one that takes this call."""
    handler = _handlers().get(call.op.__name__)
    if handler is None or not hasattr(handler, "should_handle"):
        return handler
    return handler if handler.should_handle(call.op, call.args, dict(call.kwargs)) else None


def _handlers() -> Mapping[str, Any]:
    """torch_npu's registry: update handlers by the ``__name__`` of an operator overload."""
    from torch_npu.npu._npugraph_handlers.npugraph_handler import _NPU_GRAPH_OP_HANDLERS

    handlers: Mapping[str, Any] = _NPU_GRAPH_OP_HANDLERS
    return handlers


def open_npu(device: str, plan: Plan) -> NpuBackend:
    """The backend for ``npu`` or ``npu:N``. Raises DeviceError with the reason if there is none."""
    reason = load_torch_npu()
    if reason is not None:
        raise DeviceError(f"{device} cannot be used: {reason}", hint="see `graphspec doctor`, or use --device cpu")
    index = device_index(device, torch.npu.device_count(), "npu")
    if not revive():
        raise DeviceError(
            f"{device} cannot be used: torch_npu executes no operators", hint="restart the process, and see its log"
        )
    return NpuBackend(index, plan.capture, plan.npu, plan.folder)


def load_torch_npu() -> str | None:
    """Import torch_npu, which graphspec keeps torch from doing by itself. None, or why it cannot be used."""
    import importlib.util

    if importlib.util.find_spec("torch_npu") is None:
        return "torch_npu is not installed (pip install 'graphspec[npu]')"
    try:
        with contextlib.redirect_stdout(sys.stderr):  # it prints its warnings; our stdout is data
            import torch_npu  # noqa: F401 - importing it registers the device
    except Exception as error:  # noqa: BLE001 - a missing CANN shows as ImportError, OSError or RuntimeError
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return f"torch_npu does not load: {reason}. It needs CANN's runtime libraries (source its set_env.sh)"
    if not torch.npu.is_available():
        return "torch_npu loads, and finds no NPU or no driver"
    return None
