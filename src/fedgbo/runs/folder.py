"""A run's folder: what it is, what it measured, and checkpoints to go on from.

run.json                  configuration, versions, seed: written once, before the first round
metrics.jsonl             one record a line
checkpoints/              the last two, round-00000050.safetensors
clients/                  what clients keep from round to round, where the algorithm declares such vectors
client_scores.json        each client's scores on its own test set at the end, where clients have test sets
status.json               finished, interrupted or diverged, with the final numbers
"""

import errno
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from fedgbo.core import FolderBusyError, RunFolderError
from fedgbo.core.files import lock, write_atomic
from fedgbo.runs.checkpoint import Checkpoint
from fedgbo.runs.environment import changes, machine, versions
from fedgbo.runs.record import Record

FORMAT = 1
KEEP = 2  # checkpoints
CLIENT_SCORES = "client_scores.json"
TRIES, PAUSE = 10, 0.02  # of claiming a folder: `in_use` in another process may hold it for a moment


class RunFolder:
    """A folder that one process at a time writes a run into."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: TextIOWrapper | None = None

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any], task: str = "") -> "RunFolder":
        """Make the folder for a new run; it must not hold anything yet. `task` is the name that the task has itself."""
        folder = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            folder._must_be_empty()
        except OSError as error:
            raise RunFolderError(
                f"cannot make the output folder {path}: {error.strerror}; choose another place"
            ) from error
        try:
            folder.lock()
            folder._must_be_empty()  # still: another process may have done this very run while we waited for the lock
            (path / "checkpoints").mkdir(exist_ok=True)
            made_on = {"versions": versions(), "machine": machine()}
            about = {"format": FORMAT, "task_name": task, "config": dict(config), **made_on}
            write_atomic(path / "run.json", _json(about))
        except OSError as error:
            folder.close()
            raise RunFolderError(f"cannot write into {path}: {error.strerror}; choose another place") from error
        except RunFolderError:
            folder.close()
            raise
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open the folder of a run that was begun."""
        folder = cls(path)
        folder.config()
        return folder

    def config(self) -> dict[str, Any]:
        """Return the configuration that the run was begun with."""
        about = self._read("run.json")
        if isinstance(written := about.get("format"), int) and written > FORMAT:
            raise RunFolderError(
                f"{self.path} was written by a newer version of fedgbo (format {written}); this version reads format "
                f"{FORMAT}: use the newer one"
            )
        config = about.get("config")
        if not isinstance(config, dict):
            raise RunFolderError(f"{self.path / 'run.json'} is damaged: its config is not a table")
        return config

    def task_name(self) -> str:
        """Return the name that the run's task gave itself; runs of older versions do not have it."""
        return str(self._read("run.json").get("task_name", ""))

    def origin(self) -> dict[str, Any]:
        """Return the versions that the run was begun with, and what the machine was."""
        about = self._read("run.json")
        return {**about.get("versions", {}), **about.get("machine", {})}

    def moved(self, at_round: int) -> list[str]:
        """Return which versions and parts of the machine are others than at the beginning, and write them down."""
        about, found = self._read("run.json"), changes(self.origin(), {**versions(), **machine()})
        if found:
            resumed = [*about.get("resumed", []), {"round": at_round, "versions": versions(), "machine": machine()}]
            with self._writing():
                write_atomic(self.path / "run.json", _json({**about, "resumed": resumed}))
        return found

    def status(self) -> dict[str, Any]:
        """Return how the run ended, or {"status": "running"} if it did not (or was killed)."""
        return self._read("status.json") if (self.path / "status.json").exists() else {"status": "running"}

    def condition(self) -> str:
        """Return finished, stopped, interrupted, diverged, running, or died (neither ended nor running)."""
        if self.in_use():  # a resumed run keeps the status.json of its last end
            return "running"
        status = self.status().get("status")
        if not isinstance(status, str):
            raise RunFolderError(f"{self.path / 'status.json'} is damaged: its status is {status!r}")
        return "died" if status == "running" else status

    def set_status(self, status: str, **more: Any) -> None:
        """Write down how the run ended."""
        with self._writing():
            write_atomic(self.path / "status.json", _json({"status": status, **more}))

    def save_client_scores(self, clients: Mapping[int, Mapping[str, Any]]) -> None:
        """Write the scores of each client at the last evaluation, where there are any."""
        if clients:
            write_atomic(self.path / CLIENT_SCORES, _json({str(client): own for client, own in clients.items()}))

    def client_scores(self) -> dict[int, dict[str, float | None]]:
        """Read what `save_client_scores` wrote."""
        if not (self.path / CLIENT_SCORES).exists():
            return {}
        return {int(client): own for client, own in self._read(CLIENT_SCORES).items()}

    def lock(self) -> None:
        """Claim the folder for this process until `close`."""
        self._lock = (self.path / "lock").open("a")
        for _ in range(TRIES):
            if lock(self._lock):
                return
            time.sleep(PAUSE)
        self.close()
        raise FolderBusyError(f"{self.path} is in use by another process; wait for it or stop it")

    def in_use(self) -> bool:
        """Return whether a process is writing into the folder at this moment; a process that died is not."""
        try:
            with (self.path / "lock").open() as file:
                return not lock(file, shared=True)
        except OSError:  # no lock file: nobody ever claimed it, or it was copied without
            return False

    def close(self) -> None:
        """Release the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def append(self, record: Record) -> None:
        """Write a record down."""
        with self._writing(), (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(record.line())
            file.flush()
            os.fsync(file.fileno())

    def records(self) -> list[Record]:
        """Return all whole records; a last line that was cut off by a crash is left out."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        try:
            *lines, _cut_off = path.read_text(encoding="utf-8").split("\n")
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{path} cannot be read: {error}") from error
        records = []
        for number, line in enumerate(lines, start=1):
            try:
                records.append(Record.of_line(line))
            except (ValueError, TypeError, RecursionError, RunFolderError) as error:
                raise RunFolderError(f"{path}, line {number} is damaged: {error}") from error
        return records

    def rewind(self, last_round: int) -> list[Record]:
        """Drop the records after `last_round`, which will be made again; return the others."""
        kept = [record for record in self.records() if record.round <= last_round]
        with self._writing():
            write_atomic(self.path / "metrics.jsonl", "".join(record.line() for record in kept).encode())
        return kept

    def save(self, checkpoint: Checkpoint) -> int:
        """Write a checkpoint, then remove all but the last ones; return the number of rounds of the oldest one kept."""
        with self._writing():
            checkpoint.save(self.path / "checkpoints" / f"round-{checkpoint.ledger.round:08d}.safetensors")
            for old in self.checkpoints()[:-KEEP]:
                old.unlink(missing_ok=True)
        return int(self.checkpoints()[0].stem.removeprefix("round-"))

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints' files, oldest first."""
        return sorted((self.path / "checkpoints").glob("round-*.safetensors"))

    def latest(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest checkpoint that can be read, and what was wrong with newer ones."""
        problems: list[str] = []
        for path in reversed(self.checkpoints()):
            try:
                return Checkpoint.load(path), problems
            except RunFolderError as error:
                problems.append(str(error))
        if problems:
            raise RunFolderError("; ".join(problems) + "; no older checkpoint is left: start the run again")
        return None, []

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn what a disk can do to a run into an error that says what to do."""
        try:
            yield
        except OSError as error:
            if not self.path.is_dir():
                raise RunFolderError(
                    f"the folder {self.path} was removed while the run was writing into it; start the run again"
                ) from error
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                first = "free some space"
            else:
                first = "check the disk and the permissions"
            raise RunFolderError(
                f"cannot write into {self.path}: {error.strerror or error}; {first}, then resume the run (fedgbo "
                f"resume {self.path}, or resume=True in Python)"
            ) from error

    def _must_be_empty(self) -> None:
        held = contents(self.path)
        if "run.json" in held:
            raise RunFolderError(
                f"{self.path} already holds a run; resume it (fedgbo resume {self.path}, or resume=True in Python) "
                "or choose another folder"
            )
        if held:
            raise RunFolderError(f"{self.path} is not empty (it holds {held[0]}); choose a new or empty folder")

    def _read(self, name: str) -> dict[str, Any]:
        path = self.path / name
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            if not self.path.exists():
                raise RunFolderError(f"there is no folder {self.path}") from error
            raise RunFolderError(f"{self.path} is not a run folder: it has no {name}") from error
        except (OSError, ValueError, RecursionError) as error:
            raise RunFolderError(f"{path} cannot be read: {error}") from error
        if not isinstance(content, dict):
            raise RunFolderError(f"{path} is damaged: it holds no table")
        return content


def contents(path: Path) -> list[str]:
    """Return what a folder holds besides the traces of a process that was killed before it had written run.json."""
    traces = {"lock"}
    if (path / "checkpoints").is_dir() and not any((path / "checkpoints").iterdir()):
        traces.add("checkpoints")
    names = sorted(entry.name for entry in path.iterdir())
    return [name for name in names if name not in traces and not name.startswith(".run.json.")]


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()
