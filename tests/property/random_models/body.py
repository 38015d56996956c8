"""One region: which values it takes, its statements, and what it returns."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping

import torch

from random_models.hazards import HAZARDS
from random_models.operators import ALWAYS, PURE, STATEMENTS, WEIGHTS
from random_models.worlds import Known, Worlds

_HOLE = re.compile(r"\{(\w+?)(\d?)\}")
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_FITS: Mapping[str, Callable[[torch.dtype], bool]] = {
    "x": lambda _: True,
    "f": lambda dtype: dtype in _FLOATS,
    "a": lambda dtype: dtype == torch.float32,
    "i": lambda dtype: dtype == torch.int64,
    "n": lambda dtype: dtype in _INTEGERS,
    "m": lambda dtype: dtype == torch.bool,
    "c": lambda dtype: dtype.is_complex,
    "t": lambda dtype: dtype != torch.bool,
}
_NUMBERS: Mapping[str, tuple[complex, ...]] = {
    "k": (0.5, -1.5, 2.0, 0.1, 1.0, 3.0),
    "j": (0, 1, 2, 3),
    "s": (0.5, -2.0, 2, 3, 1, True, -1, 1.5),
    "p": (0.1, 0.5, 0.9),
}
#: Model tensors that statements may write.
_WRITABLE = ("self.buf", "self.count", "self.w")


class NothingFitsError(Exception):
    """No value there is can stand in a template."""


class Body:
    """Draws the statements of one region into the worlds it is given."""

    def __init__(self, rng: random.Random, worlds: Worlds, *, eager: bool, random_ops: bool, param: str | None) -> None:
        self._rng, self._worlds, self._eager, self._param = rng, worlds, eager, param
        self._random_ops = random_ops
        self._made = 0
        self.lines: list[str] = []

    def fill(self, statements: int) -> None:
        """Draw so many statements, or as many as fit."""
        groups = list(ALWAYS)
        if self._random_ops:
            groups += ["random", "random-in-place"]
        if not self._worlds.padded:
            groups.append("mixing")
        if self._eager:
            groups.append("eager")
        weights = [WEIGHTS[group] for group in groups]
        for _ in range(5 * statements):
            if len(self.lines) >= statements:
                return
            group = self._rng.choices(groups, weights)[0]
            self.statement(self._rng.choice(STATEMENTS[group]), writes=group not in PURE)

    def statement(self, template: str, *, writes: bool = True) -> bool:
        """Draw one statement from a template; whether it was taken."""
        try:
            line = self.written(template)
        except NothingFitsError:
            return False
        if not self._worlds.attempt(line, writes=writes or "out=" in line, mixing=self._eager):
            return False
        self.lines.append(line)
        return True

    def hazard(self, kind: str, inputs: list[str]) -> list[str] | None:
        """The statements of a hazard that runs here; None if it does not."""
        names = {"input": self._rng.choice(inputs)} if inputs else {}
        given = [each.name for each in self._worlds.known() if _FITS["f"](each.dtype) and each.name[0] in "xsh"]
        if not given:
            return None  # of a value made in the region it may be known what it is
        names["f"] = self._rng.choice(given)
        if self._param is not None:
            names["P"] = self._param
        try:
            lines = self._filled(HAZARDS[kind], names)
        except NothingFitsError:
            return None
        return lines if all(self._worlds.attempt(line, mixing=True) for line in lines) else None

    def written(self, template: str) -> str:
        """A template with its holes filled."""
        return self._filled((template,), {"P": self._param} if self._param else {})[0]

    def _filled(self, templates: tuple[str, ...], names: dict[str, str]) -> list[str]:
        filled = dict(names)
        first: list[Known] = []

        def fill(match: re.Match[str]) -> str:
            kind, key = match[1], match[0]
            if key not in filled and kind not in filled:
                filled[key] = self._hole(kind, first)
            return filled.get(key) or filled[kind]

        return [_HOLE.sub(fill, template) for template in templates]

    def _hole(self, kind: str, first: list[Known]) -> str:
        if kind == "o":
            self._made += 1
            return f"v{len(self.lines)}_{self._made}"
        if kind in ("d", "e"):
            return str(self._axis(first[0] if first else None))
        if kind in _NUMBERS:
            return str(self._rng.choice(_NUMBERS[kind]))
        if kind not in _FITS:
            raise NothingFitsError
        known = self._operand(kind, first)
        first.append(known)
        return known.name

    def _operand(self, kind: str, first: list[Known]) -> Known:
        fits = [each for each in self._worlds.known() if _FITS[kind](each.dtype)]
        if kind == "t":
            fits = [each for each in fits if not each.name.startswith("self.") or each.name in _WRITABLE]
            weights = [
                1.5 if each.name.startswith("v") else 1.0 if not each.name.startswith("self") else 0.3 for each in fits
            ]
        else:
            weights = [0.15 if each.name.startswith("self.") else 1.0 + 0.3 * at for at, each in enumerate(fits)]
        if first and self._rng.random() < 0.85:
            weights = [w if _broadcast(each, first[0]) else 0.0 for w, each in zip(weights, fits, strict=True)]
        if not fits or not any(weights):
            raise NothingFitsError
        return self._rng.choices(fits, weights)[0]

    def _axis(self, known: Known | None) -> int:
        if known is None or known.axes is None or not known.axes:
            return -1
        axes = [i for i, axis in enumerate(known.axes) if isinstance(axis, int) or not self._worlds.padded]
        axis = self._rng.choice(axes or [len(known.axes) - 1])
        return axis - len(known.axes) if self._rng.random() < 0.5 else axis


def _broadcast(one: Known, other: Known) -> bool:
    return all(
        a == b or 1 in (a, b) for a, b in zip(reversed(one.tensor.shape), reversed(other.tensor.shape), strict=False)
    )
