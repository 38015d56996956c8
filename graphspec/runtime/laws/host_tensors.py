"""Tensors and numpy numbers of the host that meet tensors of the device."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from graphspec.errors import Diagnostic
from graphspec.runtime.laws.evidence import Opened
from graphspec.runtime.rehearsal.observation import HostMeeting, Observation


def host_tensors(opened: Opened, seen: Observation) -> Iterator[Diagnostic]:
    """GS746, each tensor once. None where all is the CPU."""
    said: set[Any] = set()
    if opened.label == "cpu":
        return
    for meeting in seen.met:
        if isinstance(meeting.value, np.generic) and meeting.name is None:
            continue  # computed in the region: a number like any other
        key = meeting.name or meeting.made or meeting.place
        if key not in said:
            said.add(key)
            yield _host_tensor(seen.region, meeting, opened.label)


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
