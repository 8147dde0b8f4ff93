"""Carry out a configuration: from plain data to a run in a folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedgbo.core.errors import RunFolderError
from fedgbo.runs.config import RunConfig
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.loop import Callback, run
from fedgbo.runs.result import Result


def execute(
    config: RunConfig,
    out: Path | None = None,
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
    workers: int | None = None,
    device: str = "cpu",
) -> Result:
    """Run `config`, into the folder `out` if there is one."""
    return run(
        config.build_task(),
        config.build_algorithm(),
        rounds=config.rounds,
        local_steps=config.build_local_steps(),
        seed=config.seed,
        eval_every=config.eval_every,
        callbacks=callbacks,
        out=out,
        resume=resume,
        workers=workers,
        metrics=config.metrics,
        device=device,
        config=config.complete().model_dump(),
    )


def read_config(path: Path) -> RunConfig:
    """Read the configuration of the run in a folder."""
    folder = RunFolder(path)
    content: dict[str, Any] = folder.config()
    try:
        return RunConfig(**content)
    except (ValidationError, TypeError) as error:
        if "initial_params" in content:
            raise RunFolderError(
                f"{path} was begun from Python; go on with fedgbo.run(..., out={str(path)!r}, resume=True)"
            ) from error
        raise RunFolderError(f"{path / 'run.json'} is damaged: {error}") from error
