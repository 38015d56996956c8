"""What stays eager inside of a region is not watched as what is captured, and is in no capture."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from graphspec.runtime.hazards.capturing import REGION
from graphspec.runtime.hazards.patches import WATCHED


@contextmanager
def outside_capture() -> Iterator[None]:
    """Inside, this thread captures nothing and is not watched, although the region around it is."""
    region, watch = REGION.set(None), WATCHED.set(None)
    try:
        yield
    finally:
        WATCHED.reset(watch)
        REGION.reset(region)
