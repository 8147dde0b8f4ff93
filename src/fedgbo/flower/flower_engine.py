"""The engine of a federation: trains a round's clients on their Flower nodes, and combines the valid updates.

The round loop, records, checkpoints and algorithm are those of `fedgbo run`; only `train` differs. The server state is
not changed here, so a failed round leaves it as it was.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from flwr.serverapp import Grid

from fedgbo.core import ConfigError, FederatedAlgorithm, FederationError, State, Upload, stream
from fedgbo.costs.closed import exchange
from fedgbo.engines.engine import Engine, Gathered, Round, gather
from fedgbo.engines.evaluate import OwnModels, Scores
from fedgbo.flower.exchange import Attempt, Exchange, Outcome
from fedgbo.flower.messenger import Events, Messenger
from fedgbo.flower.options import Options
from fedgbo.flower.roster import Roster
from fedgbo.flower.wire import Settings, to_record
from fedgbo.runs.describe import describe
from fedgbo.runs.memory import ClientMemory
from fedgbo.runs.steps import LocalSteps, steps_of

OWN_MODELS = "scores are those of the global model, as clients keep their own models on their nodes"
MAX_SHARE = 10  # times the median number of samples: in a weighted mean a client counts for no more


class FlowerEngine:
    """Trains on Flower nodes; evaluates with `local`, the engine of this machine."""

    def __init__(
        self, local: Engine, grid: Grid, settings: Settings, local_steps: LocalSteps, options: Options, events: Events
    ) -> None:
        messenger = Messenger(grid)
        self.task, self.seed, self.model = local.task, local.seed, local.model
        self.origin, self.sample, self._local = local.origin, local.sample, local
        self.report: dict[str, Any] = {}  # the last round's participants, bytes and seconds, for its event
        self._settings, self._local_steps, self._options, self._events = settings, local_steps, options, events
        self._roster = Roster(messenger, settings, options, events)
        self._exchange = Exchange(messenger, self._roster, options, events)
        self._started = False

    @property
    def choice(self) -> str:
        return "on Flower's nodes"

    def evaluate(self, server: State, own_models: OwnModels | None = None) -> Scores:
        scores = self._local.evaluate(server)  # what clients keep is on their nodes
        return scores if own_models is None else replace(scores, note=OWN_MODELS)

    def train(self, work: Round) -> Gathered:
        """Run a round on the cohort's nodes; retry it if there were too few valid updates."""
        if not self._started:
            self._wait_for_nodes()
        cohort, t, needed = work.cohort, work.t, self._options.needed(len(work.cohort))
        settings = replace(
            self._settings, algorithm=describe(work.algorithm), transforms=describe(work.pipeline.transforms)
        )
        rounds = work.states.rounds if isinstance(work.states, ClientMemory) else {}
        record, failed = to_record(work.down), set[int]()
        for number in range(self._options.attempts):
            began = time.perf_counter()
            chosen = self._choose(cohort, t, number, needed, failed)
            attempt = Attempt(
                t=t,
                number=number,
                settings=settings,
                down=record,
                steps=dict(zip(chosen, steps_of(self._local_steps, chosen, t), strict=True)),
                since={client: rounds.get(client, -1) for client in chosen},
                hosts={client: self._roster.clients[client] for client in chosen},
                names=_uploaded(work.algorithm, work.down),
                like=work.down,
                enough=len(cohort),
            )
            self._events("round", round=t + 1, attempt=number, clients=chosen)
            sampling = time.perf_counter() - began
            outcome = self._exchange.carry_out(attempt) if len(chosen) >= needed else Outcome()
            if len(outcome.updates) >= needed:
                return self._combine(work, attempt, outcome, sampling)
            if outcome.asked:
                failed |= set(chosen) - set(outcome.updates)
            valid = len(outcome.updates)
            self._events("abandoned", round=t + 1, attempt=number, valid=valid, needed=needed, **outcome.traffic)
        raise FederationError(
            f"round {t + 1} was abandoned {self._options.attempts} times: fewer than the {needed} good updates "
            "that it needs arrived; the model is unchanged, and the run can be resumed"
        )

    def report_nodes(self) -> str:
        """Record which nodes take part, are missing or were refused, and return that in words."""
        return self._roster.report()

    def _wait_for_nodes(self) -> None:
        roster, least = self._roster, self._options.min_nodes
        roster.wait_for(lambda: roster.complete() or 0 < least <= roster.nodes, wanted=self._settings.clients)
        found = self.report_nodes()
        if not roster.complete() and not 0 < least <= roster.nodes:
            raise FederationError(
                f"after {self._options.wait:g} s {found}; start the nodes that are missing, and look in the logs of "
                f"those that were refused. To begin without them: -c min-nodes={max(1, roster.nodes)}; to "
                "wait longer: -c wait=SECONDS"
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
            node = "no node" if host is None else self._roster.name(host.node)
            reason = "no node hosts it now" if host is None else "its node has not answered an earlier round yet"
            self._events("dropped", round=t + 1, client=client, node=node, reason=reason)
        size = len(cohort) + self._options.over_select - (0 if number else len(missing))
        spare = stream(self.seed, "spare clients", t, number).permutation(sorted(free - set(cohort))).tolist()
        in_order = [*(client for client in cohort if client in free), *spare]
        return sorted(in_order, key=lambda client: client in failed)[:size]  # stable: failed clients come last

    def _combine(self, work: Round, attempt: Attempt, outcome: Outcome, sampling: float) -> Gathered:
        """Combine the updates with the same code as `fedgbo run`, in order of client number."""
        began = time.perf_counter()
        clients = sorted(outcome.updates)
        samples = bounded([attempt.hosts[client].samples for client in clients])
        uploads = []
        for client, count in zip(clients, samples, strict=True):
            one, steps = outcome.updates[client], attempt.steps[client]
            told = (one.loss, one.up.nbytes, one.gradients, one.operations)
            uploads.append(Upload(client, one.up, steps, count, *told))
        gathered = gather(uploads, work, self.task.data.clients, downloads=outcome.asked)
        averaging = time.perf_counter() - began
        self.report = {
            "took_part": clients,
            **outcome.traffic,
            "ledger_down": gathered.download_bytes,
            "ledger_up": gathered.upload_bytes,
            "seconds": {"sampling": sampling, **outcome.seconds, "averaging": averaging},
        }
        return replace(gathered, training_seconds=sampling + sum(outcome.seconds.values()) + averaging)


def bounded(samples: Sequence[int]) -> list[int]:
    """Return the numbers of samples with a bounded maximum, so that the weight of a client is bounded.

    >>> bounded([1, 3]), bounded([2, 2, 2, 10**9])
    ([1, 3], [2, 2, 2, 20])
    """
    most = int(MAX_SHARE * median(samples))
    return [min(count, most) for count in samples]


def _uploaded(algorithm: FederatedAlgorithm, down: State) -> tuple[str, ...] | None:
    """Return the names of the vectors that clients upload; None for an algorithm without a formula."""
    buffers = () if down.buffers is None else ("buffers",)
    try:
        return (*exchange(algorithm, 1).up, *buffers)
    except ConfigError:
        return None
