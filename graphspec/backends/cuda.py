"""NVIDIA GPUs: `torch.cuda.CUDAGraph`.

PyTorch has no way to change a host argument of a captured CUDA kernel: lengths and the like live in device tensors
(`from:` buffers), or a graph is kept for each value (`specialize: true`, or `strategy: specialize` of an update).
"""

from __future__ import annotations

from typing import Any

import torch

from graphspec.backends.base import CaptureRequest
from graphspec.backends.device import DeviceBackend, device_index
from graphspec.errors import DeviceError
from graphspec.plan import Plan
from graphspec.recording.calls import Call
from graphspec.spec import CaptureOptions


class CudaBackend(DeviceBackend):
    """Graphs on one NVIDIA GPU."""

    name = "cuda"

    def __init__(self, index: int, options: CaptureOptions, generators: tuple[torch.Generator, ...] = ()) -> None:
        super().__init__(torch.cuda, index, options)
        self._generators = generators

    def new_graph(self) -> Any:
        """An empty graph. The default generator is known to it; others are registered."""
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        return graph

    def graph_context(self, graph: Any, pool: Any, request: CaptureRequest) -> Any:  # noqa: ARG002
        """The capture, on the capture stream of this backend."""
        return torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode=self._options.error_mode)

    def updatable(self, call: Call) -> tuple[str, ...] | None:  # noqa: ARG002 - the same for every call
        """Nothing can be updated."""
        return ()

    def can_update(self, op: str, arg: str) -> bool:  # noqa: ARG002 - the same for every operator
        """Nothing can be updated."""
        return False


def open_cuda(device: str, plan: Plan) -> CudaBackend:
    """The backend for ``cuda`` or ``cuda:N``. Raises DeviceError with the reason if there is none."""
    if torch.version.cuda is None:
        raise DeviceError(
            f"{device} cannot be used: this torch ({torch.__version__}) is built without CUDA",
            hint="install a CUDA build of torch, or use --device cpu",
        )
    if not torch.cuda.is_available():
        raise DeviceError(
            f"{device} cannot be used: torch {torch.__version__} finds no NVIDIA GPU or no driver",
            hint="see `nvidia-smi` and `graphspec doctor`, or use --device cpu",
        )
    return CudaBackend(device_index(device, torch.cuda.device_count(), "cuda"), plan.capture)
