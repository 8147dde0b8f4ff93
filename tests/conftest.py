"""Small tasks that many tests share."""

import os

import numpy as np
import pytest
import torch
from torch import nn

import fedgbo
from tests.browser import INSTALL, find_chromium, required

os.environ.setdefault("COLUMNS", "120")


def make_task(
    clients=4,
    samples=12,
    features=3,
    classes=2,
    *,
    batch_size=None,
    clients_per_round=None,
    model=None,
    seed=0,
    dtype=None,
):
    """A task small enough to compute by hand or by a slow reference."""
    rng = np.random.default_rng(seed)

    def draw(n):
        return rng.normal(size=(n, features)), rng.integers(0, classes, n)

    data = fedgbo.FederatedData.from_clients(train=[draw(samples) for _ in range(clients)], test=draw(20))

    def build():
        net = nn.Sequential(nn.Linear(features, 4), nn.Tanh(), nn.Linear(4, classes))
        return net.to(dtype) if dtype else net

    return fedgbo.Task("small", data, model or build, clients_per_round, batch_size)


class Killed(BaseException):
    """Ends a run or a server without a chance to write anything, as SIGKILL does."""


def kill_at(t):
    """A callback that ends the run after round t."""

    def callback(progress):
        if progress.ledger.round == t:
            raise Killed

    return callback


@pytest.fixture
def task():
    return make_task()


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def pytest_collection_modifyitems(config, items):
    """Leave tests that need a browser out where there is none, except in continuous integration."""
    if find_chromium() or required():
        return
    without = [item for item in items if not item.get_closest_marker("browser")]
    config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("browser")])
    items[:] = without


def pytest_terminal_summary(terminalreporter):
    """Say so."""
    if not (find_chromium() or required()):
        terminalreporter.write_line(f"tests in a browser were left out; to run them: {INSTALL}", yellow=True)
