"""The runs of an experiment: their state before it, their results after it, and tables like the paper's Table 4."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from fedgbo.core import FolderBusyError, RunFolderError
from fedgbo.experiments.experiment import Experiment
from fedgbo.experiments.jobs import Ending, Job
from fedgbo.experiments.shelf import (
    Find,
    folder_name,
    group_key,
    labels_of,
    look,
    set_aside,
    steps_text,
    task_name,
    titles_of,
)
from fedgbo.reports.comparison import Summary, baseline_row, summarise
from fedgbo.reports.cost_table import brief_columns, cost_columns, cost_lines, cost_remarks, metric_of
from fedgbo.reports.load import Group, RunData, group_runs
from fedgbo.reports.sections import unique
from fedgbo.reports.table import Cell, Table
from fedgbo.runs.config import RunConfig


@dataclass(frozen=True)
class PlannedRun:
    """A run, its folder, and the state of the folder."""

    config: RunConfig
    path: Path
    find: Find
    title: str = ""  # task, algorithm with the settings in which it differs from others, K and seed

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to do: a run that diverged would only diverge again."""
        return self.find.state in ("finished", "diverged")

    def job(self) -> Job:
        return Job(self.config, self.path, self.title)


@dataclass(frozen=True)
class Results:
    """The results of an experiment's runs."""

    finished: tuple[RunData, ...]
    diverged: tuple[PlannedRun, ...]
    failed: tuple[tuple[PlannedRun, Ending], ...]
    set_aside: tuple[str, ...] = ()  # messages about damaged folders

    @property
    def lacking(self) -> list[str]:
        """Say how many runs are missing from all means: the other runs may look better than the whole."""
        total = len(self.finished) + len(self.diverged) + len(self.failed)
        said = [f"{len(self.diverged)} of {total} runs diverged (left out of all means)"] if self.diverged else []
        return said + ([f"{len(self.failed)} of {total} runs failed (not in the table)"] if self.failed else [])


def survey(experiment: Experiment, out: Path) -> list[PlannedRun]:
    """Look at the folder of every run. All experiments in `out` share the run folders."""
    if out.exists() and not out.is_dir():
        raise RunFolderError(f"{out} is a file; choose a folder")
    planned = []
    labels = labels_of(experiment.configs, lambda c: f"{task_name(c)} {c.label} K={steps_text(c)}")
    for config, title in zip(experiment.configs, titles_of(experiment.configs, labels), strict=True):
        path = out / "runs" / folder_name(config)
        planned.append(PlannedRun(config, path, look(path, config), title))
    return planned


def clear(runs: Sequence[PlannedRun]) -> tuple[list[PlannedRun], list[str]]:
    """Set damaged folders aside; return the runs with their new states, and messages about it."""
    cleared, said = [], []
    for run in runs:
        find = run.find
        if find.state == "begun" and find.reason:
            said.append(f"{run.path.name} continues from an older checkpoint: {find.reason}")
        elif find.state == "damaged":
            try:
                find, aside = set_aside(run.path, run.config)
            except FolderBusyError:  # it looked damaged because a process is writing it now
                find, aside = Find("begun"), None
            if aside is not None:
                said.append(f"damaged, set aside as {aside.name}, and started again: {find.reason}")
                find = Find("missing")
        cleared.append(replace(run, find=find))
    return cleared, said


def results(experiment: Experiment, out: Path, endings: Mapping[Path, Ending], said: Sequence[str] = ()) -> Results:
    """Read the results of all runs from the disk, whichever process ran them. `endings` tells why runs failed."""
    finished: list[RunData] = []
    diverged: list[PlannedRun] = []
    failed: list[tuple[PlannedRun, Ending]] = []
    for run in survey(experiment, out):
        if run.find.state == "finished" and run.find.run is not None:
            rounds, found = run.config.rounds, run.find.run  # the run may have been resumed for longer
            finished.append(replace(found, records=tuple(r for r in found.records if r.round <= rounds)))
        elif run.find.state == "diverged":
            diverged.append(run)
        else:
            failed.append((run, endings.get(run.path) or Ending(run.find.reason or run.find.state, 1)))
    return Results(tuple(finished), tuple(diverged), tuple(failed), tuple(said))


