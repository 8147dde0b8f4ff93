"""Where a run writes: its folder, the callbacks, and the vectors that clients keep."""

import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedgbo.core.schedule import at_round
from fedgbo.engines.engine import Origin
from fedgbo.runs.callbacks import Callbacks
from fedgbo.runs.checkpoint import Checkpoint
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.memory import ClientMemory
from fedgbo.runs.plan import Plan, Start
from fedgbo.runs.round import Progress

NOTHING: Mapping[int, Mapping[str, Any]] = MappingProxyType({})


class Recorder:
    """Writes a run into its folder and calls the callbacks."""

    def __init__(
        self, folder: RunFolder | None, plan: Plan, about: Mapping[str, Any], memory: ClientMemory | None
    ) -> None:
        self.folder, self.plan, self.about, self.memory = folder, plan, about, memory
        self.callbacks = Callbacks(plan.callbacks)
        self.saved_at = time.monotonic()

    def tell(self, progress: Progress, *, evaluated: bool, final: bool = False) -> bool:
        """Write a round down and call the callbacks; return whether one of them stopped the run.

        A round that was evaluated comes with a checkpoint, but for the first and the final one.
        """
        if progress.record is not None and self.folder is not None:
            self.folder.append(progress.record)
        old = time.monotonic() - self.saved_at >= self.plan.save_seconds
        if not final and progress.ledger.round > 0 and (evaluated or old):
            began = time.monotonic()
            self.save(progress)
            self.saved_at = time.monotonic()
            progress = progress._replace(seconds={**progress.seconds, "saving": self.saved_at - began})
        return not final and self.callbacks(progress._replace(about=self.about))

    def save(self, progress: Progress) -> None:
        """Save a checkpoint."""
        if self.folder is None:
            return
        rounds = {}
        if self.memory is not None:
            self.memory.flush()
            rounds = self.memory.rounds
        oldest = self.folder.save(Checkpoint(progress.state, progress.ledger, self.about, rounds, progress.best))
        if self.memory is not None:
            self.memory.prune(oldest)

    def end(
        self, progress: Progress, status: str, clients: Mapping[int, Mapping[str, Any]] = NOTHING, **more: Any
    ) -> None:
        """Save the last checkpoint, the scores of clients, and how the run ended."""
        self.save(progress)
        if self.folder is not None:
            self.folder.save_client_scores(clients)
            self.folder.set_status(status, round=progress.ledger.round, rounds=progress.rounds, **more)


def client_memory(
    stack: ExitStack, plan: Plan, origin: Origin, folder: RunFolder | None, start: Start
) -> ClientMemory | None:
    """Return where the clients' states are kept: in the run's folder or, without one, in a temporary one."""
    if not origin.client_state(at_round(plan.algorithm, 0), start.state.params):
        return None
    if folder is not None:
        return ClientMemory(folder.path / "clients", start.clients)
    temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="fedgbo-clients-"))
    return ClientMemory(Path(temporary), temporary=True)
