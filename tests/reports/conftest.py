from functools import partial

import pytest

from fedgbo.reports.load import load_run
from fedgbo.runs.config import RunConfig
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.record import Record
from tests.browser import browser


def write_run(root, algorithm, seed, accuracies, *, name=None, status="finished", task=None, **settings):
    """Write a run folder by hand: an accuracy every ten rounds, or None where the task has no metric."""
    path = root / (name or f"{algorithm['name']}-{seed}")
    settings = {"rounds": 30, **settings}
    config = RunConfig(task=task or {"name": "digits"}, algorithm=algorithm, seed=seed, **settings)
    folder = RunFolder.create(path, config.model_dump())
    for i, accuracy in enumerate(accuracies):
        n, train_loss = 10 * i, 2.0 if i else None
        folder.append(Record(n, 3 - i / 10, accuracy, train_loss, 200 * n, 100 * n, 1e6 * n, 2e6 * n, n / 10))
    if status:
        folder.set_status(status, **({"reason": "x is no longer finite"} if status == "diverged" else {}))
    folder.close()
    return load_run(path)


@pytest.fixture
def write(tmp_path):
    return partial(write_run, tmp_path)


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    """A tab of a real browser."""
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened
