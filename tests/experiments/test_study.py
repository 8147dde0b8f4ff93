"""Studies at equal effort: the same search for every contender, on held-out data, then the chosen settings."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedgbo.cli.main import app
from fedgbo.core import ConfigError, DataError, RunFolderError
from fedgbo.experiments.jobs import Ending, run_jobs
from fedgbo.experiments.study import (
    carry_out,
    diverged_contenders,
    diverged_runs,
    final_groups,
    kept_runs,
    read_study,
    search_table,
)
from fedgbo.reports.load import metrics_csv
from fedgbo.runs.config import RunConfig

STUDY = """
title = "digits"
[shared]
tasks = "digits"
local_steps = 2
eval_every = 2
[search]
rounds = [4]
trials = 2
seeds = [100]
[final]
rounds = 6
seeds = [0, 1]
[[contender]]
algorithms = "fedavg"
lr = [0.001, 0.5]
[[contender]]
algorithms = "fedgbo:sgdm"
lr = 0.5
beta = [0.5, 0.9]
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished study: its file, its folder and its CSV file."""
    folder = tmp_path_factory.mktemp("study")
    file, kept = folder / "digits.toml", folder / "digits.csv"
    file.write_text(STUDY)
    asked: list[list[RunConfig]] = []

    def run_all(jobs):
        asked.append([job.config for job in jobs])
        return run_jobs(jobs, 1, lambda news: None)

    carry_out(read_study(file), folder / "runs", kept, run_all)
    return file, kept, asked


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "study.toml"
    file.write_text(text)
    return file


def test_trials_hold_data_out_and_final_runs_do_not(done):
    _, _, asked = done
    assert [[(c.held_out, c.rounds, c.seed) for c in configs] for configs in asked] == [
        [(0.2, 4, 100)] * 2,
        [(0.2, 4, 100)] * 2,
        [(None, 6, 0)] * 2,  # all contenders with one seed, so that a study that is stopped can compare them
        [(None, 6, 1)] * 2,
    ]
    assert [[c.label for c in configs] for configs in asked] == [
        ["fedavg"] * 2,
        ["fedgbo-sgdm"] * 2,
        *[["fedavg", "fedgbo-sgdm"]] * 2,
    ]


def test_the_best_setting_on_held_out_data_is_run(done):
    file, kept, asked = done
    study, runs = read_study(file), kept_runs(kept)
    fedavg, fedgbo = study.contenders
    rates = {c.algorithm["optimiser"]["lr"] for configs in asked[2:] for c in configs}
    assert rates == {0.5}  # 0.001 moves nothing in four rounds
    for contender in (fedavg, fedgbo):
        scores = [contender.score(trial, runs) for trial in contender.trials]
        assert contender.score(contender.chosen(runs), runs) == max(scores)
    trial = runs[next(key for key, run in runs.items() if run.config.held_out)]
    late = [record.accuracy for record in trial.records if record.round in (2, 4)]
    assert fedavg.score(fedavg.trials[0], runs) == pytest.approx(sum(late) / 2)
    rows = search_table(study, runs).rows
    assert [row[0].ours for row in rows] == ["fedavg", "fedgbo-sgdm"]
    assert rows[0][1].ours == "lr 0.5"
    assert [(group.label, len(group.runs)) for group in final_groups(study, runs)] == [
        ("fedavg", 2),
        ("fedgbo-sgdm", 2),
    ]


def test_a_final_run_that_diverged_is_in_no_mean(done):
    file, kept, _ = done
    study, runs = read_study(file), kept_runs(kept)
    (lost,) = [key for key, run in runs.items() if run.config.label == "fedavg" and run.config.seed == 1]
    runs[lost] = replace(runs[lost], status="diverged", records=runs[lost].records[:2])
    groups = final_groups(study, runs)
    assert [(group.label, [run.config.seed for run in group.runs]) for group in groups] == [
        ("fedavg", [0]),
        ("fedgbo-sgdm", [0]),  # seed 1 has no partner
    ]
    assert [group.rounds[-1] for group in groups] == [6, 6]
    assert diverged_runs(study, runs) == [
        "fedavg: 1 of 2 final runs diverged: seed 1 (last evaluated after round 2). The table has only the other seeds."
    ]
    assert not diverged_runs(study, kept_runs(kept))


def test_a_contender_that_diverged_on_all_seeds_keeps_a_row(done, tmp_path):
    file, kept, _ = done
    runs = kept_runs(kept)
    for key, run in runs.items():
        if run.config.label == "fedgbo-sgdm" and run.config.held_out is None:
            runs[key] = replace(run, status="diverged", records=run.records[:2])
    assert diverged_contenders(read_study(file), runs) == {"fedgbo-sgdm": 2}
    changed = tmp_path / "changed.csv"
    changed.write_text(metrics_csv(runs.values()))
    result = CliRunner().invoke(app, ["study", str(file), "--keep", str(changed), "--dry-run"])
    table = result.output.partition("on the test set")[2]
    assert re.search(r"^fedavg +\d", table, re.M), result.output
    assert re.search(r"^fedgbo-sgdm +diverged +-", table, re.M), result.output
    assert "fedgbo-sgdm: 2 of 2 final runs diverged: seed 0 (last evaluated after round 2), seed 1" in table
    assert "other seeds" not in table


def test_the_better_half_goes_on_to_a_longer_stage(tmp_path):
    text = STUDY.split("[[contender]]")[0].replace("rounds = [4]\ntrials = 2", "rounds = [20, 22, 24]\ntrials = 5")
    file = written(tmp_path, f'{text}[[contender]]\nalgorithms = "fedavg"\nlr = [1e-9, 0.3, 0.1, 1e30, 0.5]\n')
    asked: list[list[tuple[int, float]]] = []

    def run_all(jobs):
        asked.append([(job.config.rounds, job.config.algorithm["optimiser"]["lr"]) for job in jobs])
        return run_jobs(jobs, 1, lambda news: None)

    study = read_study(file)
    carry_out(study, tmp_path / "runs", tmp_path / "kept.csv", run_all)
    (fedavg,), runs = study.contenders, kept_runs(tmp_path / "kept.csv")
    assert asked[0] == [(20, 1e-9), (20, 0.3), (20, 0.1), (20, 1e30), (20, 0.5)]
    assert sorted(asked[1]) == [(22, 0.1), (22, 0.3), (22, 0.5)]
    second, third = fedavg.stages(runs)[1:]
    assert (
        third
        == sorted(
            [tuple(c.model_copy(update={"rounds": 24}) for c in trial) for trial in second],
            key=lambda trial: -fedavg.score(tuple(c.model_copy(update={"rounds": 22}) for c in trial), runs),
        )[:2]
    )
    assert fedavg.chosen(runs) == max(third, key=lambda trial: fedavg.score(trial, runs))
    assert search_table(study, runs).rows[0][4].ours == "5 of 5, 3 of 3, 2 of 2"


def test_runs_in_the_file_are_not_repeated_without_their_folders(done, tmp_path):
    file, kept, _ = done

    def refuse(jobs):
        raise AssertionError(f"{jobs[0].out} was run again")

    before = kept.read_bytes()
    carry_out(read_study(file), tmp_path / "elsewhere", kept, refuse)
    assert kept.read_bytes() == before


def test_missing_data_is_reported_once_before_the_first_run(done, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGBO_DATA", str(tmp_path / "empty"))
    file = tmp_path / "study.toml"
    file.write_text(re.sub(r"tasks = .*", 'tasks = "femnist"', done[0].read_text()))
    with pytest.raises(DataError, match=r"there is no packed femnist data in .*/empty "):
        carry_out(
            read_study(file), tmp_path / "runs", tmp_path / "kept.csv", lambda jobs: pytest.fail("a run was started")
        )


def test_an_interrupted_study_goes_on_to_the_same_file(done, tmp_path):
    file, complete, _ = done
    kept = tmp_path / "kept.csv"

    def only_the_first(jobs):
        run_jobs(jobs[:1], 1, lambda news: None)
        return {1: Ending("out of memory", 1)}

    with pytest.raises(RunFolderError, match=r"failed: out of memory; repeat the command to continue"):
        carry_out(read_study(file), tmp_path / "runs", kept, only_the_first)
    assert len(kept_runs(kept)) == 1
    carry_out(read_study(file), tmp_path / "runs", kept, lambda jobs: run_jobs(jobs, 1, lambda news: None))
    again, once = ([(r.config, [x.loss for x in r.records]) for r in kept_runs(k).values()] for k in (kept, complete))
    assert again == once


def test_a_diverged_trial_loses_and_a_contender_that_only_diverges_is_an_error(tmp_path):
    one = STUDY.split("[[contender]]")[0].replace("rounds = 6\nseeds = [0, 1]", "rounds = 2\nseeds = [0]")
    kept = tmp_path / "kept.csv"
    file = written(tmp_path, f'{one}[[contender]]\nalgorithms = "fedavg"\nlr = [1e30, 0.1]\n')
    study = read_study(file)
    carry_out(study, tmp_path / "runs", kept, lambda jobs: run_jobs(jobs, 1, lambda news: None))
    (fedavg,), runs = study.contenders, kept_runs(kept)
    assert fedavg.score(fedavg.trials[0], runs) == -math.inf
    assert fedavg.chosen(runs) == fedavg.trials[1]
    file = written(tmp_path, f'{one}[[contender]]\nalgorithms = "fedavg"\nlr = [1e30, 1e31]\n')
    with pytest.raises(ConfigError, match="all trials of fedavg diverged; give it smaller learning rates"):
        carry_out(read_study(file), tmp_path / "runs", kept, lambda jobs: run_jobs(jobs, 1, lambda news: None))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("lr = [0.001, 0.5]", "lr = [0.001, 0.1, 0.5]"), r"fedavg has 3 settings, but every contender must have 2"),
        (("seeds = [100]", "seeds = [1]"), r"seed 1 is in the search and in the final runs"),
        (("trials = 2", "trails = 2"), r"search"),
        (("rounds = [4]", "rounds = [4, 4]"), r"every stage needs more rounds than the last"),
        (("lr = [0.001, 0.5]", "rate = 1"), r"unknown setting 'rate'"),
    ],
)
def test_unequal_or_wrong_studies_are_refused(tmp_path, change, message):
    with pytest.raises(ConfigError, match=message):
        read_study(written(tmp_path, STUDY.replace(*change)))


def test_missing_and_unknown_keys_are_named_with_their_table(tmp_path):
    text = STUDY.replace("trials = 2", "trails = 2").replace("[final]\nrounds = 6\n", "[final]\n")
    with pytest.raises(ConfigError) as caught:
        read_study(written(tmp_path, text))
    message = str(caught.value)
    assert "search.trials is missing" in message
    assert "unknown setting of [search] 'trails'; did you mean 'trials'? (known: held_out, rounds" in message
    assert "final.rounds is missing" in message
    assert "{" not in message


def test_a_trial_is_named_by_its_setting(done):
    study = read_study(done[0])
    fedgbo = study.contenders[1]
    assert [fedgbo.title(trial[0]) for trial in fedgbo.trials] == [
        "fedgbo-sgdm (beta 0.5) search",
        "fedgbo-sgdm (beta 0.9) search",
    ]
    (final, *_) = fedgbo.final_runs(kept_runs(done[1]))
    assert fedgbo.title(final) == "fedgbo-sgdm seed 0"


def test_the_command_prints_both_tables(done):
    file, kept, _ = done
    result = CliRunner().invoke(app, ["study", str(file), "--keep", str(kept), "--dry-run"])
    assert result.exit_code == 0, result.output
    assert "digits: the search" in result.output
    assert "fedgbo-sgdm" in result.output
