"""What a trace can find beside hazards, in words; each at its place in the spec, or in the model's source."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from graphspec import plan as plans
from graphspec.errors import Diagnostic, GraphSpecError, KeyPath, ModelError
from graphspec.finding import finding, placed
from graphspec.recording.source import NOWHERE, site_of
from graphspec.runtime.context import Context
from graphspec.runtime.tracing.host import HostState
from graphspec.runtime.tracing.kernels import AddressAskedError, KernelMissingError
from graphspec.runtime.tracing.placement import Meeting


def unbound(plan: plans.Plan, region: str, error: ModelError, *key: str) -> Diagnostic:
    """A path of a region that the model does not have: the one at ``key``, or one somewhere in the region."""
    path: KeyPath = ("regions", region, *key)
    return finding(plan.document, "GS740", error.message, path, key=not key, hint=error.hint)


def unmatched(plan: plans.Plan, buffer: str, error: ModelError) -> Diagnostic:
    """An ``attr`` that leads to no tensor of the model."""
    return finding(plan.document, "GS740", error.message, ("buffers", buffer, "attr"), hint=error.hint)


def in_region(plan: plans.Plan, region: str, found: Diagnostic) -> Diagnostic:
    """A finding of the runtime, at its own place or its region in the spec where it has no place in the model."""
    if found.path:
        return placed(plan.document, found)
    return placed(plan.document, replace(found, path=("regions", region)), key=True)


def failed_call(context: Context, region: str, error: ModelError, bucket: str) -> Diagnostic:
    """A region whose call raises: at the innermost line of the model."""
    message = error.message.rstrip(".") + (f", at {bucket}" if bucket else "")
    place = site_of(error.__cause__) if error.__cause__ is not None else NOWHERE
    if not place.line:
        return finding(context.plan.document, "GS741", message, ("regions", region), key=True, hint=error.hint)
    return Diagnostic("GS741", message, file=place.file, line=place.line, hint=error.hint)


def other_result(context: Context, region: str, error: GraphSpecError, output: str | None = None) -> Diagnostic:
    """A result that is not as the spec says: its shape, its dtype, or the path to it."""
    path: KeyPath = ("buffers", output) if output is not None else ("regions", region, "outputs")
    return finding(context.plan.document, "GS742", error.message, path, key=output is not None, hint=error.hint)


def missing_kernel(region: str, ended: KernelMissingError) -> Diagnostic:
    """The trace of a region ends where a fake kernel is missing."""
    place = ended.place
    if isinstance(ended, AddressAskedError):
        what = f"the address of a tensor is asked for at {place}, and a fake tensor has none"
        hint = "make what takes it an operator, with torch.library.custom_op and register_fake"
    else:
        what = f"the fake kernel of {ended.operator} is missing or refuses what it is given, at {place}"
        what += f" ({ended.reason})"
        hint = f'register one: @torch.library.register_fake("{ended.operator}")'
    return Diagnostic(
        "GS743",
        f"region '{region}': {what}; nothing after it was checked",
        "warning",
        place.file if place.line else None,
        place.line or None,
        hint=f"{hint}; what follows uses declared shapes",
    )


def needs_values(context: Context, region: str) -> Diagnostic:
    """An eager region that reads values: only its declared outputs are known."""
    plan = context.plan
    unknown = [name for name in plan.regions[region].outputs if not _is_declared(plan.buffers.get(name))]
    if not unknown:
        message = f"the eager region '{region}' reads values, so its outputs were taken as they are declared"
        return finding(plan.document, "GS744", message, ("regions", region), key=True, severity="warning")
    names = ", ".join(map(repr, unknown))
    message = f"the eager region '{region}' reads values, and nothing says the shape of its output {names}"
    hint = f"declare it under buffers: {unknown[0]}: {{role: output, shape: [...], dtype: ...}}"
    return finding(plan.document, "GS744", message, ("regions", region), key=True, hint=hint, severity="warning")


def untraced(context: Context, region: str, missing: Sequence[str]) -> Diagnostic:
    """A region that was not called, for want of a value."""
    names = " and ".join(map(repr, missing))
    message = f"region '{region}' was not traced: the shape of {names} is not known"
    return finding(context.plan.document, "GS744", message, ("regions", region), key=True, severity="warning")


def host_tensors(region: str, met: Sequence[Meeting], host: HostState, label: str) -> Iterator[Diagnostic]:
    """Tensors and numpy numbers of the host that meet tensors of the device, each once. None where all is the CPU."""
    said: set[Any] = set()
    if label == "cpu":
        return
    for meeting in met:
        name = host.name_of(meeting.value)
        if isinstance(meeting.value, np.generic) and name is None:
            continue  # computed in the region: a number like any other
        key = name or meeting.made or meeting.place
        if key not in said:
            said.add(key)
            yield _host_tensor(region, meeting, name, label)


def _host_tensor(region: str, meeting: Meeting, name: str | None, label: str) -> Diagnostic:
    where = label if label != "auto" else "npu or cuda"
    attribute = re.split(r"[.:]", name)[-1] if name else "NAME"
    if isinstance(meeting.value, np.generic):
        what = f"{name}, a numpy {meeting.value.dtype} on the host"
        hint = f"make it a Python number, or a buffer: self.register_buffer('{attribute}', torch.tensor(...))"
    elif name is not None:
        what = f"{name}, a tensor {list(meeting.value.shape)} on cpu, which does not move with the model"
        hint = f"register it: self.register_buffer('{attribute}', ..., persistent=False)"
    else:
        what = f"a tensor {list(meeting.value.shape)} made on cpu" + (f" at {meeting.made}" if meeting.made else "")
        hint = "make it with device=x.device, or once in __init__ with self.register_buffer"
    does = "copies to the device" if meeting.copies else "uses"
    place = meeting.place
    frozen = "; a graph freezes its value" if not getattr(meeting.value, "shape", ()) else ""
    return Diagnostic(
        "GS746",
        f"region '{region}' {does} {what}: {meeting.operator} at {place}, on {where}{frozen}",
        "warning" if label == "auto" else "error",
        place.file if place.line else None,
        place.line or None,
        hint=f"{hint}; or pass it in, as an input or a param of the region",
    )


def _is_declared(buffer: plans.BufferPlan | None) -> bool:
    return buffer is not None and (buffer.role == "state" or (buffer.shape is not None and buffer.dtype is not None))
