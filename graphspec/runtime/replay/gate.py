"""Who may use an opened spec: its own process, one thread at a time, after the capture and before it is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from graphspec.backends.base import Backend
from graphspec.errors import ReplayError
from graphspec.runtime.hazards import capturing
from graphspec.runtime.hazards.surroundings import transform
from graphspec.runtime.opened.process import Forks
from graphspec.runtime.opened.sharing import SharedModel
from graphspec.runtime.replay.commons import Commons
from graphspec.runtime.replay.failures import device_failures


class Gate:
    """The lock and the state of one runner. ``busy`` while a thread is inside. ``commons`` are pools that it shares.

    The lock is that of the model: captures and runs of all runners over it follow each other. It is taken by `with`,
    in C, so that no interrupt comes between taking it and the block.
    """

    def __init__(self, backend: Backend, shared: SharedModel) -> None:
        self.shared = shared
        self.lock = shared.lock
        self.busy = False
        self.captured = False
        self.closed = False
        self.released = False
        self.leave: Callable[[], None] = lambda: None
        self.commons: Commons | None = None
        self._backend = backend
        self._forks = Forks.count

    def turn(self) -> AbstractContextManager[Any]:
        """This thread's turn, for several runs in a row that belong together."""
        self.refuse_other_process()
        return self.shared.queued() if SharedModel.held() else self.lock

    @contextmanager
    def entered(self, *, captured: bool = True) -> Iterator[None]:
        """What a run does around itself, around anything else that uses the graphs."""
        with self.turn():
            self.admit(captured=captured)
            before, self.shared.owner = self.shared.owner, threading.get_ident()
            try:
                self.busy = True
                self._backend.begin()
                if self.commons is not None:
                    self.commons.enter(self)
                with device_failures(self._backend):
                    yield
            finally:
                self.busy = False
                self.shared.owner = before
                self._backend.end()

    def refuse_other_process(self) -> None:
        """Raise ReplayError in a process that was forked off. Before the lock, which nobody would open there."""
        if Forks.count != self._forks:
            raise ReplayError("this runner belongs to the parent process", hint="open the spec again after the fork")

    def admit(self, *, captured: bool = True) -> None:
        """Raise ReplayError where there are no graphs, inside of a capture, and for a runner within itself."""
        refusal = self.refusal(captured=captured)
        if refusal is not None:
            raise refusal

    def refusal(self, *, captured: bool = True) -> ReplayError | None:
        """Why nobody may use the graphs now; None where somebody may."""
        if self.closed:
            return ReplayError("this runner is closed", hint="open the spec again")
        if captured and self.released:
            message = "the graphs of this runner were released"
            return ReplayError(message, hint="call runner.capture() to make them again")
        if captured and not self.captured:
            return ReplayError("nothing is captured yet", hint="call runner.capture() first")
        if self.busy:  # the lock is held by this very thread
            return ReplayError("this runner is already running", hint="a region must not run its own runner")
        if self.commons is not None and self.commons.running(self):
            message = "this runner shares pools with one that is in the middle of a run"
            return ReplayError(message, hint="run one after the other, or open it without `pool=`")
        region = capturing()
        if region is not None:
            return ReplayError(f"a runner cannot run while region '{region}' is being captured")
        around = transform()
        if around is not None:
            return ReplayError(
                f"a runner cannot run inside of {around}", hint="run it outside, and pass its results in"
            )
        return None
