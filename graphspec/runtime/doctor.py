"""What this machine can do, and why not more: versions, devices, and what each backend is capable of."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import torch

import graphspec
from graphspec.report.doctor_values import Device, Examination

#: What each backend can do, as `graphspec doctor` says it.
CAPABILITIES = {
    "cpu": "record and replay of dispatcher calls; updates of any argument; one memory arena a pool",
    "cuda": "CUDA graphs; no host argument can be updated: device tensors, or a graph for each value",
    "npu": "NPU graphs; updates of the operators that have a handler in torch_npu",
}


def examine() -> Examination:
    """Look at the packages and try each device. Loads torch_npu if it is there, and explains it if it does not load."""
    return Examination(_versions(), (_cpu(), _cuda(), _npu()))


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {
        "graphspec": graphspec.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    for name in ("torch_npu", "transformers", "safetensors"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # noqa: PERF203 - three packages
            found[name] = None
    return found


def _cpu() -> Device:
    from graphspec.backends.cpu.selftest import interpreter_fault

    fault = interpreter_fault()
    how = "replays are issued from C++" if fault is None else f"replays are issued from Python: {fault}"
    threads = f"{torch.get_num_threads()} threads"
    notes = (how, threads, f"compiled regions (inductor): {_compiles()}")
    return Device("cpu", 1, (platform.machine(),), None, notes, CAPABILITIES["cpu"])


def _compiles() -> str:
    from graphspec.backends.cpu.compiling.cache import cache_folder
    from graphspec.backends.cpu.compiling.cxx import cxx, missing

    compiler = cxx()
    if compiler is None:
        return f"none can be built: {missing()}; install g++, or name a compiler in CXX"
    return f"built by {compiler}, kept in {cache_folder()}"


def _cuda() -> Device:
    reason = None
    if torch.version.cuda is None:
        reason = f"torch {torch.__version__} is built without CUDA"
    elif not torch.cuda.is_available():
        reason = (
            f"torch is built for CUDA {torch.version.cuda}, and there is no NVIDIA GPU or no driver that it can use"
        )
    count = torch.cuda.device_count() if reason is None else 0
    models = tuple(torch.cuda.get_device_name(index) for index in range(count))
    notes = (f"CUDA {torch.version.cuda}",) if reason is None else ()
    return Device("cuda", count, models, reason, notes, CAPABILITIES["cuda"])


def _npu() -> Device:
    from graphspec.backends.npu import load_torch_npu

    reason = load_torch_npu()
    notes = tuple(_npu_notes(loaded=reason is None))
    if reason is not None:
        return Device("npu", 0, (), reason, notes, CAPABILITIES["npu"])
    npu: Any = torch.npu  # type: ignore[attr-defined]
    count = npu.device_count()
    models = tuple(npu.get_device_name(index) for index in range(count))
    return Device("npu", count, models, None, notes, CAPABILITIES["npu"])


def misfit(torch_version: str, npu_version: str) -> str | None:
    """Why a torch_npu does not go with a torch: the minor versions must be the same. None if they are."""
    ours, theirs = torch_version.split(".")[:2], npu_version.split(".")[:2]
    if ours == theirs:
        return None
    wanted = ".".join(theirs)
    have = f"torch_npu {npu_version} goes with torch {wanted}.*, and torch is {torch_version}"
    return f"{have}: install torch=={wanted}.*"


def _npu_notes(*, loaded: bool) -> Iterator[str]:
    try:
        version = metadata.version("torch_npu")
    except metadata.PackageNotFoundError:
        return
    unfit = misfit(torch.__version__, version)
    if unfit is not None:
        yield unfit
    if loaded:
        from torch_npu.npu.utils import get_cann_version

        yield f"CANN {get_cann_version() or 'of an unknown version'}"


def to_json(found: Examination) -> dict[str, Any]:
    """The examination as one JSON object."""
    return {
        "versions": found.versions,
        "auto": found.auto,
        "devices": {
            device.name: {
                "usable": device.reason is None,
                "reason": device.reason,
                "count": device.count,
                "models": list(device.models),
                "notes": list(device.notes),
                "can": device.can,
            }
            for device in found.devices
        },
    }
