"""Where a run begins, or goes on: found in the run's folder."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedgbo.core.errors import RunFolderError
from fedgbo.core.state import State
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.record import Ledger, Record

if TYPE_CHECKING:
    from fedgbo.runs.loop import Plan


@dataclass(frozen=True, eq=False)
class Start:
    """The server state, on the CPU, the totals, the records so far, and the versions of the clients' states."""

    state: State
    ledger: Ledger
    history: list[Record]
    clients: Mapping[int, int]


def open_folder(
    stack: ExitStack, plan: "Plan", begin: Start, about: Mapping[str, Any]
) -> tuple[RunFolder | None, Start]:
    """Return the run's folder, locked until the stack is closed, and where to start; `begin` is for a new run."""
    if plan.out is None:
        return None, begin
    if plan.resume:
        folder = RunFolder.open(plan.out)
        folder.lock()
    else:
        own = {**about, "rounds": plan.rounds, "eval_every": plan.eval_every, "metrics": plan.metrics}
        folder = RunFolder.create(plan.out, own if plan.config is None else plan.config)
    stack.callback(folder.close)
    return folder, _resumed(folder, about, begin) if plan.resume else begin


def _resumed(folder: RunFolder, about: Mapping[str, Any], begin: Start) -> Start:
    """Return where to go on: the newest checkpoint or, if there is none, the beginning."""
    checkpoint, _ = folder.latest()
    if checkpoint is None:
        folder.rewind(-1)
        return begin
    for key in {**about, **checkpoint.about}:
        ours, theirs = about.get(key), checkpoint.about.get(key)
        if theirs != ours:
            raise RunFolderError(
                f"{folder.path} holds a checkpoint of another run: its {key} is {theirs}, here it is {ours}; "
                "resume it with the settings it was begun with, or choose another folder"
            )
    history = folder.rewind(checkpoint.ledger.round)
    return Start(checkpoint.state, checkpoint.ledger, history, checkpoint.clients)
