"""The command `fedgbo`."""

import errno
import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import Annotated

import typer
from typer import Option

from fedgbo import __version__
from fedgbo.cli import data, federation, theory
from fedgbo.cli.bench import bench
from fedgbo.cli.compare import compare
from fedgbo.cli.console import CleanErrors, Hangup, exit_code
from fedgbo.cli.doctor import doctor
from fedgbo.cli.experiment import experiment, paper, study
from fedgbo.cli.init import init
from fedgbo.cli.listing import list_everything
from fedgbo.cli.report import report, watch
from fedgbo.cli.run import export, resume, run
from fedgbo.cli.tune import tune
from fedgbo.core import ConfigError, RunFolderError
from fedgbo.engines.torchrun.join import under_torchrun
from fedgbo.runs.ranks import refuse_torchrun

app = typer.Typer(
    name="fedgbo",
    cls=CleanErrors,
    help="Train and compare federated learning algorithms on your own model and data.",
    no_args_is_help=True,
    suggest_commands=False,  # click does so already
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 done, 1 unexpected failure, 2 wrong settings, 3 unsuitable data or model, 4 unusable folder "
    "or checkpoint, 5 diverged, 6 another process was lost (resumable), 7 a federation cannot continue (resumable), "
    "129 terminal closed (resumable), 130 interrupted by Ctrl-C or SIGTERM (resumable).",
)
for _command in (run, resume, compare, experiment, study, tune, report, watch, export, init, doctor, bench):
    app.command()(_command)
app.command("list")(list_everything)

app.add_typer(data.app, name="data")
app.add_typer(federation.app, name="federation")
app.add_typer(paper, name="paper")
app.add_typer(theory.app, name="theory")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedgbo {__version__}")
        raise typer.Exit


@app.callback()
def start(
    context: typer.Context,
    version: Annotated[
        bool, Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Train and compare federated learning algorithms on your own model and data."""
    if context.invoked_subcommand == "federation" and os.name == "nt":
        raise ConfigError("fedgbo federation needs Linux or macOS; on Windows, use the Windows Subsystem for Linux")
    if context.invoked_subcommand not in ("run", "resume"):
        refuse_torchrun(f"fedgbo {context.invoked_subcommand}")


def main() -> None:
    """Run the command line."""
    several = under_torchrun()

    def terminated(number: int, frame: FrameType | None) -> None:
        if several:  # torchrun repeats its signals, and kills processes that take longer than 30 seconds
            for again in (signal.SIGINT, signal.SIGTERM):
                signal.signal(again, signal.SIG_IGN)
        raise KeyboardInterrupt  # SIGTERM stops a run as Ctrl-C does: with a checkpoint

    def hung_up(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # a terminal that closes may send it twice
        raise Hangup

    signal.signal(signal.SIGTERM, terminated)
    if several:
        signal.signal(signal.SIGINT, terminated)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # not under nohup
        signal.signal(signal.SIGHUP, hung_up)
    try:
        app()
    except OSError as error:  # before a command began, such as the output of --version
        _say_unwritten(error)
        sys.exit(_flushed(RunFolderError.exit_code))
    except (KeyboardInterrupt, SystemExit) as ended:
        code = ended.code if isinstance(ended, SystemExit) else exit_code(ended)
        code = _flushed(code if isinstance(code, int) or code is None else 1)
        if several and code:  # at once: torch would wait for lost connections
            os._exit(code)
        sys.exit(code)


def _flushed(code: int | None) -> int:
    """Write out what is left; return the exit code, which says so where that fails and nothing else did."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would try again, and complain
        if not code and error.errno != errno.EPIPE:
            _say_unwritten(error)
            return RunFolderError.exit_code
    with suppress(OSError):
        sys.stderr.flush()
    return code or 0


def _say_unwritten(error: OSError) -> None:
    print(f"error: cannot write the output: {error.strerror}", file=sys.stderr)


if __name__ == "__main__":
    main()
