"""The server app: reads the app's configuration, builds the run as `fedgbo run` does, and starts the strategy."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from pydantic import ValidationError

from fedgbo.core.checks import whole
from fedgbo.core.errors import ConfigError, unknown
from fedgbo.experiments.request import read_request
from fedgbo.flower.node import Place, TaskBuilder, build_task
from fedgbo.flower.options import Options
from fedgbo.flower.strategy import Strategy
from fedgbo.runs.config import RunConfig, read_config
from fedgbo.runs.describe import find
from fedgbo.tasks.task import Task

OWN = ("run-folder", "settings", "resume", "clients")  # besides the options


def server_app(task: TaskBuilder | None = None, **defaults: Any) -> ServerApp:
    """Return a Flower app for the server: `app = fedgbo.flower.server_app(my_task)`.

    Without `task` it is the one that the settings name. The app's configuration says the rest: run-folder, settings (a
    TOML file as `fedgbo run` takes), resume, clients, and the options. `defaults` are for what it leaves open, with
    underscores: `server_app(my_task, deadline=600, min_nodes=4)`.
    """
    app, known = ServerApp(), {*OWN, *Options.names()}
    given = {key.replace("_", "-"): value for key, value in defaults.items()}
    for key in given:
        if key not in known:
            raise ConfigError(unknown("option of a server app", key, known))

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        start(grid, task, {**given, **context.run_config})

    return app


def start(grid: Grid, task: TaskBuilder | None, config: Mapping[str, Any]) -> None:
    """Carry out the run that an app's configuration describes."""
    folder = _folder(config)
    resume = bool(config.get("resume", False)) and (folder / "run.json").exists()
    settings = str(config.get("settings", ""))
    if resume and not settings:
        described = read_config(folder)
    elif settings:
        described = read_settings(Path(settings))
    else:
        raise ConfigError(
            "the app's configuration must name the file of the run's settings, e.g. settings=/srv/my.toml"
        )
    arguments = {key: value for key, value in described.task.items() if key != "name"}
    builder = find("task", described.task["name"]) if task is None else task
    strategy = Strategy(
        described.fitted(_with_clients(build_task(Place.of(builder, arguments, config)), config)),
        described.build_algorithm(),
        local_steps=described.build_local_steps(),
        seed=described.seed,
        options=Options.of(config),
        task_settings=arguments,
    )
    strategy.start(
        grid,
        rounds=described.rounds,
        eval_every=described.eval_every,
        out=folder,
        resume=resume,
        config=described.complete().model_dump(),
    )


def read_settings(file: Path) -> RunConfig:
    """Read the settings of a run: a TOML file as `fedgbo run` takes it, or the JSON of a whole configuration."""
    if file.suffix != ".json":
        return read_request(file, {}, []).resolve()[0]
    try:
        return RunConfig.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise ConfigError(f"{file} cannot be read as a run's configuration: {error}") from error


def _folder(config: Mapping[str, Any]) -> Path:
    folder = str(config.get("run-folder", ""))
    if not folder:
        raise ConfigError("the app's configuration must name the run's folder, e.g. run-folder=/srv/runs/first")
    if not Path(folder).is_absolute():
        raise ConfigError(f"run-folder must be an absolute path on the server's machine, not {folder!r}")
    return Path(folder)


def _with_clients(task: Task, config: Mapping[str, Any]) -> Task:
    """Let a server that has no training data but a few samples to show their shape say how many clients there are."""
    clients = config.get("clients", 0)
    whole("clients", clients, least=0)
    if clients in (0, task.data.clients):
        return task
    offsets = np.zeros(clients + 1, dtype=np.int64)
    return replace(task, data=replace(task.data, offsets=offsets), clients_per_round=None)
