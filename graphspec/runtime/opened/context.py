"""What capture and replay of one opened spec share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol

import torch

from graphspec import plan as plans
from graphspec.backends.base import Backend, CapturedGraph
from graphspec.backends.updates import Binding, specialized
from graphspec.plan import Bucket, Variant, concrete
from graphspec.runtime.holdings.code_names import LoadedNames
from graphspec.runtime.opened.binds import Counter
from graphspec.runtime.opened.regions import BoundRegion
from graphspec.runtime.opened.sharing import SharedModel, Turn
from graphspec.runtime.training.gradients import Gradients
from graphspec.runtime.training.replayed import ReplayedGradients
from graphspec.runtime.values.axes import Axes
from graphspec.runtime.values.buffers import Buffers
from graphspec.runtime.values.eager_copies import StaticCopy
from graphspec.runtime.values.examples import Examples
from graphspec.runtime.values.homes import Homes
from graphspec.runtime.values.samples import alternative_param, checked_sample, default_param, sample
from graphspec.runtime.values.trees import Tree, mapped
from graphspec.spec import Shape

#: Called with each region and bucket as its capture begins.
Progress = Callable[[plans.Event], None]


def variant_of(absent: Iterable[str], special: Mapping[str, Any]) -> Variant:
    """The variant of a run; its values are copies, since who gave a list may change it."""
    return Variant(frozenset(absent), tuple((name, mapped(special[name], _same)) for name in sorted(special)))


def _same(value: Any) -> Any:
    return value


@dataclass
class Context:
    """One opened spec: the plan, the model, and everything that has an address.

    ``turn`` is that of the runner with which it shares pools.
    """

    plan: plans.Plan
    model: Any
    regions: Mapping[str, BoundRegion]
    buffers: Buffers
    backend: Backend
    warnings: list[str] = field(default_factory=list)
    turn: Turn | None = None
    gradients: Gradients = field(default_factory=Gradients)
    compiling: Callable[[plans.Graph], None] = lambda _: None

    @cached_property
    def shared(self) -> SharedModel:
        """What runners over this model share."""
        return SharedModel.of(self.model, self.turn)

    @property
    def device(self) -> torch.device:
        """Where the model and every buffer live."""
        return self.backend.device

    @property
    def roots(self) -> dict[str, Any]:
        """Where everything starts that a region can reach: the model, and what regions call, by their paths."""
        called = {region.declared.call: region.function for region in self.regions.values()}
        around = (region.around.roots for region in self.regions.values() if region.around is not None)
        return {"model": self.model, **called, **{path: each for roots in around for path, each in roots.items()}}

    def counters(self, *names: str) -> list[Counter]:
        """The numbers of the host that params of these regions, or of all, are bound to."""
        asked = (region for name, region in self.regions.items() if not names or name in names)
        bound = [region for region in asked if region.declared.bind]
        return [each for region in bound for each in region.bound() if isinstance(each, Counter)]

    def shape(self, shape: Shape, bucket: Bucket) -> tuple[int, ...]:
        """A symbolic shape at a bucket."""
        return concrete(shape, {**self.plan.constants, **dict(bucket.sizes)})

    def sample_inputs(self, names: tuple[str, ...], sizes: Mapping[str, int], seed: int) -> dict[str, torch.Tensor]:
        """An input for each buffer, as the spec's `sample` says; the same for the same seed."""
        made = {}
        example = self.examples(sizes, seed)
        for position, name in enumerate(names):
            buffer = self.plan.buffers[name].declared
            generator = torch.Generator().manual_seed(seed * 1009 + position)
            shape = concrete(buffer.shape or (), {**self.plan.constants, **sizes})
            if name in example:
                made[name] = example[name]
            elif buffer.sample is not None and buffer.sample.kind == "make":
                given = self.examples.one(buffer.sample.value, sizes, seed)
                made[name] = checked_sample(buffer, given, shape)
            else:
                made[name] = sample(buffer, shape, generator, self.plan.folder)
        return made

    @cached_property
    def examples(self) -> Examples:
        """Inputs and params that fit each other."""
        return Examples(self.plan)

    @cached_property
    def special(self) -> tuple[str, ...]:
        """The params of any sequence that have a set of graphs for each value."""
        used = {name for sequence in self.plan.sequences.values() for name in sequence.params}
        return tuple(sorted(specialized(self.plan, self.backend.can_update) & used))

    def first_variant(self) -> Variant:
        """The variant of a run that gives every input and leaves every param at its default."""
        params = self.default_params(self.plan.buckets[0], {})
        return variant_of((), {name: params[name] for name in self.special})

    def default_params(self, bucket: Bucket, special: Mapping[str, Any], seed: int | None = None) -> dict[str, Any]:
        """Every param at its default, or at the value its graphs are specialized for.

        With a ``seed``: as the example of that seed has it.
        """
        example = {} if seed is None else self.examples(dict(bucket.sizes), seed)
        made = {**{name: value for name, value in example.items() if name in self.plan.params}, **special}
        return {
            name: made[name] if name in made else default_param(param, self.shape(param.shape, bucket))
            for name, param in self.plan.params.items()
        }

    def other_params(self, params: Mapping[str, Any], bucket: Bucket, kept: Collection[str]) -> dict[str, Any]:
        """Another value within its range for each of ``params`` that is not ``kept``, at the sizes of a bucket."""
        largest = dict(bucket.sizes) | dict(self.plan.constants)
        return {
            name: value if name in kept else alternative_param(self.plan.params[name], value, largest)
            for name, value in params.items()
        }

    def warn(self, *messages: str) -> None:
        """Keep warnings for `Runner.warnings`, each once."""
        self.warnings.extend(message for message in dict.fromkeys(messages) if message not in self.warnings)

    def full_bucket(self, bucket: Bucket) -> Bucket:
        """The largest combination of buckets that looks like ``bucket`` to what depends only on its dims."""
        dims = [dim for dim, _ in bucket.sizes]
        return next((full for full in self.plan.buckets if full.project(dims) == bucket), bucket)


