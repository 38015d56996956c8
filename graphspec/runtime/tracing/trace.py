"""What one pass over the regions of a spec saw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from graphspec.errors import Diagnostic
from graphspec.recording.calls import Recording


@dataclass
class RegionTrace:
    """What one region did in one pass. ``ended``: a value or a kernel was missing before it returned.

    ``origins`` says, when the region began, which region made a storage.
    """

    recording: Recording
    origins: Mapping[int, str]
    outputs: dict[str, Any] = field(default_factory=dict)
    ended: bool = False


@dataclass
class PassResult:
    """Every region that was called, the params they were called with, and what was found."""

    params: Mapping[str, Any]
    regions: dict[str, RegionTrace] = field(default_factory=dict)
    findings: list[Diagnostic] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every region returned."""
        return not any(region.ended for region in self.regions.values())
