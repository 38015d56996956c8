"""Python calls that neither kind of mode sees: threads, seeds, synchronization, streams, nested capture, files.

They are wrapped while a watch is open. A wrapper only reports when the thread that calls it is being watched.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from graphspec.hazards import BACKWARD, CALLS, SEEDED, Hazard
from graphspec.recording.source import Site, torch_callers, within_torch
from graphspec.runtime.hazards.modes import FunctionWatch
from graphspec.runtime.hazards.streams import Streams
from graphspec.runtime.hazards.watching import Watching
from graphspec.runtime.hazards.wrapping import Wrapped, Wrapper

WATCHED: ContextVar[Watching | None] = ContextVar("graphspec_watch", default=None)

#: Activation checkpointing saves the state of generators and restores it, whether something draws from them or not.
CHECKPOINT = os.path.join("utils", "checkpoint.py")  # noqa: PTH118 - a part of a text

#: Functions of torch that call a wrapped one: the model called these.
_CALLERS = {
    "manual_seed": "torch.manual_seed",
    "seed": "torch.seed",
    "fork_rng": "torch.random.fork_rng",
}
_DYNAMO = "torch._dynamo.eval_frame._callback_from_stance"
_NAMES = {
    "torch.serialization._save": "torch.save",
    "torch.serialization._legacy_save": "torch.save",
    "multiprocessing.pool.Pool._map_async": "multiprocessing.pool.Pool.map",
    _DYNAMO: "torch.compile",
}


def _reporting(hazard: Hazard) -> Wrapper:
    def wrap(path: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def reported(*args: Any, **kwargs: Any) -> Any:
            watch = WATCHED.get()
            # `torch._dynamo.disable` passes None where a compiled function passes its callback.
            if watch is None or (path == _DYNAMO and not callable(args[0])):
                return original(*args, **kwargs)
            callers, ours = torch_callers()
            if not ours and hazard is SEEDED and within_torch(CHECKPOINT):
                watch.restores_streams = ours = True  # what draws in there is a finding
            if ours:
                if path == _DYNAMO:  # the region itself is what torch.compile made: no line of the model calls it
                    watch.report(hazard, _NAMES[path], Site("", 0, ""))
                return original(*args, **kwargs)
            outer = next((_CALLERS[name] for name in reversed(callers) if name in _CALLERS), None)
            with watch.python_call(hazard, outer or _NAMES.get(path, path)):
                return original(*args, **kwargs)

        return reported

    return wrap


def _reentering(_path: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Tensor.backward pops the function mode while it runs; hooks and autograd functions are the model's code."""

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        watch = WATCHED.get()
        if watch is None:
            return original(*args, **kwargs)
        if kwargs.get("accumulate_grad") and not watch.trains:
            watch.report(BACKWARD, "Tensor.backward")
        with FunctionWatch(watch):
            return original(*args, **kwargs)

    return run


def _without_modes(_path: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Layers take a fused path unless an argument has a torch function: the mode of a watch must not change that."""

    @functools.wraps(original)
    def has(arguments: Any) -> Any:
        return original(arguments) if WATCHED.get() is None else any(map(_has_torch_function, arguments))

    return has


@contextmanager
def without_function_modes() -> Iterator[None]:
    """Inside, function modes of graphspec's own change nothing for who asks whether an argument is overridden."""
    before = torch.overrides.has_torch_function
    torch.overrides.has_torch_function = lambda args: any(map(_has_torch_function, args))
    try:
        yield
    finally:
        torch.overrides.has_torch_function = before


def _has_torch_function(value: Any) -> bool:
    kind = type(value)
    if kind is torch.Tensor or not isinstance(value, torch.Tensor):
        return False
    return bool(kind.__torch_function__ is not torch._C._disabled_torch_function_impl)


def _stream_call(report: Callable[[Streams, Any, tuple[Any, ...]], None]) -> Wrapper:
    def wrap(_path: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def called(self: Any, *args: Any) -> Any:
            watch = WATCHED.get()
            if watch is not None:
                report(watch.streams, self, args)
            return original(self, *args)

        return called

    return wrap


def _targets() -> Iterator[tuple[str, Wrapper]]:
    for path, hazard in CALLS.items():
        yield path, _reporting(hazard)
    yield "torch.autograd._engine_run_backward", _reentering
    yield "torch.overrides.has_torch_function", _without_modes
    for device in ("cpu", "cuda", "npu"):
        yield f"torch.{device}.StreamContext.__enter__", _stream_call(Streams.entering)
        yield f"torch.{device}.Stream.wait_stream", _stream_call(Streams.waiting)


_WRAPPED = Wrapped(_targets)


@contextmanager
def patched(watch: Watching) -> Iterator[None]:
    """Reports Python calls of this thread to ``watch`` inside the block."""
    _WRAPPED.install()
    token = WATCHED.set(watch)
    try:
        yield
    finally:
        WATCHED.reset(token)
        _WRAPPED.remove()


def default_seeds() -> tuple[int, ...]:
    """The seeds of the default generators: a seed call through an early import shows as a change."""
    return (torch.default_generator.initial_seed(),)
