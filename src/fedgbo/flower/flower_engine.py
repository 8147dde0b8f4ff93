"""The engine of a federation: trains a round's clients on their Flower nodes, and averages the valid updates.

The round loop, records, checkpoints and algorithm are those of `fedgbo run`; only `train` differs. The server state is
not changed here, so a failed round leaves it as it was.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import torch
from flwr.serverapp import Grid

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.errors import FederationError
from fedgbo.core.random import stream
from fedgbo.core.state import State
from fedgbo.engines.engine import Engine, gather
from fedgbo.engines.serial import ClientResult, CohortResult
from fedgbo.flower.exchange import Attempt, Exchange, Outcome
from fedgbo.flower.messenger import Events, Messenger
from fedgbo.flower.options import Options
from fedgbo.flower.roster import Roster
from fedgbo.flower.wire import Settings, to_record
from fedgbo.runs.describe import describe
from fedgbo.runs.prices import asked
from fedgbo.runs.steps import LocalSteps, steps_of

MAX_SHARE = 10  # times the median number of samples: in a weighted mean a client counts for no more


class FlowerEngine:
    """Trains on Flower nodes; evaluates with `local`, the engine of this machine."""

    def __init__(
        self, local: Engine, grid: Grid, settings: Settings, local_steps: LocalSteps, options: Options, events: Events
    ) -> None:
        messenger = Messenger(grid)
        self.task, self.seed, self.model = local.task, local.seed, local.model
        self.initial_params, self.sample, self.evaluate = local.initial_params, local.sample, local.evaluate
        self.report: dict[str, Any] = {}  # the last round's participants, bytes and seconds, for its event
        self._settings, self._local_steps, self._options, self._events = settings, local_steps, options, events
        self._roster = Roster(messenger, settings, options, events)
        self._exchange = Exchange(messenger, self._roster, options, events)
        self._started = False

    def train(
        self, algorithm: FederatedAlgorithm, down: State, cohort: Sequence[int], steps: Sequence[int], t: int
    ) -> CohortResult:
        """Run round t on the cohort's nodes; retry it if there were too few valid updates."""
        if not self._started:
            self._wait_for_nodes()
        needed = self._options.needed(len(cohort))
        settings = replace(self._settings, algorithm=describe(algorithm))
        record, failed = to_record(down), set[int]()
        for number in range(self._options.attempts):
            began = time.perf_counter()
            chosen = self._choose(cohort, t, number, needed, failed)
            attempt = Attempt(
                t=t,
                number=number,
                settings=settings,
                down=record,
                steps=dict(zip(chosen, steps_of(self._local_steps, chosen, t), strict=True)),
                hosts={client: self._roster.clients[client] for client in chosen},
                names=asked(algorithm, steps[0]).up,
                like=down.params,
                enough=len(cohort),
            )
            self._events("round", round=t + 1, attempt=number, clients=chosen)
            sampling = time.perf_counter() - began
            outcome = self._exchange.carry_out(attempt) if len(chosen) >= needed else Outcome()
            if len(outcome.updates) >= needed:
                return self._average(attempt, outcome, down, sampling)
            if outcome.asked:
                failed |= set(chosen) - set(outcome.updates)
            valid, traffic = len(outcome.updates), _traffic(outcome)
            self._events("abandoned", round=t + 1, attempt=number, valid=valid, needed=needed, **traffic)
        raise FederationError(
            f"round {t + 1} was abandoned {self._options.attempts} times: fewer than the {needed} good updates "
            "that it needs arrived; the model is as it was before the round, and the run can be resumed"
        )

    def _wait_for_nodes(self) -> None:
        """Wait for nodes before the first round."""
        roster, clients, least = self._roster, self._settings.clients, self._options.min_nodes
        roster.wait_for(lambda: len(roster.clients) >= clients or 0 < least <= roster.nodes, wanted=clients)
        if roster.nodes < max(1, least):
            raise FederationError(
                f"{roster.nodes} nodes joined within {self._options.wait:g} s, and it takes {max(1, least)}; "
                "start the nodes, look in their logs for why they were refused, or set wait to more seconds"
            )
        self._started = True

    def _choose(self, cohort: Sequence[int], t: int, number: int, needed: int, failed: set[int]) -> list[int]:
        """Return the clients to train: the available ones of the cohort, and spare ones.

        A retry replaces clients that are not available, and clients that failed in an earlier attempt; the latter are
        chosen again where there are not enough others.
        """
        if number:
            self._roster.wait_for(lambda: len(self._exchange.look()) >= needed, wanted=needed)
        free = self._exchange.look()
        missing = [client for client in cohort if client not in free]
        for client in missing:
            host = self._roster.clients.get(client)
            reason = "no node hosts it now" if host is None else "its node has not answered an earlier round yet"
            self._events("dropped", round=t + 1, client=client, node=None if host is None else host.node, reason=reason)
        size = len(cohort) + self._options.over_select - (0 if number else len(missing))
        spare = stream(self.seed, "spare clients", t, number).permutation(sorted(free - set(cohort))).tolist()
        in_order = [*(client for client in cohort if client in free), *spare]
        return sorted(in_order, key=lambda client: client in failed)[:size]  # stable: failed clients come last

    def _average(self, attempt: Attempt, outcome: Outcome, down: State, sampling: float) -> CohortResult:
        """Average with the same code as `fedgbo run`, in order of client number."""
        began = time.perf_counter()
        clients = sorted(outcome.updates)
        updates, steps = [outcome.updates[client] for client in clients], [attempt.steps[client] for client in clients]
        samples = [attempt.hosts[client].samples for client in clients]
        weights = sample_weights(samples) if self._options.weighted else None
        results = (
            ClientResult(update.up if weights is None else _scaled(update.up, weights[i]), update.loss, update.samples)
            for i, update in enumerate(updates)  # one at a time: the scaled copies are large
        )
        result = replace(
            gather(results, down, steps),
            steps=float(np.average(steps, weights=weights)),
            counted=steps,
            download_bytes=down.nbytes * outcome.asked,
            upload_bytes=sum(update.up.nbytes for update in updates),
        )
        self.report = {
            "took_part": clients,
            **_traffic(outcome),
            "ledger_down": result.download_bytes,
            "ledger_up": result.upload_bytes,
            "seconds": {"sampling": sampling, **outcome.seconds, "averaging": time.perf_counter() - began},
        }
        return result


def sample_weights(samples: Sequence[int]) -> list[float]:
    """Return each client's weight in the mean by numbers of samples, with a mean of 1 and a bounded maximum.

    >>> sample_weights([1, 3])
    [0.5, 1.5]
    >>> sample_weights([2, 2, 2, 10**9])[-1] < 3.1
    True
    """
    most = MAX_SHARE * median(samples)
    bounded = [min(count, most) for count in samples]
    return [count * len(bounded) / sum(bounded) for count in bounded]


def _scaled(up: State, weight: float) -> State:
    """Return the update in float64, times its weight: the plain mean of these is the weighted one."""
    wide = up.to(torch.float64)
    return State(wide.params * weight, {name: stat * weight for name, stat in wide.stats.items()})


def _traffic(outcome: Outcome) -> dict[str, int]:
    return {"sent_bytes": outcome.sent_bytes, "received_bytes": outcome.received_bytes}
