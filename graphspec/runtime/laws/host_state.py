"""What regions change on the host: a graph freezes what it was captured with, and a replay changes nothing there."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch

from graphspec.errors import Diagnostic
from graphspec.recording.calls import Recording
from graphspec.runtime.holdings.objects import same
from graphspec.runtime.holdings.preserve import Change
from graphspec.runtime.laws.evidence import Facts
from graphspec.runtime.rehearsal.observation import EagerCall, Observation, Rehearsal, Skipped, slot_key


@dataclass(frozen=True)
class HostChange:
    """A slot that a captured region changed, seen first after its call; ``readers`` had run by then, with itself.

    ``unread``: what it held before is shown to be nothing to them.
    """

    by: Observation
    change: Change
    readers: tuple[Observation, ...]
    unread: bool = False


def host_changes(run: Rehearsal) -> Iterator[HostChange]:
    """Each change of host state once, with the region that answers for it; what eager regions change is their own."""
    known: set[str] = set()
    readers: list[Observation] = []
    for seen in run.seen:
        if isinstance(seen, EagerCall):
            known |= seen.changed
        if not isinstance(seen, Observation):
            continue
        readers.append(seen)
        for change in seen.changes.rebound:
            if change.name not in known:
                known.add(change.name)
                yield HostChange(seen, change, tuple(readers), change.name in run.unread)


def changed_host_values(_: Facts, run: Rehearsal) -> Iterator[Diagnostic]:
    """GS725: numbers, text, members of containers and objects that code of captured regions loads."""
    for found in host_changes(run):
        yield from _host_value(found)


def replaced_tensors(opened: Facts, run: Rehearsal) -> Iterator[Diagnostic]:
    """GS726: memory, gradients and tensors that a region reads and puts others in their place."""
    for found in host_changes(run):
        yield from _tensor(opened, found)


def put_for_others(opened: Facts, run: Rehearsal) -> Iterator[Diagnostic]:
    """GS726 where an eager region may read what a region puts in a slot anew, GS745 where nobody is known to."""
    for region, change in rebound(opened, run):
        if slot_key(change) in run.eager_loaded:
            yield Diagnostic(
                "GS726",
                f"region '{region}' puts something new in {change.name}, and the code of an eager region loads "
                "that name: a replay does not put it there",
                hint=f"return it as an output of '{region}', and give it to the eager region as an input",
            )
        else:
            message = (
                f"region '{region}' puts something new in {change.name} on every call; a replay does not: return "
                "it as an output if it is needed"
            )
            yield Diagnostic("GS745", message, "warning")


def drawn_on_the_host(_: Facts, run: Rehearsal) -> Iterator[Diagnostic]:
    """GS727: random numbers of Python or numpy."""
    for seen in run.seen:
        if isinstance(seen, Skipped):
            continue
        if isinstance(seen, EagerCall):
            if "host random" in seen.changed:
                return
        elif seen.changes.host_random:
            yield Diagnostic(
                "GS727",
                f"region '{seen.region}' draws random numbers from {' and '.join(seen.changes.host_random)}: a graph "
                "freezes what it drew",
                hint="draw with torch, or pass the number in as a param",
            )
            return


def rebound(opened: Facts, run: Rehearsal) -> Iterator[tuple[str, Change]]:
    """Slots that captured regions fill anew in every call, and that no captured one is known to read before."""
    for found in host_changes(run):
        if not any(True for _ in (*_host_value(found), *_tensor(opened, found))):
            yield found.by.region, found.change


def kept_for_the_next_run(opened: Facts, first: Rehearsal, following: Rehearsal) -> Iterator[Diagnostic]:
    """GS726: a tensor that one run left on the model, and that the next one reads.

    The inputs of the two are in different memory, so that an input which was kept is told from the next run's own.
    """
    readers = tuple(following.observations())
    for region, change in rebound(opened, first):
        after = [tensor for tensor in _tensors(change.after) if not opened.is_shared(tensor, change.name)]
        reader = _reader(readers, after)
        if reader is not None:
            yield Diagnostic(
                "GS726",
                f"region '{reader}' reads {change.name}, which region '{region}' left there in the call before: a "
                "graph goes on reading what it was captured with",
                hint=f"write into it in place: {change.name.removeprefix('model.')}.copy_(...)",
            )


def other_contents(opened: Facts, first: Rehearsal, following: Rehearsal) -> Iterator[Diagnostic]:
    """GS725: containers that every call replaces, and that hold other host values after a second run than after one."""
    now = {change.name: change.after for change in following.left}
    for region, change in rebound(opened, first):
        if change.kind == "replaced" and change.name in now and not _alike(change.after, now[change.name]):
            yield Diagnostic(
                "GS725",
                f"region '{region}' puts other host values in {change.name} on every call: a graph freezes those it "
                "was captured with",
                hint="keep them as tensors, or return them",
            )


def _host_value(found: HostChange) -> Iterator[Diagnostic]:
    region, change = found.by.region, found.change
    if found.unread:
        return
    if change.kind == "scalar":
        yield Diagnostic(
            "GS725",
            f"region '{region}' changes {change.name} on the host, from {change.before!r} to {change.after!r}: a graph "
            "freezes the value it was captured with",
            hint="keep it as a tensor buffer that the region updates in place, or compute it outside and pass a param",
        )
    elif change.kind == "container":
        yield _every_call("GS725", "the members of", region, change)
    elif change.kind != "memory" and not change.name.endswith(".grad"):
        hooks = "_hooks[" in change.name
        if hooks or (change.kind in ("object", "replaced") and slot_key(change) in found.by.loaded):
            what = "adds or removes a hook in" if hooks else "reads and replaces"
            yield Diagnostic(
                "GS725",
                f"region '{region}' {what} {change.name} on every call: a graph goes on with what it was captured with",
                hint="do it once in __init__, or in an eager region",
            )


def _tensor(opened: Facts, found: HostChange) -> Iterator[Diagnostic]:
    region, change = found.by.region, found.change
    if any(True for _ in _host_value(found)):
        return
    if change.kind == "memory":
        yield _every_call("GS726", "the memory, shape or dtype of", region, change)
    elif change.name.endswith(".grad"):
        yield Diagnostic(
            "GS726",
            f"region '{region}' leaves a gradient in {change.name}: a replay would neither add to it nor free it",
            hint="return it: torch.autograd.grad(loss, tensors); keeping gradients is not supported yet",
        )
    else:
        # An input that an earlier call kept does not count: what reads it may read the input of this call.
        # Nor does what this very run made, and put into a container that was there before.
        made = opened.inputs.keys() | frozenset().union(*(each.recording.born_keys() for each in found.readers))
        before = [each for each in _tensors(change.before) if each.untyped_storage()._cdata not in made]
        reader = _reader(found.readers, [each for each in before if not opened.is_shared(each, change.name)])
        if reader is not None:
            reads = f"region '{region}' reads {change.name} and then puts"
            if reader != region:
                reads = f"region '{reader}' reads {change.name}, and region '{region}' puts"
            yield Diagnostic(
                "GS726",
                f"{reads} another tensor in its place: a graph goes on reading the old one",
                hint=f"write into it in place: {change.name.removeprefix('model.')}.copy_(...)",
            )


def _every_call(code: str, what: str, region: str, change: Change) -> Diagnostic:
    message = f"region '{region}' changes {what} {change.name} on every call: a graph goes on with what it was captured"
    hint = "keep a tensor of full size that the region updates in place (copy_, index_copy_), or return it"
    return Diagnostic(code, f"{message} with", hint=hint)


def _reader(readers: Collection[Observation], tensors: list[torch.Tensor]) -> str | None:
    """The first region that touched one of these tensors."""
    return next((each.region for each in readers if _knows(each.recording, tensors)), None)


def _knows(recording: Recording, tensors: list[torch.Tensor]) -> bool:
    return any(map(recording.knows, tensors))


def _tensors(value: object) -> Iterator[torch.Tensor]:
    """A tensor, or those in a container."""
    if isinstance(value, torch.Tensor):
        yield value
    for member in _members(value):
        yield from _tensors(member)


def _members(value: object) -> Collection[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (list, tuple, set, frozenset, deque)) else ()


def _alike(before: object, after: object) -> bool:
    """Whether two containers differ in their tensors only."""
    if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
        return True
    first, second = _members(before), _members(after)
    if type(before) is not type(after) or len(first) != len(second):
        return False
    if isinstance(before, (dict, set, frozenset)) and isinstance(after, (dict, set, frozenset)):
        if list(before) != list(after):
            return False
    elif not isinstance(before, (list, tuple, deque)):
        return same(before, after)
    return all(map(_alike, first, second))
