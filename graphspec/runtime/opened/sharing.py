"""What every runner over one model shares: one lock, so that a capture or a run is alone with the model, one clock.

A capture runs the model on samples and puts everything back; a run of another runner in between would see them. Two
runners over one model therefore take turns, whichever threads they are in. Runners of different models never wait for
each other, except where a region of one runs the other: a circle of threads that wait is refused, not waited out.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from graphspec.errors import ReplayError
from graphspec.runtime.opened.process import Forks
from graphspec.runtime.values.blocks import Block, Clock, bytes_at


def _whole(reference: StorageWeakRef) -> torch.Tensor:
    storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
    assert storage is not None
    return bytes_at(storage, 0, storage.nbytes())


class _Thread(threading.local):
    """``held``: whether this thread is inside of a run. A default here, since a missing attribute is slow to miss."""

    held = False


class _Inside:
    """Marks a thread as inside of a run. Not a generator, which would cost more than the rest of a short step."""

    __slots__ = ("_before", "_local")

    def __init__(self, local: _Thread) -> None:
        self._local = local

    def __enter__(self) -> None:
        self._before = self._local.held
        self._local.held = True

    def __exit__(self, *_: object) -> None:
        self._local.held = self._before


class Turn:
    """One lock, held by one thread at a time, and one clock. ``owner`` is the thread that holds the lock, if one does.

    One for each model; runners that share pools have one for all their models.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.owner: int | None = None
        self.clock = Clock()


class SharedModel:
    """One model, and whose turn it is with it."""

    #: By identity of the model, as long as a runner of it lives: runners know of each other by their model only.
    _known: ClassVar[WeakValueDictionary[int, SharedModel]] = WeakValueDictionary()
    _guard: ClassVar[threading.Lock] = threading.Lock()
    #: For each thread that holds a model and waits for another one: that one.
    _waiting: ClassVar[dict[int, Turn]] = {}
    _inside: ClassVar[_Thread] = _Thread()

    def __init__(self, model: Any, turn: Turn | None = None) -> None:
        self.model = model
        self.turn = Turn() if turn is None else turn
        self.lock = self.turn.lock
        self._blocks: dict[int, tuple[StorageWeakRef, Block]] = {}

    @property
    def owner(self) -> int | None:
        """The thread whose turn it is."""
        return self.turn.owner

    @owner.setter
    def owner(self, thread: int | None) -> None:
        self.turn.owner = thread

    @property
    def clock(self) -> Clock:
        """The clock of everything that its runners make and write."""
        return self.turn.clock

    def block(self, tensor: torch.Tensor) -> Block:
        """The block of a tensor that graphspec did not allocate: one for all runners."""
        storage = tensor.untyped_storage()
        found = self._blocks.get(storage._cdata)
        if found is None or found[0].expired():
            label = f"a tensor {list(tensor.shape)} of the model"
            reference = StorageWeakRef(storage)  # as long as it is held, the address means this storage
            found = self._blocks[storage._cdata] = (reference, Block(label, lambda: _whole(reference)))
        return found[1]

    @classmethod
    def of(cls, model: Any, turn: Turn | None = None) -> SharedModel:
        """What the runners of ``model`` share: the same for all of them.

        Raises ReplayError where they take turns already, and not ``turn``.
        """
        with cls._guard:
            found = cls._known.get(id(model))
            if found is None:
                found = cls._known[id(model)] = cls(model, turn)
            if turn is not None and found.turn is not turn:
                message = "the model has a runner already, which does not share pools with the one that is given"
                raise ReplayError(message, hint="close it first, or open it with `pool=` too")
            return found

    @classmethod
    def inside(cls) -> _Inside:
        """Around code of the user's that may run another runner while this thread holds a model."""
        return _Inside(cls._inside)

    @classmethod
    def held(cls) -> bool:
        """Whether this thread is inside of a run, so that waiting for another model could close a circle."""
        return cls._inside.held

    @contextmanager
    def queued(self) -> Iterator[None]:
        """Hold the lock, from within a run. Raises ReplayError where no thread could ever go on."""
        me = threading.get_ident()
        with self._guard:
            if self.owner != me:
                self._refuse_circle(me)
                self._waiting[me] = self.turn
        try:
            with self.lock:
                self._waiting.pop(me, None)
                yield
        finally:
            self._waiting.pop(me, None)

    def _refuse_circle(self, me: int) -> None:
        """Follow who waits for whom; it must not lead back to this thread."""
        wanted: Turn | None = self.turn
        while wanted is not None and wanted.owner is not None:
            if wanted.owner == me:
                message = "threads wait for each other in a circle: each runs a model inside of a region of another's"
                raise ReplayError(message, hint="run the inner model before the outer one, or from one thread only")
            wanted = self._waiting.get(wanted.owner)

    @classmethod
    def after_fork(cls) -> None:
        """Forget what other threads of the parent held."""
        cls._guard = threading.Lock()
        cls._waiting.clear()


Forks.call(SharedModel.after_fork)
