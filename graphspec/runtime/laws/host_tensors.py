"""Tensors and numpy numbers of the host that meet tensors of the device."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from graphspec.backends.updates import bind_updates
from graphspec.errors import Diagnostic, HazardError
from graphspec.recording.calls import refs_in, touched_refs
from graphspec.runtime.holdings.storages import key_of, storage_of
from graphspec.runtime.laws.evidence import Facts
from graphspec.runtime.rehearsal.observation import HostMeeting, Observation


def host_tensors(opened: Facts, seen: Observation) -> Iterator[Diagnostic]:
    """GS746, each tensor once. None where all is the CPU."""
    said: set[Any] = set()
    if opened.label == "cpu" or not seen.met:
        return
    handed = {_memory(seen.recording.outside[index].tensor) for index in _handed_anew(opened, seen)}
    reported = {(each.file, each.line) for each in seen.hazards if each.severity == "error"}
    for meeting in seen.met:
        if (meeting.place.file, meeting.place.line) in reported:
            continue  # the watch has said so
        if isinstance(meeting.value, np.generic) and meeting.name is None:
            continue  # computed in the region: a number like any other
        if isinstance(meeting.value, torch.Tensor) and _memory(meeting.value) in handed:
            continue
        key = meeting.name or meeting.made or meeting.place
        if key not in said:
            said.add(key)
            yield _host_tensor(seen.region, meeting, opened.label)


def off_the_device(opened: Facts, seen: Observation) -> Iterator[Diagnostic]:
    """GS746 on a device: a tensor of the host that the region reads or writes. A graph sees none of it.

    One number is taken by kernels of every device, and frozen; what is written there is written once.
    """
    kind = opened.backend.device.type
    recording = seen.recording
    off = {index: it for index, it in recording.outside.items() if kind not in ("cpu", it.tensor.device.type)}
    handed = _handed_anew(opened, seen) if off else frozenset()
    for index, outside in off.items():
        if index in recording.literals or index in handed:
            continue
        call = next(c for c in recording.calls if any(ref.storage == index for ref in touched_refs(c)))
        slots = opened.reach.slots_of_storage(outside.tensor)
        name = slots[0].name if slots else None
        yield _host_tensor(seen.region, HostMeeting(outside.tensor, name, call.name, call.site), kind)


def _handed_anew(opened: Facts, seen: Observation) -> frozenset[int]:
    """The storages that only arguments with an update take: each run hands those arguments a value of its own."""
    region = opened.plan.regions[seen.region].declared
    if not region.updates or seen.ended is not None:
        return frozenset()
    try:
        bindings = bind_updates(region, seen.recording, seen.params, seen.other_params, opened.backend)
    except HazardError:  # `params.unfit_updates` says so
        return frozenset()
    updated = {(each.slot.call, each.slot.position) for each in bindings}
    handed: set[int] = set()
    others: set[int] = set()
    for number, call in enumerate(seen.recording.calls):
        others.update(ref.storage for ref in refs_in(call.outputs))
        for position, item in enumerate(call.arguments().values()):
            taken = handed if (number, position) in updated else others
            taken.update(ref.storage for ref in refs_in((item,)))
    return frozenset(handed - others)


def _memory(tensor: torch.Tensor) -> int:
    """Which storage a tensor lies in; itself where it has none."""
    storage = storage_of(tensor)
    return id(tensor) if storage is None else key_of(storage)


def _host_tensor(region: str, meeting: HostMeeting, label: str) -> Diagnostic:
    where = label if label != "auto" else "npu or cuda"
    name = meeting.name
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
