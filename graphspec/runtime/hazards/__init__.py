"""Finds, during one dry run, what a capture on a device would refuse or freeze. The table is ``graphspec.hazards``."""

from graphspec.runtime.hazards.capturing import capturing, inside_capture
from graphspec.runtime.hazards.fake import TraceEnded
from graphspec.runtime.hazards.hooks import hook_findings, hooked_modules
from graphspec.runtime.hazards.watch import Watch, watch

__all__ = [
    "TraceEnded",
    "Watch",
    "capturing",
    "hook_findings",
    "hooked_modules",
    "inside_capture",
    "watch",
]
