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
from graphspec.plan import Plan
from graphspec.runtime.hazards.fake import TraceEnded
from graphspec.runtime.weights import load_weights, read_weights

_OURS = Path(__file__).resolve().parents[1]
_TORCH = Path(torch.__file__).resolve().parent
_DISPATCH = ("_ops.py", "_compile.py", "eval_frame.py")


def build_model(plan: Plan, device: torch.device, factory: Callable[..., Any] | None = None) -> Any:
    """Call the factory, then apply dtype, weights and mode. Seeded by ``plan.seed``.

    ``factory`` is the plan's, where it was imported already. Raises ModelError with the user's own exception as its
    cause, and WeightsError if the file does not fit.
    """
    dtype = _model_dtype(plan.model)
    if factory is None:
        factory = import_object(plan.model.factory, plan.folder)
    arguments = _arguments(plan.model.args, plan.largest)
    # The caller's random streams go on where they were.
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        torch.manual_seed(plan.seed)
        model = call_user_code(factory, f"the factory {plan.model.factory}", **arguments)
    if model is None:
        message = f"the factory {plan.model.factory} returned None"
        raise ModelError(message, hint="return the model from the factory")
    if isinstance(model, torch.nn.Module):
        _refuse_tensors(model, device, lambda where: where.type == "meta")
        if device.type == "cpu":
            call_user_code(model.to, f"moving what {plan.model.factory} returned to cpu", device=device, dtype=dtype)
        else:
            model.to(device=device, dtype=dtype)  # a device that fails, or has too little memory, says so itself
        mode = plan.model.mode
        call_user_code(model.train, f"setting what {plan.model.factory} returned to {mode}", mode == "train")
    if plan.model.weights is not None:
        load_weights(model, read_weights(plan.folder / plan.model.weights))
    return model


def refuse_other_devices(model: Any, device: torch.device) -> None:
    """Every parameter and buffer of a module must be on the graphs' device. Raises ModelError naming the others."""
    _refuse_tensors(model, device, lambda where: not _same_device(where, device))


def _refuse_tensors(model: Any, device: torch.device, refused: Callable[[torch.device], bool]) -> None:
    if not isinstance(model, torch.nn.Module):
        return
    tensors = [*model.named_parameters(), *model.named_buffers()]
    others = [(name, tensor.device) for name, tensor in tensors if refused(tensor.device)]
    if others:
        shown = ", ".join(f"model.{name} on {where}" for name, where in others[:8])
        more = f" and {len(others) - 8} more" if len(others) > 8 else ""  # noqa: PLR2004
        meta = any(where.type == "meta" for _, where in others)
        hint = "a meta tensor has no values: build the model without it" if meta else f"model.to('{device}')"
        raise ModelError(f"the graphs are for {device}, and the model has {shown}{more}", hint=hint)


def _same_device(have: torch.device, want: torch.device) -> bool:
    return have.type == want.type and (want.index is None or have.index == want.index)


def _model_dtype(model: language.Model) -> torch.dtype | None:
    """What the factory's module is converted to: what torch converts a module to, and nothing else."""
    if model.dtype is None:
        return None
    dtype: torch.dtype = getattr(torch, model.dtype)
    if not dtype.is_floating_point and not dtype.is_complex:
        message = f"model.dtype is {model.dtype}, and a model is converted to a floating or complex dtype only"
        raise ModelError(message, hint="float32, bfloat16, float16, ...; inputs declare a dtype of their own")
    return dtype


def import_object(reference: str, folder: Path, *, loaded: bool = False) -> Any:
    """What ``FILE.py:NAME`` (relative to ``folder``) or ``package.module:NAME`` refers to.

    A file is executed anew: it may have changed since. ``loaded`` takes it as it was executed last, where it did not.
    Raises ModelError: the file or module is missing or fails to import, or has no such name.
    """
    place, _, name = reference.rpartition(":")
    module = _load_file(folder / place, loaded=loaded) if place.endswith(".py") else _load_module(place)
    try:
        return functools.reduce(lambda owner, step: read_attribute(owner, step, reference), name.split("."), module)
    except AttributeError:
        message = f"{place} has no '{name}'"
        names = ", ".join(sorted(key for key, value in vars(module).items() if callable(value) and key[0] != "_"))
        raise ModelError(message, hint=f"it has: {names}" if names else None) from None


def read_attribute(owner: Any, name: str, what: str) -> Any:
    """An attribute of an object of the user's, whose properties may be code that fails.

    Raises AttributeError where there is none, and ModelError where reading it fails in any other way.
    """
    missing = object()
    value = call_user_code(getattr, f"{what}: reading '{name}'", owner, name, missing)
    if value is missing:
        raise AttributeError(name)
    return value


def call_user_code(function: Callable[..., Any], what: str, *args: Any, **kwargs: Any) -> Any:
    """Call something of the user's; its exception becomes the cause of a ModelError, without our frames.

    Also what is no `Exception`: a model that calls ``sys.exit`` has failed, it has not ended the program. An interrupt
    passes, and so does what ends a trace.
    """
    try:
        return function(*args, **kwargs)
    except (GraphSpecError, KeyboardInterrupt, TraceEnded):
        raise
    except BaseException as error:  # noqa: BLE001 - whatever the user's code raises is its cause
        raise _failed(what, error) from user_error(error)


def _failed(what: str, error: BaseException) -> ModelError:
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - an exception of the user's may not be able to say anything
        said = "its message cannot be made: __str__ raises"
    return ModelError(f"{what} failed: {type(error).__name__}{': ' if said else ''}{said}")


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


def _load_file(path: Path, *, loaded: bool) -> ModuleType:
    path = path.absolute()
    if not path.is_file():
        message = f"the model file {path} does not exist"
        raise ModelError(message, hint="paths in a spec are relative to the spec file")
    # A name of its own for each file: two specs may both have a model.py.
    name = f"graphspec_model_{abs(hash(path.resolve())):x}_{path.stem}"
    version = (path.stat().st_mtime_ns, path.stat().st_size)
    known = sys.modules.get(name)
    if loaded and known is not None and known.__dict__.get("__graphspec_version__") == version:
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__dict__["__graphspec_version__"] = version
    sys.modules[name] = module  # dataclasses and pickle look the module up by name
    sys.path.insert(0, str(path.parent))
    try:
        call_user_code(spec.loader.exec_module, f"importing {path}", module)
    except BaseException:
        sys.modules.pop(name, None)
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
        raise _failed(f"importing {name}", error) from user_error(error)
    except (GraphSpecError, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - the same at import
        raise _failed(f"importing {name}", error) from user_error(error)


def _arguments(value: Any, sizes: Mapping[str, int]) -> Any:
    """Factory arguments with each ``{dim: NAME}`` replaced by its size."""
    if isinstance(value, Mapping):
        if set(value) == {"dim"} and value["dim"] in sizes:
            return sizes[value["dim"]]
        return {key: _arguments(item, sizes) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_arguments(item, sizes) for item in value]
    return value
