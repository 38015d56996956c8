"""Which regions of a plan are compiled on the device that was opened."""

from __future__ import annotations

from dataclasses import replace

from graphspec.compilers import lacks
from graphspec.plan import Plan


def uncompiled(plan: Plan, regions: frozenset[str] | None = None) -> Plan:
    """The plan with these regions, or all, captured as they are."""
    found = {
        name: replace(region, compiler=None, declared=replace(region.declared, compile=None, engine="graph"))
        if regions is None or name in regions
        else region
        for name, region in plan.regions.items()
    }
    return replace(plan, regions=found)


def compiled_on(plan: Plan, device: str) -> tuple[Plan, list[str]]:
    """The plan for a kind of device, and a warning where some compiler is not there: those regions are not compiled."""
    missing = {
        name: why for name, region in plan.regions.items() if (why := lacks(region.declared, device)) is not None
    }
    if not missing:
        return plan, []
    names = ", ".join(f"'{name}'" for name in missing)
    regions = "region" if len(missing) == 1 else "regions"
    why = "; ".join(dict.fromkeys(missing.values()))
    return uncompiled(plan, frozenset(missing)), [f"{regions} {names} captured uncompiled: {why}"]


def has_compiled(plan: Plan) -> bool:
    """Whether any region is compiled."""
    return any(region.declared.compile is not None for region in plan.regions.values())
