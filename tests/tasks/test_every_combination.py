"""Every task, algorithm and optimiser that the paper combines, with the authors' settings, on the stand-ins."""

import math

import pytest

from fedgbo.experiments.presets import presets
from fedgbo.runs.config import RunConfig, execute
from fedgbo.runs.record import Record

ROWS = [row for row in presets("paper") if row.local_steps == 10]
SMALL = {"cifar100": 6, "femnist": 8, "sent140": 30, "shakespeare": 8}  # clients


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.task}-{row.algorithm}-{row.optimiser}")
def test_a_few_rounds_with_finite_loss(row):
    task = {"name": f"{row.task}-synthetic", "clients": SMALL[row.task], "test_samples": 40}
    if row.task == "shakespeare":
        task["samples"] = 120  # a client's: Mimelite goes through all of them
    small = {"batch_size": 4, "clients_per_round": 3, "eval_every": 1}
    config = RunConfig(task=task, algorithm=row.algorithm_table(), rounds=2, local_steps=2, **small)
    result = execute(config)
    assert [record.round for record in result.history] == [0, 1, 2]
    assert all(math.isfinite(record.loss) for record in result.history)
    last: Record = result.history[-1]
    assert last.counted_flops > 0
    assert result.state.not_finite() is None


def test_the_paper_has_62_combinations_at_each_k():
    assert len(ROWS) == 62
    assert len(presets("paper")) == 124
