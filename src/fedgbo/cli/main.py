"""The command `fedgbo`."""

import os
import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from fedgbo import __version__
from fedgbo.cli import data, federation, paper, paper_runs, theory
from fedgbo.cli.bench import bench
from fedgbo.cli.compare import compare
from fedgbo.cli.console import clean_errors
from fedgbo.cli.experiment import experiment
from fedgbo.cli.listing import list_everything
from fedgbo.cli.report import report
from fedgbo.cli.run import resume, run
from fedgbo.cli.tune import tune
from fedgbo.cli.watch import watch
from fedgbo.runs.together import refuse_team, started_as_team

app = typer.Typer(
    name="fedgbo",
    help="Federated learning that converges in a fraction of the communication rounds.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 done, 1 unexpected failure, 2 wrong settings, 3 wrong data, 4 unusable folder or checkpoint, "
    "5 diverged, 6 another process was lost (resumable), 7 a federation failed, 130 interrupted (resumable).",
)
app.command()(run)
app.command()(resume)
app.command()(compare)
app.command()(experiment)
app.command()(tune)
app.command()(report)
app.command()(watch)
app.command()(bench)
app.command("list")(list_everything)
app.add_typer(data.app, name="data")
app.add_typer(federation.app, name="federation")
paper_runs.add_to(paper.app)
app.add_typer(paper.app, name="paper")
app.add_typer(theory.app, name="theory")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedgbo {__version__}")
        raise typer.Exit


@app.callback()
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Federated learning that converges in a fraction of the communication rounds."""
    if context.invoked_subcommand not in ("run", "resume"):
        with clean_errors():
            refuse_team(f"fedgbo {context.invoked_subcommand}")


def main() -> None:
    """Run the command line."""
    team = started_as_team()

    def terminated(number: int, frame: FrameType | None) -> None:
        if team:  # torchrun signals again and again, and kills whoever takes more than half a minute
            for again in (signal.SIGINT, signal.SIGTERM):
                signal.signal(again, signal.SIG_IGN)
        raise KeyboardInterrupt  # SIGTERM stops a run as Ctrl-C does: with a checkpoint

    signal.signal(signal.SIGTERM, terminated)
    if team:
        signal.signal(signal.SIGINT, terminated)
    try:
        app()
    except KeyboardInterrupt:
        _exit(130, team)
    except SystemExit as ended:
        _exit(ended.code, team)


def _exit(code: object, team: bool) -> None:
    """End the process: without ceremony after a failure in a team, where torch would wait for connections long gone."""
    if team and code:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)
    sys.exit(code)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
