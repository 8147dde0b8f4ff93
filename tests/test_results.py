"""docs/results.md says what the files beside it say."""

import csv
import hashlib
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html import unescape
from importlib import import_module
from pathlib import Path

import pytest

from fedgbo.experiments.experiment import read_experiment
from fedgbo.experiments.request import requested_config
from fedgbo.experiments.shelf import identity
from fedgbo.reports.comparison import finding, summarise
from fedgbo.reports.curves import ROUNDS, saving
from fedgbo.reports.load import read_metrics
from fedgbo.reports.sections import sections_of
from fedgbo.runs.config import execute
from tests.reports.conftest import write_run
from tests.reports.runs import FEDAVG, FEDGBO

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
OTHERS = RESULTS / "cifar100-others.csv"
SMALLER = RESULTS / "study" / "cifar100-fedavg.csv"
MEASURED = sorted(file for task in ("cifar100", "shakespeare", "femnist") for file in RESULTS.glob(f"{task}.csv"))


@pytest.fixture
def docs(tmp_path):
    """A copy of the page, of its files, and an empty folder for pictures."""
    shutil.copytree(RESULTS, tmp_path / "docs" / "results")
    (tmp_path / "docs" / "images").mkdir()
    shutil.copy(ROOT / "docs" / "results.md", tmp_path / "docs")
    return tmp_path / "docs"


