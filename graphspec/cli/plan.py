"""`graphspec plan`: the compiled plan, for a person, a program or a picture."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from graphspec.loading import load_plan
from graphspec.plan import Plan
from graphspec.plan_json import to_json
from graphspec.report import plan_mermaid, plan_text


def _json(plan: Plan) -> str:
    return json.dumps(to_json(plan), indent=2) + "\n"


FORMATS: Mapping[str, Callable[[Plan], str]] = {
    "text": plan_text.render,
    "json": _json,
    "mermaid": plan_mermaid.render,
}


@click.command("plan")
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("--format", "style", type=click.Choice(list(FORMATS)), default="text", show_default=True, help="Output.")
def command(spec: Path, style: str) -> None:
    """Show what SPEC compiles to.

    The order of capture, graphs, pools, buffers with their bytes, and who reads what from whom. Needs no device, no
    torch, and runs no code of the model.
    """
    click.echo(FORMATS[style](load_plan(spec)), nl=False)
