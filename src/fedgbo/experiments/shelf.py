"""Where runs stand: a folder's name follows from the run's settings, and what it holds is checked, not believed."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedgbo.core.errors import RunFolderError
from fedgbo.reports.load import RunData, load_run
from fedgbo.runs.config import RunConfig
from fedgbo.runs.folder import RunFolder, contents

State = Literal["finished", "diverged", "begun", "missing", "damaged"]


@dataclass(frozen=True)
class Find:
    """What was found in a run's place."""

    state: State
    reason: str = ""  # why it is damaged, how it diverged, or what a resume has to do without
    run: RunData | None = None  # of a run that ended


def identity(config: RunConfig) -> str:
    """Return a digest of all settings of a complete configuration; empty ones do not count, so new ones may come."""
    content = {key: value for key, value in config.model_dump().items() if value not in (None, [], {})}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def title(config: RunConfig) -> str:
    """Return what to call a run."""
    return f"{task_name(config)} {config.label} K={_steps(config)} seed {config.seed}"


def folder_name(config: RunConfig) -> str:
    """Return the name of a run's folder: readable, and another one for other settings."""
    readable = f"{task_name(config)}-{config.label}-K{_steps(config)}-T{config.rounds}-seed{config.seed}"
    return f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', readable)}-{identity(config)[:10]}"


def task_name(config: RunConfig) -> str:
    """Return a task's name; of a user's own, without the file."""
    return str(config.task["name"]).rpartition(":")[2]


def look(path: Path, config: RunConfig) -> Find:
    """Say what stands in the place of a run. All that can be checked is, since the tables are made of it."""
    try:
        if not path.exists():
            return Find("missing")
        if not (path / "run.json").exists():
            held = contents(path)
            return Find("damaged", f"{path} has no run.json, but {held[0]}") if held else Find("missing")
        return _look(path, config)
    except RunFolderError as error:
        return Find("damaged", str(error))
    except OSError as error:
        return Find("damaged", f"{path} cannot be read: {error.strerror}")


def set_aside(path: Path, config: RunConfig) -> tuple[Find, Path | None]:
    """Look once more, with the folder claimed, and rename it to <name>.damaged-<n> if it is damaged still.

    Another experiment may have found the same, and done the run anew: return what is there now, and where it went.
    Raise FolderBusyError if a process is writing into it.
    """
    folder = RunFolder(path)
    try:
        if path.is_dir():
            folder.lock()
        found = look(path, config)
        if found.state != "damaged":
            return found, None
        number = 1
        while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
            number += 1
        return found, path.rename(aside)
    except FileNotFoundError:  # another experiment has just set it aside
        return Find("missing"), None
    except OSError as error:
        raise RunFolderError(f"{path} is damaged and cannot be renamed: {error.strerror}; move it away") from error
    finally:
        folder.close()


def _look(path: Path, config: RunConfig) -> Find:
    run, folder = load_run(path), RunFolder(path)
    if identity(run.config) != identity(config):
        ours, theirs = config.model_dump(), run.config.model_dump()
        key = next(key for key in ours if json.dumps(ours[key]) != json.dumps(theirs[key]))  # 1 is not 1.0
        raise RunFolderError(f"{path} holds another run: its {key} is {theirs[key]!r}, not {ours[key]!r}")
    _, problems = folder.latest()
    ended = folder.status().get("status")  # as written down: load_run says "running" of any folder that a process holds
    if not isinstance(ended, str):
        raise RunFolderError(f"{path / 'status.json'} is damaged: its status is {ended!r}")
    if ended not in ("finished", "diverged"):
        return Find("begun", "; ".join(problems))
    if problems:
        raise RunFolderError("; ".join(problems))
    if ended == "diverged":
        return Find("diverged", run.reason or "diverged", run)
    due = {*range(0, config.rounds, config.eval_every or config.rounds), config.rounds}
    if missing := sorted(due - {record.round for record in run.records}):
        raise RunFolderError(f"{path / 'metrics.jsonl'} is damaged: round {missing[0]} is missing")
    return Find("finished", run=run)


def _steps(config: RunConfig) -> str:
    return str(config.local_steps) if isinstance(config.local_steps, int) else "mixed"