def heading(experiment: Experiment, found: Results) -> str:
    """Return the title of a table or picture, with everything that reduces the experiment."""
    return "; ".join([experiment.heading, *found.lacking])


@dataclass(frozen=True)
class ResultSection:
    """The runs of one task, K and number of rounds; each group has a label of its own."""

    title: str
    groups: tuple[Group, ...]
    diverged: Mapping[str, int] = field(default_factory=dict)  # by label, the number of seeds
    seeds: Mapping[str, int] = field(default_factory=dict)  # by label, the number of seeds there should be

    @cached_property
    def summaries(self) -> list[Summary]:
        return summarise(self.groups)


def without_accuracy(found: Results) -> list[RunData]:
    """Return the finished runs whose task has no metric; the tables cannot show them."""
    return [run for run in found.finished if not _has_accuracy(run)]


def sections(found: Results) -> list[ResultSection]:
    """Sort runs into sections, in their order; runs that diverged are counted."""
    finished = [run for run in found.finished if _has_accuracy(run)]
    diverged = [run.config for run in found.diverged]
    configs = [*(run.config for run in finished), *diverged, *(run.config for run, _ in found.failed)]
    made = []
    for name in dict.fromkeys(map(_section_title, configs)):
        shared = labels_of(config for config in configs if _section_title(config) == name)
        labels = dict(zip(shared, unique(list(shared.values())), strict=True))
        groups = [
            replace(group, label=label)
            for key, label in labels.items()
            for group in group_runs([run for run in finished if group_key(run.config) == key])
        ]
        lost, seeds = (Counter(labels[k] for k in map(group_key, some) if k in labels) for some in (diverged, configs))
        made.append(ResultSection(name, tuple(groups), lost, seeds))
    return made


def summary_table(made: Sequence[ResultSection], name: str, caption: str) -> Table:
    """Return sections as one table; the row of an algorithm says how many of its seeds diverged."""
    several = len(made) > 1
    against = any(baseline_row(section.summaries) is not None for section in made)
    rows = [row for section in made for row in section.summaries]
    metric = metric_of(rows)
    lines: list[tuple[Cell, ...]] = []
    for section in made:
        lines += [((Cell(section.title),) if several else ()) + line for line in _lines(section, against)]
    return Table(
        name=name,
        title=caption if several else f"{caption}: {made[0].title}",
        columns=(("Runs",) if several else ()) + cost_columns(against, metric),
        rows=tuple(lines),
        labels=2 if several else 1,
        remarks=cost_remarks(against, max(row.seeds for row in rows), metric),
        measured=True,
        brief=("Runs", *brief_columns(metric)) if against else (),
    )


def _lines(section: ResultSection, against: bool) -> list[tuple[Cell, ...]]:
    lines = []
    for name, *cells in cost_lines(section.summaries, against):
        if lost := section.diverged.get(name.ours):
            name = Cell(f"{name.ours} ({lost} of {section.seeds[name.ours]} seeds diverged)")
        lines.append((name, *cells))
    known, rest = {group.label for group in section.groups}, len(cost_columns(against)) - 2
    lines += [(Cell(name), Cell("diverged"), *[Cell("-")] * rest) for name in section.diverged if name not in known]
    return lines


def _has_accuracy(run: RunData) -> bool:
    return any(record.accuracy is not None for record in run.records)


def _section_title(config: RunConfig) -> str:
    settings = "".join(f", {key}={value}" for key, value in config.task.items() if key != "name")
    return f"{task_name(config)}{settings}, K = {steps_text(config)}, {config.rounds} rounds"
