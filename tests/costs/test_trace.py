"""What an algorithm sends, keeps and computes, by hand and against real runs."""

import pytest
import torch

import fedgbo
from fedgbo.costs.trace import Trace, trace
from tests.conftest import make_task
from tests.examples import ALGORITHMS, PART, SGD

SGDM = fedgbo.SGDm(0.1, 0.9)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (fedgbo.FedAvg(SGD), ("|x|", "|x|", "nothing", "K", 1)),
        (fedgbo.FedGBO(SGDM), ("2 |x|", "|x|", "nothing", "K", 1)),
        (fedgbo.FedGBO(fedgbo.Lion(0.1)), ("2 |x|", "2 |x|", "nothing", "K", 1)),
        (fedgbo.FedGBO(SGDM, objective=fedgbo.SharpnessAware(0.1)), ("2 |x|", "|x|", "nothing", "2 K", 1)),
        (fedgbo.FedGBO(fedgbo.CorrectedAdam(0.1, 0.9)), ("3 |x| + 1 number", "|x|", "nothing", "K", 1)),
        (fedgbo.Mimelite(SGDM), ("2 |x|", "2 |x|", "nothing", "K + all samples", 1)),
        (
            fedgbo.Mimelite(SGDM, objective=fedgbo.SharpnessAware(0.1)),
            ("2 |x|", "2 |x|", "nothing", "2 K + 2 x all samples", 1),
        ),
        (fedgbo.MimeXlite(SGDM), ("2 |x|", "2 |x|", "nothing", "K + 1", 1)),
        (fedgbo.Mime(SGDM), ("4 |x|", "2 |x|", "nothing", "2 K + all samples", 2)),
        (fedgbo.Ditto(SGD, 0.1), ("|x|", "|x|", "|x|", "2 K", 1)),
        (fedgbo.FedPer(SGD, PART), ("|x|", "|x|", "a part of |x|", "K", 1)),
        (fedgbo.FedRep(SGD, PART, head_steps=4), ("|x|", "|x|", "a part of |x|", "K + 4", 1)),
        (fedgbo.QFedAvg(SGD, 1.0), ("|x|", "|x| + 1 number", "nothing", "K + loss of all samples", 1)),
        (fedgbo.GHBM(SGD, 0.5, tau=3), ("2 |x|", "|x|", "nothing", "K", 1)),
    ],
    ids=lambda part: type(part).__name__,
)
def test_by_hand(algorithm, expected):
    assert trace(algorithm) == Trace(*expected)


def numbers(size):
    """How many numbers of a model of 26 such a size is."""
    parts = [part.split() for part in size.split(" + ")]
    count = {("|x|",): 26, ("1", "number"): 1}
    return sum(count[tuple(part)] if tuple(part) in count else int(part[0]) * 26 for part in parts)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_bytes_are_those_of_a_run(name):
    found = trace(ALGORITHMS[name])
    spent = fedgbo.run(make_task(clients_per_round=3), ALGORITHMS[name], rounds=2, local_steps=2).history[-1]
    assert spent.download_bytes == 2 * 3 * 4 * numbers(found.down)
    assert spent.upload_bytes == 2 * 3 * 4 * numbers(found.up)
    state = ALGORITHMS[name].client_state(torch.zeros(26))
    assert (found.kept == "nothing") == (not state)