@dataclass(frozen=True)
class GraphInfo:
    """One captured graph. ``bytes`` is what its values need in its pool, ``capture_s`` the seconds its capture took.

    ``variant`` is what it was captured for; see `graphspec.plan.Variant`. ``compile_s`` are the seconds its compilation
    took, 0 where it came from a cache; None where it is not compiled.
    """

    region: str
    bucket: Bucket
    pool: str
    operators: int
    bytes: int
    capture_s: float
    variant: Variant
    compile_s: float | None = None


class AroundParts(Protocol):
    """The eager parts of a captured region, as its replays see them. ``params`` are those of the present run."""

    params: Mapping[str, Any]

    def settle(self) -> None:
        """The capture is proven: from now on runs are the caller's."""

    def around(self, replay: Callable[[], None]) -> None:
        """A replay in the surroundings that the region declares."""


@dataclass
class CapturedRegion:
    """A captured graph and where its named outputs are.

    ``outputs`` has, for each output, its structure and the positions of its tensors among the graph's outputs;
    ``homes`` the memory in which they lie. ``gradients``: what a region that trains does with them; None for others.
    ``left``: the numbers of the host that are bound to params, each with what the call left there.
    """

    plan: plans.Graph
    graph: CapturedGraph
    outputs: dict[str, tuple[Tree, tuple[int, ...]]]
    bindings: list[Binding]
    homes: Homes
    capture_s: float = 0.0
    gradients: ReplayedGradients | None = None
    left: Sequence[tuple[Counter, Any]] = ()
    parts: AroundParts | None = None

    def replaying(self) -> Callable[[], None]:
        """What a run calls to replay this graph: with what its eager parts and its gradients need around it."""
        replay = self.graph.replay
        if self.parts is not None:
            replay = partial(self.parts.around, replay)
        return replay if self.gradients is None else partial(self.gradients.around, replay)

    def replay(self) -> None:
        """The bare replay of this graph, with nothing checked and nothing copied."""
        self.graph.replay()

    def info(self, variant: Variant) -> GraphInfo:
        """What is told of this graph."""
        plan, graph = self.plan, self.graph
        return GraphInfo(
            plan.region,
            plan.bucket,
            plan.pool,
            graph.operators,
            graph.bytes,
            self.capture_s,
            variant,
            graph.compile_s,
        )

    def refresh(self, params: Mapping[str, Any]) -> None:
        """Write every update slot from the present params."""
        for position, binding in enumerate(self.bindings):
            self.graph.update(position, binding.convert(params[binding.param]))
        if self.parts is not None:
            self.parts.params = params

    def value(self, name: str) -> Any:
        """One output, in its own structure, on the graph's memory; aliases, which a region may give another shape."""
        tree, positions = self.outputs[name]
        return tree.rebuild([self.graph.outputs[position].detach() for position in positions])

    def tensors(self, name: str) -> list[torch.Tensor]:
        """The tensors of one output, on the graph's memory."""
        return [self.graph.outputs[position] for position in self.outputs[name][1]]


@dataclass
class GraphSet:
    """Every graph of one variant, by region and bucket.

    ``code`` is what the captured code loads and runs on, ``moving`` are the host values that eager regions change;
    ``rebound`` are places that captured regions fill anew in every call and never read before.
    """

    variant: Variant
    regions: dict[tuple[str, Bucket], CapturedRegion]
    copies: dict[tuple[str, Bucket], StaticCopy]
    code: LoadedNames = field(default_factory=LoadedNames)
    moving: set[str] = field(default_factory=set)
    rebound: set[str] = field(default_factory=set)

    def release(self, backend: Backend) -> None:
        """Give the memory of these graphs back."""
        for captured in self.regions.values():
            captured.homes.retire()
        backend.release([captured.graph for captured in self.regions.values()])
        self.regions.clear()

    def axes(self, context: Context, region: str, name: str) -> list[Axes]:
        """Which axes of each tensor of an output are bucketed: as declared, else as its captures show."""
        buffer = context.plan.buffers.get(name)
        if buffer is not None and buffer.shape is not None:
            return [Axes.declared(buffer.shape)]
        captures = [captured for (other, _), captured in self.regions.items() if other == region]
        count = len(captures[0].outputs[name][1])
        return [
            Axes.seen([(captured.plan.bucket, captured.tensors(name)[leaf].shape) for captured in captures])
            for leaf in range(count)
        ]
