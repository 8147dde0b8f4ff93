"""`fedgbo init`: a small project that runs as it stands."""

from pathlib import Path
from typing import Annotated

from rich.markup import escape
from typer import Argument

from fedgbo.cli.console import out
from fedgbo.core import RunFolderError
from fedgbo.core.files import write_atomic

TASK = '''"""The task: data of several clients, and the model that they train together."""

import numpy as np
from torch import nn

import fedgbo

CLIENTS, FEATURES, CLASSES = 20, 10, 3


def samples(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw samples and their labels. Replace this by your own data."""
    x = rng.normal(size=(n, FEATURES)).astype("float32")
    return x, x[:, :CLASSES].argmax(axis=1)


def model() -> nn.Module:
    """Build the model. Replace this by your own."""
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def task() -> fedgbo.Task:
    """Build the task; run.toml and compare.toml name this function."""
    rng = np.random.default_rng(0)
    x, y = samples(1000, rng)
    parts = fedgbo.partition.dirichlet(y, clients=CLIENTS, alpha=0.3)  # most clients lack some of the labels
    data = fedgbo.FederatedData.from_arrays(x, y, parts=parts, test=samples(300, rng))
    return fedgbo.Task("example", data, model, clients_per_round=5, batch_size=8)
'''

RUN = """# One run: fedgbo run run.toml
task = "task.py:task"
algorithm = "fedgbo"
optimiser = "sgdm"
lr = 0.3
beta = 0.9
rounds = 30
local_steps = 10
seed = 0
"""

COMPARE = """# FedGBO against FedAvg, five seeds each: fedgbo experiment compare.toml
title = "FedGBO against FedAvg"
tasks = "task.py:task"
rounds = 30
eval_every = 1
seeds = 5

[[run]]
algorithms = "fedavg"
lr = [0.1, 0.3]

[[run]]
algorithms = "fedgbo:sgdm"
lr = [0.1, 0.3]
beta = 0.9
"""

TEST = '''"""Run with: python -m pytest"""

import fedgbo
from task import task


def test_clients_and_model_fit_together():
    built = task()
    assert built.data.clients == 20
    result = fedgbo.run(built, fedgbo.FedGBO(fedgbo.SGDm(lr=0.3, beta=0.9)), rounds=20, seed=0)
    assert result.loss < result.history[0].loss


def test_a_run_can_be_repeated():
    once, again = (fedgbo.run(task(), fedgbo.FedAvg(fedgbo.SGD(lr=0.1)), rounds=3, seed=1) for _ in range(2))
    assert once.params.equal(again.params)
'''

README = """# {name}

A federated learning project made by `fedgbo init`.

| file | contents |
|---|---|
| `task.py` | the clients' data and the model; begin here |
| `run.toml` | one run: `fedgbo run run.toml` |
| `compare.toml` | FedGBO against FedAvg: `fedgbo experiment compare.toml` |
| `test_task.py` | tests: `python -m pytest`, after `pip install pytest` |

Run all commands in this folder; they write into `runs/`. `fedgbo tune --task task.py:task` searches for good
settings, and `fedgbo export RUN` writes the model of a run to a file.
"""

FILES = {"task.py": TASK, "run.toml": RUN, "compare.toml": COMPARE, "test_task.py": TEST, "README.md": README}


def init(
    folder: Annotated[Path, Argument(help="The project's folder; it is created if it does not exist.")],
) -> None:
    """Write a small project: a task of your own, a run, a comparison and tests. It runs without changes.

    fedgbo init my-project && cd my-project && fedgbo run run.toml
    """
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if there := sorted(name for name in FILES if (folder / name).exists()):
            raise RunFolderError(f"{folder} has a {there[0]} already; choose another folder, or move the file away")
        for name, text in FILES.items():
            write_atomic(folder / name, text.replace("{name}", folder.resolve().name).encode())
            written.append(folder / name)
    except OSError as error:
        for file in written:  # so that the same command can be repeated
            file.unlink(missing_ok=True)
        raise RunFolderError(f"cannot write into {folder}: {error.strerror}; choose another place") from error
    for name in FILES:
        out.print(escape(f"wrote {folder / name}"))
    out.print(escape(f"next: cd {folder} && fedgbo run run.toml"))