@pytest.fixture
def make(docs, monkeypatch):
    """Make the copy of the page, in this process: importing all of it takes seconds."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    main = import_module("results").main
    return lambda *runs: main([*map(str, runs), "--docs", str(docs)])


def part(docs, name):
    return re.search(rf"<!-- begin: {name} -->(.*?)<!-- end -->", (docs / "results.md").read_text(), re.DOTALL)[1]


def test_the_page_is_what_its_files_make(docs):
    page = docs / "results.md"
    page.write_text(re.sub(r"(<!-- begin: \S+ -->\n?).*?(<!-- end -->)", r"\1\2", page.read_text(), flags=re.DOTALL))
    subprocess.run([sys.executable, ROOT / "scripts" / "results.py", "--docs", docs], check=True)
    assert page.read_text() == (ROOT / "docs" / "results.md").read_text(), "make results, and commit what it wrote"


def data_behind(picture):
    """The data that a picture of the documentation was made of."""
    if picture.stem == "theory":
        page = (ROOT / "docs" / "theory.md").read_text()
        return "\n".join(re.findall(r"^\| [\d.]+ \| \d+ \|.*$", page, re.MULTILINE)).encode()
    if picture.stem.startswith("study-"):
        return (RESULTS / "study" / f"{picture.stem.removeprefix('study-')}.csv").read_bytes()
    other = {"report": "digits.csv", "digits-tune": "digits-tune-trials.csv"}
    return (RESULTS / other.get(picture.stem, f"{picture.stem}.csv")).read_bytes()


@pytest.mark.parametrize("picture", sorted((ROOT / "docs" / "images").iterdir()), ids=lambda picture: picture.name)
def test_every_picture_is_made_of_the_data_that_is_there(picture):
    digest = hashlib.sha256(data_behind(picture)).hexdigest().encode()
    assert digest in picture.read_bytes(), "make results (or scripts/screenshot.py), and commit what it wrote"


@pytest.mark.parametrize("picture", sorted((ROOT / "docs" / "images").glob("*.svg")), ids=lambda picture: picture.name)
def test_every_picture_states_its_seeds(picture):
    assert re.search(r"\b(one seed|(two|three|four|five|six|seven|eight|nine|ten|\d+) seeds)\b", picture.read_text())


@pytest.mark.parametrize("name", ["cifar100", "shakespeare", "femnist", "digits"])
def test_the_numbers_in_a_picture_are_those_of_its_data(name, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    lines = sections_of(read_metrics(RESULTS / f"{name}.csv"))[0].lines
    if name != "digits":
        seeds = import_module("results_tasks").comparisons(lines)[-1].seeds
        lines = [replace(line, runs=tuple(run for run in line.runs if run.config.seed in seeds)) for line in lines]
        lines = [line for line in lines if len(line.runs) == len(seeds)]
    found = finding(summarise([line.group() for line in lines]))
    drawn = set(
        re.findall(r"<text[^>]*>([^<]*)</text>", unescape((ROOT / "docs" / "images" / f"{name}.svg").read_text()))
    )
    assert {found.headline, f"FedAvg's best: {found.baseline.accuracy:.1%}"} <= drawn
    if found.ours.fewer is not None and found.ours.fewer.value != 1:
        assert saving(ROUNDS, found.ours.fewer.value) in drawn


@pytest.mark.parametrize("file", [*MEASURED, OTHERS, SMALLER], ids=lambda file: file.stem)
def test_its_experiment_names_the_runs(file):
    named = {identity(config) for config in read_experiment(file.with_suffix(".toml")).configs}
    assert {identity(run.config) for run in read_metrics(file)} <= named


def test_changed_files_change_the_page(docs, make):
    names = ["digits-compare", "digits-search", "digits-trials", "digits-tune"]
    before = {name: part(docs, name) for name in names}
    changed = {"digits": "accuracy", "digits-search": "Score", "digits-tune-trials": "score", "digits-tune": "last"}
    for name, column in changed.items():
        file = docs / "results" / f"{name}.csv"
        rows = list(csv.DictReader(file.read_text().splitlines()))
        for row in rows:
            row[column] = str(float(row[column]) / 2) if row.get("lr") != "1.00149" else "0.99"
        with file.open("w", newline="") as opened:
            writer = csv.DictWriter(opened, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    make()
    assert {name for name in names if part(docs, name) == before[name]} == set()
    assert "lr = 1.00149" in part(docs, "digits-trials")


def test_runs_are_compared_over_what_all_of_them_have(docs, make, tmp_path):
    for file in MEASURED:
        (docs / "results" / file.name).unlink()
    task = {"name": "cifar100"}
    fedprox = {"name": "fedprox", "optimiser": {"name": "sgd", "lr": 0.1}, "mu": 0.1}
    for algorithm, seed, accuracies in [
        (FEDAVG, 0, [0.0, 0.1, 0.2, 0.3, 0.6]),
        (FEDAVG, 1, [0.0, 0.2, 0.3, 0.4]),
        (FEDGBO, 0, [0.0, 0.3, 0.4, 0.5]),
        (FEDGBO, 1, [0.0, 0.5, 0.6, 0.7]),
        (fedprox, 0, [0.0, 0.1, 0.4]),
    ]:
        write_run(tmp_path / "runs", algorithm, seed, accuracies, task=task, rounds=10 * len(accuracies) - 10)
    make(tmp_path / "runs")
    said = part(docs, "cifar100")
    assert re.findall(r"\*\*CIFAR100: (.*)\*\*", said) == ["first 20 rounds, seed 0", "first 30 rounds, seeds 0 and 1"]
    assert "| fedavg | optimiser=sgd | 40 (seed 0), 30 (seed 1) |" in said
    rows = [line for line in said.splitlines() if re.match(r"\| (fedavg|fedprox|fedgbo-sgdm) \| (\*\*)?\d", line)]
    assert rows == [
        "| fedavg | 20.0 | 20 | 1.95 KiB | 20.0 M | - | - | - | - | 20.0 | 40.2 ± 0.9 |",
        "| fedprox | **40.0** | 20 | 1.95 KiB | 20.0 M | 20 | 1.95 KiB | 1.0x | +20.0 | 40.0 | 40.6 ± 0.7 |",
        "| fedgbo-sgdm | **40.0** | 20 | 1.95 KiB | 20.0 M | 10 | 1000 B | 2.0x | +20.0 | 40.0 | 49.2 ± 0.7 |",
        "| fedavg | 35.0 | 30 | 2.93 KiB | 30.0 M | - | - | - | - | 35.0 | 40.2 ± 0.9 |",
        "| fedgbo-sgdm | **60.0** | 30 | 2.93 KiB | 30.0 M | 10 | 1000 B | 3.0x | +25.0 | 60.0 | 49.2 ± 0.7 |",
    ]
    assert "at round 4800. FedGBO's best is 49.2 ± 0.7%, and it\nmatches FedAvg's best at round 950, in 5.1x" in said
    assert "fedavg not reached, fedgbo-sgdm 10" not in said  # the mean of both seeds is 0.4 there: below 40.2 %
    assert "fedavg not reached, fedgbo-sgdm 20" in said
    assert "No runs yet" in part(docs, "femnist")
    assert (docs / "images" / "cifar100.svg").exists()


def test_averages_of_models_are_compared_with_the_study_without_them(docs, make, tmp_path):
    """The target is the best accuracy of FedAvg in the study: 41.57 %."""
    (docs / "results" / "recipe.csv").unlink()
    for seed, accuracies in enumerate([[0.0, 0.2, 0.4156, 0.42], [0.0, 0.3, 0.4, 0.41]]):
        algorithm = {"name": "averaged", "decay": 0.9, "base": FEDGBO}
        write_run(tmp_path / "runs", algorithm, seed, accuracies, task={"name": "cifar100"}, rounds=30)
    before = (docs / "results" / "cifar100.csv").read_bytes()
    make(tmp_path / "runs")
    assert (docs / "results" / "cifar100.csv").read_bytes() == before
    rows = [row.split(" | ")[:6] for row in part(docs, "recipe").splitlines() if row.startswith("| averaged-")]
    assert rows == [
        ["| averaged-fedgbo-sgdm", "0", "30", "30", "42.0", "30"],
        ["| averaged-fedgbo-sgdm", "1", "30", "not reached", "41.0", "30"],
    ]
    said = part(docs, "recipe").replace("\n", " ")
    assert "averaged-fedgbo-sgdm (seeds 0, 1): mean 41.5% after 30 rounds; rounds to 41.6%: 30, not reached." in said


def test_fedavg_with_a_smaller_learning_rate_is_compared_on_all_seeds(docs, make, tmp_path):
    """Beside contenders of the study whose final runs ended with every seed, and apart from the paper's settings."""
    (docs / "results" / "study" / "cifar100-fedavg.csv").unlink(missing_ok=True)
    before = (docs / "results" / "cifar100.csv").read_bytes()
    for config in read_experiment(SMALLER.with_suffix(".toml")).configs:
        accuracies = [t / 200 * (0.3 + 0.03 * config.seed) for t in range(201)]
        settings = {"rounds": 2000, "local_steps": 10, "eval_every": 50}
        write_run(tmp_path / "runs", config.algorithm, config.seed, accuracies, task=config.task, **settings)
    make(tmp_path / "runs")
    assert (docs / "results" / "cifar100.csv").read_bytes() == before
    said = part(docs, "study-seeds")
    assert "2000 rounds, seeds 0, 1, 2**" in said
    rows = [row.split(" | ")[:3] for row in said.splitlines() if re.match(r"\| (fed|adap)", row)]
    assert rows[0] == ["| fedavg, lr 0.03", "33.0 ± 7.5", "2000"]
    assert [row[0] for row in rows[1:]] == ["| fedgbo-sgdm", "| fedgbo-nesterov", "| adaptivefedopt-sgdm"]


