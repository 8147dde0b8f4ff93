import subprocess
import sys
import textwrap

import pytest

TASK = """
import numpy as np
from torch import nn
import fedgbo


def small(delay: float = 0.0):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 6))
    y = (x[:, :3] + 0.3 * rng.normal(size=(120, 3))).argmax(1)
    parts = fedgbo.partition.dirichlet(y[:100], clients=10, alpha=0.5)
    data = fedgbo.FederatedData.from_arrays(x, y, parts=parts, test=(x[100:], y[100:]))
    return fedgbo.Task("small", data, lambda: Slow(delay), clients_per_round=3, batch_size=4)


class Slow(nn.Sequential):
    def __init__(self, delay):
        super().__init__(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        self.delay = delay

    def forward(self, x):
        import time
        if self.delay:  # time.sleep(0) lets other processes go first, thousands of times in a run
            time.sleep(self.delay)
        return super().forward(x)


class Nothing(fedgbo.FederatedAlgorithm):
    def client_update(self, down, client):
        return fedgbo.State(down.params * 0)
"""


@pytest.fixture
def my_file(tmp_path):
    """A user's own task and algorithm."""
    file = tmp_path / "mine.py"
    file.write_text(textwrap.dedent(TASK))
    return file


@pytest.fixture
def command(tmp_path):
    """Run the real command in a process of its own."""

    def run(*args, check=True):
        done = subprocess.run(
            [sys.executable, "-m", "fedgbo", *map(str, args)], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    return run
