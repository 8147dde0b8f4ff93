import csv
from dataclasses import replace

import pytest

from fedgbo.core.errors import RunFolderError
from fedgbo.reports.load import metrics_csv, read_metrics
from tests.reports.runs import FEDAVG, FEDGBO


@pytest.fixture
def written(write, tmp_path):
    """Runs that differ in much, and their file."""
    runs = [
        write(FEDAVG, 0, [0.1, 1 / 3, 0.7]),
        write({**FEDGBO, "objective": [], "inverse": None}, 0, [0.1, 0.5], status="interrupted", test_samples=5000),
        write(FEDGBO, 1, [None, None], clients_per_round="all", task={"name": "digits", "clients": 5}),
    ]
    file = tmp_path / "digits.csv"
    file.write_text(metrics_csv(runs))
    return runs, file


def test_what_was_written_is_read_again_to_the_last_digit(written):
    runs, file = written
    assert read_metrics(file) == [replace(run, path=file.with_name(run.path.name)) for run in runs]


def test_a_row_is_an_evaluation_with_settings_a_reader_can_find(written):
    _, file = written
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert len(rows) == 7
    last = rows[4]
    assert (last["algorithm.name"], last["algorithm.optimiser.beta"], last["seed"]) == ("fedgbo", "0.9", "0")
    assert (last["round"], last["accuracy"], last["upload_bytes"]) == ("10", "0.5", "1000")
    assert rows[0]["algorithm.optimiser.beta"] == ""


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("0.3333333333333333", "much", "digits.csv cannot be read as metrics of runs"),
        ("0.3333333333333333", '"""much"""', "digits.csv is damaged: accuracy must be a number"),
        ("fedavg-0,finished", "fedavg-0", "digits.csv"),
        (",20,", ",10,", "digits.csv is damaged: round 10 does not follow round 10"),
        ("local_steps", "lokal_steps", "digits.csv is damaged.*lokal_steps"),
        ("run,status", "run,state", "digits.csv cannot be read"),
    ],
)
def test_a_damaged_file_is_named(written, old, new, told):
    _, file = written
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(RunFolderError, match=f"(?s){told}"):
        read_metrics(file)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RunFolderError, match=r"nowhere\.csv cannot be read"):
        read_metrics(tmp_path / "nowhere.csv")
