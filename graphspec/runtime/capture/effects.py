"""What a dry run changed besides its results, judged: what a graph repeats, would lose, or would freeze."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from graphspec import spec as language
from graphspec.errors import Diagnostic
from graphspec.recording.calls import Recording, written_refs
from graphspec.runtime.context import Context
from graphspec.runtime.holdings.objects import same
from graphspec.runtime.holdings.storages import Layout, layout_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from graphspec.runtime.holdings.preserve import Change, Session


def input_writes(context: Context, region: language.Region, recording: Recording) -> list[Diagnostic]:
    """A region that writes into an input buffer: eager would change the caller's tensor, a graph changes its own."""
    inputs = context.buffers.input_storages
    found = []
    for index in sorted(recording.written & recording.outside.keys()):
        name = inputs.get(recording.outside[index].storage._cdata)
        if name is None:
            continue
        call = next(c for c in recording.calls if any(ref.storage == index for ref in written_refs(c)))
        found.append(
            Diagnostic(
                "GS724",
                f"region '{region.name}' writes into its input '{name}': {call.name} at {call.site}; eager would "
                "change the caller's tensor, a graph only its own copy",
                file=call.site.file,
                line=call.site.line,
                hint=f"work on {name}.clone(), or make '{name}' a state",
            )
        )
    return found


def layouts(context: Context, region: str, env: Mapping[str, object]) -> dict[str, Layout]:
    """Shape, strides and address of each plain tensor that a region reads."""
    given = {wire.value: env.get(wire.value) for wire in context.plan.regions[region].reads}
    layouts = {name: layout_of(value) for name, value in given.items() if isinstance(value, torch.Tensor)}
    return {name: layout for name, layout in layouts.items() if isinstance(layout, Layout)}


def input_shapes(region: str, before: Mapping[str, Layout], after: Mapping[str, Layout]) -> list[Diagnostic]:
    """A region that gives what it reads another shape or memory in place (``t_``, ``resize_``, ``set_``)."""
    found = []
    for name, layout in before.items():
        if after.get(name) != layout:
            now = after[name]
            what = f"the shape of '{name}' in place, from {list(layout.shape)} to {list(now.shape)}"
            if now.shape == layout.shape:
                what = f"the strides of '{name}' in place, from {list(layout.strides)} to {list(now.strides)}"
            if now[1:3] == layout[1:3]:
                what = f"the memory of '{name}' in place"
            message = f"region '{region}' changes {what}; a replay does not"
            found.append(Diagnostic("GS724", message, hint=f"work on {name}.clone()"))
    return found


def copy_writes(region: str, recording: Recording, copies: Mapping[int, str]) -> list[Diagnostic]:
    """A region that writes into what an eager region made: a graph has a copy of it, in a storage of ``copies``."""
    found = []
    for index in sorted(recording.written & recording.outside.keys()):
        name = copies.get(recording.outside[index].storage._cdata)
        if name is None:
            continue
        call = next(c for c in recording.calls if any(ref.storage == index for ref in written_refs(c)))
        message = (
            f"region '{region}' writes into '{name}', which an eager region made: {call.name} at {call.site}; a graph "
            "has a copy of it, and nobody else would see the change"
        )
        hint = f"work on {name}.clone(), or write it in the eager region"
        found.append(Diagnostic("GS729", message, file=call.site.file, line=call.site.line, hint=hint))
    return found


def changed_names(session: Session) -> set[str]:
    """What `host_changes` would report now, by name."""
    changes = session.changes()
    return {change.name for change in changes.rebound} | ({"host random"} if changes.host_random else set())


