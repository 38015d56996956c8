"""The language as frozen dataclasses: what a checked document says, with every default filled in.

A `Spec` holds meaning only. It is built from a `Document` that has passed the schema, so the builders here
never report; names are resolved and proven by the rules. Sizes stay symbolic until a bucket is chosen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from graphspec.files import is_there

if TYPE_CHECKING:
    from graphspec.document import Document

Scalar = bool | int | float | str
Mode = Literal["eval", "train"]
#: How a device is named: kinds of which a machine has several take an index.
DEVICE: Final = re.compile(r"auto|cpu|(cuda|npu)(:[0-9]+)?")


class _Value:
    """Equality, hash and text of the classes here. Generated for each of them, they are a tenth of `validate`."""

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self) -> int:
        return hash((self.__class__, *vars(self).values()))

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


@dataclass(frozen=True, eq=False, repr=False)
class Constant(_Value):
    """A dim with one size."""

    value: int


@dataclass(frozen=True, eq=False, repr=False)
class Buckets(_Value):
    """A dim with several sizes, ascending. ``exact``: padding would change results, so only these sizes run."""

    sizes: tuple[int, ...]
    exact: bool = False


Dim = Constant | Buckets


@dataclass(frozen=True, eq=False, repr=False)
class DimSize(_Value):
    """An axis that is ``factor`` times the size of a dim, written ``batch`` or ``2*batch``."""

    dim: str
    factor: int = 1

    def __str__(self) -> str:
        return self.dim if self.factor == 1 else f"{self.factor}*{self.dim}"


@dataclass(frozen=True, eq=False, repr=False)
class Free(_Value):
    """An axis that is whatever comes, written ``_``: of what a region makes."""

    def __str__(self) -> str:
        return "_"


Axis = int | DimSize | Free
Shape = tuple[Axis, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Sample(_Value):
    """How to make an input that was not given. ``kind`` is one of the language's sample kinds.

    ``value`` is what the spec wrote beside it: [low, high] for randint and uniform, [mean, std] for normal,
    a number or nested list for value, a path for file, a function for make.
    """

    kind: Literal["normal", "uniform", "randint", "value", "file", "make"]
    value: Any = None


@dataclass(frozen=True, eq=False, repr=False)
class Param(_Value):
    """A host value that may change between replays without a new capture."""

    name: str
    type: Literal["int", "float", "bool", "str"]
    shape: Shape = ()
    min: int | float | str | None = None  # a number, or the name of a dim
    max: int | float | str | None = None
    default: Any = None
    pad: Scalar | None = None
    choices: tuple[Scalar, ...] | None = None
    specialize: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class FromParam(_Value):
    """The buffer is the device copy of this param."""

    param: str


@dataclass(frozen=True, eq=False, repr=False)
class FromSize(_Value):
    """The buffer holds the run's size of this dim: the real one, or the padded one (``bucket``)."""

    dim: str
    bucket: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class Buffer(_Value):
    """A static buffer (input, state), a declared result (output), or another declared value (intermediate)."""

    name: str
    role: Literal["input", "state", "output", "intermediate"] = "input"
    shape: Shape | None = None
    dtype: str | None = None
    pad: Scalar | None = None
    init: Any = None
    attr: str | None = None
    source: FromParam | FromSize | None = None  # the key `from`
    sample: Sample | None = None
    optional: bool = False
    hold: bool = False
    cast: bool = False
    layout: Literal["contiguous", "channels_last", "channels_last_3d"] | None = None
    static: bool = False
    copy: bool = True

    @property
    def is_made(self) -> bool:
        """Whether it declares what a region makes, not an allocation that is there before."""
        return self.role in ("output", "intermediate")


@dataclass(frozen=True, eq=False, repr=False)
class Name(_Value):
    """The value of this name: a buffer, a param or a region output."""

    name: str


@dataclass(frozen=True, eq=False, repr=False)
class Const(_Value):
    """A literal of the spec."""

    value: Any


@dataclass(frozen=True, eq=False, repr=False)
class Attr(_Value):
    """An object the model owns, passed as it is."""

    path: str


