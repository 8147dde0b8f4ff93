"""What runs came to, as tables like the paper's Table 4: for each task, K and number of rounds one."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedgbo.experiments.shelf import task_name
from fedgbo.experiments.survey import Results
from fedgbo.reports.comparison import baseline_of, cost_columns, cost_lines, cost_remarks
from fedgbo.reports.load import Group, RunData, group_runs
from fedgbo.reports.sections import distinct, settings_of, unique
from fedgbo.reports.table import Cell, Table
from fedgbo.runs.config import RunConfig


@dataclass(frozen=True)
class Section:
    """The runs of one task, K and number of rounds; groups are labelled apart."""

    title: str
    groups: tuple[Group, ...]
    diverged: Mapping[str, int] = field(default_factory=dict)  # by label, how many seeds
    seeds: Mapping[str, int] = field(default_factory=dict)  # by label, how many seeds there should be


def without_accuracy(results: Results) -> list[RunData]:
    """Return the finished runs whose task has no metric: there is nothing of them to put into the tables."""
    return [run for run in results.finished if not _has_accuracy(run)]


def sections(results: Results) -> list[Section]:
    """Sort runs into sections, in the order in which they come; what diverged is counted, not dropped."""
    finished = [run for run in results.finished if _has_accuracy(run)]
    diverged = [place.config for place in results.diverged]
    lost = [*diverged, *(place.config for place, _ in results.failed)]
    configs = [run.config for run in finished] + lost
    made = []
    for key in dict.fromkeys(map(_section_of, configs)):
        labels = _labels([config for config in configs if _section_of(config) == key])
        groups = []
        for kind, label in labels.items():
            runs = [run for run in finished if _section_of(run.config) == key and _kind(run.config) == kind]
            groups += [replace(group, label=label) for group in group_runs(runs)]
        made.append(
            Section(
                title=key,
                groups=tuple(groups),
                diverged=Counter(labels[_kind(config)] for config in diverged if _section_of(config) == key),
                seeds=Counter(labels[_kind(config)] for config in configs if _section_of(config) == key),
            )
        )
    return made


def summary_table(made: Sequence[Section], name: str, title: str) -> Table:
    """Lay sections out, one below the other; seeds that diverged are said in the row of their algorithm."""
    several = len(made) > 1
    against = any(baseline_of(section.groups) is not None for section in made)
    lines: list[tuple[Cell, ...]] = []
    for section in made:
        lines += [((Cell(section.title),) if several else ()) + line for line in _lines(section, against)]
    return Table(
        name=name,
        title=title if several else f"{title}: {made[0].title}",
        columns=(("Runs",) if several else ()) + cost_columns(against),
        rows=tuple(lines),
        labels=2 if several else 1,
        remarks=cost_remarks(against),
        measured=True,
    )


def _lines(section: Section, against: bool) -> list[tuple[Cell, ...]]:
    lines = []
    for (named, *cells), group in zip(cost_lines(section.groups, against), section.groups, strict=True):
        lost = section.diverged.get(group.label)
        said = Cell(f"{group.label} ({lost} of {section.seeds[group.label]} seeds diverged)") if lost else named
        lines.append((said, *cells))
    known, rest = {group.label for group in section.groups}, len(cost_columns(against)) - 2
    lines += [(Cell(label), Cell("diverged"), *[Cell("-")] * rest) for label in section.diverged if label not in known]
    return lines


def _has_accuracy(run: RunData) -> bool:
    return any(record.accuracy is not None for record in run.records)


def _section_of(config: RunConfig) -> str:
    steps = config.local_steps if isinstance(config.local_steps, int) else "mixed"
    extra = {key: value for key, value in config.task.items() if key != "name"}
    own = "".join(f", {key}={value}" for key, value in extra.items())
    return f"{task_name(config)}{own}, K = {steps}, {config.rounds} rounds"


def _kind(config: RunConfig) -> str:
    """Return what the runs of a group have in common."""
    return json.dumps(config.model_dump(exclude={"seed"}), sort_keys=True)


def _labels(configs: Sequence[RunConfig]) -> dict[str, str]:
    """Name groups by algorithm and optimiser and, where that is not enough, by the settings in which they differ."""
    kinds = {_kind(config): config for config in configs}
    told = distinct([config.label for config in kinds.values()], [settings_of(config) for config in kinds.values()])
    return dict(zip(kinds, unique(told), strict=True))