@dataclass
class HostChanges:
    """Host state that regions changed: ``errors``, and slots that were ``rebound``, which only some readers notice."""

    errors: list[Diagnostic] = field(default_factory=list)
    rebound: list[tuple[str, Change]] = field(default_factory=list)

    def __iadd__(self, other: HostChanges) -> Self:
        self.errors += other.errors
        self.rebound += other.rebound
        return self

    def judged(self, eager: Collection[str]) -> tuple[list[Diagnostic], list[str]]:
        """Errors and warnings. ``eager`` are the names that the code of eager regions loads."""
        errors, warnings = list(self.errors), []
        for region, change in self.rebound:
            if _attribute(change) in eager:
                errors.append(
                    Diagnostic(
                        "GS726",
                        f"region '{region}' puts something new in {change.name}, and the code of an eager region loads "
                        "that name: a replay does not put it there",
                        hint=f"return it as an output of '{region}', and give it to the eager region as an input",
                    )
                )
            else:
                warnings.append(
                    f"region '{region}' puts something new in {change.name} on every call; a replay does not: return "
                    "it as an output if it is needed"
                )
        return errors, warnings


def _attribute(change: Change) -> str:
    """The last attribute or global on the way to a change: ``cache`` for ``model.cache['k'][0]``."""
    return re.sub(r"(\[[^\]]*\])+$", "", change.name).rpartition(".")[2]


def kept_tensors(
    rebound: Iterable[tuple[str, Change]], recordings: Mapping[str, Recording], session: Session
) -> Iterator[Diagnostic]:
    """Tensors that one call left on the model, and that the next one (``recordings``) reads.

    The inputs of the two are in different memory, so that an input which was kept is told from the next call's own.
    """
    for region, change in rebound:
        after = [tensor for tensor in _tensors(change.after) if not _is_shared(tensor, change.name, session)]
        readers = (name for name, recording in recordings.items() if any(map(recording.knows, after)))
        if (reader := next(readers, None)) is not None:
            yield Diagnostic(
                "GS726",
                f"region '{reader}' reads {change.name}, which region '{region}' left there in the call before: a "
                "graph goes on reading what it was captured with",
                hint=f"write into it in place: {change.name.removeprefix('model.')}.copy_(...)",
            )


def _is_shared(tensor: torch.Tensor, name: str, session: Session) -> bool:
    """Whether another slot holds memory of this tensor too, so that who reads it may have read that one."""
    storage = tensor.untyped_storage()._cdata
    for slot in session.reach.slots_of_storage(tensor):
        own = slot.name == name or slot.name.startswith((f"{name}[", f"{name}."))
        held = None if own else slot.get()
        if isinstance(held, torch.Tensor) and held.untyped_storage()._cdata == storage:
            return True
    return False


def host_changes(
    region: str,
    session: Session,
    readers: Mapping[str, Recording],
    seen: set[str],
    loaded: Collection[str],
    inputs: Collection[int] = (),
) -> HostChanges:
    """What changed of host state since the session was last rewound, each name once.

    ``readers`` are the captured regions that have run by now, with ``region`` itself; ``loaded`` the names that their
    code loads; ``inputs`` the storages of static buffers, which a region may be given and keep.
    """
    found = HostChanges()
    changes = session.changes()
    for change in changes.rebound:
        if change.name in seen:
            continue
        seen.add(change.name)
        finding = _judged(region, change, readers, loaded, inputs, session)
        if finding is not None:
            found.errors.append(finding)
        else:
            found.rebound.append((region, change))
    if changes.host_random and "host random" not in seen:
        seen.add("host random")
        found.errors.append(
            Diagnostic(
                "GS727",
                f"region '{region}' draws random numbers from {' and '.join(changes.host_random)}: a graph freezes "
                "what it drew",
                hint="draw with torch, or pass the number in as a param",
            )
        )
    return found


