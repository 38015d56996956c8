"""`graphspec doctor`: what this machine can do, and why not more."""

from __future__ import annotations

import click

from graphspec.files import leave_deleted_folder


@click.command("doctor")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(form: str) -> None:
    """Say which devices and versions are here, and why a device cannot be used."""
    leave_deleted_folder()
    from graphspec.cli.output import prints_on_stderr
    from graphspec.report.doctor_text import render
    from graphspec.runtime.doctor import examine, to_json

    with prints_on_stderr():  # what device libraries print when they are loaded
        found = examine()
    if form == "json":
        import json

        click.echo(json.dumps(to_json(found), indent=2))
    else:
        click.echo(render(found), nl=False)
