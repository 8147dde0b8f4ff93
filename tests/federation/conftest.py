"""One federation with TLS for several tests: two nodes on loopback, started once."""

import textwrap
from pathlib import Path

import pytest

from fedgbo.experiments.request import read_request
from fedgbo.federation.app_folder import SETTINGS, write_app
from fedgbo.federation.local import LocalFolder, overrides, prepare, running
from fedgbo.federation.monitor import EventFile, follow

TASK = """
import time
import numpy as np
import torch
from torch import nn
import fedgbo


def small(clients: int = 6, clients_per_round: int = 3):
    return task(clients, clients_per_round)


def everyone():
    return task(4, None)


def counted(config, notes: str = ""):
    \"\"\"Notes each time that it is built, and by whom.\"\"\"
    with open(notes, "a") as file:
        file.write(f"{config['clients']}\\n")
    return task(6, 3)


def moody(config):
    \"\"\"Four clients, all in each round; a node's mood is in its configuration.\"\"\"
    return task(4, None, str(config.get("mood", "")))


def task(clients, clients_per_round, mood=""):
    rng = np.random.default_rng(0)
    train = [(rng.normal(size=(8, 5)), rng.integers(0, 3, 8)) for _ in range(clients)]
    data = fedgbo.FederatedData.from_clients(train=train, test=(rng.normal(size=(30, 5)), rng.integers(0, 3, 30)))
    return fedgbo.Task("small", data, lambda: Moody(mood), clients_per_round=clients_per_round, batch_size=4)


class Moody(nn.Sequential):
    def __init__(self, mood):
        super().__init__(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
        self.mood = mood

    def forward(self, x):
        if self.mood == "slow":
            time.sleep(600)
        y = super().forward(x)
        if self.mood == "nan":  # a gradient that is none, of a value that is fine
            y = y + torch.sqrt(0 * self[0].weight.sum())
        return y
"""


def resolved(task, algorithm, **settings):
    return read_request(None, {"task": task, "algorithm": algorithm, "preset": "none", **settings}, []).resolve()[0]


class Federation:
    """What the tests do with a federation that runs."""

    def __init__(self, folder: LocalFolder, live, place: Path) -> None:
        self.folder, self.live, self.place = folder, live, place

    def run(self, name, config, show=lambda event: None, app=None, **options):
        """Do a run, of a new app or of that of an earlier run, and return how it ended, its events, and its folder."""
        settings = self.place / f"{app or name}-app" / SETTINGS
        if not app:
            write_app(settings.parent, config, options, link=True)
        folder, events = self.place / name, []

        def note(event):
            events.append(event)
            show(event)

        started = self.live.control.start(settings.parent, overrides(self.folder.server, settings, folder, {}))
        ending = follow(self.live.control, started.number, EventFile(folder), note, self.live.lost)
        return ending, events, folder


@pytest.fixture(scope="session")
def task_file(tmp_path_factory):
    """A user's own task, whose nodes may have moods."""
    file = tmp_path_factory.mktemp("task") / "mine.py"
    file.write_text(textwrap.dedent(TASK))
    return file


@pytest.fixture(scope="package")  # it ends with the last test here: its nodes ask for work all the time
def federation(tmp_path_factory, task_file):
    """Two nodes with three clients each."""
    place = tmp_path_factory.mktemp("federation")
    config = resolved(f"{task_file}:small", "fedavg", lr=0.1, rounds=1)
    folder = prepare(place / "fed", config, nodes=2, options={})
    with running(folder, tell=lambda text: None) as live:
        yield Federation(folder, live, place)
