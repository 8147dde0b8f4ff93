"""Figures 1 to 3 from made-up records: which curves there are, and what they show. Table 5 too."""

from pathlib import Path

import pytest

from fedgbo.core.errors import RunFolderError
from fedgbo.experiments.experiment import Changes
from fedgbo.experiments.paper.from_runs import FIGURES, key_of, paper_experiment, table5
from fedgbo.experiments.results import PlannedRun, Results
from fedgbo.experiments.shelf import Find
from fedgbo.reports.load import RunData
from fedgbo.runs.record import Record


def results(configs, accuracy=lambda config: 0.5, drift=None):
    def records(config):
        for n in (0, 50):
            yield Record(
                n, 1.0, accuracy(config), None, n, n, 1.0 * n, 1.0 * n, 0.0, drift(config, n) if drift else None
            )

    return Results(tuple(RunData(Path("x"), config, "finished", tuple(records(config))) for config in configs), (), ())


def test_figure_1_has_a_panel_for_each_task_and_a_curve_for_each_beta():
    def drift(config, n):
        return {"cosine": 1 - config.algorithm["optimiser"]["beta"], "error": 7.0} if n else None

    found = results(paper_experiment("figure1", Changes()).configs, drift=drift)
    curves = FIGURES["figure1"].curves(found)
    labels = ["β = 0 (FedAvg)", "β = 0.3", "β = 0.6", "β = 0.9", "β = 0.99"]
    tasks = ["CIFAR100", "Sent140", "FEMNIST", "Shakespeare"]
    assert [(line.column, line.series) for line in curves] == [(task, label) for task in tasks for label in labels]
    assert all((line.rounds.tolist(), line.seeds) == ([50], 5) for line in curves)
    assert [line.mean.tolist() for line in curves[:2]] == [[1.0], [0.7]]


def test_figure_1_needs_the_metric():
    with pytest.raises(RunFolderError, match="its records lack what this picture shows"):
        FIGURES["figure1"].curves(results(paper_experiment("figure1", Changes()).configs[:1]))


@pytest.mark.parametrize("name", ["figure2", "figure3"])
def test_figures_2_and_3_repeat_algorithms_without_an_optimiser_in_every_column(name):
    found = results(paper_experiment(name, Changes()).configs)
    curves = FIGURES[name].curves(found)
    panels = {}
    for line in curves:
        panels.setdefault((line.row, line.column), []).append(line.series)
    columns = ["RMSProp", "SGDm", "Adam"]
    assert list(panels) == [(row, c) for row in ("CIFAR100", "Sent140", "FEMNIST", "Shakespeare") for c in columns]
    every = ["FedAvg", "FedProx", "FedMAX", "AdaptiveFedOpt", "MFL", "Mimelite", "FedGBO"]
    assert panels["CIFAR100", "Adam"] == every
    assert panels["Sent140", "SGDm"] == [name for name in every if name != "FedMAX"]


def test_a_part_of_figure_2():
    asked = paper_experiment("figure2", Changes(), ["sent140"], ["adam"])
    assert {(line.row, line.column) for line in FIGURES["figure2"].curves(results(asked.configs))} == {
        ("Sent140", "Adam")
    }


def test_table_5_has_the_printed_values_beside_ours():
    def accuracy(config):
        return 0.5 + config.local_steps / 1000 + config.seed / 1000

    asked = paper_experiment("table5", Changes())
    found = results([c for c in asked.configs if key_of(c)[1:] != (50, "mimexlite", "adam")], accuracy)
    gone = [c for c in asked.configs if key_of(c)[1:] == (50, "mimexlite", "adam")]
    found = Results(found.finished, tuple(PlannedRun(c, Path("x"), Find("diverged")) for c in gone), ())
    table = table5(found, asked)
    cells = dict(table.placed())
    assert len(table.rows) == 6
    assert (cells["10 SGDm FedGBO"].ours, cells["10 SGDm FedGBO"].published) == ("51.2 ± 0.2", "54.6 ± 0.3")
    assert cells["50 RMSProp Mimelite"].ours == "55.2 ± 0.2"
    assert (cells["50 Adam MimeXlite"].ours, cells["50 Adam MimeXlite"].published) == ("diverged", "52.5 ± 0.2")
