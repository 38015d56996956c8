"""The capture of a pass: lowered to a plan, then rehearsed, judged and captured as every other spec."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from graphspec.backends.base import Backend
from graphspec.plan import Plan, Variant
from graphspec.runtime.capture.graphs import capture_graphs
from graphspec.runtime.holdings.guard import Guard
from graphspec.runtime.holdings.storages import outside_inference
from graphspec.runtime.inline.installed import Installed
from graphspec.runtime.inline.lessons import Pass
from graphspec.runtime.inline.lowering import TaughtCall, lowered, parts_of
from graphspec.runtime.inline.regions import Backward, Forward, Joint
from graphspec.runtime.opened.context import Context, GraphSet
from graphspec.runtime.replay.guarding import guard_for
from graphspec.runtime.values.buffers import Buffers


@dataclass
class InlineContext(Context):
    """A pass as an opened spec: its samples are what the model was called with, and roots what it was given."""

    parts: Sequence[TaughtCall] = ()

    @property
    def roots(self) -> dict[str, Any]:
        """What regions can reach: the model, the modules, and objects among their arguments."""
        given = {
            f"{part.name}: argument {number}": value
            for part in self.parts
            for number, value in enumerate(part.lesson.objects)
        }
        return {**super().roots, **given}

    def sample_inputs(self, names: tuple[str, ...], sizes: Mapping[str, int], seed: int) -> dict[str, torch.Tensor]:  # noqa: ARG002
        """What each module was called with and, for later seeds, the same elements in other places."""
        turn = seed - self.plan.seed - 1
        made: dict[str, torch.Tensor] = {}
        for part in self.parts:
            for slot, sample in zip(part.inputs, part.lesson.samples, strict=True):
                made[slot.name] = _turned(sample, turn)
            for number, slot in part.gradients.items():
                generator = torch.Generator().manual_seed(seed * 1009 + number)
                made[slot.name] = torch.randn(slot.lying, generator=generator).to(slot.dtype)
        return {name: made[name] for name in names}


@dataclass(frozen=True)
class Captured:
    """The graphs of a pass, and what guards them. ``joints`` by the name of the forward."""

    context: InlineContext
    graphs: GraphSet
    guard: Guard
    joints: Mapping[str, Joint]


def capture_pass(
    plan: Plan,
    model: Any,
    backend: Backend,
    taught: Pass,
    installed: Sequence[Installed],
    regions: Sequence[str],
    pool: str,
) -> Captured:
    """Capture what a pass taught. ``installed`` are the modules, ``regions`` the region of ``plan`` that each is of.

    ``pool`` is a name that no other pass has.
    Raises HazardError with every finding, ModelError, CaptureError, DeviceError; nothing is left behind.
    """
    several = [regions.count(region) > 1 for region in regions]
    names = [f"{r} ({i.name})" if many else r for r, i, many in zip(regions, installed, several, strict=True)]
    parts = parts_of(taught, names)
    made = lowered(plan, taught, parts, regions, [each.name for each in installed], pool)
    joints = {part.name: Joint() for part in parts}
    bound: dict[str, Any] = {}
    for part in parts:
        module, joint = installed[part.lesson.module], joints[part.name]
        bound[part.name] = Forward(made.regions[part.name].declared, part, module, joint)
        if part.backward in made.regions:
            bound[part.backward] = Backward(made.regions[part.backward].declared, part, module, joint)
    with outside_inference():
        buffers = Buffers(made, backend.device)
        context = InlineContext(made, model, bound, buffers, backend, parts=parts)
        with torch.no_grad(), _plainly(installed), _leaves_of_its_own(installed) as originals:
            graphs = capture_graphs(context, Variant())
    for joint in joints.values():
        joint.clear()
        joint.variables = tuple(originals.get(id(variable), variable) for variable in joint.variables)
    return Captured(context, graphs, guard_for(context, graphs), joints)


@contextlib.contextmanager
def _plainly(installed: Sequence[Installed]) -> Iterator[None]:
    """The modules as they were, inside."""
    for each in installed:
        each.undo()
    try:
        yield
    finally:
        for each in installed:
            each.install()


@contextlib.contextmanager
def _leaves_of_its_own(installed: Sequence[Installed]) -> Iterator[Mapping[int, torch.Tensor]]:
    """Inside, parameters are aliases on the same memory, by whose identity the mapping gives the parameters.

    A parameter brings along its hooks, which run in the caller's backward and must not run in a captured one too, and
    the node that adds to its `.grad`, which belongs to the stream of whatever graph of autograd keeps it.
    """
    aliases: dict[int, nn.Parameter] = {}
    originals: dict[int, torch.Tensor] = {}
    replaced: list[tuple[dict[str, Any], str, nn.Parameter]] = []
    for module in (below for each in installed for below in each.module.modules()):
        for name, parameter in module._parameters.items():
            if type(parameter) is nn.Parameter and parameter.requires_grad:
                alias = aliases.setdefault(id(parameter), nn.Parameter(parameter.detach()))
                originals[id(alias)] = parameter
                replaced.append((module._parameters, name, parameter))
    for held, name, parameter in replaced:
        held[name] = aliases[id(parameter)]
    try:
        yield originals
    finally:
        for held, name, parameter in replaced:
            held[name] = parameter


def _turned(sample: torch.Tensor, turn: int) -> torch.Tensor:
    """The same elements one place further on along the last axis that is longer than one: as valid as they were."""
    axes = [axis for axis, size in enumerate(sample.shape) if size > 1]
    return sample.roll(turn, axes[-1]) if turn and axes else sample
