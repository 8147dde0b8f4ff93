"""What is compared with what: a section for each task and number of local steps, a line for each algorithm in it."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fedgbo.reports.collect import Problem
from fedgbo.reports.load import Group, RunData, group_runs
from fedgbo.reports.settings import NOT_SETTINGS, Settings, distinct, settings_of

PLACE = {"fedavg": 0, "fedgbo": 2}  # the baseline first, ours last, the others between


@dataclass(frozen=True)
class Line:
    """The runs of one algorithm with one setting, a seed each, all with at least one evaluation."""

    label: str
    runs: tuple[RunData, ...]

    @property
    def algorithm(self) -> str:
        """The name of its algorithm."""
        return str(self.runs[0].config.algorithm["name"])

    @property
    def settings(self) -> Settings:
        """What its runs have in common."""
        return settings_of(self.runs[0].config)


@dataclass(frozen=True)
class Section:
    """Lines on the same task, with the same data and local steps, so that they can be compared."""

    title: str
    slug: str  # a file's name
    lines: tuple[Line, ...]
    notes: tuple[Problem, ...]  # runs that are left out, or end before others do

    def groups(self) -> list[Group]:
        """Return the lines that have accuracies, for the table of costs."""
        scored = [line for line in self.lines if all(run.records[0].accuracy is not None for run in line.runs)]
        return [replace(group_runs(line.runs)[0], label=line.label) for line in scored]


def sections_of(runs: Iterable[RunData]) -> list[Section]:
    """Put runs into sections, in the order of the tasks' names."""
    together: dict[str, list[RunData]] = {}
    for run in runs:
        table = run.config.model_dump(exclude=NOT_SETTINGS | {"algorithm"})
        together.setdefault(json.dumps(table, sort_keys=True), []).append(run)
    members = sorted(together.values(), key=lambda runs: (_title(runs[0]), str(settings_of(runs[0].config))))
    shared = [settings_of(runs[0].config.model_copy(update={"algorithm": {}})) for runs in members]
    titles = distinct([_title(runs[0]) for runs in members], shared)
    slugs = unique([slug(title) for title in titles])
    return [_section(title, name, runs) for title, name, runs in zip(titles, slugs, members, strict=True)]


def palette_order(sections: Iterable[Section]) -> tuple[str, ...]:
    """Return all labels, each once: those that readers look for first come first and get the plainest lines."""
    lines = [line for section in sections for line in section.lines]
    lines.sort(key=lambda line: ["fedavg", "fedgbo"].index(line.algorithm) if line.algorithm in PLACE else 2)
    return tuple(dict.fromkeys(line.label for line in lines))


def slug(text: str) -> str:
    """Return a file's name that says the same, whatever the text holds.

    >>> slug("digits, K = 10"), slug("../../<b>"), slug("..")
    ('digits-K-10', 'b', 'unnamed')
    """
    return re.sub(r"[^A-Za-z0-9_]+", "-", text).strip("-")[:100] or "unnamed"


def unique(names: Sequence[str]) -> list[str]:
    """Return the names, those that come again with a number.

    >>> unique(["a", "b", "a"])
    ['a', 'b', 'a-2']
    """
    taken: list[str] = []
    for name in names:
        number, candidate = 1, name
        while candidate in taken:
            number += 1
            candidate = f"{name}-{number}"
        taken.append(candidate)
    return taken


def _section(title: str, name: str, runs: Sequence[RunData]) -> Section:
    notes = [Problem(run.path, "has no evaluation yet") for run in runs if not run.records]
    by_setting: dict[str, dict[int, RunData]] = {}
    for run in runs:
        if not run.records:
            continue
        seeds = by_setting.setdefault(json.dumps(settings_of(run.config), sort_keys=True), {})
        other = seeds.get(run.config.seed)
        if other is None:
            seeds[run.config.seed] = run
            continue
        longer, shorter = sorted((other, run), key=lambda run: -run.records[-1].round)
        seeds[run.config.seed] = longer
        notes.append(Problem(shorter.path, f"is left out: {longer.path} has the same settings and seed"))
    members = [_comparable([seeds[seed] for seed in sorted(seeds)], notes) for seeds in by_setting.values()]
    settings = [settings_of(runs[0].config) for runs in members]
    labels = unique(distinct([runs[0].config.label for runs in members], settings))
    lines = [Line(label, tuple(runs)) for label, runs in zip(labels, members, strict=True)]
    lines.sort(key=lambda line: (PLACE.get(line.algorithm, 1), line.label))
    return Section(title, name, tuple(lines), (*notes, *(note for line in lines for note in _cut(line) + _half(line))))


def _comparable(runs: list[RunData], notes: list[Problem]) -> list[RunData]:
    """Return runs that have a round in common, so that they have a mean: all, or else the longest alone."""
    if set.intersection(*({record.round for record in run.records} for run in runs)):
        return runs
    longest = max(runs, key=lambda run: run.records[-1].round)
    said = f"is left out: it has no round in common with other seeds; {longest.path} is shown"
    notes += [Problem(run.path, said) for run in runs if run is not longest]
    return [longest]


def _cut(line: Line) -> list[Problem]:
    """Name the run at whose end the curve of a line ends, if others went further."""
    ends = [run.records[-1].round for run in line.runs]
    shortest = line.runs[ends.index(min(ends))]
    if min(ends) == max(ends):
        return []
    said = f"({shortest.status}) ends at round {min(ends)}: there the curve of {line.label} ends, though others went on"
    return [Problem(shortest.path, said)]


def _half(line: Line) -> list[Problem]:
    """Name the runs for whose sake the drift of a line is not drawn, though others measured it."""
    without = [run for run in line.runs if not any(record.drift for record in run.records)]
    if len(without) == len(line.runs):
        return []
    return [Problem(run.path, f"measured no drift: that of {line.label} is not drawn") for run in without]


def _title(run: RunData) -> str:
    steps = run.config.local_steps
    return f"{run.config.task['name'].rpartition(':')[2]}, K {f'= {steps}' if isinstance(steps, int) else 'varies'}"
