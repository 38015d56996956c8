"""`graphspec explain`: what a diagnostic code, a key of the language or an option of a compiler means."""

from __future__ import annotations

import re

import click

from graphspec.nearest import nearest
from graphspec.report import explanations


def _nearest_code(name: str) -> str:
    return min(explanations.codes(), key=lambda code: abs(int(code[2:]) - int(name[2:])))


@click.command("explain")
@click.argument("name", metavar="[CODE|KEY|COMPILER]", required=False)
def command(name: str | None) -> None:
    """Explain a code (GS201), a key (pad, or buffers.pad for one of several) or a compiler (inductor); or list all."""
    if name is None:
        click.echo(explanations.overview(), nl=False)
        return
    if re.fullmatch(r"gs\d+", name, flags=re.IGNORECASE):
        text, known = explanations.of_code(name.upper()), explanations.codes()
    else:
        text, known = explanations.of_key(name) or explanations.of_compiler(name), explanations.keys()
    if text is None:
        close = _nearest_code(name) if name[2:].isdigit() else nearest(name, known)
        hint = f" Did you mean '{close}'?" if close is not None else ""
        raise click.UsageError(f"There is no code or key '{name}'.{hint}")
    click.echo(text, nl=False)
