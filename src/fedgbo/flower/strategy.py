"""Any of our algorithms on Flower's nodes: what a server app runs, ours or your own."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from flwr.serverapp import Grid

from fedgbo import __version__
from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.schedule import at_round
from fedgbo.engines.engine import Engine
from fedgbo.engines.select import engine_for
from fedgbo.engines.team import Team
from fedgbo.flower.engine import FlowerEngine
from fedgbo.flower.events import Events
from fedgbo.flower.node import model_digest
from fedgbo.flower.options import Options
from fedgbo.flower.order import Settings
from fedgbo.flower.post import Post
from fedgbo.runs.checkpoint import digest
from fedgbo.runs.describe import describe
from fedgbo.runs.loop import Callback, run
from fedgbo.runs.result import Result
from fedgbo.runs.round import Progress
from fedgbo.runs.steps import LocalSteps
from fedgbo.tasks.task import Task


class Strategy:
    """A task and an algorithm, to be started on a grid.

        strategy = fedgbo.flower.Strategy(task, fedgbo.FedGBO(fedgbo.SGDm(lr=0.1, beta=0.9)))
        result = strategy.start(grid, rounds=50, out="runs/first")

    The arguments are those of `fedgbo.run`, and so is the result: with the same ones, and nobody missing, bit for bit.
    `task_settings` goes to the nodes' task builder where that takes settings.
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
    ) -> None:
        self.task, self.algorithm, self.local_steps, self.seed = task, algorithm, local_steps, seed
        self.options = Options() if options is None else options
        self.task_settings = dict(task_settings or {})

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
        """Run the rounds on the grid's nodes. `out` gets what `fedgbo run` writes, and events.jsonl."""
        events = Events()
        engines: list[FlowerEngine] = []

        def make(
            task: Task,
            algorithm: FederatedAlgorithm,
            seed: int,
            workers: int,
            device: torch.device,
            team: Team,
            metrics: Sequence[str],
        ) -> Engine:
            local = engine_for(task, algorithm, seed, workers, device, team, metrics)
            engines.append(FlowerEngine(local, Post(grid), self._settings(), self.local_steps, self.options, events))
            return engines[0]

        def tell(progress: Progress) -> None:
            events.folder = None if out is None else Path(out)  # which is open and locked by now
            report = engines[0].report
            if report is None:
                return
            record, seconds = progress.record, {**report.seconds, **progress.seconds}
            del seconds["training"]
            events(
                "done_round",
                round=progress.ledger.round,
                **{**vars(report), "seconds": {name: round(taken, 6) for name, taken in seconds.items()}},
                accuracy=None if record is None else record.accuracy,
                loss=None if record is None else record.loss,
            )

        try:
            result = run(
                self.task,
                self.algorithm,
                rounds=rounds,
                local_steps=self.local_steps,
                seed=self.seed,
                eval_every=eval_every,
                callbacks=[tell, *callbacks],
                out=out,
                resume=resume,
                workers=None,
                config=config,
                engine_maker=make,
                save_seconds=0.0,
            )
        except BaseException as error:  # whatever ends it, those who watch are told
            events("stopped", reason=str(error) or type(error).__name__)
            raise
        events("finished", round=result.history[-1].round, digest=digest(result.state.tensors()))
        return result

    def _settings(self) -> Settings:
        return Settings(
            version=__version__,
            task=self.task_settings,
            algorithm=describe(at_round(self.algorithm, 0)),
            clients=self.task.data.clients,
            clients_per_round=self.task.cohort_size,
            batch_size=self.task.batch_size,
            seed=self.seed,
            model=model_digest(self.task),
        )