@dataclass(frozen=True, eq=False, repr=False)
class ListOf(_Value):
    """A list argument."""

    items: tuple[Value, ...]


@dataclass(frozen=True, eq=False, repr=False)
class DictOf(_Value):
    """A dict argument."""

    items: Mapping[str, Value]


@dataclass(frozen=True, eq=False, repr=False)
class Make(_Value):
    """A structured argument: what ``factory`` returns for these keywords."""

    factory: str
    arguments: Mapping[str, Value]


Value = Name | Const | Attr | ListOf | DictOf | Make


@dataclass(frozen=True, eq=False, repr=False)
class Update(_Value):
    """An operator argument refreshed from a param before every replay.

    ``at`` picks occurrences in capture order, ``within`` those called inside a module (a glob); ``each`` spreads
    the first axis of the param over them.
    """

    op: str
    arg: str
    param: str  # the key `from`
    at: tuple[int, ...] | None = None
    within: str | None = None
    each: Literal["occurrence"] | None = None
    strategy: Literal["update", "specialize"] = "update"


@dataclass(frozen=True, eq=False, repr=False)
class Compile(_Value):
    """The region's callable is compiled first, then captured as one call (or captures itself)."""

    backend: str
    mode: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, repr=False)
class Around(_Value):
    """What is called before and after every call of a region: a context manager, or with ``after`` two functions.

    ``call`` and ``after`` are paths that begin with `model`, or those of functions as a factory's. ``positional`` and
    ``keyword`` None: ``call`` is given the inputs of the region.
    """

    call: str
    positional: tuple[Value, ...] | None = None
    keyword: Mapping[str, Value] | None = None
    after: str | None = None

    @property
    def values(self) -> tuple[Value, ...]:
        """Its arguments, where they are not the region's."""
        return (*(self.positional or ()), *(self.keyword or {}).values())

    @property
    def paths(self) -> tuple[str, ...]:
        """What it calls."""
        return (self.call,) if self.after is None else (self.call, self.after)


@dataclass(frozen=True, eq=False, repr=False)
class Region(_Value):
    """A callable that is captured once for each bucket and replayed as one graph.

    ``inputs`` is positional or keyword; ``outputs`` maps a value name to a path into what the call returns:
    the empty path is the return value itself, ``0.keys`` goes through indices, dict keys and attributes.
    """

    name: str
    call: str
    positional: tuple[Value, ...] = ()
    keyword: Mapping[str, Value] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    warmup: int = 3
    on_miss: Literal["error", "eager"] = "error"
    max_pad: float | None = None
    updates: tuple[Update, ...] = ()
    pad_rows: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    eager: bool = False
    rows: Literal["real", "bucket"] = "real"
    around: Around | None = None
    mode: Mode | None = None
    autocast: str | None = None
    inline: bool = False
    backward: bool = False
    optimizer: tuple[str, ...] = ()
    grads: Literal["overwrite", "accumulate"] | None = None
    allow_unused: bool = False
    bind: Mapping[str, str] = field(default_factory=dict)
    generators: tuple[str, ...] = ()
    hooks: Literal["refuse", "allow"] = "refuse"
    compile: Compile | None = None
    engine: Literal["graph", "compiled"] = "graph"
    breaks: tuple[str, ...] = ()  # the key `break`

    @property
    def arguments(self) -> tuple[Value, ...]:
        """Everything that is passed in its calls: to the callable, and to what is called around it."""
        around = () if self.around is None else self.around.values
        return (*self.positional, *self.keyword.values(), *around)

    @property
    def updated_operators(self) -> frozenset[str]:
        """The operators that updates name, without their overloads."""
        return frozenset(update.op.partition(".")[0] for update in self.updates)

    @property
    def trains(self) -> bool:
        """Whether it runs with autograd: it computes gradients into ``.grad``, steps an optimizer, or both."""
        return (bool(self.optimizer) or self.grads is not None) and not self.inline


@dataclass(frozen=True, eq=False, repr=False)
class Model(_Value):
    """Where the model comes from. ``args`` still holds ``{dim: NAME}`` and ``{device: true}``."""

    factory: str
    args: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None
    dtype: str | None = None
    mode: Mode = "eval"


