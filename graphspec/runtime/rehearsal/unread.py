"""Slots whose old content is nothing to a region: it puts something there before it reads them, as with a context.

It is shown, not guessed: the regions run once more with something in these slots that can be used for nothing, and once
with None. If they then record what they did, without touching either, the old content did not matter; a replay need not
know it, and what others put there between runs is their own affair.
"""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from graphspec.errors import Diagnostic
from graphspec.plan import Bucket, Event
from graphspec.runtime.rehearsal.observation import Rehearsal, slot_key
from graphspec.runtime.rehearsal.rehearser import Rehearser

#: What is found in two passes over the same inputs, in the words of the laws.
Compared = Callable[[Rehearsal, Rehearsal], Sequence[Diagnostic]]

#: Slots are tried alone where they do not pass together, if they are so few.
_ALONE = 4
_OWN = str(Path(__file__).parents[2])
_MACHINERY = (_OWN, str(Path(torch.__file__).parent))


class UsedError(AttributeError):
    """The content that can be used for nothing was used."""


def _used(self: Unusable, *_: object, **__: object) -> NoReturn:
    object.__setattr__(self, "used", True)
    raise UsedError("the content of this slot was exchanged, to see whether it is read")


_OPERATIONS = (
    "bool", "call", "contains", "delitem", "divmod", "enter", "eq", "float", "floordiv", "format", "ge", "getitem",
    "gt", "index", "int", "invert", "iter", "le", "len", "lt", "matmul", "mod", "mul", "ne", "neg", "next", "or", "pos",
    "pow", "setattr", "delattr", "radd", "rmul", "ror", "rsub", "rtruediv", "setitem", "str", "sub", "truediv", "add",
    "and", "abs",
)  # fmt: skip


class Unusable:
    """Nothing can be done with it but to hand it on: not called, compared, hashed, read, nor asked for its class."""

    used = False

    def __getattribute__(self, name: str) -> Any:
        if name == "used" or _is_machinery(sys._getframe(1)):
            return object.__getattribute__(self, name)
        _used(self)

    def __hash__(self) -> int:
        return id(self) if _is_machinery(sys._getframe(1)) else _used(self)


for _name in _OPERATIONS:
    setattr(Unusable, f"__{_name}__", _used)


def _is_machinery(frame: types.FrameType | None) -> bool:
    """Whether code of graphspec or torch asks: it looks at what slots hold without using it."""
    while frame is not None and frame.f_code.co_filename.startswith("<frozen"):  # isinstance, of an abstract class
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_MACHINERY)


class Unread:
    """Finds such slots, in the world of a rehearser. ``compared`` says what two passes did otherwise."""

    def __init__(self, rehearser: Rehearser, compared: Compared) -> None:
        self._rehearser = rehearser
        self._world = rehearser.world
        self._compared = compared

    def slots(self, bucket: Bucket, events: Sequence[Event], run: Rehearsal) -> frozenset[str] | None:
        """Their names, after a judged pass; None where none can be one: then what the pass did is not put back."""
        names = self._candidates(run)
        if not names:
            return None
        if self._pass(bucket, events, run, names):
            return frozenset(names)
        alone = names if 1 < len(names) <= _ALONE else {}
        return frozenset(name for name in alone if self._pass(bucket, events, run, {name: names[name]}))

    def _candidates(self, run: Rehearsal) -> dict[str, Any]:
        """What the pass put in slots anew, and what it may have put back; with what was there before."""
        code = self._rehearser.code.so_far()
        if run.ended is not None or code.identity:
            return {}
        changed = {change.name: change.before for seen in run.observations() for change in seen.changes.rebound
                   if change.kind in ("scalar", "object", "replaced") and slot_key(change) in code.names}  # fmt: skip
        held = self._world.held(code.names & (code.stored | {"set"}))
        others = run.moving | self._rehearser.counted()
        return {name: value for name, value in {**held, **changed}.items()
                if name not in others and _is_exchangeable(name, value)}  # fmt: skip

    def _pass(self, bucket: Bucket, events: Sequence[Event], run: Rehearsal, names: dict[str, Any]) -> bool:
        unusable = Unusable()
        return all(
            self._alike(bucket, events, run, names, content) and not unusable.used for content in (unusable, None)
        )

    def _alike(
        self, bucket: Bucket, events: Sequence[Event], run: Rehearsal, names: Mapping[str, Any], content: object
    ) -> bool:
        """Whether a pass that begins with this content in the slots records the same."""
        self._rehearser.calls.rewind()
        if self._world.exchange(names, content) != names.keys():
            return False
        try:
            again = self._rehearser.following(bucket, events)
        except UsedError:
            return False
        return again.ended is None and not self._compared(run, again)


def _is_exchangeable(name: str, value: object) -> bool:
    """Whether anything is shown by another content. Tensors are seen by who reads them; enums go by identity alone."""
    others = (torch.Tensor, torch.nn.Module, type, types.ModuleType, types.FunctionType, types.MethodType, enum.Enum)
    return not isinstance(value, others) and "_hooks" not in name and not name.endswith((".grad", ".training"))
