"""Run folders of experiments: the name of a folder follows from the run's settings, and its content is verified."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedgbo.core import RunFolderError
from fedgbo.core.files import write_atomic
from fedgbo.reports.load import RunData, load_run
from fedgbo.reports.sections import distinct, settings_of
from fedgbo.runs.config import RunConfig
from fedgbo.runs.folder import RunFolder, contents

State = Literal["finished", "diverged", "begun", "missing", "damaged"]


@dataclass(frozen=True)
class Find:
    """The state of a run's folder."""

    state: State
    reason: str = ""  # why it is damaged or diverged, or which checkpoints a resume cannot use
    run: RunData | None = None  # of a run that ended


def identity(config: RunConfig) -> str:
    """Return a digest of a complete configuration. Empty settings do not count, so that new settings can be added."""
    content = {key: value for key, value in config.model_dump().items() if value not in (None, [], {})}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def group_key(config: RunConfig) -> str:
    """Return a text that is the same for runs that differ only in their seed."""
    return json.dumps(config.model_dump(exclude={"seed"}), sort_keys=True)


def labels_of(
    configs: Iterable[RunConfig], name: Callable[[RunConfig], str] = lambda config: config.label
) -> dict[str, str]:
    """Return a label for each `group_key`: the name or, where it is not unique, with the settings that differ."""
    groups = {group_key(config): config for config in configs}
    labels = distinct([name(config) for config in groups.values()], [settings_of(c) for c in groups.values()])
    return dict(zip(groups, labels, strict=True))


def titles_of(configs: Sequence[RunConfig], labels: Mapping[str, str]) -> list[str]:
    """Name each run by its label and its seed."""
    return [f"{labels[group_key(config)]} seed {config.seed}" for config in configs]


def folder_name(config: RunConfig) -> str:
    """Return the name of a run's folder: readable, and different for different settings."""
    readable = f"{task_name(config)}-{config.label}-K{steps_text(config)}-T{config.rounds}-seed{config.seed}"
    return f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', readable)}-{identity(config)[:10]}"


def task_name(config: RunConfig) -> str:
    """Return a task's name; for a user's own task, without the file."""
    return str(config.task["name"]).rpartition(":")[2]


def steps_text(config: RunConfig) -> str:
    """Return K, or "mixed" if it is not one number."""
    return str(config.local_steps) if isinstance(config.local_steps, int) else "mixed"


def claim_folder(out: Path, name: str, content: str, kind: str) -> bool:
    """Make a folder with the file `name`, or return True if it holds the same file; several processes may do so."""
    file = out / name
    try:
        out.mkdir(parents=True, exist_ok=True)
        held = {entry.name for entry in out.iterdir() if not entry.name.startswith(".")}
        if held and not file.exists():
            raise RunFolderError(f"{out} is not empty (it holds {min(held)}); choose a new or empty folder")
        if not file.exists():
            write_atomic(file, content.encode())
        if file.read_text(encoding="utf-8") != content:
            raise RunFolderError(f"{out} holds another {kind}; choose another folder, or repeat its settings")
    except OSError as error:
        raise RunFolderError(f"cannot write into {out}: {error.strerror}; choose another place") from error
    return bool(held)


def look(path: Path, config: RunConfig) -> Find:
    """Return the state of a run's folder. Everything that can be verified is, since tables are made from it."""
    try:
        if not path.exists():
            return Find("missing")
        if not (path / "run.json").exists():
            held = contents(path)
            return Find("damaged", f"{path} has no run.json, but {held[0]}") if held else Find("missing")
        return _verify(path, config)
    except RunFolderError as error:
        return Find("damaged", str(error))
    except OSError as error:
        return Find("damaged", f"{path} cannot be read: {error.strerror}")


def set_aside(path: Path, config: RunConfig) -> tuple[Find, Path | None]:
    """Lock the folder, look again, and rename it to <name>.damaged-<n> if it is still damaged.

    Another experiment may have renamed the folder and repeated the run meanwhile. Return the state found now, and the
    new path if the folder was renamed. Raise FolderBusyError if a process is writing into it.
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
    except FileNotFoundError:  # another experiment has just renamed it
        return Find("missing"), None
    except OSError as error:
        raise RunFolderError(f"{path} is damaged and cannot be renamed: {error.strerror}; move it away") from error
    finally:
        folder.close()


def _verify(path: Path, config: RunConfig) -> Find:
    run, folder = load_run(path), RunFolder(path)
    if identity(run.config) != identity(config):
        ours, theirs = config.model_dump(), run.config.model_dump()
        key = next(key for key in ours if json.dumps(ours[key]) != json.dumps(theirs[key]))  # 1 is not 1.0
        raise RunFolderError(f"{path} holds another run: its {key} is {theirs[key]!r}, not {ours[key]!r}")
    _, problems = folder.latest()
    ended = folder.status().get("status")  # not run.status, which is "running" for any folder that a process has locked
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
