"""A program of several runs, good and bad, for one process or a team: `python -m tests.engines.team_program FOLDER`."""

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn

import fedgbo
from fedgbo.runs.checkpoint import digest
from fedgbo.tasks.digits import digits
from tests.conftest import make_task
from tests.engines.sparse_tasks import sparse_task

SGD, ADAM = fedgbo.SGD(0.1), fedgbo.Adam(0.1, 0.9)


PULLED = fedgbo.Mimelite(ADAM, objective=fedgbo.Proximal(0.1))


def linear():
    return nn.Linear(3, 2)


def minute():
    return nn.Linear(1, 2, bias=False)


def noisy():
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))


class Brittle(nn.Linear):
    """Fails on the samples of one client, the last, which are marked by a 7."""

    def __init__(self):
        super().__init__(3, 2)

    def forward(self, x):
        if (x[:, 0] == 7).any():
            raise ValueError("seven")
        return super().forward(x)


def brittle_task():
    task = make_task(clients=5, model=Brittle, batch_size=4)
    task.data.train.inputs[-12:, 0] = 7
    return task


def unlucky(progress):
    raise OSError("disk full")


def stop_at_two(progress):
    return progress.ledger.round == 2


GOOD = {
    "fedavg": lambda: fedgbo.run(digits(), fedgbo.FedAvg(SGD), rounds=3, local_steps=3),
    "fedgbo-adam": lambda: fedgbo.run(digits(), fedgbo.FedGBO(ADAM), rounds=3, local_steps=3),
    "mfl-few": lambda: fedgbo.run(make_task(clients_per_round=2, batch_size=4), fedgbo.MFL(ADAM), rounds=3),
    "mimelite-64": lambda: fedgbo.run(make_task(7, dtype=torch.float64), fedgbo.Mimelite(ADAM), rounds=3),
    "two-numbers": lambda: fedgbo.run(make_task(features=1, model=minute), fedgbo.FedGBO(ADAM), rounds=3),
    "dropout": lambda: fedgbo.run(make_task(5, batch_size=4, model=noisy), fedgbo.FedAvg(SGD), rounds=3),
    "sparse": lambda: fedgbo.run(sparse_task(), fedgbo.FedGBO(fedgbo.SGDm(1.0, 0.9)), rounds=3),
    "sparse-mimelite": lambda: fedgbo.run(sparse_task(), PULLED, rounds=2),
    "stopped": lambda: fedgbo.run(make_task(), fedgbo.FedAvg(SGD), rounds=9, callbacks=[stop_at_two]),
}
BAD = {
    "diverged": lambda: fedgbo.run(make_task(model=linear), fedgbo.FedAvg(fedgbo.SGD(1e38)), rounds=3),
    "no-device": lambda: fedgbo.run(make_task(), fedgbo.FedAvg(SGD), rounds=1, device="abacus"),
    "metrics": lambda: fedgbo.run(make_task(), fedgbo.FedAvg(SGD), rounds=1, metrics=["cosine"]),
    "brittle": lambda: fedgbo.run(brittle_task(), fedgbo.FedAvg(SGD), rounds=3, eval_every=3),
    "callback": lambda: fedgbo.run(make_task(), fedgbo.FedAvg(SGD), rounds=3, callbacks=[unlucky]),
    "unlike": lambda: fedgbo.run(make_task(), fedgbo.FedAvg(SGD), rounds=3, seed=int(os.environ.get("RANK", 0))),
}


def outcome(work):
    """What a run gave, or what it raised."""
    try:
        result = work()
    except Exception as error:
        return [type(error).__name__, str(error)]
    history = [[r.round, r.loss, r.accuracy, r.train_loss, r.upload_bytes, r.flops] for r in result.history]
    return [digest(result.state.tensors()), history]


def main():
    # Every run after a bad one shows that the team is still in step
    outcomes = {name: outcome(work) for name, work in {**BAD, **GOOD}.items()}
    path = Path(sys.argv[1]) / f"rank-{os.environ.get('RANK', 0)}.json"
    path.write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main()
