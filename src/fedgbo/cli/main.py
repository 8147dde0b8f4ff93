"""The command `fedgbo`."""

import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from fedgbo import __version__
from fedgbo.cli import data, paper
from fedgbo.cli.compare import compare
from fedgbo.cli.console import clean_errors
from fedgbo.cli.listing import list_everything
from fedgbo.cli.run import resume, run
from fedgbo.runs.together import refuse_team

app = typer.Typer(
    name="fedgbo",
    help="Federated learning that converges in a fraction of the communication rounds.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 done, 1 unexpected failure, 2 wrong settings, 3 wrong data, 4 unusable folder or checkpoint, "
    "5 diverged, 6 another process was lost (resumable), 130 interrupted (resumable).",
)
app.command()(run)
app.command()(resume)
app.command()(compare)
app.command("list")(list_everything)
app.add_typer(data.app, name="data")
app.add_typer(paper.app, name="paper")


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

    def terminated(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt  # SIGTERM stops a run as Ctrl-C does: with a checkpoint

    signal.signal(signal.SIGTERM, terminated)
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
