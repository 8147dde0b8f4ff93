from dataclasses import dataclass

import pytest

import fedgbo
from fedgbo.engines.ahead import recurrence

SGD, SGDM = fedgbo.SGD(0.5), fedgbo.SGDm(0.5, 0.9)


@pytest.mark.parametrize(
    ("algorithm", "stats", "keep", "take"),
    [
        (fedgbo.FedAvg(SGD), (), [1.0], [-1.0]),
        (fedgbo.FedProx(SGD, 0.1), (), [1.0], [-1.0]),
        (fedgbo.FedGBO(SGDM), ("m",), [1.0, 0.0], [-1.0, 0.5]),
    ],
    ids=str,
)
def test_rounds_in_numbers(algorithm, stats, keep, take):
    found = recurrence(algorithm, stats, steps=4)
    assert found.optimiser is algorithm.optimiser
    assert (found.keep.tolist(), found.take.tolist()) == (keep, take)


@dataclass(frozen=True)
class Own(fedgbo.FederatedAlgorithm):
    """FedAvg, but for what clients do."""

    update: object

    def client_update(self, down, client):
        return self.update(down, client)


@dataclass(frozen=True)
class Slow(fedgbo.FedAvg):
    """Keeps a part of the model: a sum of two products, which may round twice or once."""

    elementwise = True

    def server_update(self, server, mean, steps):
        return fedgbo.State(0.9 * server.params - 0.3 * mean.params)


class Quiet(fedgbo.FedGBO):
    """Does not send clients the statistics."""

    def broadcast(self, server):
        return fedgbo.State(server.params)


@pytest.mark.parametrize(
    ("algorithm", "stats"),
    [
        (fedgbo.FedGBO(fedgbo.Adam(0.5, 0.9)), ("m", "v")),
        (fedgbo.FedGBO(SGDM, inverse=False), ("m",)),
        (fedgbo.AdaptiveFedOpt(SGD, SGDM), ("m",)),
        (fedgbo.MFL(SGDM), ("m",)),
        (fedgbo.Mimelite(SGDM), ("m",)),
        (fedgbo.FedAvg(SGD, objective=[]), ()),  # cannot be a key
        (Slow(SGD), ()),
        (Quiet(SGDM), ("m",)),
        (Own(lambda down, client: fedgbo.State(2 * (down.params - client.descend(down.params, SGD, down.stats)))), ()),
        (Own(lambda down, client: fedgbo.State(client.descend(down.params, SGD, down.stats))), ()),
        (Own(lambda down, client: fedgbo.State(client.gradient(down.params))), ()),
        (Own(lambda down, client: fedgbo.State(down.params - client.descend(down.params, SGD, {}))), ()),
        (Own(lambda down, client: fedgbo.State(down.params - client.descend(down.params * 1, SGD, down.stats))), ()),
        (Own(lambda down, client: fedgbo.State(down.params / client.steps)), ()),
    ],
)
def test_rounds_with_more_to_them(algorithm, stats):
    assert recurrence(algorithm, stats, steps=4) is None


def test_clients_that_descend_twice():
    def twice(down, client):
        y = client.descend(down.params, SGD, down.stats)
        return fedgbo.State(down.params - client.descend(down.params, SGD, down.stats) + 0 * y)

    assert recurrence(Own(twice), (), steps=4) is None
