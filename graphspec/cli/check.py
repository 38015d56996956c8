"""`graphspec check`: a spec against its model on fake tensors, without weights and without a device."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

import click

from graphspec import spec as language
from graphspec.cli import devices
from graphspec.cli.output import coloured, prints_on_stderr
from graphspec.cli.progress import Progress
from graphspec.errors import Diagnostic
from graphspec.files import leave_deleted_folder
from graphspec.loading import inspect
from graphspec.report import check_text
from graphspec.report.check_values import CheckReport
from graphspec.report.sources import read_sources

FORMATS = ("text", "json", "github", "sarif")


@click.command("check")
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("--device", metavar="DEVICE", help="Judge for npu, cuda or cpu; auto: for every device.")
@click.option("--format", "style", type=click.Choice(FORMATS), default="text", show_default=True, help="Output.")
@click.pass_context
def command(ctx: click.Context, spec: Path, device: str | None, style: str) -> None:
    """Trace SPEC's model with fake tensors, and list what a capture would refuse.

    Needs no weights, no device and no memory for the model, but runs its code. Exits with 1 if a finding is an error,
    with 3 if the factory fails.
    """
    devices.refuse_unknown(device)
    sources: dict[str, str] = {}
    loaded, findings = inspect(spec, device, sources=sources)
    report = None
    if loaded is not None and not any(each.severity == "error" for each in findings):
        with prints_on_stderr():
            report = _traced(loaded)
        findings = sorted([*findings, *report.findings], key=_place)
    click.echo(_rendered(report, findings, style, sources), nl=False, color=coloured(sys.stdout))
    if any(each.severity == "error" for each in findings):
        ctx.exit(1)


def _traced(loaded: language.Spec) -> CheckReport:
    leave_deleted_folder()
    from graphspec.runtime.check import check_spec

    done = 0
    with Progress() as progress:

        def say(what: str) -> None:
            nonlocal done
            done += 1
            progress(what, done, done + 1)

        return check_spec(loaded, progress=say)


def _place(finding: Diagnostic) -> tuple[str, int, int]:
    return (finding.file or "", finding.line or 0, finding.column or 0)


def _rendered(
    report: CheckReport | None, findings: Sequence[Diagnostic], style: str, sources: Mapping[str, str]
) -> str:
    printer = import_module(f"graphspec.report.findings_{style}")
    if style != "text":
        return str(printer.render(findings, {}))
    text = printer.render(findings, read_sources(findings, sources), colour=coloured(sys.stdout))
    regions = check_text.render(report) if report is not None else ""
    return str(text + regions + printer.summary(findings, 1))
