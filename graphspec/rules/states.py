"""GS228 and GS412: what becomes of a state between runs, as far as names and shapes show it. All of it is warnings."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from graphspec.compiler.dims import shape_dims
from graphspec.compiler.values import made_values
from graphspec.errors import Diagnostic
from graphspec.finding import finding
from graphspec.numbers import INTEGERS
from graphspec.rules.sizes import padded_dims
from graphspec.rules.walk import arguments, output_places
from graphspec.spec import Attr, Buffer, Make, Region, Spec, reads

_COUNTED = frozenset(INTEGERS) | {"bool"}


@dataclass
class _Padding:
    """What a region knows of rows that a bucket adds: inputs that have them, by dim, and whether it can tell them.

    Whoever is given a size, a length, a mask, or anything of the model's own is taken to know.
    """

    added: dict[str, Buffer] = field(default_factory=dict)
    told: bool = False

    def take(self, other: _Padding) -> bool:
        """Learn what the region knows whose values this one reads; whether that was new."""
        before = len(self.added), self.told
        self.added = {**other.added, **self.added}
        self.told = self.told or other.told
        return before != (len(self.added), self.told)


def padded_states(spec: Spec) -> Iterator[Diagnostic]:
    """GS412: a state without an axis for rows that a bucket may add, made by a region that cannot tell them.

    Only the model knows what it does with them. Rows whose content the user chose (`pad`) are taken to be harmless,
    and a state of integers to count runs.
    """
    for region, padding in _flow(spec).items():
        if padding.told:
            continue
        for name, path, key in output_places(spec, spec.regions[region]):
            state = spec.buffers.get(name)
            if state is None or state.role != "state" or state.shape is None or state.dtype in _COUNTED:
                continue
            own = shape_dims(state.shape)
            dim = next((dim for dim in padding.added if dim not in own), None)
            if dim is not None:
                message = (
                    f"rows that a bucket adds to '{padding.added[dim].name}' may reach the state '{name}', which has no"
                    f" axis '{dim}' and keeps what they leave for later runs"
                )
                hint = _tell(dim, padding.added[dim])
                yield finding(spec.document, "GS412", message, path, key=key, severity="warning", hint=hint)


def _tell(dim: str, source: Buffer) -> str:
    harmless = "" if source.dtype in INTEGERS else "; or write `pad: 0` where rows of zeros change nothing"
    return (
        f"give the region the real size, a buffer `from: {{size: {dim}}}`, and leave out what is beyond it; or make"
        f" '{dim}' `exact: true`{harmless}"
    )


def _flow(spec: Spec) -> dict[str, _Padding]:
    """What each captured region knows, by itself and through the values it reads; each grows at most once a dim."""
    made = made_values(spec)
    found = {region.name: _own(spec, region) for region in spec.regions.values() if _is_padded(region)}
    readers: dict[str, list[str]] = {name: [] for name in found}
    for name in found:
        for producer in {made.get(value, "") for value in reads(spec.regions[name])} & found.keys():
            readers[producer].append(name)
    pending = deque(found)
    while pending:
        producer = pending.popleft()
        pending.extend(reader for reader in readers[producer] if found[reader].take(found[producer]))
    return found


def _is_padded(region: Region) -> bool:
    """Whether it sees the rows of its bucket. What an eager region makes of real rows is another region's to judge."""
    return not region.eager or region.rows == "bucket"


def _own(spec: Spec, region: Region) -> _Padding:
    names = reads(region)
    inputs = [each for name in names if (each := spec.buffers.get(name)) is not None and each.role == "input"]
    values = [name for name in names if name not in spec.buffers or spec.buffers[name].role != "state"]
    added: dict[str, Buffer] = {}
    for each in inputs:
        if each.pad is None or each.dtype in INTEGERS:  # integers must say what they are padded with
            added.update({dim: each for dim in padded_dims(spec, each.shape) if dim not in added})
    told = (
        any(name in spec.params for name in names)
        or bool(region.updates)
        or any(each.source is not None for each in inputs)
        or any(each.dtype in _COUNTED for each in inputs if len(values) > 1)
        or any(isinstance(value, Attr | Make) for value, _ in arguments(region))
    )
    return _Padding(added, told)


def one_way(spec: Spec) -> Iterator[Diagnostic]:
    """GS228: a state that regions only write, or only read.

    One that the model owns is used by the model itself, and one that a region is given may be written in place.
    """
    written = {name: each.name for each in spec.regions.values() for name in each.outputs}
    read: dict[str, list[Region]] = defaultdict(list)
    for region in spec.regions.values():
        for name in reads(region):
            read[name].append(region)
    looped = {loop.condition for loops in spec.loops.values() for loop in loops}
    states = [each.name for each in spec.buffers.values() if each.role == "state" and each.attr is None]
    for name in (each for each in states if each in written and each not in read.keys() | looped):
        message = f"region '{written[name]}' writes the state '{name}', and no region reads it"
        hint = f"name '{name}' among the inputs of the region that goes on from it; a result has `role: output`"
        yield _one_way(spec, name, message, hint)
    frozen = [each for each in states if each in read and each not in written]
    for name in _unwritten(spec, frozen, read):
        message = f"region '{read[name][0].name}' reads the state '{name}', and no region writes it"
        hint = (
            f"name '{name}' among the outputs of the region that makes its next content; what the caller gives once is"
            " an input with `hold: true`"
        )
        yield _one_way(spec, name, message, hint)


def _one_way(spec: Spec, name: str, message: str, hint: str) -> Diagnostic:
    return finding(spec.document, "GS228", message, ("buffers", name), key=True, severity="warning", hint=hint)


def _unwritten(spec: Spec, names: list[str], read: Mapping[str, list[Region]]) -> list[str]:
    """Those of these states that no reader can write in place."""
    if not names:
        return []
    from graphspec.rules.in_place import Writing  # it parses Python: for the few specs that need it

    writing = Writing(spec)
    return [name for name in names if not any(map(writing.may_happen_in, read[name]))]
