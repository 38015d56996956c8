"""A program held against the interpreter: every run equal, every refusal right by the interpreter's books."""

from __future__ import annotations

import importlib.util
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import graphspec
from graphspec.errors import FindingsError, GraphSpecError, InputError, OrderError
from random_programs.draw import SHARED, draw
from random_programs.language import Program, Step, source, spec_text
from random_programs.plain import Made, Plain

#: What a program must hold to be refused when it is opened, by code: one of these kinds of bodies, or a feature.
MAY_BE = {
    "GS301": {"a pool of several"},
    "GS304": {"copy: false"},
    "GS742": {"eager reshapes"},
    "GS724": {"captured writes"},
    "GS729": {"copy: false", "captured writes", "captured alias", "captured view", "eager alias", "eager view"},
    "GS750": {"captured writes", "captured alias", "captured view", "captured in place"},
    "GS751": {"eager reshapes", "eager turns"},
}


class EndedError(Exception):
    """A run failed for a reason, at a place that plain Python does not know."""


class WrongError(Exception):
    """graphspec and the interpreter disagree."""


@dataclass
class Tally:
    """What became of the programs, the runs in them, and why they were refused."""

    programs: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        parts = (
            ", ".join(f"{key} {count}" for key, count in each.most_common()) for each in (self.programs, self.refused)
        )
        return "; refused: ".join(parts)


@dataclass
class _Lent:
    """A result without a copy, and what it held when it was handed out."""

    name: str
    tensor: torch.Tensor
    content: torch.Tensor
    made: Made


def faults(seeds: range, tally: Tally) -> Iterator[tuple[int, str]]:
    """The first seed of each spec that breaks the law, with what there is to read about it. Whole groups are drawn."""
    for seed in range(seeds.start, seeds.stop, SHARED):
        program = draw(seed)
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial = Trial(program, Path(folder), tally)
            try:
                trial.run()
            except WrongError as error:
                said = str(error)
            except Exception as error:  # noqa: BLE001  nothing but its own errors may come out of graphspec
                said = "".join(traceback.format_exception(error))
            else:
                continue
            tally.programs["wrong"] += SHARED
            steps = "\n".join(map(str, trial.done))
            yield seed, f"seed {seed}: {said}\n{source(program)}\n{spec_text(program)}\n{steps}"


