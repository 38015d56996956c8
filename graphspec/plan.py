"""The compiled form of a spec: everything but addresses.

A `Plan` is frozen, free of torch and of devices, and serializable. It says which graphs exist, in which order
they are captured, what each reads and from where, how long each value lives in its pool, and what a run of a
sequence takes and gives. A backend adds memory and addresses, nothing else.

What the spec declares of a region, a buffer or the model rides along as ``declared``, so that who runs a plan needs no
spec. That part is not compared and not serialized: it is for the process that read the file.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from graphspec.errors import InputError
from graphspec.spec import (
    Buckets,
    Buffer,
    CaptureOptions,
    CheckOptions,
    Dim,
    Free,
    FromParam,
    FromSize,
    Loop,
    Model,
    NpuOptions,
    Param,
    Region,
    Scalar,
    Shape,
    Update,
)
from graphspec.turns import Block, block, unrolled, walk

if TYPE_CHECKING:
    from graphspec.document import Document

#: The size of an axis that is whatever comes.
ANY: Final = -1
#: Bytes of one element, by the dtype names the language accepts (torch's own names).
ITEM_BYTES: Mapping[str, int] = {
    "bool": 1, "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float32": 4,
    "int64": 8, "uint64": 8, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip


@dataclass(frozen=True)
class Bucket:
    """One size for each bucketed dim, in the order the spec declares the dims. Empty: nothing is bucketed."""

    sizes: tuple[tuple[str, int], ...] = ()

    def __getitem__(self, dim: str) -> int:
        return dict(self.sizes)[dim]

    def __str__(self) -> str:
        return ", ".join(f"{dim}={size}" for dim, size in self.sizes)

    @property
    def elements(self) -> int:
        """The product of the sizes: what "the smallest that fits" compares."""
        return math.prod(size for _, size in self.sizes)

    def project(self, dims: Iterable[str]) -> Bucket:
        """This bucket as seen by something that depends only on ``dims``."""
        kept = frozenset(dims)
        return Bucket(tuple(pair for pair in self.sizes if pair[0] in kept))


@dataclass(frozen=True)
class Wire:
    """Where a region finds one value it reads.

    ``buffer``: the static buffer of that name. ``param``: the host value. ``graph``: the address at which the
    captured producer writes it, no copy. ``eager``: made by an eager region; a captured reader gets a static copy.
    """

    value: str
    source: Literal["buffer", "param", "graph", "eager"]
    producer: str | None = None


@dataclass(frozen=True)
class RegionPlan:
    """One region, independent of the bucket.

    ``dims`` are the bucketed dims its graphs depend on, through what it reads, declares or receives.
    ``results`` are its outputs a caller can see, ``borrowed`` those of them handed out without a copy; ``write_back``
    are its outputs that are copied into state buffers. ``pool`` is None for an eager region. ``compiler`` is what makes
    one call of it first, None where it is captured as it is. ``declared`` is what the spec says of it; missing in a
    plan that was read from JSON.
    """

    name: str
    eager: bool
    pool: str | None
    dims: tuple[str, ...]
    reads: tuple[Wire, ...]
    outputs: tuple[str, ...]
    results: tuple[str, ...]
    write_back: tuple[str, ...]
    updates: tuple[Update, ...] = ()
    borrowed: tuple[str, ...] = ()
    compiler: str | None = None
    declared: Region = field(default=Region("", ""), compare=False, repr=False)


@dataclass(frozen=True, eq=False)
class Variant:
    """What one set of graphs is captured for: optional inputs that are absent, and values of specialized params.

    ``special`` is sorted by name. Two are equal only where a graph of one is a graph of the other: 0.0 is another value
    than -0.0, and 1 another than true.
    """

    absent: frozenset[str] = frozenset()
    special: tuple[tuple[str, Any], ...] = ()

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Variant) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)

    def __str__(self) -> str:
        """``k=2, without mask``; empty for the only variant of a spec that has no others."""
        values = (f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in self.special)
        return ", ".join((*values, *(f"without {name}" for name in sorted(self.absent))))

    @property
    def _key(self) -> tuple[frozenset[str], str]:
        return self.absent, repr(self.special)  # the text of a number tells what comparing it does not


@dataclass(frozen=True)
class Graph:
    """One graph to capture: a region at a bucket. ``index`` is its place in the capture order of its pool."""

    region: str
    bucket: Bucket
    pool: str
    index: int


@dataclass(frozen=True)
class Event:
    """A region at its place in the order of capture, at the bucket of its own dims.

    ``graph`` is None for an eager region. ``new``: its graph is captured here; otherwise a larger bucket looked the
    same to it. An eager region runs between the captures, so that later ones see real values.
    """

    region: str
    bucket: Bucket
    graph: Graph | None
    new: bool


#: The events of one bucket of the whole spec, in order.
Pass = tuple[Bucket, tuple[Event, ...]]


@dataclass(frozen=True)
class Span:
    """The life of one value in its pool, in capture order, both ends included.

    Memory of the value is its own while the captures ``first`` .. ``last`` are made. After the replay of
    ``first`` it can be read until a capture outside (first, last] is replayed. ``last`` None: held for ever.
    """

    value: str
    pool: str
    bucket: Bucket
    first: int
    last: int | None


@dataclass(frozen=True)
class BufferPlan:
    """A static buffer or declared output: its symbolic shape, and the one allocation all its buckets share.

    ``largest`` is the shape at the largest size of each dim, ``bytes`` its size; None for what the model owns
    (``attr``), and for an output whose shape is not declared. ``static`` False: an output that lives in the memory
    of its graphs, one address a bucket, and is allocated by no one else. ``source``: the host value it is a copy of.
    """

    name: str
    role: Literal["input", "state", "output", "intermediate"]
    dtype: str | None
    shape: Shape | None
    dims: tuple[str, ...]
    largest: tuple[int, ...] | None
    bytes: int | None
    static: bool = True
    source: FromParam | FromSize | None = None
    declared: Buffer = field(default=Buffer(""), compare=False, repr=False)


@dataclass(frozen=True)
class Sequence:
    """What one named sequence replays, takes and gives.

    ``inputs`` are the buffers a caller writes, ``params`` the host values its regions or buffers use, ``results`` the
    names a run returns. ``buckets`` are the combinations a run can take, fewest elements first. ``loops`` repeat some
    of the ``steps``; see `graphspec.spec.Loop`. ``max_pad``: a bucket with more times the elements of a run is none
    that the run takes.
    """

    name: str
    steps: tuple[str, ...]
    dims: tuple[str, ...]
    inputs: tuple[str, ...]
    params: tuple[str, ...]
    results: tuple[str, ...]
    buckets: tuple[Bucket, ...]
    loops: tuple[Loop, ...] = ()
    max_pad: float | None = None

    @property
    def program(self) -> Block:
        """The steps by their places, with the loops around them."""
        return block(len(self.steps), self.loops)

    @property
    def conditions(self) -> tuple[str, ...]:
        """The values that loops go by, once each."""
        return tuple(dict.fromkeys(loop.condition for loop in self.loops))

    @property
    def unrolled(self) -> tuple[str, ...]:
        """The regions in order, with two turns of every loop: whatever may follow each other does so here."""
        return tuple(self.steps[at] for at in unrolled(self.program)) if self.loops else self.steps

    @property
    def taken(self) -> frozenset[int]:
        """The steps after which results are taken: the last place of each region.

        And those before it, as far as a loop that runs no turn would leave them the last.
        """
        found: set[int] = set()
        for region in dict.fromkeys(self.steps):
            around: list[frozenset[Loop]] = []
            for at in (place for place in reversed(range(len(self.steps))) if self.steps[place] == region):
                loops = frozenset(loop for loop in self.loops if at in loop.steps)
                if not any(others <= loops for others in around):
                    found.add(at)
                    around.append(loops)
        return frozenset(found)

    def certain(self) -> Iterator[tuple[int | Loop, Mapping[str, int]]]:
        """Every step and every loop, with the regions that have certainly run before it; see `turns.walk`."""
        return walk(self.steps, self.program)


@dataclass(frozen=True)
class Plan:
    """A compiled spec. ``buckets`` run from the largest to the smallest, as they are captured.

    ``graphs`` is the capture order over all pools, of one variant; ``order`` of a pool is its regions in capture order.
    ``schedule`` has, for every bucket with graphs of its own, what is captured and what is called on the way.
    ``variants`` are the sets of graphs that can be known beforehand: what `choices` of specialized params and the
    presence of optional inputs make, first the one with every default and every input. They are captured when the spec
    is opened or, with ``when`` first_use, by the first run that needs them. ``unlisted`` are specialized params whose
    values are not known beforehand: each further value is one more set of graphs, in a bounded cache.
    """

    name: str
    device: str
    constants: Mapping[str, int]
    buckets: tuple[Bucket, ...]
    buffers: Mapping[str, BufferPlan]
    regions: Mapping[str, RegionPlan]
    pools: Mapping[str, tuple[str, ...]]
    graphs: tuple[Graph, ...]
    spans: tuple[Span, ...]
    sequences: Mapping[str, Sequence]
    variants: tuple[Variant, ...] = (Variant(),)
    unlisted: tuple[str, ...] = ()
    when: Literal["open", "first_use"] = "open"
    digest: str = field(default="", compare=False)
    schedule: tuple[Pass, ...] = field(default=(), compare=False, repr=False)
    dims: Mapping[str, Dim] = field(default_factory=dict, compare=False, repr=False)
    params: Mapping[str, Param] = field(default_factory=dict, compare=False, repr=False)
    model: Model = field(default=Model(""), compare=False, repr=False)
    folder: Path = field(default=Path(), compare=False, repr=False)
    seed: int = field(default=0, compare=False, repr=False)
    sample: str | None = field(default=None, compare=False, repr=False)
    combinations: tuple[Mapping[str, Scalar], ...] = field(default=(), compare=False, repr=False)
    capture: CaptureOptions = field(default=CaptureOptions(), compare=False, repr=False)
    check: CheckOptions = field(default=CheckOptions(), compare=False, repr=False)
    npu: NpuOptions = field(default=NpuOptions(), compare=False, repr=False)
    document: Document | None = field(default=None, compare=False, repr=False)

    @property
    def largest(self) -> dict[str, int]:
        """The size of each dim: its constant, or its largest bucket."""
        return {name: dim.sizes[-1] if isinstance(dim, Buckets) else dim.value for name, dim in self.dims.items()}

    @property
    def trains(self) -> bool:
        """Whether some region runs with autograd."""
        return any(region.declared.trains for region in self.regions.values())

    @property
    def exact(self) -> frozenset[str]:
        """The dims that run at their very sizes only."""
        return frozenset(name for name, dim in self.dims.items() if isinstance(dim, Buckets) and dim.exact)

    def last_captures(self, graph: Graph) -> dict[str, int | None]:
        """For each value of a graph, the last capture of its pool while which it is held; None: for ever."""
        own = (graph.pool, graph.index)
        return {span.value: span.last for span in self.spans if (span.pool, span.first) == own}

    @property
    def opened(self) -> tuple[Variant, ...]:
        """The variants that are captured when the spec is opened."""
        return self.variants if self.when == "open" else self.variants[:1]

    @property
    def conditions(self) -> frozenset[str]:
        """The values that loops of any sequence go by."""
        return frozenset(name for sequence in self.sequences.values() for name in sequence.conditions)

    def condition(self, value: str) -> Wire:
        """Where a loop finds the value that it goes by; without a producer: in a state, which is always there."""
        maker = next((each for each in self.regions.values() if value in each.outputs), None)
        if maker is None or value in maker.write_back:
            return Wire(value, "buffer")
        static = value in self.buffers and self.buffers[value].static
        return Wire(value, "buffer" if static else "eager" if maker.eager else "graph", maker.name)

    @property
    def results(self) -> frozenset[str]:
        """What any sequence returns."""
        return frozenset(name for sequence in self.sequences.values() for name in sequence.results)


def concrete(shape: Shape, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """``shape`` with every dim replaced by its size, `ANY` for an axis that is whatever comes.

    ``sizes`` holds constants and buckets.
    """
    return tuple(
        axis if isinstance(axis, int) else ANY if isinstance(axis, Free) else axis.factor * sizes[axis.dim]
        for axis in shape
    )


def occurs(
    combinations: Iterable[Mapping[str, Scalar]],
    special: Mapping[str, Any],
    absent: Collection[str],
    optional: Collection[str],
) -> bool:
    """Whether a run is one of the combinations that occur; with none listed, every one is.

    ``special`` are the values of its specialized params, ``absent`` the inputs that it leaves out of the ``optional``
    ones of its sequence. What a combination says of others does not count.
    """
    listed = tuple(combinations)

    def holds(name: str, wanted: Scalar) -> bool:
        if name in optional:
            return (name not in absent) == wanted
        return name not in special or repr(special[name]) == repr(type(special[name])(wanted))

    return not listed or any(all(holds(*each) for each in one.items()) for one in listed)


def choose(sequence: Sequence, sizes: Mapping[str, int], exact: Collection[str] = ()) -> Bucket | None:
    """The bucket a run takes: the fitting one with the fewest elements, None if none fits.

    ``sizes`` are the run's real sizes; dims the sequence does not use are ignored. A size fits a bucket that is not
    smaller (0 fits every one); a dim in ``exact`` must have the bucket's very size.

    Raises:
        InputError: no size is given for a dim of the sequence, and its buckets leave a choice.
    """
    for dim in sequence.dims:
        if dim not in sizes and len({bucket[dim] for bucket in sequence.buckets}) > 1:
            raise InputError(
                f"sequence {sequence.name!r} needs a size for dim {dim!r}, and no input of the run has one",
                hint=f"give an input whose shape names {dim!r}, or state it: run(..., sizes={{{dim!r}: ...}})",
            )
    found = next((bucket for bucket in sequence.buckets if _fits(bucket, sizes, exact)), None)
    return found if found is None or _is_filled(found, sizes, sequence.max_pad) else None


def _is_filled(bucket: Bucket, sizes: Mapping[str, int], most: float | None) -> bool:
    """Whether a bucket has no more than ``most`` times the elements of a run."""
    return most is None or bucket.elements <= most * math.prod(sizes.get(dim, size) for dim, size in bucket.sizes)


def _fits(bucket: Bucket, sizes: Mapping[str, int], exact: Collection[str]) -> bool:
    return all(sizes[dim] == size if dim in exact else sizes[dim] <= size for dim, size in bucket.sizes if dim in sizes)
