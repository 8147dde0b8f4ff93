"""Callbacks that send a run's scores and costs to Weights & Biases, MLflow or TensorBoard.

    with wandb.init(project="federated") as tracked:
        fedgbo.run(task, algorithm, rounds=50, callbacks=[WandB(tracked)])

Each logs the run's settings once, and every evaluation at its round. The user opens and closes the tracker.
"""

import time
from pathlib import Path
from typing import Any

from fedgbo.core import ConfigError, RunFolderError, optional
from fedgbo.reports.load import flatten
from fedgbo.reports.tensorboard import FILE, record_scalars, scalar_event, version_event
from fedgbo.runs.round import Progress

LONGEST = 500  # characters of a parameter's value that MLflow takes


def _settings(progress: Progress) -> dict[str, Any]:
    """Return what a run is under flat names, such as algorithm.optimiser.lr."""
    return dict(flatten(progress.about)) | {"rounds": progress.rounds}


class WandB:
    """Logs to a run of Weights & Biases, the return value of `wandb.init` (extra `wandb`)."""

    def __init__(self, run: Any) -> None:
        if not callable(getattr(run, "log", None)) or not hasattr(run, "config"):
            raise ConfigError(f"WandB needs the run that wandb.init returns, not {run!r:.60}")
        self._run, self._begun = run, False

    def __call__(self, progress: Progress) -> None:
        if not self._begun:
            self._run.config.update(_settings(progress), allow_val_change=True)
            self._begun = True
        if progress.record is not None:
            self._run.log(record_scalars(progress.record), step=progress.record.round)


class MLflow:
    """Logs to MLflow's active run, or to the one with `run_id` (extra `mlflow`)."""

    def __init__(self, run_id: str | None = None) -> None:
        self._mlflow = optional("mlflow", "mlflow", "the MLflow callback needs mlflow")
        if run_id is None and self._mlflow.active_run() is None:
            raise ConfigError("MLflow has no active run; start one: with mlflow.start_run(): ..., or give run_id=")
        self._id: str = run_id or self._mlflow.active_run().info.run_id
        self._begun = False

    def __call__(self, progress: Progress) -> None:
        client = self._mlflow.MlflowClient()
        if not self._begun:
            known = client.get_run(self._id).data.params  # a run that is resumed has them already
            for key, value in _settings(progress).items():
                if key not in known:
                    client.log_param(self._id, key, str(value)[:LONGEST])
            self._begun = True
        if progress.record is not None:
            for key, value in record_scalars(progress.record).items():
                client.log_metric(self._id, key, value, step=progress.record.round)


class TensorBoard:
    """Writes TensorBoard's event files into a folder; needs no package."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._file: Path | None = None

    def __call__(self, progress: Progress) -> None:
        now = time.time()
        try:
            if self._file is None:  # a new file for each run and resume: TensorBoard joins those of a folder
                self._folder.mkdir(parents=True, exist_ok=True)
                self._file = self._folder / f"{FILE}.{time.time_ns()}"
                self._file.write_bytes(version_event(now))
            if progress.record is not None:
                with self._file.open("ab") as file:
                    file.write(scalar_event(now, progress.record.round, record_scalars(progress.record)))
        except OSError as error:
            raise RunFolderError(f"cannot write into {self._folder}: {error.strerror}; choose another place") from error
