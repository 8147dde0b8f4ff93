"""`fedgbo list`."""

import inspect
import json
from typing import Annotated

import typer
from rich.table import Table

from fedgbo.cli.console import clean_errors, out, print_whole
from fedgbo.experiments.presets import PRESETS, presets
from fedgbo.runs.describe import CATALOGUES, parameters


def list_everything(
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Show the tasks, algorithms, optimisers, objective terms, schedules and presets that can be named."""
    with clean_errors():
        found = {
            kind: {
                name: {"about": _first_line(entry), "settings": list(parameters(entry))}
                for name, entry in sorted(catalogue.items())
            }
            for kind, catalogue in CATALOGUES.items()
        }
        found["preset"] = {
            name: {"about": f"{len(presets(name))} tuned settings", "settings": []} for name in sorted(PRESETS)
        }
        if as_json:
            out.print_json(json.dumps(found))
            return
        for kind, entries in found.items():
            table = Table(title=f"{kind}s", title_justify="left", box=None, show_header=False, padding=(0, 2))
            for name, entry in entries.items():
                table.add_row(name, str(entry["about"]), ", ".join(entry["settings"]), style=None)
            print_whole(table)
            out.print()
        out.print("your own: --task my_file.py:function, --algorithm my_file.py:Class, --optimiser my_file.py:Class")


def _first_line(entry: object) -> str:
    return (inspect.getdoc(entry) or "").partition("\n")[0]
