"""Regions of a device that a compiler makes one call of, which is then captured like any other.

What a graph may not do is judged on the uncompiled callable, and so is where params go: a compiled one burns every
number in. Then, for each bucket, the callable is compiled on the inputs and params of the capture, called once more to
see that nothing is compiled anew, and captured. Dynamo's guards run at no replay: graphspec's own watch what the
uncompiled code reads, and so what the compiler burned in.
"""

from __future__ import annotations

import itertools
import re
import signal
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch._C._dynamo.guards import set_is_in_mode_without_ignore_compile_internals
from torch._functorch import config as functorch_config
from torch.utils._python_dispatch import is_in_any_mode_without_ignore_compile_internals

from graphspec.backends.updates import bind_updates
from graphspec.compilers import COMPILERS
from graphspec.errors import CaptureError, Diagnostic, HazardError
from graphspec.plan import Bucket, Event
from graphspec.runtime.holdings.preserve import Session
from graphspec.runtime.importing.references import import_object
from graphspec.runtime.laws import registry as laws
from graphspec.runtime.laws.evidence import Facts, Pair
from graphspec.runtime.opened.context import Context
from graphspec.runtime.opened.regions import BoundRegion
from graphspec.runtime.rehearsal.observation import Observation, Rehearsal
from graphspec.runtime.rehearsal.param_symbols import ParamSymbols
from graphspec.runtime.rehearsal.rehearser import Rehearser
from graphspec.spec import Compile, Region

_Key = tuple[str, Bucket]
_GUARD = re.compile(r"^\s*- \d+/\d+: (.*?)(?:\s{2,}#.*)?$", re.MULTILINE)
_NUMBERS = itertools.count()


class CompiledRegions:
    """The compiled callables of a capture, by region and bucket, and what each called when it was rehearsed."""

    def __init__(
        self,
        context: Context,
        session: Session,
        rehearser: Rehearser,
        symbols: ParamSymbols,
        opened: Callable[[], Facts],
    ) -> None:
        self._context = context
        self._session = session
        self._rehearser = rehearser
        self._symbols = symbols
        self._opened = opened
        self._callables: dict[_Key, BoundRegion] = {}
        self._rehearsed: dict[_Key, Observation] = {}
        self._seconds: dict[_Key, float] = {}
        self._calls: dict[_Key, CompiledCall] = {}

    def prepare(self, bucket: Bucket, events: Sequence[Event], dry: Mapping[_Key, Observation]) -> None:
        """Compile the regions of a bucket that name a compiler, and rehearse what came of it.

        Raises HazardError for params that the uncompiled callable does not pass on as declared, and for an updated
        operator that the compiler took away; CaptureError for what it cannot compile.
        """
        wanted = [event for event in events if event.new and self._is_compiled(event.region)]
        if not wanted:
            return
        calls = self._rehearser.calls
        calls.rewind()
        again = self._rehearser.again(bucket, events)
        uncompiled = {(seen.region, seen.bucket): seen for seen in again.observations()}
        found = [each for event in wanted for each in self._params(event, dry, uncompiled, again)]
        if refused := laws.refused(found):
            raise HazardError(dict.fromkeys(refused))
        for event in wanted:
            if event.graph is not None:
                self._context.compiling(event.graph)
            region = self._context.regions[event.region]
            asked = region.declared.compile
            assert asked is not None
            made = CompiledCall(region.function, region.declared, asked, self._context.plan.folder)
            self._calls[event.region, event.bucket] = made
            self._callables[event.region, event.bucket] = replace(region, function=made)
        with self.standing_in():
            calls.rewind()
            began = time.perf_counter()
            with _manners():
                _raise_ended(self._rehearser.plainly(bucket, events))
            taken = (time.perf_counter() - began) / len(wanted)
            self._seconds.update({(event.region, event.bucket): taken for event in wanted})
            calls.rewind()
            for event in wanted:
                self._calls[event.region, event.bucket].settled = True
            run = self._rehearser.again(bucket, events)
            _raise_ended(run)
        for seen in run.observations():
            key = seen.region, seen.bucket
            if key in self._callables:
                self._rehearsed[key] = seen
                found += laws.judge_compiled(self._opened(), uncompiled[key], seen)
        if found:
            raise HazardError(dict.fromkeys(found))

    def seconds(self, event: Event) -> float | None:
        """What the compilation of a region took, its share of the bucket's; None where it is not compiled."""
        return self._seconds.get((event.region, event.bucket))

    def of(self, event: Event) -> Observation | None:
        """What the compiled call of a region did on the inputs and params of the capture; None where it has none."""
        return self._rehearsed.get((event.region, event.bucket))

    @contextmanager
    def standing_in(self) -> Iterator[None]:
        """Inside, compiled callables are called in the place of the model's own."""
        calls = self._rehearser.calls
        calls.standins = self._callables
        try:
            if not self._callables:
                yield
                return
            with self._session.compiled():
                yield
        finally:
            calls.standins = {}

    def _is_compiled(self, region: str) -> bool:
        return self._context.plan.regions[region].declared.compile is not None

    def _params(
        self, event: Event, dry: Mapping[_Key, Observation], uncompiled: Mapping[_Key, Observation], again: Rehearsal
    ) -> list[Diagnostic]:
        """What the laws find in two calls of the uncompiled callable on other params: the proof of its updates."""
        key = event.region, event.bucket
        if key not in uncompiled or uncompiled[key].ended is not None:
            return []
        one, other, first = dry[key], uncompiled[key], self._rehearser.calls.params(event.bucket, number=1)
        declared = self._context.plan.regions[event.region].declared
        bindings = bind_updates(declared, other.recording, again.params, first, self._context.backend)
        taken, probes = self._rehearser.calls.taken(event.region), self._symbols.probes(first)
        pair = Pair(one, other, (first, again.params), bindings, taken, probes, self._symbols.passed(event))
        return laws.judge_pair(self._opened(), pair)


