"""Semantic checks: one small function a rule, from a spec to its findings."""

from __future__ import annotations

from graphspec.errors import Diagnostic
from graphspec.finding import in_order
from graphspec.rules.registry import ADVICE, RESOLVED_RULES, RULES, breaks_names
from graphspec.spec import Spec


def check(spec: Spec) -> list[Diagnostic]:
    """Every finding of the rules that need no plan (GS2xx, GS4xx to GS6xx), sorted by position."""
    found = [each for rule in RULES for each in rule(spec)]
    if not any(map(breaks_names, found)):
        found += [each for rule in RESOLVED_RULES for each in rule(spec)]
    if all(each.severity == "warning" for each in found):
        found += [each for rule in ADVICE for each in rule(spec)]
    return in_order(found)
