"""Where regions are rehearsed. What a rehearsal does is the same in every world; what it works on is not.

The real world has the tensors that will be captured, and everything is put back; it stops at the first call that
fails. The fake one (``runtime.fake``) has shapes and no values, and goes on with what the spec declares.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch

from graphspec.plan import Bucket, Variant
from graphspec.runtime.holdings.preserve import Changes, Session
from graphspec.runtime.holdings.reach import Reach
from graphspec.runtime.opened.context import Context
from graphspec.runtime.rehearsal.observation import HostMeeting


class World(Protocol):
    """What a rehearsal needs of the place it happens in."""

    #: Whether a pass goes on after a call that failed, with what the spec declares in place of its results.
    goes_on: bool

    @property
    def reach(self) -> Reach:
        """What the model and the regions reach, by the names of its slots."""

    def changes(self) -> Changes:
        """What differs on the host since the last `rewind`."""

    def rewind(self) -> None:
        """Put everything back to the start."""

    def forget(self, names: Collection[str]) -> None:
        """Take back what was created under these names."""

    def held(self, keys: Collection[str]) -> dict[str, Any]:
        """What slots hold now under these keys, by their names."""

    def exchange(self, names: Collection[str], value: object) -> frozenset[str]:
        """Put ``value`` in the slots of these names, until the next `rewind`; gives the names of those that exist."""

    def entered(self) -> AbstractContextManager[None]:
        """Around a pass."""

    def judged(self) -> AbstractContextManager[Sequence[HostMeeting]]:
        """Around a call that is judged; gives the tensors of the host that met such of the device in it."""

    def fill(self, bucket: Bucket, env: dict[str, Any], params: Mapping[str, Any], number: int) -> None:
        """Give the static buffers the inputs of pass ``number``."""


class RealWorld:
    """The tensors that will be captured, inside of a session that puts everything back."""

    goes_on = False

    def __init__(self, context: Context, variant: Variant, session: Session) -> None:
        self._context = context
        self._variant = variant
        self.session = session

    @property
    def reach(self) -> Reach:
        """What the model and the regions reach."""
        return self.session.reach

    def changes(self) -> Changes:
        """What differs on the host since the last `rewind`."""
        return self.session.changes()

    def rewind(self) -> None:
        """Put everything back to the start."""
        self.session.rewind()

    def forget(self, names: Collection[str]) -> None:
        """Take back what was created under these names."""
        self.session.forget(names)

    def held(self, keys: Collection[str]) -> dict[str, Any]:
        """What slots hold now under these keys, by their names."""
        return self.session.held(keys)

    def exchange(self, names: Collection[str], value: object) -> frozenset[str]:
        """Put ``value`` in the slots of these names, until the next `rewind`; gives the names of those that exist."""
        return self.session.exchange(names, value)

    def entered(self) -> AbstractContextManager[None]:
        """Nothing to enter: the session is open."""
        return nullcontext()

    @contextmanager
    def judged(self) -> Iterator[Sequence[HostMeeting]]:
        """Real tensors refuse to meet on two devices."""
        yield ()

    def fill(self, bucket: Bucket, env: dict[str, Any], params: Mapping[str, Any], number: int) -> None:
        """Sampled inputs, and the device copies of params and sizes."""
        context = self._context
        given = tuple(
            name
            for name, buffer in context.plan.buffers.items()
            if buffer.role == "input" and buffer.source is None and name not in self._variant.absent
        )
        made = context.sample_inputs(given, dict(bucket.sizes), seed=context.plan.seed + number)
        for name, value in made.items():
            tensor: torch.Tensor = env[name]
            tensor.copy_(value)
        context.buffers.refresh(dict(bucket.sizes), bucket, params)
