"""Several runs, good and bad, for one process or several: `python -m tests.engines.torchrun_program FOLDER`."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import fedgbo
from fedgbo.runs.checkpoint import digest
from fedgbo.tasks.digits import digits
from tests.conftest import make_task
from tests.engines.sparse_tasks import sparse_task
from tests.examples import ALGORITHMS as EXAMPLES

SGD, ADAM = fedgbo.SGD(0.1), fedgbo.Adam(0.1, 0.9)
PULLED = fedgbo.Mimelite(ADAM, objective=fedgbo.Proximal(0.1))


def linear():
    return nn.Linear(3, 2)


def minute():
    return nn.Linear(1, 2, bias=False)


def noisy():
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))


def normed():
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


class Drawing(fedgbo.FedAvg):
    """Draws from torch's process-wide generator."""

    def client_update(self, down, client):
        up = super().client_update(down, client)
        return fedgbo.State(up.params + 0.1 * torch.randn(len(up.params)))


class Brittle(nn.Linear):
    """Fails on the samples of one client, the last, which are marked by a 7."""

    def __init__(self):
        super().__init__(3, 2)

    def forward(self, x):
        if (x[:, 0] == 7).any():
            raise ZeroDivisionError("seven")
        return super().forward(x)


def brittle_task():
    task = make_task(clients=5, model=Brittle, batch_size=4)
    task.data.train.inputs[-12:-1, 0] = 7  # but for the last, which is tried before the first round
    return task


def unlucky(progress):
    raise OSError("disk full")


def stop_at_two(progress):
    if progress.ledger.round == 2:
        progress.stop()


class Heaviest(fedgbo.Aggregator):
    """The upload of the client with the most samples, the last of them."""

    def combine(self, uploads):
        return max(uploads, key=lambda upload: (upload.samples, upload.client)).state


class Doubled(fedgbo.ExactMean):
    """Twice the mean."""

    def combine(self, uploads):
        mean = super().combine(uploads)
        return fedgbo.State(2 * mean.params, mean.stats)


@dataclass(frozen=True)
class Views(fedgbo.FedAvg):
    """Uploads and keeps vectors that are not contiguous, one of them in float64."""

    def client_state(self, params):
        return {"seen": torch.zeros_like(params)}

    def client_update(self, down, client):
        moved = down.params - client.descend(down.params, self.optimiser, {})
        client.state["seen"] = torch.stack([client.state["seen"] + moved, moved], dim=1)[:, 0]
        wide = torch.stack([client.state["seen"].double() / 3, moved.double()], dim=1)[:, 0]
        return fedgbo.State(torch.stack([moved, moved], dim=1)[:, 0], {"wide": wide})


@dataclass(frozen=True)
class Ragged(fedgbo.FedAvg):
    """One client uploads one more vector, or a shorter one."""

    who: int = 1
    more: bool = True

    def client_update(self, down, client):
        zeros = torch.zeros_like(down.params)
        if client.id != self.who:
            return fedgbo.State(zeros)
        return fedgbo.State(zeros, {"more": zeros}) if self.more else fedgbo.State(zeros[1:])


def tested(model, **more):
    """A task with a validation part, test samples of clients, and a metric that is no sum over samples."""
    own = make_task(5, model=model, batch_size=4)
    pairs = [own.data.train.batch(torch.arange(12 * c, 12 * c + 12).numpy()) for c in range(5)]
    data = fedgbo.FederatedData.from_clients(train=pairs, client_tests=[*pairs[:4], None]).split_validation(0.3)
    return fedgbo.Task("tested", data, model, 3, 4, **more)


def widest(outputs, targets):
    return outputs.std()


def uneven():
    """Clients of 3 to 15 samples."""
    data = make_task(clients=5).data
    offsets = torch.tensor([0, 3, 18, 30, 36, 51]).numpy()
    return fedgbo.Task("uneven", fedgbo.FederatedData(data.train, offsets, data.test), make_task().model, 3, 4)


