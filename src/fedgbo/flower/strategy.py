"""The server side of a federation: `Strategy` runs any algorithm on Flower's nodes, `server_app` starts one."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from pydantic import ValidationError

from fedgbo import __version__
from fedgbo.core import ConfigError, FederatedAlgorithm, at_round, unknown, whole
from fedgbo.core.files import write_atomic
from fedgbo.engines.device import cores
from fedgbo.engines.engine import Engine
from fedgbo.engines.select import engine_for
from fedgbo.experiments.request import requested_config
from fedgbo.flower.flower_engine import FlowerEngine
from fedgbo.flower.messenger import Events
from fedgbo.flower.node import TaskBuilder, build_task, model_digest, takes_config
from fedgbo.flower.options import APP_KEYS, Options
from fedgbo.flower.registry import Registry
from fedgbo.flower.wire import Settings
from fedgbo.runs.callbacks import Callback
from fedgbo.runs.checkpoint import digest
from fedgbo.runs.config import RunConfig, read_config
from fedgbo.runs.describe import describe, find
from fedgbo.runs.loop import run
from fedgbo.runs.plan import Plan
from fedgbo.runs.result import Result
from fedgbo.runs.round import Progress
from fedgbo.runs.steps import LocalSteps
from fedgbo.tasks.task import Task


class Strategy:
    """A task and an algorithm, to be started on a grid.

        strategy = fedgbo.flower.Strategy(task, fedgbo.FedGBO(fedgbo.SGDm(lr=0.1, beta=0.9)))
        result = strategy.start(grid, rounds=50, out="runs/first")

    The arguments are those of `fedgbo.run`, `weights`, `sampler`, `transforms` and `aggregator` included. So is the
    result, bit for bit, if no client is missing. `task_settings` are passed to the nodes' task builder if it takes
    settings.
    """

    def __init__(
        self,
        task: Task,
        algorithm: FederatedAlgorithm,
        *,
        local_steps: LocalSteps = 10,
        seed: int = 0,
        options: Options | None = None,
        task_settings: Mapping[str, Any] | None = None,
        **pipeline: Any,
    ) -> None:
        self.task, self.algorithm, self.local_steps, self.seed = task, algorithm, local_steps, seed
        self.options = Options() if options is None else options
        self.task_settings = dict(task_settings or {})
        self.pipeline = {**pipeline, "weights": "samples"} if self.options.weighted else pipeline

    def start(
        self,
        grid: Grid,
        *,
        rounds: int,
        eval_every: int | None = None,
        out: str | Path | None = None,
        resume: bool = False,
        config: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> Result:
        """Run the rounds on the grid's nodes. `out` gets the files of `fedgbo run`, and events.jsonl."""
        events = Events()
        engines: list[FlowerEngine] = []

        def make_engine(plan: Plan, device: torch.device) -> Engine:
            local = engine_for(self.task, self.algorithm, self.seed, cores(), device)
            settings = self._settings("" if out is None else str(Path(out).resolve()))
            engines.append(FlowerEngine(local, grid, settings, self.local_steps, self.options, events))
            return engines[0]

        def tell(progress: Progress) -> None:
            if out is not None and events.folder is None:
                self._hold_options(Path(out))
                events.folder = Path(out)  # open and locked by now
            report = engines[0].report
            if not report:
                return
            seconds = {**report["seconds"], **progress.seconds}
            rounded = {name: round(taken, 6) for name, taken in seconds.items() if name != "training"}
            scores = {name: getattr(progress.record, name, None) for name in ("accuracy", "loss", "metric")}
            events("done_round", round=progress.ledger.round, of=rounds, **{**report, "seconds": rounded}, **scores)

        try:
            result = run(
                self.task,
                self.algorithm,
                rounds=rounds,
                local_steps=self.local_steps,
                seed=self.seed,
                eval_every=eval_every,
                callbacks=[tell, *callbacks],
                progress=False,
                out=out,
                resume=resume,
                config=config,
                **self.pipeline,
                engine_maker=make_engine,
                save_seconds=0.0,
            )
        except BaseException as error:  # every end of a run is an event
            for engine in engines:
                engine.report_nodes()
            told = isinstance(error, Exception) and str(error)
            events("stopped", reason=told or "it was stopped by a signal or by an operator")
            raise
        engines[0].report_nodes()
        if out is not None:
            result.save(Path(out) / "model.safetensors")
        events("finished", round=result.history[-1].round, digest=digest(result.state.tensors()))
        return result

    def _hold_options(self, folder: Path) -> None:
        """Store the options that decide the result, or compare them with those that the run was begun with."""
        file, ours = folder / "run.json", self.options.decisive()
        about = json.loads(file.read_text(encoding="utf-8"))
        began = about.get("federation")
        if began is None:
            write_atomic(file, (json.dumps({**about, "federation": ours}, indent=2) + "\n").encode())
            return
        changed = {name: value for name, value in began.items() if ours.get(name) != value}
        if changed:
            now = ", ".join(f"{name} is {ours.get(name)}" for name in changed)
            flags = " ".join(f"-c {name}={json.dumps(value)}" for name, value in changed.items())
            raise ConfigError(f"{now} now, but the run was started with other options; resume it with: {flags}")

    def _settings(self, folder: str) -> Settings:
        """Return what nodes need to know; the run's name is that of its folder, or random where there is none."""
        about = json.dumps([folder or secrets.token_hex(), describe(self.algorithm), self.seed, self.task.name])
        return Settings(
            version=__version__,
            task=self.task_settings,
            algorithm=describe(at_round(self.algorithm, 0)),
            clients=self.task.data.clients,
            clients_per_round=self.task.cohort_size,
            batch_size=self.task.batch_size,
            seed=self.seed,
            model=model_digest(self.task, self.seed),
            transforms=[],
            run=sha256(about.encode()).hexdigest()[:16],
        )


