"""The engine whose clients are real: sends a round's work to their nodes, takes what comes back in time and sound.

The round loop, the records, the checkpoints and the algorithm are those of `fedgbo run`; only `train` is different.
Nothing here touches the server's state, so that a round that fails leaves it as it was.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.errors import FederationError
from fedgbo.core.random import stream
from fedgbo.core.state import State
from fedgbo.engines.engine import Engine
from fedgbo.engines.serial import CohortResult, gather
from fedgbo.flower.events import Events
from fedgbo.flower.exchange import Exchange, Outcome, Round
from fedgbo.flower.options import Options
from fedgbo.flower.order import Settings
from fedgbo.flower.post import Post
from fedgbo.flower.roster import Roster
from fedgbo.flower.weights import shares, weighted
from fedgbo.flower.wire import to_record
from fedgbo.runs.describe import describe
from fedgbo.runs.prices import asked
from fedgbo.runs.steps import LocalSteps, steps_of


@dataclass(frozen=True)
class RoundReport:
    """What a round took, for those who watch."""

    took_part: list[int]
    sent_bytes: int  # on the wire, this attempt's
    received_bytes: int
    ledger_down: int  # bytes by the ledger's closed form
    ledger_up: int
    seconds: dict[str, float]


class FlowerEngine:
    """Trains on Flower's nodes; evaluates here, with the engine of this machine."""

    def __init__(
        self, local: Engine, post: Post, settings: Settings, local_steps: LocalSteps, options: Options, events: Events
    ) -> None:
        self.task, self.seed, self.model = local.task, local.seed, local.model
        self.initial_params, self.sample = local.initial_params, local.sample
        self.report: RoundReport | None = None
        self._local, self._settings, self._local_steps = local, settings, local_steps
        self._options, self._events = options, events
        self.roster = Roster(post, settings, options, events)
        self._exchange = Exchange(post, self.roster, options, events)
        self._started = False

    def evaluate(self, params: Tensor) -> dict[str, float]:
        """Return the test loss and, where the task has a metric, the accuracy."""
        return self._local.evaluate(params)

    def train(
        self, algorithm: FederatedAlgorithm, down: State, cohort: Sequence[int], steps: Sequence[int], t: int
    ) -> CohortResult:
        """Run round t on the cohort's nodes, again if too few of them gave an update that can be used."""
        if not self._started:
            self._gather()
        needed = self._options.needed(len(cohort))
        settings = replace(self._settings, algorithm=describe(algorithm))
        record, failed = to_record(down), set[int]()
        for attempt in range(self._options.attempts):
            began = time.perf_counter()
            chosen = self._choose(cohort, t, attempt, needed, failed)
            work = Round(
                t=t,
                attempt=attempt,
                settings=settings,
                down=record,
                steps=dict(zip(chosen, steps_of(self._local_steps, chosen, t), strict=True)),
                hosts={client: self.roster.clients[client] for client in chosen},
                names=asked(algorithm, steps[0]).up,
                like=down.params,
                enough=len(cohort),
            )
            self._events("round", round=t + 1, attempt=attempt, clients=chosen)
            sampled = time.perf_counter() - began
            outcome = self._exchange.carry_out(work) if len(chosen) >= needed else Outcome()
            if len(outcome.updates) >= needed:
                return self._mean(work, outcome, down, sampled)
            if outcome.asked:
                failed |= set(chosen) - set(outcome.updates)
            self._events(
                "abandoned",
                round=t + 1,
                attempt=attempt,
                valid=len(outcome.updates),
                needed=needed,
                sent_bytes=outcome.sent_bytes,
                received_bytes=outcome.received_bytes,
            )
        raise FederationError(
            f"round {t + 1} was abandoned {self._options.attempts} times: fewer than the {needed} good updates "
            "that it takes came in; the model is as it was before the round, and the run can be resumed"
        )

    def _gather(self) -> None:
        """Wait for nodes before the first round."""
        clients, least = self._settings.clients, self._options.min_nodes
        self.roster.wait_for(
            lambda: len(self.roster.clients) >= clients or 0 < least <= self.roster.nodes, wanted=clients
        )
        if self.roster.nodes < max(1, least):
            raise FederationError(
                f"{self.roster.nodes} nodes joined within {self._options.wait:g} s, and it takes {max(1, least)}; "
                "start the nodes, look at their logs for why they were refused, or set wait to more seconds"
            )
        self._started = True

    def _choose(self, cohort: Sequence[int], t: int, attempt: int, needed: int, failed: set[int]) -> list[int]:
        """Return the clients to ask: those of the cohort that are there, and spare ones.

        A round that is tried again has others in the place of those that are not there, and of those that were asked
        and gave nothing good; these are asked again where there are not enough others.
        """
        if attempt:
            self.roster.wait_for(lambda: self._look() >= needed, wanted=needed)
        self._look()
        free = self._free()
        missing = [client for client in cohort if client not in free]
        for client in missing:
            hosted = self.roster.clients.get(client)
            reason = "no node hosts it now" if hosted is None else "its node has not answered an earlier round yet"
            node = None if hosted is None else hosted.node
            self._events("dropped", round=t + 1, client=client, node=node, reason=reason)
        size = len(cohort) + self._options.over_select - (0 if attempt else len(missing))
        others = sorted(free - set(cohort))
        spare = stream(self.seed, "spare clients", t, attempt).permutation(others).tolist()
        in_order = [*(client for client in cohort if client in free), *spare]
        return sorted(in_order, key=lambda client: client in failed)[:size]  # stable: those that failed come last

    def _look(self) -> int:
        self._exchange.look()
        return len(self._free())

    def _free(self) -> set[int]:
        """Return the clients whose nodes are there and not busy."""
        busy = self._exchange.busy
        return {client for client, hosted in self.roster.clients.items() if hosted.node not in busy}

    def _mean(self, work: Round, outcome: Outcome, down: State, sampled: float) -> CohortResult:
        """Average with the code that `fedgbo run` averages with, in the order of clients."""
        began = time.perf_counter()
        clients = sorted(outcome.updates)
        results, steps = [outcome.updates[client] for client in clients], [work.steps[client] for client in clients]
        if self._options.weighted:
            weights = shares([work.hosts[client].samples for client in clients])
            result = gather(weighted(results, weights), down, steps)
            result = replace(result, steps=float(np.average(steps, weights=weights)))
        else:
            result = gather(results, down, steps)
        result = replace(
            result,
            counted=steps,
            download_bytes=down.nbytes * outcome.asked,
            upload_bytes=sum(one.up.nbytes for one in results),
        )
        seconds = {"sampling": sampled, **outcome.seconds, "averaging": time.perf_counter() - began}
        self.report = RoundReport(
            clients,
            outcome.sent_bytes,
            outcome.received_bytes,
            result.download_bytes,
            result.upload_bytes,
            seconds,
        )
        return result
