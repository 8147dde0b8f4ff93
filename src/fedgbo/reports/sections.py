"""Comparable runs: a section for each task and number of local steps, a line for each algorithm and setting in it."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, count

from fedgbo.reports.comparison import Summary, summarise
from fedgbo.reports.load import NOT_SETTINGS, Group, RunData, RunProblem, flatten, group_runs
from fedgbo.runs.config import RunConfig

PLACE = {"fedavg": 0, "fedgbo": 2}  # the baseline first, FedGBO last, the others between
Settings = dict[str, str]


@dataclass(frozen=True)
class Line:
    """The runs of one algorithm with one setting, one for each seed, all with at least one evaluation."""

    label: str
    runs: tuple[RunData, ...]

    @property
    def algorithm(self) -> str:
        return str(self.runs[0].config.algorithm["name"])

    @property
    def settings(self) -> Settings:
        return settings_of(self.runs[0].config)

    def group(self) -> Group:
        """Return the line with its accuracies."""
        return replace(group_runs(self.runs)[0], label=self.label)


@dataclass(frozen=True)
class Section:
    """Lines on the same task, with the same data and local steps, so that they can be compared.

    They may have different samplers, as synchronous and asynchronous servers do.
    """

    title: str
    slug: str  # a file name
    lines: tuple[Line, ...]
    notes: tuple[RunProblem, ...]  # runs that are left out, or that end before others

    @cached_property
    def summaries(self) -> list[Summary]:
        """The results of the lines that have accuracies."""
        scored = [line for line in self.lines if all(run.records[0].accuracy is not None for run in line.runs)]
        return summarise([line.group() for line in scored])


def settings_of(config: RunConfig) -> Settings:
    """Return every setting of a run that is not empty, as flat text.

    >>> config = RunConfig(task={"name": "digits"}, algorithm={"name": "fedavg", "optimiser": {"lr": 0.1}}, rounds=3)
    >>> settings_of(config)
    {'task': 'digits', 'algorithm': 'fedavg', 'optimiser.lr': '0.1', 'local_steps': '10'}
    """
    return {
        name.removesuffix(".name").removeprefix("algorithm."): value if isinstance(value, str) else json.dumps(value)
        for name, value in flatten(config.model_dump(exclude=NOT_SETTINGS))
        if value is not None and value != []
    }


def differing(several: Sequence[Settings]) -> list[str]:
    """Return the names of the settings that are not the same in all, in the order of their first appearance."""
    names = dict.fromkeys(name for settings in several for name in settings)
    return [name for name in names if len({settings.get(name) for settings in several}) > 1]


def distinct(names: Sequence[str], several: Sequence[Settings]) -> list[str]:
    """Return the names; equal names get the settings in which they differ.

    >>> distinct(["fedavg", "fedgbo", "fedavg"], [{"lr": "1"}, {"lr": "1"}, {"lr": "2"}])
    ['fedavg (lr=1)', 'fedgbo', 'fedavg (lr=2)']
    """
    labels: list[str] = []
    for name, settings in zip(names, several, strict=True):
        rivals = [other for other_name, other in zip(names, several, strict=True) if other_name == name]
        short = {key: "K" if key == "local_steps" else key.removeprefix("optimiser.") for key in differing(rivals)}
        apart = ", ".join(f"{short[key]}={settings.get(key, 'default')}" for key in short)
        labels.append(f"{name} ({apart})" if apart else name)
    return labels


def slug(text: str) -> str:
    """Return a safe file name made from any text.

    >>> slug("digits, K = 10"), slug("../../<b>"), slug("..")
    ('digits-K-10', 'b', 'unnamed')
    """
    return re.sub(r"[^A-Za-z0-9_]+", "-", text).strip("-")[:100] or "unnamed"


def unique(names: Sequence[str]) -> list[str]:
    """Return the names; repeated ones get a number.

    >>> unique(["a", "b", "a"])
    ['a', 'b', 'a-2']
    """
    taken: list[str] = []
    for name in names:
        candidates = chain([name], (f"{name}-{number}" for number in count(2)))
        taken.append(next(candidate for candidate in candidates if candidate not in taken))
    return taken


def shared_settings(section: Section) -> Settings:
    """Return the settings that all lines have in common."""
    several = [line.settings for line in section.lines]
    return {name: value for name, value in several[0].items() if name not in differing(several)}


def sections_of(runs: Iterable[RunData]) -> list[Section]:
    """Sort runs into sections, in the order of the tasks' names."""
    together: dict[str, list[RunData]] = {}
    for run in runs:
        table = run.config.model_dump(exclude=NOT_SETTINGS | {"algorithm", "sampler"})
        together.setdefault(json.dumps(table, sort_keys=True), []).append(run)
    members = sorted(together.values(), key=lambda runs: (_title(runs[0]), str(settings_of(runs[0].config))))
    shared = [settings_of(runs[0].config.model_copy(update={"algorithm": {}, "sampler": None})) for runs in members]
    titles = distinct([_title(runs[0]) for runs in members], shared)
    slugs = unique([slug(title) for title in titles])
    return [_section(title, name, runs) for title, name, runs in zip(titles, slugs, members, strict=True)]


def _section(title: str, name: str, runs: Sequence[RunData]) -> Section:
    notes = [RunProblem(run.path, "no evaluation yet") for run in runs if not run.records]
    by_setting: dict[str, dict[int, RunData]] = {}
    for run in sorted((run for run in runs if run.records), key=lambda run: -run.records[-1].round):  # longest first
        seeds = by_setting.setdefault(json.dumps(settings_of(run.config), sort_keys=True), {})
        longest = seeds.setdefault(run.config.seed, run)
        if longest is not run:
            notes.append(RunProblem(run.path, f"left out: {longest.path} has the same settings and seed"))
    members = [_comparable([seeds[seed] for seed in sorted(seeds)], notes) for seeds in by_setting.values()]
    settings = [settings_of(runs[0].config) for runs in members]
    labels = unique(distinct([runs[0].config.label for runs in members], settings))
    lines = [Line(label, tuple(runs)) for label, runs in zip(labels, members, strict=True)]
    lines.sort(key=lambda line: (PLACE.get(line.algorithm, 1), line.label))
    return Section(title, name, tuple(lines), (*notes, *(note for line in lines for note in _notes(line))))


def _comparable(runs: list[RunData], notes: list[RunProblem]) -> list[RunData]:
    """Return all runs if they have a round in common, so that there is a mean; else only the longest."""
    if set.intersection(*({record.round for record in run.records} for run in runs)):
        return runs
    longest = max(runs, key=lambda run: run.records[-1].round)
    said = f"left out: it has no round in common with other seeds; {longest.path} is shown"
    notes += [RunProblem(run.path, said) for run in runs if run is not longest]
    return [longest]


def _notes(line: Line) -> list[RunProblem]:
    """Name the run that ends a line's curve early, and the runs without drift if others of the line measured it."""
    notes, ends = [], [run.records[-1].round for run in line.runs]
    if min(ends) < max(ends):
        shortest = line.runs[ends.index(min(ends))]
        said = f"ends at round {min(ends)} ({shortest.status}); the curve of {line.label} ends there, other seeds later"
        notes.append(RunProblem(shortest.path, said))
    without = [run for run in line.runs if not any(record.drift for record in run.records)]
    if len(without) < len(line.runs):
        said = f"no drift was measured, so the drift of {line.label} is not drawn"
        notes += [RunProblem(run.path, said) for run in without]
    return notes


def _title(run: RunData) -> str:
    steps = run.config.local_steps
    return f"{run.task_name}, K {f'= {steps}' if isinstance(steps, int) else 'varies'}"
