"""What was seen of regions while they were called: frozen values, on which the laws judge.

An observation keeps no memory of the region alive: recordings know the storages that were born by weak references
only, and of results their structure and form are kept, not the tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from graphspec.errors import CaptureError, Diagnostic
from graphspec.plan import Bucket
from graphspec.recording.calls import Recording
from graphspec.recording.source import Site
from graphspec.runtime.breaks.seen import PartSeen
from graphspec.runtime.holdings.preserve import Change, Changes
from graphspec.runtime.holdings.storages import Layout
from graphspec.runtime.training.gradients import GradientSeen
from graphspec.runtime.values.outputs import MisfitError
from graphspec.runtime.values.trees import Tree

if TYPE_CHECKING:
    from collections.abc import Collection


NO_CHANGES = Changes((), (), (), ())


class NothingToReplayError(CaptureError):
    """A region calls no operator and returns no tensor."""


@dataclass(frozen=True)
class OutputSeen:
    """One output of a call: the host values in its structure, and of each tensor its storage, shape and dtype."""

    constants: tuple[Any, ...]
    storages: tuple[int, ...]
    forms: tuple[tuple[tuple[int, ...], torch.dtype], ...]

    @classmethod
    def of(cls, tree: Tree) -> OutputSeen:
        """What is kept of an output that was taken apart."""
        leaves = tree.leaves
        return cls(
            tree.constants,
            tuple(leaf.untyped_storage()._cdata for leaf in leaves if leaf.layout is torch.strided),
            tuple((tuple(leaf.shape), leaf.dtype) for leaf in leaves),
        )


@dataclass(frozen=True)
class StaleRead:
    """A region was given ``value``, a view of the state ``state`` that region ``writer`` had written back before."""

    value: str
    state: str
    writer: str


@dataclass(frozen=True)
class KeptRead:
    """A region read a tensor of this shape that an earlier call computed from an input, at ``site``, and kept."""

    shape: tuple[int, ...]
    site: Site


@dataclass(frozen=True)
class HostMeeting:
    """An operator takes a tensor, or a numpy number, of the host together with tensors of the device.

    ``name`` is what holds it. ``copies``: it would copy the tensor to the device. ``made`` is where a tensor with no
    name was made.
    """

    value: Any
    name: str | None
    operator: str
    place: Site
    copies: bool = False
    made: Site | None = None


@dataclass(frozen=True)
class Observation:
    """What one call of a captured region did.

    ``params`` are those of the pass, ``other_params`` others in their range. ``read`` are the storages it was given,
    ``layouts`` those of the plain tensors it was given, before and after. ``origins`` and ``copies`` say which value a
    storage was made for, and which hold a copy of what an eager region made, when the call began; ``originals`` those
    that hold what it has copies of. ``changes`` is what differs on the host since the pass began, ``loaded`` the names
    that the code of captured regions has loaded by now. ``hazards`` were found on the way. ``gradients`` is what a
    region that trains did with those of the model. ``parts`` of it stay eager, and
    changed ``moved`` on the host. ``ended``: the call did not return.
    """

    region: str
    bucket: Bucket
    recording: Recording
    params: Mapping[str, Any] = field(default_factory=dict)
    other_params: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, OutputSeen] = field(default_factory=dict)
    read: frozenset[int] = frozenset()
    layouts: tuple[Mapping[str, Layout], Mapping[str, Layout]] = ({}, {})
    origins: Mapping[int, str] = field(default_factory=dict)
    copies: Mapping[int, str] = field(default_factory=dict)
    originals: Mapping[int, str] = field(default_factory=dict)
    stale: tuple[StaleRead, ...] = ()
    kept: tuple[KeptRead, ...] = ()
    met: tuple[HostMeeting, ...] = ()
    misfits: tuple[MisfitError, ...] = ()
    hazards: tuple[Diagnostic, ...] = ()
    changes: Changes = NO_CHANGES
    loaded: frozenset[str] = frozenset()
    parts: tuple[PartSeen, ...] = ()
    moved: frozenset[str] = frozenset()
    gradients: tuple[GradientSeen, ...] = ()
    ended: BaseException | None = None


def slot_key(change: Change) -> str:
    """The last attribute or global on the way to a change: ``cache`` for ``model.cache['k'][0]``."""
    return re.split(r"[.:]", re.sub(r"(\[[^\]]*\])+$", "", change.name))[-1]


@dataclass(frozen=True)
class EagerCall:
    """What one call of an eager region did. What it ``changed`` on the host, by name, is its own affair.

    ``layouts`` are those of the plain tensors it was given, before and after.
    """

    region: str
    bucket: Bucket
    recording: Recording
    outputs: Mapping[str, OutputSeen] = field(default_factory=dict)
    changed: frozenset[str] = frozenset()
    layouts: tuple[Mapping[str, Layout], Mapping[str, Layout]] = ({}, {})
    ended: BaseException | None = None


@dataclass(frozen=True)
class Skipped:
    """A region that was not called, since nothing says the shape of the values ``missing``."""

    region: str
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Rehearsal:
    """One pass over the regions of a bucket. ``eager_loaded`` are the names that the code of eager regions loads.

    ``left`` is what differs on the host after the pass, where somebody asked for it; ``unread`` are the slots whose
    content before the pass is shown to be nothing to it (unread.py).
    """

    bucket: Bucket
    params: Mapping[str, Any]
    seen: Sequence[Observation | EagerCall | Skipped]
    eager_loaded: Collection[str] = ()
    left: tuple[Change, ...] = ()
    unread: frozenset[str] = frozenset()

    def observations(self) -> Iterator[Observation]:
        """The captured regions that were watched, or only recorded, in order."""
        return (each for each in self.seen if isinstance(each, Observation))

    def of(self, region: str) -> Observation | None:
        """What a region did, if it returned."""
        found = (each for each in self.observations() if each.region == region and each.ended is None)
        return next(found, None)

    @property
    def ended(self) -> BaseException | None:
        """Why the pass did not come to its end, or the first region that did not."""
        return next((each.ended for each in self.seen if not isinstance(each, Skipped) and each.ended), None)

    @property
    def moving(self) -> frozenset[str]:
        """The host values that eager regions change."""
        regions = (each.changed for each in self.seen if isinstance(each, EagerCall))
        return frozenset[str]().union(*regions, *(each.moved for each in self.observations()))

    @property
    def leaves_something(self) -> bool:
        """Whether a next run could find something on the host that this one did not."""
        return bool(self.moving) or any(each.changes.rebound for each in self.observations())
