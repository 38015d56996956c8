"""The command line: a group of commands, each in a module that is imported only when it is used.

Commands raise the errors of graphspec; `main` turns them into a message on stderr and an exit code. stdout is data.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import io
import os
import select
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

import click

from graphspec.errors import FindingsError, GraphSpecError, ModelError

#: What each command does, in the order of the help. Its module defines ``command``; one without a module is not listed.
COMMANDS: Mapping[str, str] = {
    "validate": "Check specs: schema and rules, without torch or a device.",
    "plan": "Show what a spec compiles to.",
    "check": "Trace a model with fake tensors and list what cannot be captured.",
    "run": "Capture, compare with eager, replay and report.",
    "bench": "Measure capture, replay and eager.",
    "lock": "Write or check the lock file of a spec's graphs.",
    "init": "Write a starting spec for a model.",
    "explain": "Explain a diagnostic code or a key of the language.",
    "schema": "Print the JSON Schema of the language.",
    "doctor": "Say what this machine can do, and why not more.",
    "migrate": "Bring a spec of an older format up to date.",
}

EXIT_CODES = (
    "Exit codes: 0 good; 1 findings, or a check that failed; 2 usage; 3 the device or the runtime failed;"
    " 130 interrupted; 141 nobody reads the output."
)
_NAME = "graphspec"
_COMPLETE = "_GRAPHSPEC_COMPLETE"  # set by the completion script of a shell
_INTERRUPTED = 130
_NO_READER = 141  # what a shell reports for a program that SIGPIPE ended
_USAGE = 2
_INTERNAL = 3
#: How a stream says that it takes no more.
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


class _Commands(click.Group):
    """Commands by name, found without importing them."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: FBT002  click's signature
        **extra: Any,
    ) -> Any:
        """Parse and invoke. Every exception is the caller's: click would turn some into exits that say nothing."""
        if standalone_mode:
            return super().main(args, prog_name, complete_var, **extra)
        completing = os.environ.get(_COMPLETE)
        if completing:
            from click.shell_completion import shell_complete

            return shell_complete(self, {}, _NAME, _COMPLETE, completing)
        with self.make_context(prog_name or _NAME, list(sys.argv[1:] if args is None else args)) as context:
            return self.invoke(context)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return [name for name in COMMANDS if _module(name) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS or _module(cmd_name) is None:
            if ctx.resilient_parsing:
                return None  # a shell asks how the line may go on
            from graphspec.nearest import nearest

            close = nearest(cmd_name, self.list_commands(ctx))
            hint = f" Did you mean '{close}'?" if close is not None else ""
            raise click.UsageError(f"No such command '{cmd_name}'.{hint}", ctx)
        from importlib import import_module

        command: click.Command = import_module(f"graphspec.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])


def _module(name: str) -> object:
    from importlib.util import find_spec

    return find_spec(f"graphspec.cli.{name}")


def _version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from graphspec import __version__

        click.echo(f"graphspec {__version__}")
        ctx.exit()


@click.command(_NAME, cls=_Commands, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version.")
def group() -> None:
    """Device graphs from a YAML spec: validate, plan, capture, replay."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; what it returns is one of `EXIT_CODES`."""
    _replace_closed_streams()
    if arguments is None:
        _accept_any_text()
    code = 0
    try:
        result = group.main(arguments, prog_name=_NAME, standalone_mode=False)
        code = result if isinstance(result, int) else 0
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001  every way out has an exit code
        code = _exit_code(error)
        try:
            _tell(error)
        except OSError as untold:
            code = _NO_READER if isinstance(untold, BrokenPipeError) else code
    if arguments is None:  # the program itself: what a model registered to run at its exit comes after this
        atexit.register(_end_stdout)
    try:
        sys.stderr.flush()
    except OSError:  # nobody can be told on a stderr that takes nothing
        _drop_unwritten(sys.stderr)
    return code


def _exit_code(error: BaseException) -> int:
    """What an exception that ends a command means to the caller."""
    code = _INTERNAL
    match error:
        case click.exceptions.Exit():
            code = error.exit_code
        case _ if _reader_is_gone(error):
            code = _NO_READER
        case click.ClickException():
            code = _USAGE
        case click.Abort() | KeyboardInterrupt():
            code = _INTERRUPTED
        case GraphSpecError():
            code = error.exit_code
        case _:
            pass
    return code


def _reader_is_gone(error: BaseException) -> bool:
    """Whether a command ended because nobody reads its output: also where the code of a model noticed it first."""
    chain: BaseException | None = error
    while chain is not None and not isinstance(chain, BrokenPipeError):
        chain = chain.__cause__ or chain.__context__
    return chain is not None and (chain is error or any(map(_is_broken, (sys.stdout, sys.stderr))))


def _is_broken(stream: IO[str]) -> bool:
    """Whether a stream is a pipe that nobody reads any more."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except (OSError, ValueError, AttributeError):  # a stream in memory; a system without polls
        return False


def _tell(error: BaseException) -> None:
    """Say on stderr why a command ended."""
    match error:
        case click.exceptions.Exit():
            pass
        case _ if _reader_is_gone(error):
            _drop_unwritten(sys.stdout)
        case click.ClickException():
            error.show()
        case click.Abort() | KeyboardInterrupt():
            click.echo("interrupted", err=True)
        case GraphSpecError():
            _show(error)
        case OSError() if error.filename is None and error.errno in _UNWRITABLE:
            _drop_unwritten(sys.stdout)
            click.echo(f"error: the output cannot be written: {error.strerror}", err=True)
        case SystemExit():  # some code's that runs where graphspec does not call the model's: no success of a command
            click.echo(f"error: the command was ended by sys.exit({error.code!r})", err=True)
        case _:  # a bug of graphspec's own: the traceback is what its report needs
            import traceback

            traceback.print_exception(error)
            click.echo("graphspec failed for a reason of its own; please report the lines above", err=True)


def _replace_closed_streams() -> None:
    """A standard stream that was closed when the program started leads nowhere, at its own descriptor.

    Otherwise Python has None for it, and the next file that is opened would take its descriptor, and what is printed.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - open as long as we run


def _accept_any_text() -> None:
    """A character that a stream's encoding lacks, such as that of an odd file name, is written as an escape."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _end_stdout() -> None:
    """The report is out: whatever is still printed goes to stderr."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


def _drop_unwritten(stream: IO[str]) -> None:
    """What a stream still holds and cannot take leads nowhere, so that the flush at exit does not fail once more."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _show(error: GraphSpecError) -> None:
    if isinstance(error, FindingsError):
        from graphspec.cli.output import coloured
        from graphspec.report.findings_text import render
        from graphspec.report.sources import read_sources

        text = render(error.diagnostics, read_sources(error.diagnostics, error.sources), colour=coloured(sys.stderr))
        click.echo(text, err=True, nl=False, color=coloured(sys.stderr))
        return
    if isinstance(error, ModelError) and error.__cause__ is not None:
        from graphspec.runtime.building.build import user_traceback

        click.echo(user_traceback(error.__cause__), err=True)
    click.echo(f"error: {error}", err=True)
