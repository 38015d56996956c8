"""Code of the user's that fails: what graphspec raises for it, and how its own exception is shown."""

from __future__ import annotations

import difflib
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from graphspec.errors import GraphSpecError, ModelError
from graphspec.runtime.hazards.fake import TraceEnded
from graphspec.runtime.importing.folder import readable

_OURS = Path(__file__).resolve().parents[2]
_TORCH = Path(torch.__file__).resolve().parent
_NO_DEVICE = re.compile(
    r"at start of device string: (\S+)|Invalid device string: '(.*?)'|not compiled with (\w+) enabled"
    r"|not linked with support for (\w+) devices"
)
_DEVICES = ("cpu", "cuda", "npu")
_ALIKE = 0.7  # `cdua` is like cuda; `gpu` is as like cpu as npu, and means neither
_DISPATCH = ("_ops.py", "_compile.py", "eval_frame.py")


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
        raise failed(what, error) from user_error(error)


def read_attribute(owner: Any, name: str, what: str) -> Any:
    """An attribute of an object of the user's, whose properties may be code that fails.

    Raises AttributeError where there is none, and ModelError where reading it fails in any other way.
    """
    missing = object()
    value = call_user_code(getattr, f"{what}: reading '{name}'", owner, name, missing)
    if value is missing:
        raise AttributeError(name)
    return value


def failed(what: str, error: BaseException) -> ModelError:
    """What is raised for an exception of the user's."""
    try:
        said = readable(str(error))
    except Exception:  # noqa: BLE001 - an exception of the user's may not be able to say anything
        said = "its message cannot be made: __str__ raises"
    return ModelError(f"{what} failed: {type(error).__name__}{': ' if said else ''}{said}", hint=_device_hint(said))


def _device_hint(said: str) -> str | None:
    """What to write for a device that this torch has not, or that none has."""
    refused = _NO_DEVICE.search(said)
    if refused is None:
        return None
    name = str(refused[refused.lastindex or 0]).partition(":")[0].lower()
    close = difflib.get_close_matches(name, _DEVICES, 1, _ALIKE)
    if close and close[0] != name:
        return f"did you mean '{close[0]}'?"
    return "x.device, or `args: {device: {device: true}}` in a factory, is the device of the graphs"


def user_error(error: BaseException) -> BaseException:
    """The exception with the leading frames of graphspec, importlib and torch's call machinery taken off."""
    trace = error.__traceback__
    while trace is not None and _is_machinery(trace.tb_frame.f_code.co_filename, _OURS, _TORCH):
        trace = trace.tb_next
    return error.with_traceback(trace or error.__traceback__)


def began(error: BaseException) -> bool:
    """Whether any line of the user's had run when this was raised: a call with wrong arguments fails before."""
    trace = user_error(error).__traceback__
    return trace is not None and not _is_machinery(trace.tb_frame.f_code.co_filename, _OURS, _TORCH)


def user_traceback(error: BaseException) -> str:
    """The user's exception as Python prints it, from the user's first frame on, with no frame of graphspec in it."""
    shown = traceback.TracebackException.from_exception(user_error(error))
    frames = [frame for frame in shown.stack if not _is_machinery(frame.filename, _OURS)]
    # Operators run under a dispatch mode of graphspec's, which is entered through these.
    while frames and _within(frames[-1].filename, _TORCH) and Path(frames[-1].filename).name in _DISPATCH:
        frames.pop()
    shown.stack[:] = frames
    return readable("".join(shown.format(chain=False)).rstrip())


def _is_machinery(file: str, *folders: Path) -> bool:
    return file.startswith("<frozen importlib") or _within(file, *folders)


def _within(file: str, *folders: Path) -> bool:
    return any(folder in Path(file).resolve().parents for folder in folders)
