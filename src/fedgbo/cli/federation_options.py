"""Options that several commands of `fedgbo federation` share."""

import tomllib
from typing import Annotated, Any

import typer

from fedgbo.cli.run import resolve, sort_items
from fedgbo.core.errors import ConfigError, unknown
from fedgbo.federation.app_folder import OPTIONS
from fedgbo.runs.config import RunConfig

OURS = ("run-folder", "settings", "resume")  # filled in by the commands

Items = Annotated[
    list[str] | None,
    typer.Argument(metavar="[CONFIG.toml] [KEY=VALUE]...", help="Settings, as `fedgbo run` takes them."),
]
TaskName = Annotated[
    str | None, typer.Option("--task", help="A task's name, or my_file.py:function. [default: digits]")
]
Algorithm = Annotated[str | None, typer.Option(help="An algorithm's name. [default: fedgbo]")]
Optimiser = Annotated[str | None, typer.Option(help="An optimiser's name.")]
Preset = Annotated[str | None, typer.Option(help="Tuned settings to start from, or none.")]
Rounds = Annotated[int | None, typer.Option(help="Communication rounds. [default: 100]")]
Seed = Annotated[int | None, typer.Option(help="Random seed. [default: 0]")]
Option = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-c",
        metavar="KEY=VALUE",
        help="Of the federation: " + ", ".join(key for key in OPTIONS if key not in OURS) + "; may be repeated.",
    ),
]


def asked_for(
    items: list[str] | None,
    task: str | None,
    algorithm: str | None,
    optimiser: str | None,
    preset: str | None,
    rounds: int | None,
    seed: int | None,
) -> tuple[RunConfig, str | None]:
    """Return the run that the options ask for, as `fedgbo run` would understand them, and a line about its preset."""
    file, overrides = sort_items(items or [])
    flags: dict[str, Any] = {
        "task": task, "algorithm": algorithm, "optimiser": optimiser, "preset": preset, "rounds": rounds, "seed": seed,
    }  # fmt: skip
    return resolve(file, flags, overrides)


def options_of(given: list[str] | None) -> dict[str, Any]:
    """Return the federation's options that were given, checked by name and kind.

    >>> options_of(["deadline=30", "weighted=true"])
    {'deadline': 30, 'weighted': True}
    """
    found: dict[str, Any] = {}
    for text in given or []:
        key, equals, value = text.partition("=")
        known = [name for name in OPTIONS if name not in OURS]
        if not equals:
            raise ConfigError(f"'{text}' must be key=value, e.g. deadline=60")
        if key not in known:
            raise ConfigError(unknown("option", key, known))
        found[key] = _as(key, value, OPTIONS[key])
    return found


def _as(key: str, value: str, default: Any) -> Any:
    """Return a value of the kind that the default has."""
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = None
    kind = bool if isinstance(default, bool) else int if isinstance(default, int) else int | float
    if not isinstance(parsed, kind) or (kind is not bool and isinstance(parsed, bool)):
        wanted = "true or false" if kind is bool else "a whole number" if kind is int else "a number"
        raise ConfigError(f"{key} must be {wanted}, not '{value}'")
    return parsed  # a quorum of 1 is a client, one of 1.0 is all of them
