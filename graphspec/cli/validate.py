"""`graphspec validate`: schema and rules, without torch, a device, or a line of the model's code being run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import click

from graphspec.cli.output import coloured
from graphspec.errors import Diagnostic
from graphspec.loading import inspect
from graphspec.reading.source import specs_below
from graphspec.report.sources import read_sources

FORMATS = ("text", "json", "github", "sarif")


@click.command("validate")
@click.argument("specs", metavar="SPEC...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--format", "style", type=click.Choice(FORMATS), default="text", show_default=True, help="Output.")
@click.pass_context
def command(ctx: click.Context, specs: tuple[Path, ...], style: str) -> None:
    """Check every SPEC, and print all findings of all of them.

    A folder stands for every spec below it, `-` for standard input. Exits with 1 if any finding is an error.
    """
    sources: dict[str, str] = {}
    files = [file for spec in specs for file in specs_below(spec)]
    findings = [each for file in files for each in inspect(file, sources=sources)[1]]
    click.echo(_rendered(findings, len(files), style, sources), nl=False, color=coloured(sys.stdout))
    if any(each.severity == "error" for each in findings):
        ctx.exit(1)


def _rendered(findings: list[Diagnostic], specs: int, style: str, sources: Mapping[str, str]) -> str:
    report = import_module(f"graphspec.report.findings_{style}")
    if style != "text":
        return str(report.render(findings, {}))
    text = report.render(findings, read_sources(findings, sources), colour=coloured(sys.stdout))
    return str(text + report.summary(findings, specs))
