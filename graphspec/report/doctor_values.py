"""What this machine can do, as finished values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """One kind of device. ``reason`` says why it cannot be used; None if it can."""

    name: str
    count: int
    models: tuple[str, ...]
    reason: str | None
    notes: tuple[str, ...]
    can: str


@dataclass(frozen=True)
class Examination:
    """What `examine` found. ``versions`` are installed packages, None for one that is not."""

    versions: dict[str, str | None]
    devices: tuple[Device, ...]

    @property
    def auto(self) -> str:
        """What `device: auto` takes here."""
        usable = {device.name for device in self.devices if device.reason is None}
        return next(name for name in ("npu", "cuda", "cpu") if name in usable)
