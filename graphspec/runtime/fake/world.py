"""A rehearsal on fake tensors: no weights, no device, and no values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from graphspec.plan import Bucket
from graphspec.runtime.fake.placement import Placement
from graphspec.runtime.fake.session import FakeSession
from graphspec.runtime.fake.tensors import FakeTensors
from graphspec.runtime.holdings.preserve import Changes
from graphspec.runtime.holdings.reach import Reach
from graphspec.runtime.rehearsal.observation import HostMeeting


class FakeWorld:
    """Goes on after a call that failed: what can still be judged is."""

    goes_on = True

    def __init__(self, tensors: FakeTensors, placement: Placement, session: FakeSession) -> None:
        self._tensors = tensors
        self._placement = placement
        self._session = session

    @property
    def reach(self) -> Reach:
        """What the model and the regions reach."""
        return self._session.reach

    def changes(self) -> Changes:
        """What differs on the host since the last `rewind`."""
        return self._session.changes()

    def rewind(self) -> None:
        """Put everything back to the start."""
        self._session.restore()

    def forget(self, names: Collection[str]) -> None:
        """Take back what was created under these names."""
        self._session.forget(names)

    def settle_flag(self, owner: object, key: str, *, value: bool) -> None:
        """A flag that was flipped once and for all."""
        self._session.settle_flag(owner, key, value=value)

    def held(self, keys: Collection[str]) -> dict[str, Any]:
        """What slots hold now under these keys, by their names."""
        return self._session.held(keys)

    def exchange(self, names: Collection[str], value: object) -> frozenset[str]:
        """Put ``value`` in the slots of these names, until the next `rewind`; gives the names of those that exist."""
        return self._session.exchange(names, value)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Every operator runs on fake tensors, and labels say which would be on the host."""
        with self._tensors.entered(), self._placement.followed():
            yield

    @contextmanager
    def judged(self) -> Iterator[Sequence[HostMeeting]]:
        """Gives the tensors of the host that met such of the device; complete when the block has ended."""
        found: list[HostMeeting] = []
        with self._placement.judged() as met:
            try:
                yield found
            finally:
                for each in met:
                    name = self._session.name_of(each.value)
                    found.append(HostMeeting(each.value, name, each.operator, each.place, each.copies, each.made))

    def fill(self, bucket: Bucket, env: dict[str, Any], params: Mapping[str, Any], number: int) -> None:
        """Nothing: fake tensors have no values."""