def server_app(task: TaskBuilder | None = None, **defaults: Any) -> ServerApp:
    """Return a Flower app for the server: `app = fedgbo.flower.server_app(my_task)`.

    Without `task`, the settings name it. The app's configuration has the keys run-folder, settings (a TOML file for
    `fedgbo run`), resume and clients, and the options. `defaults` apply to keys that it leaves open, with underscores:
    `server_app(my_task, deadline=600, min_nodes=4)`.
    """
    app, known = ServerApp(), {*APP_KEYS, *Options.names()}
    given = {key.replace("_", "-"): value for key, value in defaults.items()}
    for key in given:
        if key not in known:
            raise ConfigError(unknown("option of a server app", key, known))

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        _start(grid, task, {**given, **context.run_config})

    return app


def _start(grid: Grid, task: TaskBuilder | None, config: Mapping[str, Any]) -> None:
    """Carry out the run that an app's configuration describes."""
    folder = Path(config.get("run-folder", ""))
    if not config.get("run-folder"):
        raise ConfigError("the app's configuration must name the run's folder, e.g. run-folder=/srv/runs/first")
    if not folder.is_absolute():
        raise ConfigError(f"run-folder must be an absolute path on the server's machine, not '{folder}'")
    resume = bool(config.get("resume", False)) and (folder / "run.json").exists()
    described = _read_settings(str(config.get("settings", "")), folder if resume else None)
    arguments = {key: value for key, value in described.task.items() if key != "name"}
    builder = find("task", described.task["name"]) if task is None else task
    options = Options.of(config)
    if options.weighted:
        described = described.model_copy(update={"weights": "samples"})
    own = options.nodes and takes_config(builder)  # each node has only the data of its clients
    clients = config.get("clients", 0) or (Registry(Path(options.nodes)).clients() if own else 0)
    built = _with_clients(build_task(builder, arguments, config), clients)
    strategy = Strategy(
        described.fitted(built),
        described.built_algorithm,
        local_steps=described.build_local_steps(),
        seed=described.seed,
        options=options,
        task_settings=arguments,
        **described.build_pipeline(),
    )
    strategy.start(
        grid,
        rounds=described.rounds,
        eval_every=described.eval_every,
        out=folder,
        resume=resume,
        config=described.complete().model_dump(),
    )


def _read_settings(name: str, resumed: Path | None) -> RunConfig:
    """Read a run's settings: a TOML file for `fedgbo run`, a JSON file of all settings, or the resumed run's own."""
    if not name and resumed is not None:
        return read_config(resumed)
    if not name:
        raise ConfigError(
            "the app's configuration must name the file of the run's settings, e.g. settings=/srv/my.toml"
        )
    file = Path(name)
    if file.suffix != ".json":
        return requested_config(file)[0]
    try:
        return RunConfig.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise ConfigError(f"{file} cannot be read as a run's configuration: {error}") from error


def _with_clients(task: Task, clients: int) -> Task:
    """Set the number of clients for a server that has no training data but a few samples to show their shape."""
    whole("clients", clients, least=0)
    if clients in (0, task.data.clients):
        return task
    offsets = np.zeros(clients + 1, dtype=np.int64)
    return replace(task, data=replace(task.data, offsets=offsets), clients_per_round=None)