def test_other_optimisers_and_steps_have_a_row_each(docs, make, tmp_path):
    file = docs / "results" / OTHERS.name
    file.unlink(missing_ok=True)
    before = (docs / "results" / "cifar100.csv").read_bytes()
    for number, config in enumerate(read_experiment(OTHERS.with_suffix(".toml")).configs):
        best = 0.2 + config.local_steps / 1000
        accuracies = [best if t == 100 else 0.1 for t in range(0, config.rounds + 1, 10)]  # as write_run evaluates
        settings = {"rounds": config.rounds, "local_steps": config.local_steps, "eval_every": 50}
        write_run(
            tmp_path / "runs" / str(number), config.algorithm, config.seed, accuracies, task=config.task, **settings
        )
    make(tmp_path / "runs")
    assert (docs / "results" / "cifar100.csv").read_bytes() == before
    rows = [row.split(" | ") for row in part(docs, "cifar100-others").splitlines() if re.match(r"\| (fed|mime)", row)]
    assert [row[:2] for row in rows[:2]] == [["| fedgbo-adam", "10"], ["| mimelite-adam", "10"]]
    assert rows[-1][:9] == [
        "| mimelite-sgdm", "50", "lr=0.01, beta=0.9", "500", "25.0", "100", "25.0", "10.0", "10.0",
    ]  # fmt: skip


