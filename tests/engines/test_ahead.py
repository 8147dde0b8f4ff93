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
    found = recurrence(algorithm, stats, steps=4, length=50)
    assert found.optimiser is algorithm.optimiser
    assert (found.keep.tolist(), found.take.tolist()) == (keep, take)


@dataclass(frozen=True)
class Own(fedgbo.FedAvg):
    """Clients of the user's own: what they answer once need not be what they answer next time."""

    @property
    def affine(self):
        return True

    def client_update(self, down, client):
        rate = fedgbo.SGD(0.5 / (1 + float(down.params.norm())))
        return fedgbo.State(down.params - client.descend(down.params, rate, down.stats))


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
        (fedgbo.MimeXlite(SGDM), ("m",)),
        (fedgbo.FedAvg(SGD, objective=[]), ()),  # a list may change
        (Slow(SGD), ()),
        (Quiet(SGDM), ("m",)),
        (Own(SGD), ()),
    ],
    ids=str,
)
def test_rounds_with_more_to_them(algorithm, stats):
    assert recurrence(algorithm, stats, steps=4, length=50) is None