class Trial:
    """One spec, opened once, and the scripts over it."""

    def __init__(self, program: Program, folder: Path, tally: Tally) -> None:
        self._program, self._tally = program, tally
        self._path = folder / "model.yaml"
        (folder / "model.py").write_text(source(program), encoding="utf-8")
        self._path.write_text(spec_text(program), encoding="utf-8")
        self._plain = Plain(program, _model(folder / "model.py"))
        self._lent: list[_Lent] = []
        self.done: list[Step] = []

    def run(self) -> None:
        """Open, and make every step. Raises WrongError."""
        try:
            runner = graphspec.open(self._path, device="cpu")
        except FindingsError as error:
            self._judge_opening(error)
            return
        with runner:
            self._same_model(runner, "after opening")
            for number, script in enumerate(self._program.scripts):
                for step in script:
                    self.done.append(step)
                    try:
                        self._step(runner, step)
                    except EndedError:
                        self._tally.programs["ended"] += SHARED - number
                        return
                self._tally.programs["ran"] += 1

    def _judge_opening(self, error: FindingsError) -> None:
        features = {f"{'eager' if each.eager else 'captured'} {each.kind}" for each in self._program.regions}
        features |= {"copy: false"} if self._program.lent else set()
        pools = [region.pool for region in self._program.regions if region.pool is not None]
        features |= {"a pool of several"} if len(set(pools)) < len(pools) else set()
        for found in error.diagnostics:
            if not MAY_BE.get(found.code, set()) & features:
                raise WrongError(f"refused for no reason there is: {error}")
        self._tally.programs["refused"] += SHARED
        self._tally.refused[error.diagnostics[0].code] += SHARED

    # -- steps

    def _step(self, runner: Any, step: Step) -> None:
        plain = self._plain
        match step.kind:
            case "reset":
                runner.reset()
                plain.reset()
            case "write":
                for name, state in plain.states.items():
                    value = state.flip(0) * 0.5
                    runner.state.write(name, value)
                    plain.write(name, value)
            case "scale":
                for model in (runner.model, plain.model):
                    model.w.mul_(-0.5)
            case "recapture":
                runner.recapture()
            case "read":
                self._read_late(step)
            case "bad":
                self._refused_run(runner, step)
            case _:
                self._run(runner, step)

    def _run(self, runner: Any, step: Step) -> None:
        plain, sequence = self._plain, runner[step.sequence]
        inputs = {name: value for name, value in self._inputs(step).items() if name in sequence.plan.inputs}
        params = {name: value for name, value in step.params if name in sequence.plan.params}
        step = Step(**{**vars(step), "params": tuple(params.items())})
        reasons, before = plain.reasons(step), plain.saved()
        bomb = step.kind == "bomb"
        runner.model.bomb = plain.model.bomb = bomb
        wanted, ended = None, None
        try:
            wanted = plain.run(step, inputs)
        except Exception as error:  # noqa: BLE001  the model's own, or what a value that is not there leads to
            ended = error
        given = {name: value for name, value in inputs.items() if value is not None}
        try:
            got = sequence(**given, **params)
        except OrderError as error:
            if not reasons and not self._may_refuse_late():
                raise WrongError(f"{step} is refused, and nothing is amiss: {error}") from error
            self._tally.refused["OrderError"] += 1
            self._plain = before
            try:
                self._same_model(runner, str(step))
                self._same_states(runner, str(step))
            except WrongError:  # refused when part of it was done
                raise EndedError from error
        except GraphSpecError as error:
            if ended is None and not reasons and not self._may_refuse_late():
                raise WrongError(f"{step} fails, and plain Python does not: {error}") from error
            if reasons or ended is None:  # who knows how far it came
                raise EndedError from error
        else:
            if wanted is not None and any(value.shape != (step.rows, 2) for value in wanted.values()):
                raise EndedError  # it returns what its spec says it does not
            if wanted is None:
                raise WrongError(f"{step} runs, and plain Python fails: {ended}; {reasons}")
            self._compare(step, wanted, got)
        runner.model.bomb = self._plain.model.bomb = False
        self._same_states(runner, str(step))
        self._same_model(runner, str(step))

    def _compare(self, step: Step, wanted: dict[str, Any], got: dict[str, Any]) -> None:
        for name, value in got.items():
            if name in self._program.lent:
                self._lent.append(_Lent(name, value, wanted[name], self._plain.made[name]))
            try:
                _same(wanted[name], value * 1, f"{step}: '{name}'")
            except OrderError as error:
                if not self._plain.lost(self._plain.made[name]):
                    raise WrongError(f"{step}: the lent '{name}' is dead at once: {error}") from error

    def _read_late(self, step: Step) -> None:
        for lent in self._lent[-3:]:
            try:
                value = lent.tensor * 1
            except OrderError as error:
                if not self._plain.lost(lent.made) and not self._may_refuse_late():
                    raise WrongError(f"{step}: '{lent.name}' cannot be read, and nothing has touched it") from error
                self._tally.refused["read late"] += 1
            else:
                _same(lent.content, value, f"{step}: the lent '{lent.name}'")

    def _refused_run(self, runner: Any, step: Step) -> None:
        """A run that nothing can be made of leaves everything as it was."""
        sequence = runner[step.sequence]
        given = {name: value for name, value in self._inputs(step).items() if value is not None}
        given = {name: value.double() for name, value in given.items() if name in sequence.plan.inputs}
        params = {name: value for name, value in (("k", 3),) if name in sequence.plan.params}
        try:
            sequence(**given, **params)
        except InputError:
            self._same_states(runner, str(step))
            self._same_model(runner, str(step))
        else:
            raise WrongError(f"{step}: float64 for float32 was taken")

    def _may_refuse_late(self) -> bool:
        """Whether a region writes into, or reshapes, what an eager region holds: found when it happens."""
        kinds = {each.kind for each in self._program.regions}
        return bool(kinds & {"writes", "writes kept", "reshapes", "turns"})

    def _inputs(self, step: Step) -> dict[str, torch.Tensor | None]:
        generator = torch.Generator().manual_seed(step.seed)
        found: dict[str, torch.Tensor | None] = {"x": torch.randn(step.rows, 2, generator=generator)}
        if self._program.optional:
            found["m"] = None if step.absent else torch.randn(step.rows, 2, generator=generator)
        return found

    # -- what there is

    def _same_states(self, runner: Any, place: str) -> None:
        for name, state in self._plain.states.items():
            _same(state, runner.state[name], f"{place}: state '{name}'")

    def _same_model(self, runner: Any, place: str) -> None:
        ours, plain = runner.model, self._plain.model
        _same(plain.w, ours.w, f"{place}: model.w")
        held = [("log", each, other) for each, other in zip(plain.log, ours.log, strict=False)]
        if len(plain.log) != len(ours.log) or (plain.prev is None) != (ours.prev is None):
            raise WrongError(f"{place}: the model holds {len(ours.log)} things, and {len(plain.log)} in plain Python")
        held += [("prev", plain.prev, ours.prev)] if plain.prev is not None else []
        for name, one, other in held:
            _same(one, other, f"{place}: model.{name}")


def _same(wanted: torch.Tensor, got: torch.Tensor, place: str) -> None:
    if wanted.shape != got.shape or not torch.allclose(wanted, got, rtol=1e-5, atol=1e-5, equal_nan=True):
        raise WrongError(f"{place} is {got.tolist()}, and in plain Python {wanted.tolist()}")


def _model(path: Path) -> Any:
    found = importlib.util.spec_from_file_location("plain_model", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module.Model().eval()