SCAFFOLD, MEDIAN = fedgbo.SCAFFOLD(SGD), fedgbo.Median()
LATE = fedgbo.FedBuff(fedgbo.FedGBO(ADAM), max_staleness=4)
GOOD = {
    "fedavg": lambda: fedgbo.run(digits(), fedgbo.FedAvg(SGD), rounds=3, local_steps=3),
    "fedgbo-adam": lambda: fedgbo.run(digits(), fedgbo.FedGBO(ADAM), rounds=3, local_steps=3),
    "mfl-few": lambda: fedgbo.run(make_task(clients_per_round=2, batch_size=4), fedgbo.MFL(ADAM), rounds=3),
    "mimelite-64": lambda: fedgbo.run(make_task(7, dtype=torch.float64), fedgbo.Mimelite(ADAM), rounds=3),
    "two-numbers": lambda: fedgbo.run(make_task(features=1, model=minute), fedgbo.FedGBO(ADAM), rounds=3),
    "dropout": lambda: fedgbo.run(make_task(5, batch_size=4, model=noisy), fedgbo.FedAvg(SGD), rounds=3),
    "batch norm": lambda: fedgbo.run(make_task(5, batch_size=4, model=normed), fedgbo.FedGBO(ADAM), rounds=3),
    "drawing": lambda: fedgbo.run(make_task(5, batch_size=4), Drawing(SGD), rounds=3),
    "sparse": lambda: fedgbo.run(sparse_task(), fedgbo.FedGBO(fedgbo.SGDm(1.0, 0.9)), rounds=3),
    "sparse-mimelite": lambda: fedgbo.run(sparse_task(), PULLED, rounds=2),
    "scaffold": lambda: fedgbo.run(make_task(7, clients_per_round=4, batch_size=4), SCAFFOLD, rounds=6),
    **{
        name: lambda name=name: fedgbo.run(make_task(7, clients_per_round=4, batch_size=4), EXAMPLES[name], rounds=6)
        for name in ("feddyn", "ditto", "apfl", "fedper", "fedrep", "mime", "qfedavg", "ghbm", "mofedsam", "averaged")
    },
    "fedgbo-adamw": lambda: fedgbo.run(digits(), fedgbo.FedGBO(fedgbo.AdamW(0.01, 0.9)), rounds=2, local_steps=3),
    "mfl-corrected": lambda: fedgbo.run(make_task(5), fedgbo.MFL(fedgbo.CorrectedAdam(0.1, 0.9)), rounds=3),
    "fedbuff": lambda: fedgbo.run(
        make_task(9, batch_size=4), LATE, rounds=9, sampler=fedgbo.Asynchronous(4, 3, max_staleness=4, spread=1.0)
    ),
    "scaffold-median": lambda: fedgbo.run(make_task(5, batch_size=4), SCAFFOLD, rounds=4, aggregator=MEDIAN),
    "median": lambda: fedgbo.run(digits(), fedgbo.FedGBO(ADAM), rounds=3, local_steps=3, aggregator=MEDIAN),
    "median-few": lambda: fedgbo.run(make_task(clients_per_round=2), fedgbo.MFL(ADAM), rounds=3, aggregator=MEDIAN),
    "samples": lambda: fedgbo.run(uneven(), fedgbo.FedGBO(ADAM), rounds=3, weights="samples"),
    "heaviest": lambda: fedgbo.run(uneven(), fedgbo.FedGBO(ADAM), rounds=3, aggregator=Heaviest()),
    "doubled": lambda: fedgbo.run(uneven(), fedgbo.FedAvg(SGD), rounds=3, aggregator=Doubled()),
    "clipped": lambda: fedgbo.run(uneven(), fedgbo.FedAvg(SGD), rounds=3, transforms=[fedgbo.ClipNorm(0.01)]),
    "views": lambda: fedgbo.run(make_task(5, clients_per_round=4), Views(SGD), rounds=3),
    "views-median": lambda: fedgbo.run(make_task(5, clients_per_round=4), Views(SGD), rounds=3, aggregator=MEDIAN),
    "poisson": lambda: fedgbo.run(make_task(batch_size=4), SCAFFOLD, rounds=12, sampler=fedgbo.Poisson(0.2)),
    "poisson-median": lambda: fedgbo.run(
        make_task(batch_size=4), fedgbo.FedGBO(ADAM), rounds=12, sampler=fedgbo.Poisson(0.2), aggregator=MEDIAN
    ),
    "scores": lambda: fedgbo.run(tested(normed), fedgbo.FedAvg(SGD), rounds=3),
    "metric": lambda: fedgbo.run(tested(normed, metric={"widest": widest}), fedgbo.FedAvg(SGD), rounds=3),
    "local-buffers": lambda: fedgbo.run(tested(normed, buffers="local"), fedgbo.FedAvg(SGD), rounds=3),
    "stopped": lambda: fedgbo.run(make_task(), fedgbo.FedAvg(SGD), rounds=9, callbacks=[stop_at_two]),
}
BAD = {
    "diverged": lambda: fedgbo.run(make_task(model=linear), fedgbo.FedAvg(fedgbo.SGD(1e39)), rounds=3),
    "no-device": lambda: fedgbo.run(make_task(), fedgbo.FedAvg(SGD), rounds=1, device="abacus"),
    "metrics": lambda: fedgbo.run(make_task(), fedgbo.FedAvg(SGD), rounds=1, metrics=["cosine"]),
    "brittle": lambda: fedgbo.run(brittle_task(), fedgbo.FedAvg(SGD), rounds=3, eval_every=3),
    "callback": lambda: fedgbo.run(make_task(), fedgbo.FedAvg(SGD), rounds=3, callbacks=[unlucky]),
    "ragged": lambda: fedgbo.run(make_task(), Ragged(SGD), rounds=3),
    "ragged-median": lambda: fedgbo.run(make_task(), Ragged(SGD), rounds=3, aggregator=MEDIAN),
    "ragged-last": lambda: fedgbo.run(make_task(), Ragged(SGD, who=3), rounds=3),
    "ragged-last-median": lambda: fedgbo.run(make_task(), Ragged(SGD, who=3), rounds=3, aggregator=MEDIAN),
    "short": lambda: fedgbo.run(make_task(), Ragged(SGD, more=False), rounds=3),
    "unlike": lambda: fedgbo.run(make_task(), fedgbo.FedAvg(SGD), rounds=3, seed=int(os.environ.get("RANK", 0))),
}


def outcome(work):
    """What a run gave, or what it raised."""
    try:
        result = work()
    except Exception as error:
        return [type(error).__name__, str(error)]
    history = [[r.round, r.loss, r.accuracy, r.train_loss, r.upload_bytes, r.flops, r.scores] for r in result.history]
    return [digest(result.state.tensors()), history]


def main():
    # Every run after a bad one shows that the processes still agree
    outcomes = {name: outcome(work) for name, work in {**BAD, **GOOD}.items()}
    path = Path(sys.argv[1]) / f"rank-{os.environ.get('RANK', 0)}.json"
    path.write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main()
