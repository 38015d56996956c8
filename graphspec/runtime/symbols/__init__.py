"""Symbolic tracing: where the value of a param goes in a region, beyond what two values of it can show."""

from __future__ import annotations

from graphspec.runtime.symbols.judge import Judged, judge
from graphspec.runtime.symbols.passes import Stages, SymbolTracer, Target
from graphspec.runtime.symbols.second import reshaping, unfit, unseen
from graphspec.runtime.symbols.trace import Passed, Trace
from graphspec.runtime.symbols.tree import plain

__all__ = ["Judged", "Passed", "Stages", "SymbolTracer", "Target", "Trace", "judge", "plain", "reshaping", "unfit", "unseen"]
