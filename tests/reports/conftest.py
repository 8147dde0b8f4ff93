import pytest

from fedgbo.reports.load import load_run
from fedgbo.runs.config import RunConfig
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.record import Record


@pytest.fixture
def write(tmp_path):
    """Write a run folder by hand, with an evaluation every 10 rounds."""

    def write(algorithm, seed, accuracies):
        path = tmp_path / f"{algorithm['name']}-{seed}"
        config = RunConfig(task={"name": "digits"}, algorithm=algorithm, rounds=30, seed=seed)
        folder = RunFolder.create(path, config.model_dump())
        for i, accuracy in enumerate(accuracies):
            n = 10 * i
            folder.append(Record(n, 1.0, accuracy, None, 200 * n, 100 * n, 1e6 * n, 2e6 * n, 0.1 * n))
        folder.set_status("finished")
        folder.close()
        return load_run(path)

    return write