def _judged(
    region: str,
    change: Change,
    readers: Mapping[str, Recording],
    loaded: Collection[str],
    inputs: Collection[int],
    session: Session,
) -> Diagnostic | None:
    """The error that a change is for sure; None where it depends on who reads the slot."""
    if change.kind == "scalar":
        return Diagnostic(
            "GS725",
            f"region '{region}' changes {change.name} on the host, from {change.before!r} to {change.after!r}: a graph "
            "freezes the value it was captured with",
            hint="keep it as a tensor buffer that the region updates in place, or compute it outside and pass a param",
        )
    if change.kind in ("container", "memory"):
        what = "the members of" if change.kind == "container" else "the memory, shape or dtype of"
        return Diagnostic(
            "GS725" if change.kind == "container" else "GS726",
            f"region '{region}' changes {what} {change.name} on every call: a graph goes on with what it was captured "
            "with",
            hint="keep a tensor of full size that the region updates in place (copy_, index_copy_), or return it",
        )
    if change.name.endswith(".grad"):
        return Diagnostic(
            "GS726",
            f"region '{region}' leaves a gradient in {change.name}: a replay would neither add to it nor free it",
            hint="return it: torch.autograd.grad(loss, tensors); keeping gradients is not supported yet",
        )
    hooks = "_hooks[" in change.name
    if hooks or (change.kind == "object" and change.name.rpartition(".")[2] in loaded):
        what = "adds or removes a hook in" if hooks else "reads and replaces"
        return Diagnostic(
            "GS725",
            f"region '{region}' {what} {change.name} on every call: a graph goes on with what it was captured with",
            hint="do it once in __init__, or in an eager region",
        )
    # An input that an earlier call kept does not count: what reads it may read the input of this call.
    before = [each for each in _tensors(change.before) if each.untyped_storage()._cdata not in inputs]
    before = [each for each in before if not _is_shared(each, change.name, session)]
    reader = next((name for name, recording in readers.items() if any(map(recording.knows, before))), None)
    if reader is None:
        return None
    reads = f"region '{region}' reads {change.name} and then puts"
    if reader != region:
        reads = f"region '{reader}' reads {change.name}, and region '{region}' puts"
    return Diagnostic(
        "GS726",
        f"{reads} another tensor in its place: a graph goes on reading the old one",
        hint=f"write into it in place: {change.name.removeprefix('model.')}.copy_(...)",
    )


def other_contents(rebound: Iterable[tuple[str, Change]], session: Session) -> Iterator[Diagnostic]:
    """Containers that every call replaces, and that hold other host values after a second call than after one."""
    now = {change.name: change.after for change in session.changes().rebound}
    for region, change in rebound:
        if change.kind == "replaced" and change.name in now and not _alike(change.after, now[change.name]):
            yield Diagnostic(
                "GS725",
                f"region '{region}' puts other host values in {change.name} on every call: a graph freezes those it "
                "was captured with",
                hint="keep them as tensors, or return them",
            )


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


def unexplained(names: Collection[str]) -> list[Diagnostic]:
    """Findings for tensors that changed although no operator that ran says it writes them."""
    return [
        Diagnostic(
            "GS728",
            f"{name} changed in a way no operator says: by a kernel with a wrong schema, numpy, or another thread",
            hint="write through torch operators, or run it in an eager region",
        )
        for name in names
    ]


def result_writes(
    context: Context, region: language.Region, recording: Recording, origins: dict[int, str], results: Collection[str]
) -> list[Diagnostic]:
    """A region that writes into another region's result: the result was already copied out, eager would show it."""
    found = []
    for index in sorted(recording.written & recording.outside.keys()):
        name = origins.get(recording.outside[index].storage._cdata)
        buffer = context.plan.buffers.get(name or "")
        if name is None or name not in results or (buffer is not None and buffer.role == "state"):
            continue
        call = next(c for c in recording.calls if any(ref.storage == index for ref in written_refs(c)))
        found.append(
            Diagnostic(
                "GS729",
                f"region '{region.name}' writes into '{name}', a result of the run: {call.name} at {call.site}",
                file=call.site.file,
                line=call.site.line,
                hint=f"work on {name}.clone(), or return the new value under another name",
            )
        )
    return found
