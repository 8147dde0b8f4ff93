"""One round after the other; where an engine can run some ahead, several at once."""

import time
from collections import deque

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.schedule import at_round
from fedgbo.core.state import State
from fedgbo.engines.ahead import LooksAhead, Played
from fedgbo.engines.engine import Engine
from fedgbo.engines.mean import version
from fedgbo.runs.cohorts import upcoming
from fedgbo.runs.prices import Prices, Work, work_of
from fedgbo.runs.round import Progress, next_round
from fedgbo.runs.steps import LocalSteps

AHEAD = 16  # rounds at once


class Rounds:
    """The rounds of a run. Those that were run ahead wait here for their turn."""

    def __init__(self, engine: Engine, algorithm: FederatedAlgorithm, local_steps: LocalSteps, prices: Prices) -> None:
        self.engine, self.algorithm, self.local_steps, self.prices = engine, algorithm, local_steps, prices
        self._waiting: deque[Played] = deque()
        self._from: State | None = None  # that the first of them goes on from
        self._version = 0  # how often their states were written to
        self._each = 0.0  # seconds that each of them took
        self._work = Work(0, 0, 0)  # of each of them
        self._looks_ahead = engine if isinstance(engine, LooksAhead) else None
        self._ask_at, self._pause = 0, AHEAD  # the round from which on it is to be asked; rounds until then, if in vain

    def next(self, progress: Progress) -> Progress:
        """Return where the run is after one more round."""
        state = progress.state
        if self._waiting and (state is not self._from or version(state.params) != self._version):
            self._waiting.clear()  # somebody has another state in mind, or has changed this one, and may do so again
            self._pause *= 2
            self._ask_at = progress.ledger.round + self._pause
        if not self._waiting and progress.ledger.round >= self._ask_at:
            self._look_ahead(progress)
        if not self._waiting:
            return next_round(self.engine, self.algorithm, self.local_steps, self.prices, progress)
        return self._come_to(self._waiting.popleft(), progress)

    def _look_ahead(self, progress: Progress) -> None:
        """Let the engine run the next rounds, if they are all alike; if it has none, ask again later."""
        began, t, task, k = time.perf_counter(), progress.ledger.round, self.engine.task, self.local_steps
        if self._looks_ahead and isinstance(k, int) and at_round(self.algorithm, t) is self.algorithm:
            self._work = work_of(self.algorithm, [k] * task.cohort_size) if not self._work.steps else self._work
            most = min(AHEAD, progress.rounds - t)
            cohorts = upcoming(task.data.clients, task.cohort_size, self.engine.seed, t, most)
            self._waiting.extend(self._looks_ahead.ahead(self.algorithm, progress.state, cohorts, k, t))
        if not self._waiting:
            self._ask_at = t + self._pause
            return
        self._version = version(self._waiting[0].after.params)
        self._each = (time.perf_counter() - began) / len(self._waiting)

    def _come_to(self, played: Played, progress: Progress) -> Progress:
        """Return where the run is after a round that was run ahead."""
        began, self._from = time.perf_counter(), played.after
        ledger = self.prices.booked(progress.ledger, self._work, played, self._each)
        server = min(played.server_seconds, self._each)
        seconds = {"training": self._each - server, "server": server + time.perf_counter() - began}
        return Progress(played.after, ledger, progress.rounds, seconds=seconds)
