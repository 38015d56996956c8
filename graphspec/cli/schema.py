"""`graphspec schema`: the JSON Schema of the language, for editors."""

from __future__ import annotations

import click

from graphspec.published import schema_text


@click.command("schema")
def command() -> None:
    """Print the JSON Schema of the language."""
    click.echo(schema_text(), nl=False)
