"""Environment variables, which a spec has none of."""

from __future__ import annotations

from graphspec.errors import Diagnostic

VARIABLE = r"\$\{[^{}\n]*\}"


def variable_finding(text: str, file: str, line: int, column: int) -> Diagnostic:
    """The refusal of ``${NAME}``."""
    message = f"`{text}` is not supported: a spec has no environment variables"
    hint = "write the value, or declare a dim or a param and use its name"
    return Diagnostic("GS012", message, file=file, line=line, column=column, hint=hint)
