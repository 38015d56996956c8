"""Failures of a device, told apart from bugs: what torch raises for them becomes one clear error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from graphspec.backends.base import Backend


@contextmanager
def device_failures(backend: Backend) -> Iterator[None]:
    """Around graphspec's own work on a device. Raises DeviceError, from the device's error, where the device failed."""
    try:
        yield
    except RuntimeError as error:
        failure = backend.failure(error)
        if failure is None:
            raise
        raise failure from error
