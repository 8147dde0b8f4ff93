"""Where a run begins, or goes on: found by the process that leads, in the run's folder, and told to the others."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedgbo.core.errors import RunFolderError
from fedgbo.core.state import State
from fedgbo.engines.team import Team
from fedgbo.runs.checkpoint import Checkpoint
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.record import Ledger, Record


@dataclass(frozen=True, eq=False)
class Start:
    """The server's state, on the CPU, the totals and the records so far."""

    state: State
    ledger: Ledger
    history: list[Record]


@contextmanager
def opened(
    team: Team,
    begin: Start,
    about: Mapping[str, Any],
    out: str | Path | None,
    resume: bool,
    config: Mapping[str, Any],
) -> Iterator[tuple[RunFolder | None, Start]]:
    """Yield the run's folder, in the process that writes into it, and where to start; `begin` is for a new run."""
    with ExitStack() as stack:
        found, folder = begin, None

        def look() -> bytes:
            nonlocal found, folder
            if out is not None:
                folder = _open(Path(out), resume, config)
                stack.callback(folder.close)
                found = _resumed(folder, about, begin) if resume else begin
            told = {"ledger": found.ledger.content(), "history": [record.line() for record in found.history]}
            return json.dumps({**told, "names": list(found.state.tensors())}).encode()

        told = json.loads(team.lead(look))
        own = found.state.tensors()
        tensors = {name: own[name] if team.leads else torch.empty_like(begin.state.params) for name in told["names"]}
        for tensor in tensors.values():
            team.spread(tensor)
        history = [Record.of_line(line) for line in told["history"]]
        yield folder, Start(State.of_tensors(tensors), Ledger(**told["ledger"]), history)


def _open(path: Path, resume: bool, config: Mapping[str, Any]) -> RunFolder:
    if not resume:
        return RunFolder.create(path, config)
    folder = RunFolder.open(path)
    folder.lock()
    return folder


def _resumed(folder: RunFolder, about: Mapping[str, Any], begin: Start) -> Start:
    """Return where to go on: the newest checkpoint or, if there is none, the beginning."""
    checkpoint = _checkpoint(folder, about)
    if checkpoint is None:
        folder.rewind(-1)
        return begin
    return Start(checkpoint.state, checkpoint.ledger, folder.rewind(checkpoint.ledger.round))


def _checkpoint(folder: RunFolder, about: Mapping[str, Any]) -> Checkpoint | None:
    """Return the newest checkpoint, if it is of this very run."""
    checkpoint, _ = folder.latest()
    if checkpoint is None:
        return None
    for key, ours in about.items():
        theirs = checkpoint.about.get(key)
        if theirs != ours:
            raise RunFolderError(
                f"{folder.path} holds a checkpoint of another run: its {key} is {theirs}, here it is {ours}; "
                "resume it with the settings it was begun with, or choose another folder"
            )
    return checkpoint
