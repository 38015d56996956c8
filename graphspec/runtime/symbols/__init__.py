"""Symbolic tracing: where the value of a param goes in a region, beyond what two values of it can show."""

from __future__ import annotations

from graphspec.runtime.symbols.passes import Stages, SymbolTracer, Target
from graphspec.runtime.symbols.second import Runs, second_run
from graphspec.runtime.symbols.trace import Passed
from graphspec.runtime.symbols.tree import plain

__all__ = ["Passed", "Runs", "Stages", "SymbolTracer", "Target", "plain", "second_run"]
