"""`graphspec explain`: what a diagnostic code or a key of the language means."""

from __future__ import annotations

import re

import click

from graphspec.nearest import nearest
from graphspec.report import explanations


def _nearest_code(name: str) -> str:
    return min(explanations.codes(), key=lambda code: abs(int(code[2:]) - int(name[2:])))


@click.command("explain")
@click.argument("name", metavar="[CODE|KEY]", required=False)
def command(name: str | None) -> None:
    """Explain a diagnostic code (GS201), or a key (pad, or buffers.pad for one of several); without one, list all."""
    if name is None:
        click.echo(explanations.overview(), nl=False)
        return
    if re.fullmatch(r"gs\d+", name, flags=re.IGNORECASE):
        text, known = explanations.of_code(name.upper()), explanations.codes()
    else:
        text, known = explanations.of_key(name), explanations.keys()
    if text is None:
        close = _nearest_code(name) if name[2:].isdigit() else nearest(name, known)
        hint = f" Did you mean '{close}'?" if close is not None else ""
        raise click.UsageError(f"There is no code or key '{name}'.{hint}")
    click.echo(text, nl=False)
