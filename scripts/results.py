"""Generate docs/results.md from the files in docs/results: tables, pictures and sentences with measured numbers.

    python scripts/results.py               # the page from the files: make results
    python scripts/results.py runs/real     # first the runs below it into the files: make results RUNS=runs/real

A task's runs go into docs/results/TASK.csv (of digits, name those of `make demo` alone), those with averages of models
into recipe.csv, and those that cifar100-others.toml and study/cifar100-fedavg.toml name into files of these names. They
join the runs that a file has: of two that differ in their rounds at most, the longer one stays. Delete a file to begin
it anew. The generated sections of the page are between <!-- begin: NAME --> and <!-- end -->; the rest of the page is
written by hand and stays.
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from results_digits import digits_parts, draw_digits
from results_others import OTHERS, others_part
from results_recipe import AVERAGED, decays_part, recipe_part
from results_study import SMALLER, STUDIES, draw_study, seeds_part, study_part
from results_tasks import TASKS, draw, save_with_digest, task_part

from fedgbo.core.errors import FedGBOError
from fedgbo.core.files import write_atomic
from fedgbo.experiments.experiment import read_experiment
from fedgbo.experiments.shelf import identity
from fedgbo.experiments.theory.measure import bound_chart
from fedgbo.reports.load import RunData, collect, metrics_csv, read_metrics

DOCS = Path(__file__).parents[1] / "docs"
APART = (OTHERS, f"study/{SMALLER}")  # the files of runs that an experiment of the same name names
RECIPE = "recipe"
PART = re.compile(r"<!-- begin: ([a-z0-9-]+) -->(\n?).*?<!-- end -->", flags=re.DOTALL)


def export(places: Sequence[Path], folder: Path) -> None:
    """Write the metrics of all runs at or below the places, a file for each task that the page shows."""
    found = collect(places)
    for problem in found.problems:
        print(f"left out: {problem.reason}", file=sys.stderr)
    kinds: dict[str, list[RunData]] = {}
    for run in found.runs:
        kinds.setdefault(_file_of(run, folder), []).append(run)
    for name in (*TASKS, "digits", *APART, RECIPE):
        if runs := [run for run in kinds.get(name, []) if run.records]:
            file = folder / f"{name}.csv"
            joined = longest([*(read_metrics(file) if file.exists() else []), *runs])
            write_atomic(file, metrics_csv(joined).encode())
            print(f"{name}.csv: {len(joined)} runs")


def _file_of(run: RunData, folder: Path) -> str:
    task, averaged = str(run.config.task["name"]), run.config.algorithm["name"] == AVERAGED
    if averaged:
        return RECIPE if task == "cifar100" else ""
    named = (name for name in APART if identity(run.config) in _named(folder / f"{name}.toml"))
    return next(named, task)


@cache
def _named(experiment: Path) -> frozenset[str]:
    return frozenset(identity(config) for config in read_experiment(experiment).configs)


def longest(runs: Sequence[RunData]) -> list[RunData]:
    """Return the runs without those that others continue; of equal ones, the last."""
    found = dict[str, RunData]()
    for run in runs:
        key = identity(run.config.model_copy(update={"rounds": 1}))
        if key not in found or run.records[-1].round >= found[key].records[-1].round:
            found[key] = run
    return list(found.values())


def fill(page: str, parts: Mapping[str, str]) -> str:
    """Put the parts between their marks; a part without its place, or a place without its part, is an error."""
    places = [match[1] for match in PART.finditer(page)]
    if sorted(places) != sorted(parts):
        raise SystemExit(f"the page has places for {sorted(places)}, but the parts are {sorted(parts)}")

    def put(match: re.Match[str]) -> str:
        gap = match[2] * 2  # a part that begins on a line of its own is a block; another stands within a sentence
        return f"<!-- begin: {match[1]} -->{gap}{parts[match[1]]}{gap}<!-- end -->"

    return PART.sub(put, page)


def draw_theory(page: Path, images: Path) -> None:
    """Draw the table of docs/theory.md, in which each row has β, T, η, the measured mean and Theorem 1's bound."""
    text = page.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if re.match(r"\| [\d.]+ \| \d+ \|", line)]
    seeds = re.findall(r"for each T, and (\w+ seeds)", text)
    cells = [line.strip("| ").split(" | ") for line in lines]
    rows = [
        {"rounds": int(rounds), "value": float(value), "colour": f"β = {beta}", "dash": name}
        for beta, rounds, _, measured, bound, *_ in cells
        for name, value in (("measured", measured), ("Theorem 1", bound))
    ]
    times = [float(cell[5]) for cell in cells]
    title = f"Theorem 1 holds; its bound is {min(times):.0f} to {max(times):.0f} times the measured values"
    chart = bound_chart(rows, title, f"FedGBO with SGDm on quadratics, mean over {' '.join(seeds)}", points=True)
    save_with_digest(chart, page, images / "theory", "\n".join(lines).encode())


def main(arguments: Sequence[str] | None = None) -> None:
    """Export, draw, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="run folders, or folders that hold some")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where results.md, results/ and images/ are")
    given = parser.parse_args(arguments)
    folder, page = given.docs / "results", given.docs / "results.md"
    try:
        if given.runs:
            export(given.runs, folder)
        parts = digits_parts(folder)
        draw_digits(folder, given.docs / "images")
        if (theory := given.docs / "theory.md").exists():
            draw_theory(theory, given.docs / "images")
        for name in TASKS:
            file = folder / f"{name}.csv"
            runs = read_metrics(file) if file.exists() else []
            parts[name] = task_part(name, runs)
            if runs:
                draw(name, runs, file, given.docs / "images")
        others = folder / f"{OTHERS}.csv"
        parts[OTHERS] = others_part(read_metrics(others) if others.exists() else [])
        parts |= {"recipe": recipe_part(folder), "average-decays": decays_part(folder)}
        for name in STUDIES:
            parts[f"study-{name}"] = study_part(name, folder)
            draw_study(name, folder, given.docs / "images")
        parts["study-seeds"] = seeds_part(folder)
        write_atomic(page, fill(page.read_text(encoding="utf-8"), parts).encode())
    except FedGBOError as error:
        raise SystemExit(str(error)) from error
    print(f"wrote {page}")


if __name__ == "__main__":
    main()
