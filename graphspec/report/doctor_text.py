"""`graphspec doctor` for a person."""

from __future__ import annotations

from graphspec.report.doctor_values import Device, Examination


def render(found: Examination) -> str:
    """Versions on the first line, then each device: what it is, or why it cannot be used."""
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items() if version is not None)
    absent = ", ".join(name for name, version in found.versions.items() if version is None)
    lines = [versions + (f"; not installed: {absent}" if absent else ""), ""]
    for device in found.devices:
        lines += _device(device)
    lines += ["", f"device: auto is {found.auto} here"]
    return "\n".join(lines) + "\n"


def _device(device: Device) -> list[str]:
    if device.reason is not None:
        head = f"{device.name:<5} no   {device.reason}"
    else:
        models = ", ".join(dict.fromkeys(device.models))
        head = f"{device.name:<5} yes  " + (models if device.count == 1 else f"{device.count} x {models}")
    return [head, *(f"           {note}" for note in device.notes), f"           can: {device.can}"]