@dataclass(frozen=True, eq=False, repr=False)
class CaptureOptions(_Value):
    """How graphs are captured. ``memory_budget`` is in bytes; ``when`` is for all variants but the first."""

    error_mode: Literal["global", "thread_local", "relaxed"] = "global"
    gc: bool = False
    memory_budget: int | None = None
    max_graphs: int | None = None
    when: Literal["open", "first_use"] = "open"


@dataclass(frozen=True, eq=False, repr=False)
class CheckOptions(_Value):
    """The comparison with eager: its tolerances, and on every how many runs it is made; 0 for none."""

    rtol: float = 1e-5
    atol: float = 1e-6
    every: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class NpuOptions(_Value):
    """Ascend extras, passed to torch_npu after a check."""

    super_kernel: Mapping[str, Any] | None = None
    debug_dump: str | None = None
    handlers: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class Loop(_Value):
    """Steps that a run repeats while a value is true, ``{while: condition, do: [...]}``.

    They are ``steps[first:stop]`` of their sequence, which lists every region once for each place in the file: what a
    loop adds is that they run zero, one or more times. One loop lies inside of another, or beside it. ``limit`` is the
    key `max`: so often at most.
    """

    condition: str
    first: int
    stop: int
    limit: int | None = None

    @property
    def steps(self) -> range:
        """The places of its steps."""
        return range(self.first, self.stop)


@dataclass(frozen=True)  # with methods of its own, which leave the document out
class Spec:
    """A whole spec. ``sequences`` is the key `replay`; a bare list is the one sequence named ``replay``.

    ``loops`` are those of each sequence that has some, in the order of the file: an outer one before its inner ones.
    ``variants`` are the combinations of specialized params and optional inputs that occur; none: all of them.
    ``sample`` is the function that gives inputs and params which fit each other.
    """

    name: str
    model: Model
    regions: Mapping[str, Region]
    sequences: Mapping[str, tuple[str, ...]]
    device: str = "auto"
    seed: int = 0
    dims: Mapping[str, Dim] = field(default_factory=dict)
    buckets: tuple[Mapping[str, int], ...] | None = None
    params: Mapping[str, Param] = field(default_factory=dict)
    buffers: Mapping[str, Buffer] = field(default_factory=dict)
    pools: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sample: str | None = None
    variants: tuple[Mapping[str, Scalar], ...] = ()
    capture: CaptureOptions = CaptureOptions()
    check: CheckOptions = CheckOptions()
    npu: NpuOptions = NpuOptions()
    loops: Mapping[str, tuple[Loop, ...]] = field(default_factory=dict)
    document: Document | None = field(default=None, repr=False, compare=False)

    @property
    def folder(self) -> Path:
        """The folder that paths inside the spec are relative to.

        It is the spec's own; or, where the spec is a link and the file of the factory is not beside the link, that of
        the file the link points at.
        """
        if self.document is None:
            return Path()
        path, factory = self.document.path, self.model.factory.rpartition(":")[0]
        if factory.endswith(".py") and path.is_symlink() and not is_there(path.parent / factory):
            linked = path.resolve().parent
            return linked if is_there(linked / factory) else path.parent
        return path.parent


def names_in(value: Value) -> tuple[str, ...]:
    """Every value name inside an argument, in order."""
    match value:
        case Name(name):
            return (name,)
        case ListOf(items):
            return tuple(name for item in items for name in names_in(item))
        case DictOf(items):
            return tuple(name for item in items.values() for name in names_in(item))
        case Make(_, arguments):
            return tuple(name for item in arguments.values() for name in names_in(item))
        case Const() | Attr():
            return ()


def reads(region: Region) -> tuple[str, ...]:
    """Every value name a region takes, once each, in order of first appearance."""
    return tuple(dict.fromkeys(name for value in region.arguments for name in names_in(value)))


def producers(spec: Spec) -> dict[str, str]:
    """The region that makes each value: region outputs only, the first region where a name has several."""
    made: dict[str, str] = {}
    for region in spec.regions.values():
        for name in region.outputs:
            made.setdefault(name, region.name)
    return made
