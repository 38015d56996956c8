"""`graphspec run`: capture a spec, compare its replays with eager, and time both."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphspec import spec as language
from graphspec.cli import devices, pairs
from graphspec.cli.output import coloured, prints_on_stderr
from graphspec.cli.progress import Progress
from graphspec.errors import CheckError, InputError
from graphspec.files import leave_deleted_folder
from graphspec.loading import load_plan
from graphspec.plan import Plan
from graphspec.report import run_json, run_text
from graphspec.report.run_values import RunReport

if TYPE_CHECKING:
    from graphspec.runtime.trial.execute import Executed, RunOptions

_COLOURS = {"good": "green", "bad": "red"}


def _text(report: RunReport) -> str:
    return run_text.render(report, lambda text, mood: click.style(text, fg=_COLOURS[mood], bold=True))


FORMATS: dict[str, Callable[[RunReport], str]] = {"text": _text, "json": run_json.render}


@click.command("run")
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("--device", metavar="DEVICE", help="auto, cpu, cuda, npu or an indexed one such as npu:1.")
@click.option(
    "--steps", type=click.IntRange(min=1), default=20, show_default=True, help="Steps of the check and of the timing."
)
@pairs.repeatable("--input", "NAME=FILE", "An input from a .npy, .pt or .safetensors file.")
@pairs.repeatable("--param", "NAME=VALUE", "A param, its value in YAML: 'kv_lens=[3, 5]'.")
@pairs.repeatable("--dim", "NAME=N", "The real size of a bucketed dim.")
@click.option("--output", type=click.Path(path_type=Path), help="Results of the first run, as .npz or .safetensors.")
@click.option("--check/--no-check", default=True, help="Compare with eager (default), or only time.")
@click.option(
    "--compile/--no-compile", "compiled", default=True, help="Compile the regions that say `compile` (default), or not."
)
@click.option("--format", "style", type=click.Choice(list(FORMATS)), default="text", show_default=True, help="Output.")
def command(  # noqa: PLR0917  one argument for each flag
    spec: Path,
    device: str | None,
    steps: int,
    input_pairs: tuple[str, ...],
    param_pairs: tuple[str, ...],
    dim_pairs: tuple[str, ...],
    output: Path | None,
    check: bool,
    compiled: bool,
    style: str,
) -> None:
    """Capture SPEC, compare its replays with eager, and time both.

    Every bucket is run full and, where it can be, padded, on fresh inputs, with static buffers poisoned in between;
    outputs and states are compared after every step. Exit code 1 where they differ.
    """
    devices.refuse_unknown(device)
    plan = load_plan(spec)
    named = (
        pairs.split(input_pairs, "--input", _inputs(plan), "input"),
        pairs.split(param_pairs, "--param", plan.params, "param"),
        pairs.split(dim_pairs, "--dim", _bucketed(plan), "bucketed dim"),
    )
    _refuse_output(output, nowhere=leave_deleted_folder())
    _refuse_nothing_to_run(plan)
    options = _options(plan, named, steps=steps, check=check)
    with prints_on_stderr(), Progress() as progress:
        executed = _execute(plan, device, options, progress, compiled=compiled)
    click.echo(FORMATS[style](executed.report), nl=False, color=coloured(sys.stdout))
    if output is not None:
        from graphspec.runtime.values.files import write_tensors

        write_tensors(output, executed.results)
    _refuse_mismatch(executed.report)


def _options(
    plan: Plan, named: tuple[dict[str, str], dict[str, str], dict[str, str]], *, steps: int,
    check: bool,
) -> RunOptions:  # fmt: skip
    """Everything the caller gave, read and checked before a model is built."""
    inputs, params, dims = named
    paths = pairs.by_name(inputs, "--input", pairs.file)
    values = pairs.by_name(params, "--param", pairs.yaml_value)
    sizes = pairs.by_name(dims, "--dim", pairs.size)

    from graphspec.runtime.trial.execute import RunOptions
    from graphspec.runtime.trial.feed import fix
    from graphspec.runtime.values.files import read_tensor

    tensors = {name: read_tensor(path, name) for name, path in paths.items()}
    return RunOptions(steps, fix(plan, tensors, values, sizes), check)


def _execute(plan: Plan, device: str | None, options: RunOptions, progress: Progress, *, compiled: bool) -> Executed:
    from graphspec.runtime.runner import open_spec
    from graphspec.runtime.trial.execute import execute

    total = len(plan.graphs) * len(plan.opened)
    done = 0

    def capturing(event: Any) -> None:
        nonlocal done
        progress(f"capture {event.region}", done, total)
        done += 1

    def compiling(graph: Any) -> None:
        progress(" ".join(filter(None, ("compile", graph.region, str(graph.bucket)))), done, total)

    with open_spec(
        plan, device=device, progress=capturing, compile=compiled, compiling=compiling, capture=False
    ) as runner:
        runner.capture(padding=not options.check)  # the check shows more, on other inputs and at every size
        return execute(runner, options, progress)


def _inputs(plan: Plan) -> list[str]:
    return list(dict.fromkeys(name for sequence in plan.sequences.values() for name in sequence.inputs))


def _bucketed(plan: Plan) -> list[str]:
    return [name for name, dim in plan.dims.items() if isinstance(dim, language.Buckets)]


def _refuse_output(output: Path | None, *, nowhere: bool) -> None:
    """Refuse what cannot be written before minutes of work, not after. ``nowhere``: there is no working directory."""
    if output is not None:
        if nowhere and not output.is_absolute():
            raise InputError("--output: the working directory was deleted", hint="give the full path of the file")
        from graphspec.runtime.values.files import refuse_unwritable

        refuse_unwritable(output)


def _refuse_nothing_to_run(plan: Plan) -> None:
    if not plan.sequences:
        hint = "list its regions under `replay`"
        if all(region.declared.inline for region in plan.regions.values()):
            hint = "its regions are inline: graphspec.apply(model, path) in your program, or list an eager region that "
            hint += "calls the model under `replay`"
        raise InputError(f"{plan.name} has no `replay`: there is nothing to run", hint=hint)


def _refuse_mismatch(report: RunReport) -> None:
    if report.check.failure is not None:
        raise CheckError(report.check.failure, hint=report.check.fix)
