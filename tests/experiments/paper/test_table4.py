"""Table 4, fed with curves that peak at the rounds which the printed costs decode to, prints the paper's own cells."""

import math
from pathlib import Path

import pytest

from fedgbo.costs.closed import client_cost
from fedgbo.experiments.experiment import Changes
from fedgbo.experiments.paper.cost_tables import example, printed_rows, tasks
from fedgbo.experiments.paper.from_runs import _rounded, key_of, paper_experiment, table4
from fedgbo.experiments.results import PlannedRun, Results
from fedgbo.experiments.shelf import Find
from fedgbo.reports.load import RunData
from fedgbo.runs.record import Record

ROUNDS = {  # the best, and the first that matches FedAvg's best
    "cifar100": {
        "fedavg": (4800, None), "fedprox": (4950, 4950), "fedmax": (4800, 2800), "adaptivefedopt": (4800, 2550),
        "mfl": (4950, 2700), "mimelite": (4950, 2800), "fedgbo": (4950, 950),
    },
    "sent140": {
        "fedavg": (4750, None), "fedprox": (4850, None), "adaptivefedopt": (4150, None), "mfl": (3700, 3700),
        "mimelite": (4200, None), "fedgbo": (4200, 1450),
    },
    "femnist": {
        "fedavg": (4350, None), "fedprox": (4850, 4350), "fedmax": (4850, 4350), "adaptivefedopt": (4450, 4000),
        "mfl": (4350, 2150), "mimelite": (3700, 1450), "fedgbo": (4600, 4600),
    },
    "shakespeare": {
        "fedavg": (4950, None), "fedprox": (4800, 3050), "fedmax": (4950, 2850), "adaptivefedopt": (4950, 3800),
        "mfl": (4450, None), "mimelite": (4800, 900), "fedgbo": (4850, 2100),
    },
}  # fmt: skip
CONTRADICTIONS = {  # ours, the print's
    "Sent140 Mimelite FLOPs (x 10^12)": ("0.31", "0.32"),  # follows from Table 7's misprint
    "Shakespeare FedProx FLOPs to match": ("252", "396"),  # belongs to the column on its left
    "FEMNIST AdaptiveFedOpt Upload to match": ("-", "389"),  # 86.4 cannot match 86.6
    "FEMNIST AdaptiveFedOpt FLOPs to match": ("-", "383"),
    "FEMNIST FedGBO Upload to match": ("-", "447"),
    "FEMNIST FedGBO FLOPs to match": ("-", "444"),
}
SPREAD = math.sqrt(5) / (2.776445 * math.sqrt(2.5))  # of five seeds -2 ... 2 whose 95% interval is ± 1


def printed(task, algorithm):
    title = type(example(algorithm, "sgd" if algorithm in ("fedavg", "fedprox", "fedmax") else "sgdm")).__name__
    row = next(r for r in printed_rows("table4") if (r["Task"], r["Algorithm"]) == (tasks()[task].title, title))
    return [float(part) / 100 for part in row["Accuracy"].split(" ± ")]


def records(task, algorithm, optimiser, seed):
    paper, (best, match) = tasks()[task], ROUNDS[task][algorithm]
    mean, half = printed(task, algorithm)
    target = printed(task, "fedavg")[0]
    # what the print rounds away: who matched is not below FedAvg, and MFL on Shakespeare, at the same 53.9, is
    mean += 0 if algorithm == "fedavg" else 0.0001 if match and mean >= target else -0.0004
    cost = client_cost(example(algorithm, optimiser), paper.workload(), 10)
    for n in range(0, 5001, 50):
        accuracy = mean if n == best else target if n == match and mean >= target else 0.01
        accuracy += (seed - 2) * half * SPREAD
        times = n * paper.clients_per_round
        yield Record(
            n, 1.0, accuracy, None, times * cost.download_bytes, times * cost.upload_bytes, times * cost.flops, 0.0, 0.0
        )


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [(112.4, 1, "112"), (7.55, 1, "7.5"), (2**-10, 1, "0.00098"), (1373, 1, "1373"), (23.84, 1, "23.8"),
     (0.0925, 2, "0.09")],
)  # fmt: skip
def test_costs_are_rounded_as_the_paper_does(value, decimals, text):
    assert _rounded(value, decimals) == text


EXPERIMENT = paper_experiment("table4", Changes())


def finished(configs):
    made = []
    for config in configs:
        task, _, algorithm, optimiser = key_of(config)
        made.append(RunData(Path("x"), config, "finished", tuple(records(task, algorithm, optimiser, config.seed))))
    return tuple(made)


def test_the_papers_own_cells():
    table = table4(Results(finished(EXPERIMENT.configs), (), ()), EXPERIMENT)
    cells = dict(table.placed())
    compared = {place: (cell.ours, cell.published) for place, cell in cells.items() if cell.published is not None}
    assert len(compared) == 27 * 5
    assert {place: pair for place, pair in compared.items() if pair[0] != pair[1]} == CONTRADICTIONS
    assert [cells[f"CIFAR100 {name} Rounds to match FedAvg"].ours for name in ("FedAvg", "FedGBO")] == ["-", "950"]
    assert cells["CIFAR100 FedGBO Difference from FedAvg"].ours.startswith("+9.0 ± ")
    assert [place for place, cell in cells.items() if cell.strong and place.startswith("CIFAR100")] == [
        "CIFAR100 FedGBO Max acc (%)"
    ]
    assert table.summary() == "Our runs; the paper's values are in brackets."
    assert len(table.remarks) == 6


def test_what_diverged_is_said():
    mine = [config for config in EXPERIMENT.configs if config.task["name"] == "sent140"]
    gone = [c for c in mine if c.label == "mfl-sgdm"] + [c for c in mine if c.label == "fedgbo-sgdm"][3:]
    diverged = tuple(PlannedRun(config, Path("x"), Find("diverged", "loss")) for config in gone)
    table = table4(Results(finished([config for config in mine if config not in gone]), diverged, ()), EXPERIMENT)
    cells = dict(table.placed())
    assert cells["Sent140 MFL (5 seeds diverged) Max acc (%)"].ours == "diverged"
    assert cells["Sent140 FedGBO (2 seeds diverged) Max acc (%)"].ours.startswith("7")
    assert table.title.endswith("; 7 of 30 runs diverged (left out of all means)")


def test_what_failed_is_said():
    *mine, gone = EXPERIMENT.configs[:5]
    failed = ((PlannedRun(gone, Path("x"), Find("begun")), "no memory"),)
    table = table4(Results(finished(mine), (), failed), EXPERIMENT)
    assert table.title == f"{EXPERIMENT.title}; 1 of 5 runs failed (not in the table)"


@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_a_scale_is_said_in_the_title(scale):
    asked = paper_experiment("table4", Changes(scale))
    title = table4(Results(finished(EXPERIMENT.configs[:5]), (), ()), asked).title
    assert ("scale 0.1: 500 rounds, 2 seeds" in title) == (scale == 0.1)
