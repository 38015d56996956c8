"""Capture leaves no trace: everything a user can see is, after warm-up and dry runs, as it was before.

``with preserve(roots) as session:`` watches what is run inside. ``session.rewind()`` puts everything back and goes on,
so that every warm-up call and dry run starts from the same state; leaving the block does it once more, exception or
not.

Put back: the content of tensors (contents.py), attributes, containers, closures and globals (objects.py), the memory,
autograd flags, ``.grad`` and hooks of each tensor (tensors.py), random streams and ambient flags (random_state.py).

Limits:
- What the session created and is still alive stays, at its creation value: `Session.keep` results that are wanted.
- A Python value created inside counts as existing from the next `rewind` on, with the value it has then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from graphspec.errors import CaptureError
from graphspec.runtime.holdings.contents import Contents
from graphspec.runtime.holdings.objects import Change, PythonState
from graphspec.runtime.holdings.random_state import Ambient
from graphspec.runtime.holdings.reach import Reach, reach
from graphspec.runtime.holdings.stance import compiled_as_eager
from graphspec.runtime.holdings.storages import quiet
from graphspec.runtime.holdings.tensors import TensorState

if TYPE_CHECKING:
    from typing_extensions import Self

_T = TypeVar("_T")

__all__ = ["Change", "Changes", "Session", "preserve"]


@dataclass(frozen=True)
class Changes:
    """What the run since the last rewind has changed.

    ``written`` names tensors written in place, ``created`` new keys and lazily initialised slots, ``host_random`` the
    global streams of Python or numpy that moved: a value drawn from them would be frozen into the graph.
    """

    rebound: tuple[Change, ...]
    created: tuple[str, ...]
    written: tuple[str, ...]
    host_random: tuple[str, ...]


def preserve(roots: Mapping[str, object], generators: Iterable[torch.Generator] = ()) -> Session:
    """A session, to be entered with ``with``. ``roots`` by name: model, optimizer, inputs; see `reach`."""
    return Session(roots, tuple(generators))


class Session:
    """One ``with preserve(...)`` block. The reports stay readable after it."""

    def __init__(self, roots: Mapping[str, object], generators: tuple[torch.Generator, ...]) -> None:
        self.rebound: list[Change] = []
        self.created: list[str] = []
        self.written: list[str] = []
        self.host_random: tuple[str, ...] = ()
        self.unexplained: list[str] = []
        self._roots = roots
        self._given = generators
        self._failures: list[BaseException] = []

    def __enter__(self) -> Self:
        self._stance = compiled_as_eager()  # before anything is looked at: a compiled function reaches the stance too
        self._stance.__enter__()
        with quiet():
            self._reach = reach(self._roots)
            self._objects = PythonState(self._reach)
            self._tensors = TensorState(self._reach)
            self._contents = Contents(self._describe)
        self._ambient = Ambient.take((*self._given, *(generator for _, generator in self._reach.generators)))
        self._contents.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._contents.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._put_back()
        self._stance.__exit__(None, None, None)
        self._attempt(lambda: self.unexplained.extend(self._contents.unexplained()))
        if self._failures and error is None:
            raise CaptureError(
                f"the state from before the capture could not be put back: {self._failures[0]}",
                hint="build the model anew; what it holds now may differ from before",
            ) from self._failures[0]

    @contextmanager
    def compiled(self) -> Iterator[None]:
        """Inside, torch.compile compiles, although writes are watched: of code whose every write is an operator's."""
        self._contents.below_compiled = True
        try:
            yield
        finally:
            self._contents.below_compiled = False

    @property
    def reach(self) -> Reach:
        """What was reachable at the start, or at the last rewind that followed a creation."""
        return self._reach

    def changes(self) -> Changes:
        """What has changed since the start or the last rewind. Changes nothing."""
        with quiet():
            rebound, created = self._objects.changes()
            memory = self._tensors.changes()
            return Changes((*rebound, *memory), created, self._contents.written(), self._ambient.host_moved())

    def rewind(self) -> Changes:
        """Put everything back now and go on; what had changed until now is returned and added to the reports.

        Raises:
            CaptureError: something could not be put back.
        """
        changes = self._put_back()
        if self._failures:
            raise CaptureError(f"the state could not be put back: {self._failures[0]}") from self._failures[0]
        return changes

    def keep(self, value: Any) -> None:
        """Leave the tensors in ``value`` that were born inside as they are: results for the caller, references."""
        with quiet():
            self._contents.keep(value)

    def expect_writes(self, tensors: Iterable[torch.Tensor]) -> None:
        """These are about to be written by something that shows no operator, such as the replay of a device graph."""
        with quiet():
            self._contents.save(tensors, "a replay")

    def adopt(self, tensors: Iterable[torch.Tensor]) -> None:
        """The content of these, which were created inside, is from now on what they are put back to."""
        with quiet():
            self._contents.adopt(tensors)

    def settle_flag(self, owner: object, key: str, *, value: bool) -> None:
        """A flag that was flipped once and for all: from now on this is what it is put back to."""
        with quiet():
            self._objects.settle(owner, key, value)

    def forget(self, names: Collection[str]) -> None:
        """Take back what was created inside under these names, as `created` reports them."""
        with quiet():
            self._put_back()
            self._objects.forget(names)

    def held(self, keys: Collection[str]) -> dict[str, Any]:
        """What slots hold now under these keys, by their names."""
        return self._objects.held(keys)

    def exchange(self, names: Collection[str], value: object) -> frozenset[str]:
        """Put ``value`` in the slots of these names, until the next `rewind`; gives the names of those that exist."""
        with quiet():
            return self._objects.exchange(names, value)

    def verify(self) -> list[str]:
        """Names of tensors whose content differs, after a rewind, with no operator to explain it. Reads them all."""
        return self._contents.unexplained()

    def _put_back(self) -> Changes:
        """Every step is tried even if another fails, so that one bad tensor does not leave the rest changed."""
        with quiet():
            memory, written, moved = self._tensors.changes(), self._contents.written(), self._ambient.host_moved()
            self._attempt(self._tensors.restore)
            self._attempt(self._contents.restore)
            self._attempt(self._tensors.settle)
            rebound, created = self._attempt(self._objects.restore) or ((), ())
            if created:
                self._attempt(self._extend)
        self._attempt(self._ambient.restore)
        changes = Changes((*rebound, *memory), created, written, moved)
        self._note(changes)
        return changes

    def _extend(self) -> None:
        self._reach = reach(self._roots)
        self._objects.extend(self._reach)
        self._tensors.extend(self._reach)

    def _note(self, changes: Changes) -> None:
        known = {(change.name, change.kind) for change in self.rebound}
        self.rebound += [change for change in changes.rebound if (change.name, change.kind) not in known]
        self.created += [name for name in changes.created if name not in self.created]
        self.written += [name for name in changes.written if name not in self.written]
        self.host_random = tuple(dict.fromkeys((*self.host_random, *changes.host_random)))

    def _attempt(self, step: Callable[[], _T]) -> _T | None:
        try:
            return step()
        except Exception as error:  # noqa: BLE001 # reported once all steps were tried
            self._failures.append(error)
            return None

    def _describe(self, tensor: torch.Tensor) -> str | None:
        slots = self._reach.slots_of(tensor) or self._reach.slots_of_storage(tensor)
        return slots[0].name if slots else None
