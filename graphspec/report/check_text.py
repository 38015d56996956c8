"""The regions `graphspec check` traced, for a person; the findings have printers of their own."""

from __future__ import annotations

from graphspec.report.check_values import CheckReport, TracedRegion
from graphspec.units import counted, human_bytes


def render(report: CheckReport) -> str:
    """What was built and traced: a line for the model, and one for each region."""
    judged = "every device" if report.device == "auto" else report.device
    size = f"{counted(report.parameters, 'parameter')}, {human_bytes(report.bytes)}"
    return f"{report.spec}: {size}; judged for {judged}\n" + "".join(f"{_region(each)}\n" for each in report.regions)


def _region(region: TracedRegion) -> str:
    kind = "eager, " if region.eager else ""
    ended = ", then the trace ended" if region.ended else ""
    values = "".join(f", {value.name} {list(value.shape)} {value.dtype}" for value in region.outputs)
    place = f" ({region.bucket})" if region.bucket else ""
    return f"{region.name}{place}: {kind}{counted(region.operators, 'operator')}{ended}{values}"
