"""Side streams of a region: each must fork from the capturing stream and be joined with it.

An unforked stream allocates outside the pool of the graph, an unjoined one fails the capture. The CPU has streams in
name only (torch.cpu.Stream), so that device-agnostic code is judged there too. Joins through events are accepted
as they come: which event belongs to which stream is known to the device only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from graphspec.hazards import UNFORKED, UNJOINED, Hazard
from graphspec.recording.source import Site, site


@dataclass
class Streams:
    """The side streams one watch has seen. Streams are kept alive, so that their ids stay unique.

    ``report`` takes a hazard, the name of what was called, and the line where it is not the running one.
    """

    report: Callable[[Hazard, str, Site | None], None]
    forked: dict[int, Any] = field(default_factory=dict)
    open: dict[int, tuple[Any, str, Site]] = field(default_factory=dict)

    def report_unjoined(self) -> None:
        """A finding for each stream that was entered and never waited for."""
        for _, name, place in self.open.values():
            self.report(UNJOINED, name, place)
        self.open.clear()

    def entering(self, context: Any, _args: tuple[Any, ...]) -> None:
        """A ``with stream(side):`` block begins."""
        stream = context.stream
        if stream is None:
            return
        name = f"torch.{type(context).__module__.split('.')[1]}.stream"
        if id(stream) not in self.forked:
            self.report(UNFORKED, name, None)
        self.open[id(stream)] = (stream, name, site())

    def waiting(self, stream: Any, args: tuple[Any, ...]) -> None:
        """``stream.wait_stream(other)``: joins ``other`` if it did work, and forks ``stream``."""
        (other,) = args
        self.open.pop(id(other), None)
        self.forked[id(stream)] = stream
