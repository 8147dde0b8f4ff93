"""The engine of one process under torchrun: trains its share of each cohort, and all go on with the same mean."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedgbo.core import ConfigError, RankError, State, Stats, Upload
from fedgbo.engines.engine import Gathered, LocalEngine, Round, Tally
from fedgbo.engines.evaluate import OwnModels, Scores
from fedgbo.engines.torchrun.ranks import Ranks, Row
from fedgbo.pipeline.aggregators import ExactMean, ExactSum, WeightedSum, check_alike

BITS = 2**52  # a float64 holds such integers exactly


class _HeldStates:
    """The states of this process's clients in one round."""

    def __init__(self, loaded: dict[int, dict[str, Tensor]]) -> None:
        self.states = loaded

    def load(self, client: int, initial: Stats) -> dict[str, Tensor]:
        return dict(self.states[client])

    def save(self, client: int, t: int, state: Stats) -> None:
        self.states[client] = {name: x.contiguous() for name, x in state.items()}  # as broadcasts want them


class TorchrunEngine:
    """Wraps the engine of this process. Sums are exact, so that any number of processes gives the same bits."""

    def __init__(self, local: LocalEngine, ranks: Ranks) -> None:
        self.local, self.ranks = local, ranks
        self.task, self.seed, self.model = local.task, local.seed, local.model
        self.origin, self.sample = local.origin, local.sample
        self.choice = f"{ranks.size} processes, each with {local.choice}"

    def evaluate(self, server: State, own_models: OwnModels | None = None) -> Scores:
        """Share the chunks of samples; rank 0 evaluates alone where scores are not sums, or clients have own models."""
        local, scorer = self.local, self.local.scorer
        if not scorer.additive or self.origin.local_buffers is not None or own_models is not None:
            return Scores.of_content(self.ranks.lead(lambda: local.evaluate(server, own_models).content()))
        chunks = local.chunks()
        pieces = local.pieces(server, self.ranks.share(chunks))
        rows = self.ranks.rows((piece.row() for piece in pieces), len(chunks), scorer.width)
        return scorer.scores(chunks, map(scorer.of_row, rows))

    def train(self, work: Round) -> Gathered:
        held = self._fetch_states(work)
        own = replace(work, states=held)
        if type(work.pipeline.aggregator) is ExactMean:  # a subclass may combine in another way
            total, rows = self._sum(own)
            combined = total.mean()
        else:
            uploads, rows = self._all_uploads(own)
            combined = work.pipeline.aggregator.combine(uploads)
        self._return_states(work, held)
        clients, losses, weights, steps, _, gradients, operations, nbytes, starts = zip(*rows, strict=True)
        check_same(starts)
        tally = Tally(
            clients=[int(client) for client in clients],
            losses=list(losses),
            weights=[int(weight) for weight in weights],
            steps=[int(k) for k in steps],
            gradients=int(sum(gradients)),
            operations=None if math.isnan(sum(operations)) else sum(operations),
            nbytes=int(sum(nbytes)),
        )
        return tally.gathered(combined, work, self.task.data.clients)

    def _uploads(self, work: Round) -> Iterator[Upload]:
        order = list(zip(work.cohort, work.steps, strict=True))
        return self.local.uploads(work, self.ranks.share(order))

    def _rows(self, uploads: Iterator[Upload], work: Round) -> list[Row]:
        """Go through this process's uploads; return the bookkeeping of those of all processes."""
        start = fingerprint(work.down.params)

        def rows() -> Iterator[Row]:
            for upload in uploads:
                yield (
                    upload.client,
                    upload.loss,
                    work.pipeline.aggregator.weight(upload),
                    upload.steps,
                    upload.samples,
                    upload.gradients,
                    math.nan if upload.operations is None else upload.operations,
                    upload.nbytes,
                    start,
                )

        return self.ranks.rows(rows(), len(work.cohort), 9)

    def _sum(self, work: Round) -> tuple[WeightedSum, list[Row]]:
        """Add up this process's uploads as they come, then those of all processes."""
        total = WeightedSum(work.pipeline.aggregator)

        def adding() -> Iterator[Upload]:
            for upload in self._uploads(work):
                total.add(upload)
                yield upload
            total.settle()

        rows = self._rows(adding(), work)
        for name, blank in self._blanks({name: one.total for name, one in total.sums.items()}, work).items():
            total.sums.setdefault(name, ExactSum.like(blank))  # in a process without clients
        self.ranks.add_up(list(total.sums.values()))
        total.weight, total.dtype = int(sum(row[2] for row in rows)), work.down.params.dtype
        return total, rows

    def _all_uploads(self, work: Round) -> tuple[list[Upload], list[Row]]:
        """Return the uploads of all processes, for aggregators that need them in one place."""
        own: dict[int, Upload] = {}

        def keeping() -> Iterator[Upload]:
            for upload in self._uploads(work):
                own[upload.client] = upload
                yield upload
            check_alike(list(own.values()))

        rows = self._rows(keeping(), work)
        like = self._blanks(next(iter(own.values())).state.tensors() if own else {}, work)
        uploads = []
        for number, row in enumerate(rows):
            client = int(row[0])
            theirs = {name: torch.empty_like(blank) for name, blank in like.items()}
            tensors = own[client].state.tensors() if client in own else theirs
            tensors = {name: x.contiguous() for name, x in tensors.items()}
            for tensor in tensors.values():
                self.ranks.spread(tensor, number % self.ranks.size)
            uploads.append(
                Upload(client, State.of_tensors(tensors), int(row[3]), int(row[4]), row[1], int(row[7]), int(row[5]))
            )
        return uploads, rows

    def _blanks(self, own: Mapping[str, Tensor], work: Round) -> dict[str, Tensor]:
        """Return vectors like those that clients upload, which rank 0 knows: it has the cohort's first client.

        Raise in all processes if those of this process's clients are others: the processes would wait for each other.
        """

        def kinds() -> dict[str, list[Any]]:
            return {name: [x.numel(), str(x.dtype).removeprefix("torch.")] for name, x in own.items()}

        told: dict[str, list[Any]] = json.loads(self.ranks.lead(lambda: json.dumps(kinds()).encode()))

        def compare() -> None:
            if own and kinds() != told:
                raise ConfigError(
                    f"clients upload {kinds()} and {told}, which cannot be combined; client_update must return the "
                    "same statistics on every client, and vectors as long as the model"
                )

        self.ranks.together(compare)
        return {n: work.down.params.new_empty(size, dtype=getattr(torch, kind)) for n, (size, kind) in told.items()}

    def _fetch_states(self, work: Round) -> _HeldStates | None:
        """Send the clients' states, which rank 0 keeps, to the processes that train them."""
        initial = self.origin.client_state(work.algorithm, work.origin)
        if not initial:
            return None

        def load() -> dict[int, dict[str, Tensor]]:
            if work.states is None:  # this is not rank 0
                return {c: {name: x.clone() for name, x in initial.items()} for c in work.cohort}
            return {client: work.states.load(client, initial) for client in work.cohort}

        loaded = self.ranks.together(load)
        for state in loaded.values():
            for name in sorted(initial):
                self.ranks.spread(state[name])
        return _HeldStates(loaded)

    def _return_states(self, work: Round, held: _HeldStates | None) -> None:
        """Send the clients' new states back to rank 0, which saves them."""
        if held is None:
            return
        for number, client in enumerate(work.cohort):
            for name in sorted(held.states[client]):
                self.ranks.spread(held.states[client][name], number % self.ranks.size)

        def save() -> None:
            for client in work.cohort:
                if work.states is not None:
                    work.states.save(client, work.t, held.states[client])

        self.ranks.together(save)


def fingerprint(params: Tensor) -> int:
    """Return the sum of the model's numbers, their bits read as integers.

    It tells models apart that differ in one number, and nearly always those that differ in more.

    >>> fingerprint(torch.tensor([1.0, 2.0])) == fingerprint(torch.tensor([1.0, 2.0000002]))
    False
    """
    whole = torch.int32 if params.element_size() >= 4 else torch.int16
    return int(params.view(whole).sum(dtype=torch.int64)) % BITS


def check_same(fingerprints: Iterable[float]) -> None:
    """Raise unless all processes have trained from the same model."""
    if len(set(fingerprints)) > 1:
        raise RankError(
            "the processes no longer hold the same model: their server updates gave different results, "
            "as can happen on different kinds of machines; use machines of one kind, with the same version of torch"
        )