class CompiledCall:
    """A compiled callable with code of its own: Dynamo keeps what it compiled, and how often, by the code.

    Once ``settled``, what would be compiled anew is a CaptureError that names the guard.
    """

    def __init__(self, function: Callable[..., Any], region: Region, asked: Compile, folder: Path) -> None:
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        code = call.__code__.replace(co_name=f"{region.name}_{next(_NUMBERS)}")
        own = types.FunctionType(code, call.__globals__, code.co_name, None, call.__closure__)
        options = {**_resolved(asked, folder), "force_eager": True}
        self.settled = False
        self._region = region
        # A graph break would leave Python between the parts, which no replay runs.
        self._made: Callable[..., Any] = torch.compile(
            own, backend=asked.backend, fullgraph=True, dynamic=False, options=options
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One call, compiled before if need be."""
        stance = "fail_on_recompile" if self.settled else "default"
        try:
            with torch.compiler.set_stance(stance), _seen_by_modes(), _own_schemas():
                return self._made(*args, **kwargs)
        except torch._dynamo.exc.TorchDynamoException as error:
            raise _uncompilable(self._region, error) from error
        except RuntimeError as error:
            if (anew := _recompiled(error)) is not None:
                raise anew from error
            raise


@contextmanager
def _manners() -> Iterator[None]:
    """A compiler that is loaded neither warns of its own operators nor takes the program's signals."""
    signals = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.getsignal(number) for number in signals}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _seen_by_modes() -> Iterator[None]:
    """Dynamo's guards compare the dispatch keys of tensors: inside, those of the modes that watch are left out."""
    set_is_in_mode_without_ignore_compile_internals(False)
    try:
        yield
    finally:
        set_is_in_mode_without_ignore_compile_internals(is_in_any_mode_without_ignore_compile_internals())


@contextmanager
def _own_schemas() -> Iterator[None]:
    """Operators may return what they write although their schema does not say so, as torch_npu's ``out`` forms do.

    Where the variable CI is set, torch raises for them in the first call of what it compiled. A capture is judged by
    what each call of the compiled callable really wrote, so what torch fears cannot go unseen.
    """
    name = "error_on_custom_op_aliasing"  # not in every torch that is supported
    if not hasattr(functorch_config, name):
        yield
        return
    with functorch_config.patch({name: False}):
        yield


def _resolved(asked: Compile, folder: Path) -> dict[str, Any]:
    known = COMPILERS[asked.backend].options
    return {
        name: import_object(value, folder) if known[name].kind == "function" else value
        for name, value in asked.options.items()
    }


def _raise_ended(run: Rehearsal) -> None:
    error = run.ended
    if error is None:
        return
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, CaptureError):
            raise cause
        cause = cause.__cause__
    raise error


def _recompiled(error: BaseException) -> CaptureError | None:
    """What Dynamo would have compiled anew, as an error that names the guard; None for another error."""
    if "Detected recompile" not in str(error):
        return None
    guards = _GUARD.findall(str(error))
    named = guards[0] if guards else str(error).splitlines()[0]
    return CaptureError(
        f"a compiled region would be compiled anew on its second call: the guard `{named}` no longer holds",
        hint="what it names must be the same on every call: keep it out of the region, or leave `compile` out",
    )


def _uncompilable(region: Region, error: Exception) -> CaptureError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    place = next((line for line in reversed(lines) if line.startswith("File ")), "")
    why = lines[0] if lines else type(error).__name__
    if why.endswith("raised:"):  # by a pass of the compiler, or of the user's
        why = lines[1]
    backend = region.compile.backend if region.compile else "the compiler"
    at = f", at {place.removeprefix('File ')}" if place else ""
    message = f"region '{region.name}' cannot be compiled as a whole by {backend}: {why}{at}"
    return CaptureError(
        message, hint="a graph holds no Python between its parts: change that line, or leave `compile` out"
    )
