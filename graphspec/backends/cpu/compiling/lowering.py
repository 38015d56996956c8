"""A recording as an FX graph: one node a call, one placeholder for every tensor from outside, no constant.

What the graph reads and writes are its arguments, so a library made of it has nothing burned in: a weight changed in
place is seen, a state is written where it lies, and results are written into memory of the pool. A storage that is
written is one argument, however many views of it come in: arguments of a library must not overlap.

Which recordings cannot be lowered is told by `obstacles`, which `check` asks too, on fake tensors.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from graphspec.recording.calls import Call, Recording, Ref, refs_in
from graphspec.recording.source import Site
from graphspec.recording.writes import effect_of

aten = torch.ops.aten

_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))
_COMMUNICATION = frozenset({"c10d", "_c10d_functional", "npu_custom_dist"})
#: Where one of these is zero or false, attention and dropout draw nothing.
_DRAWN: Mapping[str, Any] = {"dropout_p": 1.0, "dropout": 1.0, "train": True, "training": True}
#: They put another storage, or one of another size, under a tensor.
_RESIZING = ("resize_", "set_", "resize_as_")


@dataclass(frozen=True)
class Obstacle:
    """Why a recording cannot be lowered: what a call does, and at which line of the model."""

    what: str
    site: Site | None = None
    hint: str = "leave `compile` out of the region: graphspec captures it as it is"


@dataclass(frozen=True)
class Lowered:
    """An FX graph over ``arguments``, of which the first ``reads`` are only read; all others are written.

    ``results`` are those of them that the recording made; they come last.

    ``text`` says all of it, whatever the names of nodes: two recordings with the same text are the same library.
    """

    module: fx.GraphModule
    arguments: tuple[Ref, ...]
    reads: int
    results: tuple[Ref, ...]
    text: str


def draws(call: Call) -> bool:
    """Whether a call draws random numbers: an operator that can, unless what it is given leaves nothing to draw."""
    if torch.Tag.nondeterministic_seeded not in call.op.tags:
        return False
    given = call.arguments()
    return all(given.get(name, drawn) for name, drawn in _DRAWN.items())


def obstacles(recording: Recording) -> Iterator[Obstacle]:
    """What keeps a recording from being lowered; nothing where it can be."""
    for call in recording.calls:
        if call.op.namespace in _COMMUNICATION:
            yield Obstacle(f"calls {call.name}, which talks to other ranks", call.site)
        elif not all(map(_is_plain, (*call.args, *call.kwargs.values()))):
            (kind, *_) = [type(v).__name__ for v in (*call.args, *call.kwargs.values()) if not _is_plain(v)]
            yield Obstacle(f"gives {call.name} a {kind}, which only this process has", call.site)
        elif call.op._opname in _RESIZING:
            yield Obstacle(f"calls {call.name}, which changes the memory under a tensor", call.site)
        elif any(_unsaid(call)):
            yield Obstacle(f"calls {call.name}, which writes what its schema does not say", call.site)
        elif any(ref.storage in recording.written for ref in _handed_on(call)):
            yield Obstacle(f"writes into what {call.name} returned, which may be its very argument", call.site)
        elif any(ref.conj or ref.neg for ref in refs_in((*call.args, *call.kwargs.values(), *call.outputs))):
            yield Obstacle(f"gives {call.name} a conjugated or negated view", call.site)
    for storage, entries in _entries(recording).items():
        if storage in recording.written and len({ref.dtype for ref in entries}) > 1:
            yield Obstacle("writes one memory through tensors of several dtypes")


def overlaps(recording: Recording) -> bool:
    """Whether two storages from outside share bytes of which some are written. Only on real memory."""
    spans = []
    for index, outside in recording.outside.items():
        start = outside.storage.data_ptr()
        if outside.storage.nbytes():
            spans.append((start, start + outside.storage.nbytes(), index in recording.written))
    spans.sort()
    end, written = 0, False
    for start, stop, writes in spans:
        if start < end and (written or writes):
            return True
        if stop > end:
            end, written = stop, writes
    return False


def lower(recording: Recording, outputs: Iterable[Ref]) -> Lowered:
    """The graph of a recording without `obstacles`. ``outputs`` must hold their values when a run of it ends.

    Of a result, the tensor that was made is written, or what is returned of it where that is one dense view.
    """
    return _Lowering(recording, tuple(outputs)).finish()


class _Lowering:
    """One recording on its way into a graph."""

    def __init__(self, recording: Recording, outputs: Sequence[Ref]) -> None:
        self._recording = recording
        self._graph = fx.Graph()
        self._nodes: dict[Ref, fx.Node] = {}
        self._born: dict[int, Ref] = {}
        self._lines: list[str] = []
        entries = _entries(recording)
        whole = {s: _whole(recording, s, refs) for s, refs in entries.items() if s in recording.written}
        read = [ref for storage, refs in entries.items() if storage not in recording.written for ref in refs]
        written = list(whole.values())
        self._results = _results(recording, outputs)
        self._reads = len(read)
        self._arguments = (*read, *written, *self._results)
        for number, ref in enumerate(self._arguments):
            self._nodes[ref] = self._graph.placeholder(f"argument_{number}")
            self._say(f"argument {ref.dtype} {ref.size} {ref.stride} {'read' if number < len(read) else 'written'}")
        self._places = {ref: self._nodes.pop(ref) for ref in self._results}
        for storage, place in whole.items():
            for ref in entries[storage]:
                if ref != place:
                    self._nodes[ref] = self._view(self._nodes[place], ref)

    def finish(self) -> Lowered:
        """All calls, and the results copied to where they belong."""
        for call in self._recording.calls:
            self._add(call)
        for ref, place in self._places.items():
            self._call(aten.copy_.default, (place, self._node(ref)), {})
        self._graph.output(())
        module = fx.GraphModule(torch.nn.Module(), self._graph)
        return Lowered(module, self._arguments, self._reads, self._results, "\n".join(self._lines))

    def _add(self, call: Call) -> None:
        if torch.Tag.inplace_view in call.op.tags:  # it changes how one tensor looks at its memory: another view here
            (out,) = refs_in(call.outputs)
            self._nodes[out] = self._view(self._node(call.args[0]), out)
            return
        args = tuple(self._argument(value) for value in call.args)
        kwargs = {name: self._argument(value) for name, value in call.kwargs.items()}
        node = self._call(call.op, args, kwargs)
        returns = call.op._schema.returns
        if len(returns) == 1 and isinstance(call.outputs[0], Ref):
            self._made(call, call.outputs[0], node)
        elif len(returns) == 1 and isinstance(call.outputs[0], tuple):
            self._parts(call, call.outputs[0], node)
        elif len(returns) > 1:
            self._parts(call, call.outputs, node)

    def _parts(self, call: Call, outputs: Sequence[Any], node: fx.Node) -> None:
        for index, output in enumerate(outputs):
            part = self._call(operator.getitem, (node, index), {})
            if isinstance(output, Ref):
                self._made(call, output, part)
            elif isinstance(output, tuple):
                self._parts(call, output, part)

    def _made(self, call: Call, ref: Ref, node: fx.Node) -> None:
        self._nodes[ref] = node
        if ref.storage in call.born:
            self._born.setdefault(ref.storage, ref)

    def _node(self, ref: Ref) -> fx.Node:
        """The node of a place; one that no call returned is a view of the tensor that was made."""
        if ref not in self._nodes:
            self._nodes[ref] = self._view(self._nodes[self._born[ref.storage]], ref)
        return self._nodes[ref]

    def _view(self, of: fx.Node, ref: Ref) -> fx.Node:
        return self._call(aten.as_strided.default, (of, ref.size, ref.stride, ref.offset), {})

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Ref):
            return self._node(value)
        return [self._argument(item) for item in value] if isinstance(value, (tuple, list)) else value

    def _call(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        node = self._graph.call_function(op, args, kwargs)
        named = op.__name__ if op is operator.getitem else f"{op.name()}.{op._overloadname}"
        self._say(f"{node.name} = {named} {args!r} {sorted(kwargs.items())!r}")
        return node

    def _say(self, line: str) -> None:
        self._lines.append(line)


def _entries(recording: Recording) -> dict[int, list[Ref]]:
    """The tensors that come in, by their storage: those of outside memory that no call before returned."""
    known: set[Ref] = set()
    found: dict[int, dict[Ref, None]] = defaultdict(dict)
    for call in recording.calls:
        for ref in refs_in((*call.args, *call.kwargs.values())):
            if not recording.is_born(ref.storage) and ref not in known:
                found[ref.storage][ref] = None
                known.add(ref)
        known.update(refs_in(call.outputs))
    return {storage: list(refs) for storage, refs in found.items()}


def _whole(recording: Recording, storage: int, entries: Sequence[Ref]) -> Ref:
    """The tensor that comes in of a storage; all of it as one axis, where several do, or one that overlaps itself."""
    if len(entries) == 1 and _is_dense(entries[0]):
        return entries[0]
    dtype = entries[0].dtype
    return Ref(storage, dtype, (recording.bytes[storage] // dtype.itemsize,), (1,), 0)


def _results(recording: Recording, outputs: Sequence[Ref]) -> tuple[Ref, ...]:
    """What is written into memory of the pool: one tensor for each storage that results lie in."""
    returned: dict[int, dict[Ref, None]] = defaultdict(dict)
    for ref in outputs:
        if recording.is_born(ref.storage):
            returned[ref.storage][ref] = None
    made: dict[int, Ref] = {}
    for call in recording.calls:
        for ref in refs_in(call.outputs):
            if ref.storage in call.born:
                made.setdefault(ref.storage, ref)
    found = []
    for storage, refs in returned.items():
        (first, *others) = refs
        found.append(first if not others and _is_dense(first) else made[storage])
    return tuple(found)


def _is_dense(ref: Ref) -> bool:
    """Whether no two elements share memory: strides, from the smallest, each step over all that is within."""
    reach = 1
    for stride, size in sorted((stride, size) for size, stride in zip(ref.size, ref.stride, strict=True) if size > 1):
        if stride < reach:
            return False
        reach = stride * (size - 1) + reach
    return True


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return isinstance(value, (Ref, *_PLAIN))


def _handed_on(call: Call) -> Iterator[Ref]:
    """What a call returns of memory that was there before, without a word of it in its schema."""
    for output, returned in zip(call.outputs, call.op._schema.returns, strict=False):
        if returned.alias_info is None:
            yield from (ref for ref in refs_in((output,)) if ref.storage not in call.born)


def _unsaid(call: Call) -> Iterator[Ref]:
    """What a call writes and its schema does not mark."""
    marked = {
        ref
        for name, value in call.arguments().items()
        for ref in refs_in((value,))
        for argument in call.op._schema.arguments
        if argument.name == name and argument.alias_info is not None and argument.alias_info.is_write
    }
    yield from (ref for ref in refs_in(effect_of(call.op).written(call.args, call.kwargs)) if ref not in marked)
