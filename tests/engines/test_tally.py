"""The bookkeeping of a round's uploads."""

import math

import torch

from fedgbo.core import State
from fedgbo.engines.engine import Tally
from fedgbo.pipeline import Pipeline
from fedgbo.pipeline.samplers import FixedSize


class Work:
    """The part of a round that a tally reads."""

    pipeline, down = Pipeline(FixedSize(2)), State(torch.zeros(3))


def gathered(losses, steps, weights):
    tally = Tally(clients=[0, 1], losses=losses, weights=weights, steps=steps)
    return tally.gathered(State(torch.zeros(3)), Work, population=5)


def test_means_by_hand():
    result = gathered([1.0, 2.0], steps=[4, 10], weights=[1, 3])
    assert result.loss == 1.5
    assert result.steps == (4 + 3 * 10) / 4


def test_extreme_losses_that_clients_report_do_not_end_the_round():
    assert gathered([1e308, 1e308], [1, 1], [1, 1]).loss == math.inf
    assert math.isnan(gathered([math.inf, -math.inf], [1, 1], [1, 1]).loss)
