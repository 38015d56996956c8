"""Side streams of a region: each must fork from the capturing stream and be joined with it.

An unforked stream allocates outside the pool of the graph, an unjoined one fails the capture. The CPU has streams in
name only (torch.cpu.Stream), so that device-agnostic code is judged there too. Joins through events are accepted
as they come: which event belongs to which stream is known to the device only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from graphspec.hazards import UNFORKED, UNJOINED
from graphspec.recording.source import Site, site

if TYPE_CHECKING:
    from graphspec.runtime.hazards.watch import Watch


@dataclass
class Streams:
    """The side streams one watch has seen. Streams are kept alive, so that their ids stay unique."""

    forked: dict[int, Any] = field(default_factory=dict)
    open: dict[int, tuple[Any, str, Site]] = field(default_factory=dict)

    def report_unjoined(self, watch: Watch) -> None:
        """A finding for each stream that was entered and never waited for."""
        for _, name, place in self.open.values():
            watch.report(UNJOINED, name, place)
        self.open.clear()


def entering(watch: Watch, context: Any, _args: tuple[Any, ...]) -> None:
    """A ``with stream(side):`` block begins."""
    stream = context.stream
    if stream is None:
        return
    name = f"torch.{type(context).__module__.split('.')[1]}.stream"
    if id(stream) not in watch.streams.forked:
        watch.report(UNFORKED, name)
    watch.streams.open[id(stream)] = (stream, name, site())


def waiting(watch: Watch, stream: Any, args: tuple[Any, ...]) -> None:
    """``stream.wait_stream(other)``: joins ``other`` if it did work, and forks ``stream``."""
    (other,) = args
    watch.streams.open.pop(id(other), None)
    watch.streams.forked[id(stream)] = stream
