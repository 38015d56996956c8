"""A spec of inline regions and a model to `Applied`: what `graphspec.apply` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from graphspec.compiler import compile_spec
from graphspec.errors import InputError, ReplayError
from graphspec.loading import load_plan
from graphspec.plan import Plan
from graphspec.runtime.building.build import refuse_other_devices
from graphspec.runtime.building.devices import open_backend, without_broken_torch_npu
from graphspec.runtime.hazards import capturing
from graphspec.runtime.inline.applied import Applied
from graphspec.spec import Spec


def apply_spec(model: Any, path: str | Path | Spec | Plan, *, device: str | None = None) -> Applied:
    """Have the inline regions of a spec serve the calls of modules of ``model``.

    Raises SpecError (the file), MismatchError and ModelError (a path that the model has not, or that is no module),
    HazardError (hooks), DeviceError.
    """
    if (region := capturing()) is not None:
        raise ReplayError(f"a spec cannot be applied while region '{region}' is being captured")
    plan = path if isinstance(path, Plan) else compile_spec(path) if isinstance(path, Spec) else load_plan(Path(path))
    if not any(region.declared.inline for region in plan.regions.values()):
        message = f"'{plan.name}' has no inline region, so there is nothing to apply"
        raise InputError(message, hint="add `inline: true` to a region, or open the spec: graphspec.open(path)")
    backend = open_backend(device or _device_of(model, plan), plan)
    try:
        with without_broken_torch_npu():
            refuse_other_devices(model, backend.device)
            return Applied(plan, model, backend)
    except BaseException:
        backend.close()
        raise


def _device_of(model: Any, plan: Plan) -> str:
    """Where the graphs are: as the spec says, with `auto` where the model is."""
    if plan.device == "auto" and isinstance(model, nn.Module):
        for tensor in (*model.parameters(), *model.buffers()):
            return str(tensor.device)
    return plan.device