def test_averages_are_scored_as_they_are_trained(tmp_path, monkeypatch):
    """The script's average after 200 rounds is that of Averaged but for a trace of x_0."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    out, asked = tmp_path / "decays.csv", ["lr=1.0", "beta=0.8"]
    given = ["fedgbo:sgdm", *asked, "--task=digits", "--rounds=200", f"--out={out}"]
    monkeypatch.setattr(sys, "argv", ["average_decays.py", *given])
    import_module("average_decays").main()
    scores = {row[3]: float(row[4]) for row in csv.reader(out.read_text().splitlines())}
    flags = {"preset": "none", "rounds": 200, "seed": 100, "eval_every": 200}
    for decay in ("0.0", "0.95"):
        config, _ = requested_config(None, flags, [*asked, f"average={decay}"])
        assert execute(config.model_copy(update={"held_out": 0.2})).accuracy == pytest.approx(scores[decay], abs=0.004)


def test_new_runs_join_those_of_a_file_and_longer_ones_replace_shorter_ones(docs, make, tmp_path):
    file = docs / "results" / "femnist.csv"
    before = {run.config.label: run for run in read_metrics(file)}
    for name, rounds in [("fedavg", 510), ("fedgbo-sgdm", 20)]:
        config = before[name].config
        settings = {"task": config.task, "local_steps": 10, "eval_every": 10, "rounds": rounds}
        write_run(tmp_path / "runs", config.algorithm, 0, [t / 100 for t in range(rounds // 10 + 1)], **settings)
    write_run(tmp_path / "runs", before["fedavg"].config.algorithm, 1, [0.0, 0.1], **settings)
    make(tmp_path / "runs")
    after = {(run.config.label, run.config.seed): run for run in read_metrics(file)}
    assert {key: run.config.rounds for key, run in after.items()} == {
        ("fedavg", 0): 510, ("fedavg", 1): 20, ("fedgbo-sgdm", 0): 500,
    }  # fmt: skip
    assert after["fedgbo-sgdm", 0].records == before["fedgbo-sgdm"].records


def test_runs_that_cannot_be_compared_are_named(docs, make, tmp_path):
    (docs / "results" / "femnist.csv").unlink()
    for seed, steps in enumerate([5, 10]):
        write_run(tmp_path / "runs", FEDAVG, seed, [0.0, 0.1], task={"name": "femnist"}, local_steps=steps)
    with pytest.raises(SystemExit, match="runs on femnist cannot be compared: femnist, K = 10, femnist, K = 5"):
        make(tmp_path / "runs")


def test_a_part_without_its_place_is_named(docs, make):
    page = docs / "results.md"
    page.write_text(page.read_text().replace("begin: femnist", "begin: emnist"))
    with pytest.raises(SystemExit, match=r"places for .*'emnist'.* the parts are .*'femnist'"):
        make()
