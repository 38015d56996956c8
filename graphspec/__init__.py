"""Device graphs, declared: YAML specs compiled to captured, guarded, replayable graphs.

>>> import graphspec
>>> with graphspec.open("specs/mlp/model.yaml") as runner:  # doctest: +SKIP
...     runner.run(x=torch.randn(3, 64))["y"]

Importing this package does not import torch; `open` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphspec.errors import (
    CaptureError,
    CheckError,
    DeviceError,
    Diagnostic,
    GraphSpecError,
    GuardError,
    HazardError,
    InputError,
    ModelError,
    OrderError,
    ReplayError,
    SpecError,
    WeightsError,
)

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from graphspec.plan import Plan
    from graphspec.runtime.inline.applied import Applied
    from graphspec.runtime.runner import Runner
    from graphspec.spec import Spec

    __version__: str

__all__ = [
    "CaptureError",
    "CheckError",
    "DeviceError",
    "Diagnostic",
    "GraphSpecError",
    "GuardError",
    "HazardError",
    "InputError",
    "ModelError",
    "OrderError",
    "Plan",
    "ReplayError",
    "Spec",
    "SpecError",
    "WeightsError",
    "__version__",
    "apply",
    "compile",
    "load",
    "open",
]


def load(path: str | Path) -> Spec:
    """Read and check a spec. Raises SpecError with every finding."""
    from pathlib import Path

    from graphspec.loading import load as read  # not `graphspec.load`: a module of that name would replace this

    return read(Path(path))


def compile(spec: Spec) -> Plan:  # noqa: A001 - the name of the stage
    """Lower a spec to its plan. Raises SpecError if a declared order reads a value too late."""
    from graphspec.compiler import compile_spec

    return compile_spec(spec)


def open(  # noqa: A001
    path: str | Path | Spec,
    *,
    model: Any = None,
    device: str | torch.device | None = None,
    capture: bool = True,
    pool: Runner | None = None,
) -> Runner:
    """Open a spec: build the model (or take ``model``), allocate every buffer, capture every graph.

    ``path`` may also be a `Spec`. ``device`` overrides the spec's. With ``capture=False`` nothing is captured until
    `Runner.capture`. ``pool`` is a runner whose pools are shared: one memory for both, which run one after the other.
    Raises a subclass of GraphSpecError.
    """
    from graphspec.runtime.building.devices import device_name
    from graphspec.runtime.runner import open_spec

    named = None if device is None else device_name(device)
    return open_spec(path, model=model, device=named, capture=capture, pool=pool)


def apply(model: Any, path: str | Path | Spec, *, device: str | torch.device | None = None) -> Applied:
    """Have the inline regions of a spec serve the calls of modules of ``model``, in any loop, until `Applied.undo`.

    The first pass over the model runs eagerly and teaches what is called; the next is captured. ``device`` overrides
    the spec's; `auto` is where the model is. Raises a subclass of GraphSpecError.
    """
    from graphspec.runtime.apply import apply_spec
    from graphspec.runtime.building.devices import device_name

    return apply_spec(model, path, device=None if device is None else device_name(device))


def __getattr__(name: str) -> Any:
    if name == "__version__":  # late: importlib.metadata takes a third of the time of a whole `validate`
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("graphspec")
        except PackageNotFoundError:  # run from a checkout that was not installed
            return "0.1.0"
    if name == "Spec":
        from graphspec.spec import Spec

        return Spec
    if name == "Plan":
        from graphspec.plan import Plan

        return Plan
    message = f"module 'graphspec' has no attribute '{name}'"
    raise AttributeError(message)
