"""One draw held against the law: refused with a finding, or equal to eager run after run, values and states."""

from __future__ import annotations

import tempfile
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

import graphspec
from graphspec.backends.cpu import CpuBackend
from graphspec.errors import FindingsError, GraphSpecError
from graphspec.runtime import runner as runners
from random_models.interpret import make_model, write
from random_models.language import Draw, RunDraw, concrete
from random_models.reference import NeverMadeError, Reference, bucket, sizes_of
from random_models.values import make_input

Kind = Literal["ran", "refused", "wrong", "crashed", "invalid", "not refused"]


@dataclass(frozen=True)
class Outcome:
    """What became of a draw. ``code`` is that of the first finding, or the error's class; ``detail`` for people."""

    kind: Kind
    code: str = ""
    detail: str = ""
    runs: int = 0
    results: tuple[Any, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def faulty(self) -> bool:
        """Whether the law is broken."""
        return self.kind in ("wrong", "crashed", "not refused")


class InvalidDrawError(Exception):
    """The draw does not run in plain PyTorch: it says nothing."""


class WrongError(Exception):
    """The graph and eager disagree."""


def judge(draw: Draw, replayer: str = "auto") -> Outcome:
    """Open and run a draw."""
    with tempfile.TemporaryDirectory() as folder, _replayer(replayer), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            outcome = _Trial(draw, Path(folder)).run()
        except WrongError as error:
            if draw.padded and _as_padded(draw, Path(folder)):
                return Outcome("invalid", "rows mix", str(error))
            return _ended(error)
        except Exception as error:  # noqa: BLE001  nothing but its own errors may come out of graphspec
            return _ended(error)
    if draw.illegal is not None:
        return Outcome("not refused", draw.illegal, f"the hazard '{draw.illegal}' was let through")
    return outcome


def _as_padded(draw: Draw, folder: Path) -> bool:
    """Whether eager at the sizes of the bucket, on padded inputs, gives what the graphs gave: the draw mixes rows."""
    try:
        _Trial(draw, folder, padded=True).run()
    except Exception:  # noqa: BLE001  no excuse
        return False
    return True


def _ended(error: Exception) -> Outcome:
    match error:
        case InvalidDrawError():
            return Outcome("invalid", type(error.__cause__).__name__, str(error))
        case WrongError():
            return Outcome("wrong", "", str(error))
        case FindingsError():
            return Outcome("refused", error.diagnostics[0].code, str(error))
        case GraphSpecError():
            return Outcome("refused", type(error).__name__, str(error))
    return Outcome("crashed", type(error).__name__, "".join(traceback.format_exception(error)))


class _Trial:
    def __init__(self, draw: Draw, folder: Path, *, padded: bool = False) -> None:
        self._draw, self._padded = draw, padded
        self._path = write(draw, folder)
        self._model = make_model(draw, folder)
        self._reference = Reference(draw, self._model)
        self._results: list[Any] = []

    def run(self) -> Outcome:
        before = contents(self._model)
        torch.default_generator.manual_seed(17)
        stream = torch.get_rng_state()
        with graphspec.open(self._path, model=self._model, device="cpu") as runner:
            if not torch.equal(torch.get_rng_state(), stream):
                raise WrongError("opening moved the random stream")
            _compare(before, contents(self._model), "after opening", exact=True)
            for number, run in enumerate(self._draw.runs):
                self._step(runner, run, number)
            return Outcome("ran", runs=len(self._draw.runs), results=tuple(self._results), notes=tuple(runner.warnings))

    def _step(self, runner: Any, run: RunDraw, number: int) -> None:
        sequence = runner[run.sequence]
        self._prepare(runner, run)
        inputs = self._inputs(run, sequence.plan.inputs)
        params = {name: value for name, value in run.params.items() if name in sequence.plan.params}
        run = replace(run, sizes=self._shown(run, [*inputs, *params]), params=params)
        try:
            wanted = self._eager(run, inputs)
        except NeverMadeError as error:
            sequence(**inputs, **params)  # must refuse
            raise WrongError(f"run {number} reads '{error}', which nothing has made") from None
        torch.default_generator.manual_seed(run.seed)
        got = sequence(**{name: value.clone() for name, value in inputs.items()}, **params)
        got = {name: owned(value) for name, value in got.items()}
        place = f"run {number} ({run.sequence} at {dict(run.sizes)})"
        full = dict(run.sizes) == bucket(self._draw, run.sizes)
        if self._padded:
            wanted = {name: _cut(wanted[name], value) for name, value in got.items()}
        _compare(wanted, got, place, exact=full)
        states = {f"state {name}": value for name, value in runner.state.items() if isinstance(value, torch.Tensor)}
        _compare(self._states(), states, place, exact=full)
        _compare(contents(self._reference.model), contents(self._model), place, exact=full)
        self._results.append((got, states))

    def _shown(self, run: RunDraw, given: list[str]) -> dict[str, int]:
        """The sizes of a run: a dim that nothing given shows has that of its only bucket."""
        declared = [self._draw.buffers.get(name) or self._draw.params[name] for name in given]
        shown = {str(axis).rpartition("*")[2] for each in declared for axis in each.get("shape", ())}
        return {dim: size if dim in shown else max(sizes_of(self._draw.dims[dim])) for dim, size in run.sizes.items()}

    def _eager(self, run: RunDraw, inputs: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        sizes = bucket(self._draw, run.sizes) if self._padded else run.sizes
        given = {name: self._grown(name, value, sizes) for name, value in inputs.items()}
        lists = {name: grown for name in run.params if (grown := self._grown_list(name, run.params[name], sizes))}
        try:
            return self._reference.run(replace(run, params={**run.params, **lists}), given, sizes)
        except NeverMadeError:
            raise
        except Exception as error:
            raise InvalidDrawError(f"{type(error).__name__}: {error}") from error

    def _grown(self, name: str, value: torch.Tensor, sizes: Mapping[str, int]) -> torch.Tensor:
        """A copy of an input at these sizes, what they add filled with its `pad`."""
        buffer = self._draw.buffers[name]
        grown = value.new_full(concrete(buffer["shape"], sizes), buffer.get("pad", 0))
        grown = grown.to(memory_format=torch.channels_last) if buffer.get("layout") else grown
        grown[tuple(slice(0, size) for size in value.shape)].copy_(value)
        return grown

    def _grown_list(self, name: str, value: Any, sizes: Mapping[str, int]) -> list[Any] | None:
        shape = concrete(self._draw.params[name].get("shape", ()), sizes)
        return [*value, *[self._draw.params[name].get("pad", 0)] * (shape[0] - len(value))] if shape else None

    def _states(self) -> dict[str, torch.Tensor]:
        return {f"state {name}": value for name, value in self._reference.owned().items()}

    def _inputs(self, run: RunDraw, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
        found = {}
        for number, name in enumerate(names):
            if name in run.absent:
                continue
            buffer = self._draw.buffers[name]
            value = make_input(buffer, run.sizes, torch.Generator().manual_seed(run.seed * 7 + number))
            found[name] = value.to(memory_format=torch.channels_last) if buffer.get("layout") else value
        return found

    def _prepare(self, runner: Any, run: RunDraw) -> None:
        match run.before:
            case "poison":
                runner.poison()
            case "reset":
                runner.reset()
                self._reference.reset()
            case "recapture":
                runner.recapture()
            case "scale":
                for model in (self._model, self._reference.model):
                    with torch.no_grad():
                        model.w.mul_(0.5)
                        model.bias.add_(0.25)
            case "write":
                for name, tensor in self._reference.states.items():
                    runner.state.write(name, tensor.flip(0) if tensor.dim() else tensor)
                    tensor.copy_(tensor.flip(0) if tensor.dim() else tensor)


def contents(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A copy of every parameter and buffer."""
    return {f"model.{name}": tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _cut(value: Any, like: Any) -> Any:
    """The corner of a padded result that has the shape of ``like``."""
    if not isinstance(value, torch.Tensor):
        return tuple(map(_cut, value, like))
    return value[tuple(slice(0, size) for size in like.shape)] if value.dim() == like.dim() else value


def owned(value: Any) -> Any:
    """A result with memory of its own, whatever handed it out."""
    if isinstance(value, torch.Tensor):
        return torch.clone(value)
    return tuple(owned(item) for item in value)


def _compare(wanted: Mapping[str, Any], got: Mapping[str, Any], place: str, *, exact: bool) -> None:
    for name, value in got.items():
        want = wanted[name]
        pairs = [(want, value)] if isinstance(value, torch.Tensor) else list(zip(want, value, strict=True))
        for one, other in pairs:
            if reason := _difference(one, other, exact=exact):
                raise WrongError(f"{place}: '{name}' {reason}\nwanted {one}\ngot    {other}")


def _difference(want: torch.Tensor, got: torch.Tensor, *, exact: bool) -> str | None:
    if want.dtype != got.dtype or want.shape != got.shape:
        return f"is {got.dtype} {list(got.shape)}, and eager gives {want.dtype} {list(want.shape)}"
    if not (want.dtype.is_floating_point or want.dtype.is_complex):
        return None if torch.equal(want, got) else "differs"
    if want.dtype.itemsize == 1:
        want, got = want.float(), got.float()
    low = want.dtype in (torch.float16, torch.bfloat16)
    loose = 1e-6 if exact else 5e-2 if low else 2e-4
    same = torch.allclose(want.resolve_neg(), got.resolve_neg(), rtol=loose, atol=loose, equal_nan=True)
    return None if same else "differs"


@contextmanager
def _replayer(kind: str) -> Iterator[None]:
    """Open specs with one way of replaying."""
    if kind == "auto":
        yield
        return
    before = runners.open_backend
    runners.open_backend = lambda *_: CpuBackend(replayer=kind)  # type: ignore[assignment,arg-type]
    try:
        yield
    finally:
        runners.open_backend = before
