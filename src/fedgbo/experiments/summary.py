"""What runs came to, as tables like the paper's Table 4: for each task, K and number of rounds one."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedgbo.experiments.paper.table import Cell, Table
from fedgbo.experiments.shelf import task_name
from fedgbo.experiments.survey import Results
from fedgbo.reports.load import Group, group_runs
from fedgbo.reports.paired import Paired
from fedgbo.reports.quantity import quantity
from fedgbo.reports.summary import Effort, Row, summarise
from fedgbo.runs.config import RunConfig

COLUMNS = ("Algorithm", "Best accuracy (%)", "Rounds", "Upload", "FLOPs")
AGAINST = ("Rounds to match FedAvg", "Upload to match", "FLOPs to match", "Fewer rounds", "Difference to FedAvg", "p")
REMARK = (
    "Accuracy: the highest mean over seeds, ± half of its 95% Student's t interval. Upload and FLOPs are those of all "
    "clients together until then."
)
PAIRED = (
    "Difference: best accuracy minus FedAvg's in points, seed by seed, ± half of its 95% interval; p is the paired t "
    "test's."
)


@dataclass(frozen=True)
class Section:
    """The runs of one task, K and number of rounds; groups are labelled apart."""

    title: str
    groups: tuple[Group, ...]
    diverged: Mapping[str, int] = field(default_factory=dict)  # by label, how many seeds
    seeds: Mapping[str, int] = field(default_factory=dict)  # by label, how many seeds there should be


def sections(results: Results) -> list[Section]:
    """Sort runs into sections, in the order in which they come; what diverged is counted, not dropped."""
    diverged = [place.config for place in results.diverged]
    lost = [*diverged, *(place.config for place, _ in results.failed)]
    configs = [run.config for run in results.finished] + lost
    made = []
    for key in dict.fromkeys(map(_section_of, configs)):
        labels = _labels([config for config in configs if _section_of(config) == key])
        groups = []
        for kind, label in labels.items():
            runs = [run for run in results.finished if _section_of(run.config) == key and _kind(run.config) == kind]
            groups += [replace(group, label=label) for group in group_runs(runs)]
        made.append(
            Section(
                title=key,
                groups=tuple(groups),
                diverged=_count(labels[_kind(config)] for config in diverged if _section_of(config) == key),
                seeds=_count(labels[_kind(config)] for config in configs if _section_of(config) == key),
            )
        )
    return made


def summary_table(made: Sequence[Section], name: str, title: str) -> Table:
    """Lay sections out, one below the other; seeds that diverged are said in the row of their algorithm."""
    several = len(made) > 1
    against = any(group.label == "fedavg" for section in made for group in section.groups)
    lines: list[tuple[Cell, ...]] = []
    for section in made:
        lines += [((Cell(section.title),) if several else ()) + line for line in _lines(section, against)]
    return Table(
        name=name,
        title=title if several else f"{title}: {made[0].title}",
        columns=(("Runs",) if several else ()) + COLUMNS + (AGAINST if against else ()),
        rows=tuple(lines),
        labels=2 if several else 1,
        remarks=(REMARK, PAIRED) if against else (REMARK,),
        measured=True,
    )


def _lines(section: Section, against: bool) -> list[tuple[Cell, ...]]:
    rows = summarise(section.groups)
    baseline = next((row for row in rows if row.label == "fedavg"), None)
    highest = max((row.accuracy for row in rows), default=None)
    lines = []
    for row in rows:
        lost = section.diverged.get(row.label)
        label = row.label + (f" ({lost} of {section.seeds[row.label]} seeds diverged)" if lost else "")
        line = [Cell(label), accuracy_cell(row, strong=row.accuracy == highest), *_effort(row.best)]
        lines.append((*line, *(_against(row, baseline) if against else ())))
    rest = len(COLUMNS) - 2 + (len(AGAINST) if against else 0)
    known = {row.label for row in rows}
    lines += [(Cell(label), Cell("diverged"), *[Cell("-")] * rest) for label in section.diverged if label not in known]
    return lines


def accuracy_cell(row: Row, published: str | None = None, *, strong: bool = False) -> Cell:
    """Write an accuracy in per cent with its interval."""
    return Cell(percent(row.accuracy, row.interval), published, exact=row.accuracy, strong=strong)


def percent(accuracy: float, interval: float | None) -> str:
    """Write a share in per cent with half of its interval.

    >>> percent(0.4023, 0.009), percent(0.5, None)
    ('40.2 ± 0.9', '50.0')
    """
    return f"{100 * accuracy:.1f}" + ("" if interval is None else f" ± {100 * interval:.1f}")


def paired_cells(versus: Paired | None) -> list[Cell]:
    """Write a difference in points and its p value."""
    if versus is None:
        return [Cell("-"), Cell("-")]
    p = "-" if versus.p is None else "< 0.001" if versus.p < 0.001 else f"{versus.p:.3f}"
    sign = "+" if versus.difference >= 0 else ""
    text = f"{sign}{percent(versus.difference, versus.interval)}"
    return [Cell(text, exact=versus.difference), Cell(p, exact=versus.p)]


def _effort(effort: Effort | None) -> list[Cell]:
    if effort is None:
        return [Cell("-")] * 3
    return [
        Cell(str(effort.round), exact=effort.round),
        Cell(quantity(effort.upload_bytes, "B", 1024), exact=effort.upload_bytes),
        Cell(quantity(effort.flops, ""), exact=effort.flops),
    ]


def _against(row: Row, baseline: Row | None) -> list[Cell]:
    if baseline is None or row is baseline:
        return [Cell("-")] * len(AGAINST)
    ratio = f"{baseline.best.round / row.match.round:.1f}x" if row.match and row.match.round else "-"
    return [*_effort(row.match), Cell(ratio), *paired_cells(row.versus)]


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
    labels = {}
    for kind, config in kinds.items():
        alike = [_flat(other.model_dump(exclude={"seed"})) for other in kinds.values() if other.label == config.label]
        mine = _flat(config.model_dump(exclude={"seed"}))
        apart = [key for key in mine if any(other.get(key) != mine[key] for other in alike)]
        labels[kind] = " ".join([config.label, *(f"{key.rpartition('.')[2]}={mine[key]}" for key in apart)])
    return labels


def _flat(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= _flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": value}
    return found


def _count(labels: Iterable[str]) -> dict[str, int]:
    counted: dict[str, int] = {}
    for label in labels:
        counted[label] = counted.get(label, 0) + 1
    return counted
