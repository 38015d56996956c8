"""Two runs of a region compared call by call: what differs is a host value that a graph would freeze.

The second run sees other inputs and other params than the first. Every operator must be the same, every argument
must be the same unless an update refreshes it, and everything read from outside must be the same memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch

from graphspec.errors import Diagnostic
from graphspec.recording.calls import Call, Outside, Recording, Ref, touched_refs, written_refs
from graphspec.recording.eager import is_eager
from graphspec.recording.source import Site


def differences(
    region: str,
    first: Recording,
    second: Recording,
    refreshed: Collection[tuple[int, int]],
    params: tuple[Mapping[str, Any], Mapping[str, Any]],
) -> list[Diagnostic]:
    """Findings for everything that differs between two runs; empty if a graph of one is a graph of both.

    ``refreshed`` are the (call, argument position) pairs that updates write; ``params`` the values of each run.
    """
    other = _other_operators(region, first, second)
    if other is not None:
        return [other]
    found: list[Diagnostic] = []
    for index, (before, after) in enumerate(zip(first.calls, second.calls, strict=True)):
        for position, name, old, new in _arguments(before, after):
            if name == "written" and is_eager(after.op):
                continue  # what an eager part writes is its own affair
            if (index, position) not in refreshed and not _same(old, new):
                found.append(_frozen(region, after, name, old, new, params))
    return found


def fresh_memory(
    region: str, first: Recording, second: Recording, origins: tuple[Mapping[int, str], Mapping[int, str]]
) -> Iterator[Diagnostic]:
    """Findings for outside tensors that are other memory in each run, although no recorded call made them.

    ``origins`` says, for each run, which value a storage belongs to, where another region made it.
    """
    for index, outside in second.outside.items():
        before = first.outside.get(index)
        if before is None or _identity(before, origins[0]) == _identity(outside, origins[1]):
            continue
        call = next(c for c in second.calls if any(ref.storage == index for ref in touched_refs(c)))
        if call.name == "aten::lift_fresh":  # a literal in the source
            if torch.equal(before.tensor, outside.tensor):
                continue
            message = f"region '{region}': a number of the host that changes between runs becomes a tensor"
            yield _finding("GS722", message, call.site, "compute it from a tensor buffer, or pass it in as a param")
            continue
        yield _finding(
            "GS720",
            f"region '{region}': {call.name} reads a tensor {list(outside.tensor.shape)} that is made anew on every "
            "run, but not by a recorded operator: from host data, by another thread, or by another region",
            call.site,
            "make it once in __init__, or pass it in as an input of the region",
        )


def first_call(region: str, first: Recording, later: Recording) -> Iterator[Diagnostic]:
    """Findings for a region whose very first call takes another path than ``later`` ones, on the same inputs.

    What a first call creates stays (a lazy table, a cache), so it may call more than later ones. But it must call all
    that they call, and may not write what was there before: a graph has no first call, and eager has one.
    """
    more: list[Call] = []
    calls = iter(first.calls)
    for call in later.calls:
        for before in calls:
            if _alike(before, call):
                break
            more.append(before)
        else:
            yield _finding(
                "GS721",
                f"region '{region}' calls {call.name} at {call.site} on every call but its first one, which a graph "
                "does not have",
                call.site,
                "make what the first call makes in __init__, so that every call does the same",
            )
            return
    for call in (*more, *calls):
        if any(not first.is_born(ref.storage) for ref in written_refs(call)):
            yield _finding(
                "GS721",
                f"region '{region}' writes a tensor that was there before by {call.name} at {call.site} in its first "
                "call only, which a graph does not have",
                call.site,
                "write it in __init__",
            )
            return


def _alike(one: Call, other: Call) -> bool:
    """The same operator on tensors of the same form and the same host values."""
    return (
        one.op is other.op
        and _forms(one.args) == _forms(other.args)
        and _forms(tuple(one.kwargs.items())) == _forms(tuple(other.kwargs.items()))
    )


def _forms(value: Any) -> Any:
    if isinstance(value, Ref):
        return value.dtype, value.size
    if isinstance(value, (tuple, list)):
        return tuple(map(_forms, value))
    return type(value).__name__, str(value)


def same_operators(first: Recording, second: Recording) -> bool:
    """Whether two runs of a region called the same operators with results of the same shapes."""
    return _other_operators("", first, second) is None


def _identity(outside: Outside, origins: Mapping[int, str]) -> object:
    key = outside.storage._cdata
    return origins.get(key, key)


@dataclass(frozen=True)
class Parting:
    """Where two runs begin to call other operators: the calls there, None where a run has none, and both in words."""

    calls: tuple[Call | None, Call | None]

    @property
    def words(self) -> tuple[str, str]:
        """``aten::add.Tensor at model.py:7``, or ``nothing more``."""
        one, other = (f"{call.name} at {call.site}" if call is not None else "nothing more" for call in self.calls)
        return one, other


def parting(first: Recording, second: Recording, *, shapes: bool) -> Parting | None:
    """Where two runs part; with ``shapes`` also where an operator gives other shapes. None where they do not."""
    for before, after in zip_longest(first.calls, second.calls):
        if before is None or after is None or before.op is not after.op:
            return Parting((before, after))
        if shapes and _shapes(before) != _shapes(after):
            return Parting((before, after))
    return None


def _other_operators(region: str, first: Recording, second: Recording) -> Diagnostic | None:
    found = parting(first, second, shapes=True)
    if found is None:
        return None
    before, after = found.words
    return _finding(
        "GS721",
        f"region '{region}' does not call the same operators on every run: first {before}, then {after}",
        next(call.site for call in reversed(found.calls) if call is not None),
        "a branch or a size depends on a value; use torch.where, a bucketed dim, or a param with specialize: true",
    )


def _frozen(
    region: str, call: Call, argument: str, old: Any, new: Any, params: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> Diagnostic:
    what = f"{call.name} '{argument}'"
    for name in params[0]:
        if _same(_loose(old), _loose(params[0][name])) and _same(_loose(new), _loose(params[1][name])):
            return _finding(
                "GS511",
                f"region '{region}': {what} is the param '{name}', and a graph would freeze it",
                call.site,
                f'declare it: updates: [{{op: "{call.name}", arg: {argument}, from: {name}}}]',
            )
    changed = [name for name in params[0] if not _same(params[0][name], params[1][name])]
    reason = f", made from {' or '.join(changed)}" if changed else ""
    return _finding(
        "GS722",
        f"region '{region}': {what} is a host value that changes between runs ({_shown(old)}, then {_shown(new)})"
        f"{reason}, and a graph would freeze it",
        call.site,
        "compute it from a tensor buffer, or pass exactly that value as a param and declare it under updates",
    )


def _arguments(before: Call, after: Call) -> Iterator[tuple[int, str, Any, Any]]:
    olds, news = before.arguments(), after.arguments()
    for position, name in enumerate(olds):
        yield position, name, olds[name], news[name]


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, tuple) and isinstance(new, tuple):
        return len(old) == len(new) and all(_same(a, b) for a, b in zip(old, new, strict=True))
    if isinstance(old, float) and isinstance(new, float) and old != old:  # noqa: PLR0124 - nan
        return new != new  # noqa: PLR0124
    if isinstance(old, torch.Generator) and isinstance(new, torch.Generator):
        return bool(old._cdata == new._cdata)  # type: ignore[attr-defined]
    if isinstance(old, torch.ScriptObject) and isinstance(new, torch.ScriptObject):  # a process group, a reduction
        return bool(old._type() == new._type())
    try:
        return type(old) is type(new) and bool(old == new)
    except (TypeError, ValueError, RuntimeError):
        return old is new


def _loose(value: Any) -> Any:
    """A value as an argument could show it: ints as floats, lists as tuples, one item as the item."""
    if isinstance(value, (list, tuple)):
        return _loose(value[0]) if len(value) == 1 else tuple(_loose(item) for item in value)
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _shapes(call: Call) -> list[Any]:
    return [(ref.size, ref.stride, ref.dtype) if isinstance(ref, Ref) else None for ref in call.outputs]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."  # noqa: PLR2004


def _finding(code: str, message: str, site: Site, hint: str) -> Diagnostic:
    return Diagnostic(code, message, file=site.file, line=site.line, hint=hint)
