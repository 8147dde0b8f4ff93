"""Small federations that the tests share: six clients, three nodes."""

import dataclasses
import json

import fedgbo
from fedgbo.algorithms import ALGORITHMS, PAPER
from fedgbo.experiments.paper.cost_tables import example
from fedgbo.experiments.presets import takes_optimiser
from fedgbo.flower import Options, Strategy, client_app
from fedgbo.optimisers import OPTIMISERS
from fedgbo.runs.checkpoint import digest
from tests.conftest import make_task
from tests.examples import ALGORITHMS as EXAMPLES
from tests.flower.grids import LocalGrid

GBO = fedgbo.FedGBO(fedgbo.SGDm(lr=0.3, beta=0.9))
QUICK = Options(deadline=0.3, wait=0.2, poll=0.01)
SOME_NODES = dataclasses.replace(QUICK, min_nodes=1)  # begin even if nodes are missing


def everyone():
    """All six clients in each round."""
    return make_task(clients=6, batch_size=4)


def some():
    """Three of six clients in each round, an odd number."""
    return make_task(clients=6, batch_size=4, clients_per_round=3)


def combinations():
    """Every algorithm of the paper with each of its optimisers, and an example of every other algorithm."""
    for name in ALGORITHMS:
        takes_any = name in PAPER and takes_optimiser(name)
        for optimiser in ("sgd", "sgdm", "rmsprop", "adam") if takes_any else ("",):
            yield name, optimiser
    for optimiser in OPTIMISERS:
        yield "fedgbo", optimiser


COMBINATIONS = list(dict.fromkeys(combinations()))


def algorithm_of(combination):
    name, optimiser = combination
    return example(name, optimiser) if optimiser else EXAMPLES[name]


def nodes(builder, count=3):
    return [(client_app(builder), {"partition-id": i, "num-partitions": count}) for i in range(count)]


def federate(builder, algorithm=GBO, *, grid=None, options=QUICK, rounds=2, local_steps=2, eval_every=1, **more):
    grid = LocalGrid(nodes(builder)) if grid is None else grid
    strategy = Strategy(builder(), algorithm, local_steps=local_steps, options=options)
    return strategy.start(grid, rounds=rounds, eval_every=eval_every, **more)


def simulate(builder, algorithm=GBO, *, rounds=2, local_steps=2, eval_every=1):
    return fedgbo.run(builder(), algorithm, rounds=rounds, local_steps=local_steps, eval_every=eval_every)


def told(result):
    """All that a run gives, but for the time it took."""
    return digest(result.state.tensors()), [{**vars(r), "seconds": 0} for r in result.history]


def events(folder, kind=None):
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [event for event in lines if kind in (None, event["kind"])]
