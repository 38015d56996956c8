"""From the spec's `model` to the thing its regions call: factory, dtype, weights, mode."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from graphspec import spec as language
from graphspec.errors import GraphSpecError, ModelError
from graphspec.runtime.weights import load_weights, read_weights

_OURS = Path(__file__).resolve().parents[1]
_TORCH = Path(torch.__file__).resolve().parent
_DISPATCH = ("_ops.py", "_compile.py", "eval_frame.py")


def build_model(spec: language.Spec, device: torch.device) -> Any:
    """Call the factory, then apply dtype, weights and mode. Seeded by ``spec.seed``.

    Raises ModelError with the user's own exception as its cause, and WeightsError if the file does not fit.
    """
    factory = import_object(spec.model.factory, spec.folder)
    arguments = _arguments(spec.model.args, largest_sizes(spec))
    # The caller's random streams go on where they were.
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        torch.manual_seed(spec.seed)
        model = call_user_code(factory, f"the factory {spec.model.factory}", **arguments)
    if model is None:
        message = f"the factory {spec.model.factory} returned None"
        raise ModelError(message, hint="return the model from the factory")
    if isinstance(model, torch.nn.Module):
        model.to(device=device, dtype=getattr(torch, spec.model.dtype) if spec.model.dtype else None)
        model.train(spec.model.mode == "train")
    if spec.model.weights is not None:
        load_weights(model, read_weights(spec.folder / spec.model.weights))
    return model


def refuse_other_devices(model: Any, device: torch.device) -> None:
    """Every parameter and buffer of a module must be on the graphs' device. Raises ModelError naming the others."""
    if not isinstance(model, torch.nn.Module):
        return
    tensors = [*model.named_parameters(), *model.named_buffers()]
    others = [(name, tensor.device) for name, tensor in tensors if not _same_device(tensor.device, device)]
    if others:
        shown = ", ".join(f"model.{name} on {where}" for name, where in others[:8])
        more = f" and {len(others) - 8} more" if len(others) > 8 else ""  # noqa: PLR2004
        raise ModelError(f"the graphs are for {device}, and the model has {shown}{more}", hint=f"model.to('{device}')")


def _same_device(have: torch.device, want: torch.device) -> bool:
    return have.type == want.type and (want.index is None or have.index == want.index)


def largest_sizes(spec: language.Spec) -> dict[str, int]:
    """Each dim's constant, or its largest bucket."""
    return {name: dim.value if isinstance(dim, language.Constant) else dim.sizes[-1] for name, dim in spec.dims.items()}


def import_object(reference: str, folder: Path) -> Any:
    """What ``FILE.py:NAME`` (relative to ``folder``) or ``package.module:NAME`` refers to.

    Raises ModelError: the file or module is missing or fails to import, or has no such name.
    """
    place, _, name = reference.rpartition(":")
    module = _load_file(folder / place) if place.endswith(".py") else _load_module(place)
    try:
        return functools.reduce(getattr, name.split("."), module)
    except AttributeError:
        message = f"{place} has no '{name}'"
        names = ", ".join(sorted(key for key, value in vars(module).items() if callable(value) and key[0] != "_"))
        raise ModelError(message, hint=f"it has: {names}" if names else None) from None


def call_user_code(function: Callable[..., Any], what: str, *args: Any, **kwargs: Any) -> Any:
    """Call something of the user's; its exception becomes the cause of a ModelError, without our frames."""
    try:
        return function(*args, **kwargs)
    except GraphSpecError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises is its cause
        raise ModelError(f"{what} failed: {type(error).__name__}: {error}") from user_error(error)


def user_error(error: BaseException) -> BaseException:
    """The exception with the leading frames of graphspec and torch's call machinery taken off its traceback."""
    trace = error.__traceback__
    while trace is not None and _within(trace.tb_frame.f_code.co_filename, _OURS, _TORCH):
        trace = trace.tb_next
    return error.with_traceback(trace or error.__traceback__)


def user_traceback(error: BaseException) -> str:
    """The user's exception as Python prints it, from the user's first frame on, with no frame of graphspec in it."""
    shown = traceback.TracebackException.from_exception(user_error(error))
    frames = [frame for frame in shown.stack if not _within(frame.filename, _OURS)]
    # Operators run under a dispatch mode of graphspec's, which is entered through these.
    while frames and _within(frames[-1].filename, _TORCH) and Path(frames[-1].filename).name in _DISPATCH:
        frames.pop()
    shown.stack[:] = frames
    return "".join(shown.format(chain=False)).rstrip()


def _within(file: str, *folders: Path) -> bool:
    return any(folder in Path(file).resolve().parents for folder in folders)


def _load_file(path: Path) -> ModuleType:
    path = path.absolute()
    if not path.is_file():
        message = f"the model file {path} does not exist"
        raise ModelError(message, hint="paths in a spec are relative to the spec file")
    # A name of its own for each file: two specs may both have a model.py.
    name = f"graphspec_model_{abs(hash(path.resolve())):x}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look the module up by name
    sys.path.insert(0, str(path.parent))
    try:
        call_user_code(spec.loader.exec_module, f"importing {path}", module)
    except ModelError:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(path.parent))
    return module


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            message = f"there is no module '{error.name}'"
            raise ModelError(message, hint="install it, or name a file: model.py:build") from None
        raise ModelError(f"importing {name} failed: {error}") from user_error(error)
    except Exception as error:  # noqa: BLE001 - the same at import
        raise ModelError(f"importing {name} failed: {type(error).__name__}: {error}") from user_error(error)


def _arguments(value: Any, sizes: Mapping[str, int]) -> Any:
    """Factory arguments with each ``{dim: NAME}`` replaced by its size."""
    if isinstance(value, Mapping):
        if set(value) == {"dim"} and value["dim"] in sizes:
            return sizes[value["dim"]]
        return {key: _arguments(item, sizes) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_arguments(item, sizes) for item in value]
    return value
