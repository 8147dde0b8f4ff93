"""Comparisons: several algorithms on the same seeds, on the command line and in Python (`fedgbo.compare`)."""

import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedgbo.algorithms import PAPER, PERSONALISED
from fedgbo.core import ConfigError, DivergenceError, FederatedAlgorithm, check_seed, unknown, whole
from fedgbo.engines.torchrun.join import under_torchrun
from fedgbo.experiments.jobs import Job
from fedgbo.experiments.presets import FIELD, presets, takes_optimiser, task_names
from fedgbo.experiments.request import SETTINGS, Request, parse_entry, read_request, same_as_fedavg
from fedgbo.experiments.results import ResultSection, summary_table
from fedgbo.experiments.shelf import claim_folder, group_key, labels_of, titles_of
from fedgbo.reports.comparison import Paired, baseline_of, versus
from fedgbo.reports.curves import ROUNDS, SCORES
from fedgbo.reports.finding import accuracy_chart, finding_chart
from fedgbo.reports.load import Group, RunData, checked_config, over_seeds
from fedgbo.reports.sections import Line, distinct, settings_of, slug, unique
from fedgbo.reports.table import Table
from fedgbo.reports.terminal_table import plain_table
from fedgbo.runs.config import RunConfig
from fedgbo.runs.describe import build, describe
from fedgbo.runs.loop import run
from fedgbo.runs.result import Result, rows_of, table_frame
from fedgbo.tasks.task import Task

ALL, PAPERS = "all", "paper"  # names that stand for several algorithms
SHARED = ("task", "algorithm", "seed")  # settings that one algorithm of a comparison cannot have for itself
Named = FederatedAlgorithm | str  # an object, or as on the command line: "fedgbo:sgdm lr=0.1 beta=0.9"
OWN = ("algorithm", "optimiser", "objective", "preset", *SETTINGS)  # settings that an algorithm may have for itself
SETTING = re.compile(r"[A-Za-z_][\w.]*\s*=")  # how key=value begins


class Entry(NamedTuple):
    """An algorithm of a comparison, as the user writes it, with settings of its own."""

    name: str
    optimiser: str | None = None
    settings: tuple[str, ...] = ()  # key=value
    field: bool = False  # whether it is one of `all`, which start from presets tuned with the same effort


def plan(algorithms: Sequence[str], seeds: int, shared: Mapping[str, Any]) -> tuple[list[RunConfig], list[str]]:
    """Return the runs of all entries, and notes about the presets used."""
    whole("seeds", seeds)
    configs, notes = [], []
    task = str(shared.get("task") or "digits")
    field = everyone(task)
    if field == PAPER and any(text.lower() == ALL for text in algorithms):
        notes.append(f"all: no algorithms were tuned with the same effort for {task}, so these are the paper's")
    for entry in parse_entries(algorithms, field):
        optimiser = entry.optimiser
        if optimiser is None and takes_optimiser(entry.name):
            optimiser = shared.get("optimiser")
        flags = {**shared, "algorithm": entry.name, "optimiser": optimiser}
        if entry.field and flags.get("preset") is None and optimiser in (None, "sgdm"):
            flags["preset"] = FIELD
        config, note = read_request(None, flags, entry.settings).resolve()
        notes += [f"{config.label}: {note}"] if note else []
        notes += [same] if (same := same_as_fedavg(config)) else []
        try:
            configs += [config.model_copy(update={"seed": seed}).complete() for seed in range(seeds)]
        except ConfigError as error:
            raise ConfigError(f"{entry.name}: {error}") from error
    return configs, notes


def jobs_of(configs: Sequence[RunConfig], out: Path) -> list[Job]:
    """Return a job with its own folder for each run."""
    labels = labels_of(configs)
    names = [f"{slug(labels[group_key(config)])}-seed{config.seed}" for config in configs]
    if twice := [config for config, name in zip(configs, names, strict=True) if names.count(name) > 1]:
        raise ConfigError(f"{twice[0].label} is named twice with the same settings; name it once")
    titled = zip(configs, names, titles_of(configs, labels), strict=True)
    return [Job(config, out / "runs" / name, title) for config, name, title in titled]


def claim(out: Path, configs: Sequence[RunConfig]) -> bool:
    """Make the comparison's folder, or return True if it already holds the same comparison."""
    content = json.dumps([config.model_dump() for config in configs], indent=2) + "\n"
    return claim_folder(out, "compare.json", content, "comparison")


def everyone(task: str) -> tuple[str, ...]:
    """Return what `all` stands for: the algorithms that have presets tuned with the same effort for the task.

    Personalised ones are among them where clients have test sets. Without such presets it is the paper's algorithms.
    """
    names = [row.algorithm for row in presets(FIELD) if row.task in task_names(task)]
    own_tests = bool(names) and build("task", {"name": task}).data.client_tests is not None
    return tuple(name for name in names if own_tests or name not in PERSONALISED) or PAPER


def parse_entries(arguments: Sequence[str], all_of_them: Sequence[str] = PAPER) -> list[Entry]:
    """Read algorithms, each followed by its own settings; settings before the first one are for all.

    >>> parse_entries(["lr=.1", "fedavg", "fedgbo:sgdm", "beta=0.9"])[1]
    Entry(name='fedgbo', optimiser='sgdm', settings=('lr=.1', 'beta=0.9'), field=False)
    >>> parse_entries(["fedavg lr=.1", "fedgbo:my.py:AdamW lr=.1"])[1]
    Entry(name='fedgbo', optimiser='my.py:AdamW', settings=('lr=.1',), field=False)
    """
    parts = [part for text in arguments for part in re.split(rf"\s+(?={SETTING.pattern})", text.strip()) if part]
    first = next((i for i, part in enumerate(parts) if not SETTING.match(part)), len(parts))
    named: list[tuple[str, list[str]]] = []
    for part in parts[first:] or [PAPERS]:
        if SETTING.match(part):
            named[-1][1].append(part)
        else:
            named.append((part, []))
    entries = []
    for text, own in named:
        names = {ALL: tuple(all_of_them), PAPERS: PAPER}.get(text.lower(), (text,))
        field = text.lower() == ALL and names != PAPER
        entries += [Entry(*parse_entry(name), (*parts[:first], *own), field) for name in names]
    for setting in (setting for entry in entries for setting in entry.settings):
        if (key := setting.partition("=")[0].strip()) in SHARED:
            raise ConfigError(
                f"'{setting}': all algorithms of a comparison have the same {key}; see --task and --seeds"
            )
    return entries


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """The results of several algorithms on the same seeds. `print` shows the table."""

    task: str
    results: Mapping[str, Mapping[int, Result]]  # by label, then by seed
    diverged: Mapping[str, Mapping[int, str]]  # by label, then by seed, the reason; in no mean

    @property
    def table(self) -> Table:
        """Best accuracies with intervals, and their costs, as `fedgbo compare` prints them."""
        lost = {label: len(seeds) for label, seeds in self.diverged.items() if seeds}
        seeds = {label: len(self.results[label]) + len(self.diverged[label]) for label in self.results}
        groups = tuple(self._groups())
        section = ResultSection(self.task, groups, lost, seeds)
        return summary_table([section], "compare", f"Best {groups[0].metric} and its cost")

    def differences(self, against: str | None = None) -> dict[str, Paired]:
        """Return by label the best accuracy minus that of `against`, paired by seed, with its 95% interval.

        The default is FedAvg or, without it, the first algorithm.
        """
        groups = self._groups()
        known = {group.label: group for group in groups}
        if against is not None and against not in known:
            raise ConfigError(unknown("algorithm of this comparison", against, known))
        baseline = known[against] if against is not None else baseline_of(groups) or groups[0]
        found = {group.label: versus(group, baseline) for group in groups if group is not baseline}
        return {label: difference for label, difference in found.items() if difference is not None}

    def frame(self) -> Any:
        """Return all evaluations as a pandas DataFrame, with columns for algorithm and seed (extra `frames`)."""
        several = [(label, seed, r) for label, seeds in self.results.items() for seed, r in seeds.items()]
        return table_frame([{"algorithm": a, "seed": s} | row for a, s, r in several for row in rows_of(r.history)])

    def plot(self, y: str | None = None) -> Any:
        """Return an altair chart of means over seeds with 95% bands (extra `charts`): accuracy, loss or train_loss."""
        lines = [Line(label, tuple(self._runs(label))) for label in self.results if self.results[label]]
        scores = {axis.key: axis for axis in SCORES}
        y = y or ("accuracy" if self._has_accuracy() else "loss")
        if y not in scores:
            raise ConfigError(unknown("score", y, scores))
        if y == "accuracy":
            return accuracy_chart(self._groups(), self.task)
        return finding_chart(lines, ROUNDS, scores[y], f"{self.task}: {scores[y].title}")

    def __repr__(self) -> str:
        seeds = max(len(self.results[label]) + len(self.diverged[label]) for label in self.results)
        lost = sum(len(seeds) for seeds in self.diverged.values())
        told = f", {lost} runs diverged" if lost else ""
        return f"Comparison({', '.join(self.results)} on {self.task}, {seeds} seed{'' if seeds == 1 else 's'}{told})"

    def __str__(self) -> str:
        return plain_table(self.table.shortened("In comparison.table")) if self._has_accuracy() else repr(self)

    def _has_accuracy(self) -> bool:
        return any(r.history[-1].accuracy is not None for seeds in self.results.values() for r in seeds.values())

    def _groups(self) -> list[Group]:
        if not self._has_accuracy():
            raise ConfigError(f"task {self.task!r} has no metric to compare by; see frame() and plot(y='loss')")
        groups = []
        for label in (label for label in self.results if self.results[label]):
            runs = self._runs(label)
            groups.append(Group(label, tuple(runs), *over_seeds(runs, lambda record: record.accuracy)))
        return groups

    def _runs(self, label: str) -> list[RunData]:
        runs = []
        for seed, result in self.results[label].items():
            path = Path(f"{slug(label)}-seed{seed}")
            config = checked_config(result.config, path)
            runs.append(RunData(path, config, result.status, tuple(result.history), config.rounds))
        return runs


def compare(
    task: Task,
    algorithms: Mapping[str, Named] | Sequence[Named],
    *,
    rounds: int,
    seeds: int | Iterable[int] = 3,
    out: str | Path | None = None,
    **settings: Any,
) -> Comparison:
    """Run each algorithm on each seed, one after the other, and return their results.

    `algorithms` is a list, or a dict with your own labels. Each algorithm is an object such as FedGBO(SGDm(lr=0.1,
    beta=0.9)), or a string as on the command line, such as "fedgbo:sgdm lr=0.1 beta=0.9". `seeds` is their number (0,
    1, ...) or a list. `settings` are arguments of `fedgbo.run`, the same for all runs. With `out`, each run has a
    folder in it, and the same call continues where it stopped. A run that diverges is reported and left out of all
    means.
    """
    if under_torchrun():
        raise ConfigError("fedgbo.compare is for one process; under torchrun, call fedgbo.run")
    if not isinstance(task, Task):
        raise ConfigError(f"task must be a fedgbo.Task such as fedgbo.Task(name, data, model), not {task!r:.60}")
    for key in ("seed", "resume"):
        if key in settings:
            raise ConfigError(
                f"fedgbo.compare does not accept {key}; give seeds=, and out= to continue with existing runs"
            )
    named, chosen = _labelled(algorithms, task), _seeds(seeds)
    results: dict[str, dict[int, Result]] = {label: {} for label in named}
    diverged: dict[str, dict[int, str]] = {label: {} for label in named}
    folders = dict(zip(named, unique([slug(label) for label in named]), strict=True))
    for seed in chosen:
        for label, algorithm in named.items():
            folder = None if out is None else Path(out) / f"{folders[label]}-seed{seed}"
            begun = folder is not None and (folder / "run.json").exists()
            try:
                result = run(task, algorithm, rounds=rounds, seed=seed, out=folder, resume=begun, **settings)
                results[label][seed] = result
            except DivergenceError as error:
                diverged[label][seed] = str(error)
    if not any(results.values()):
        raise DivergenceError(f"all runs diverged; {next(iter(named))}: {diverged[next(iter(named))][chosen[0]]}")
    return Comparison(task.name, results, diverged)


def _seeds(seeds: int | Iterable[int]) -> list[int]:
    if isinstance(seeds, Iterable) and not isinstance(seeds, str):
        chosen = list(seeds)
    else:
        whole("seeds", seeds)
        chosen = list(range(int(seeds)))
    for seed in chosen:
        check_seed(seed)
    if not chosen or len(set(chosen)) < len(chosen):
        raise ConfigError(f"seeds must be a number, or a list of different seeds such as [0, 1, 2], not {chosen}")
    return [int(seed) for seed in chosen]


def _labelled(algorithms: Any, task: Task) -> dict[str, FederatedAlgorithm]:
    """Return the algorithms by label; those without a label are named by class, optimiser and what sets them apart."""
    several = [algorithms] if isinstance(algorithms, Named) else algorithms
    if not isinstance(several, Iterable) or not several:
        raise ConfigError("algorithms must be a list such as [FedAvg(SGD(lr=0.1)), 'fedgbo:sgdm lr=0.1 beta=0.9']")
    made = [_made(value) for value in (several.values() if isinstance(several, Mapping) else several)]
    configs = [RunConfig(task={"name": task.name}, algorithm=describe(one), rounds=1) for one in made]
    if isinstance(several, Mapping):
        labels = [str(label) for label in several]
    else:
        labels = distinct([config.label for config in configs], [settings_of(config) for config in configs])
        if twice := [label for label in labels if labels.count(label) > 1]:
            raise ConfigError(f"{twice[0]} is named twice with the same settings; name it once")
    for said in filter(None, map(same_as_fedavg, configs)):
        warnings.warn(said, stacklevel=3)
    return dict(zip(labels, made, strict=True))


def _made(value: Any) -> FederatedAlgorithm:
    """Return an algorithm, built from a text if it is one."""
    if isinstance(value, FederatedAlgorithm):
        return value
    if not isinstance(value, str):
        raise ConfigError(f"an algorithm must be an object or a text such as 'fedavg lr=0.1', not {value!r:.60}")
    entries = parse_entries([value])
    if len(entries) > 1:
        raise ConfigError(f"'{value}' stands for several algorithms; name each, with its settings")
    entry, *_ = entries
    flags = {"algorithm": entry.name, "optimiser": entry.optimiser, "preset": "none"}
    request = read_request(None, flags, entry.settings)
    for key in request.model_fields_set & Request.model_fields.keys():
        if key not in OWN:
            raise ConfigError(f"'{value}': {key} is the same for all; give it to fedgbo.compare({key}=...)")
    return request.resolve()[0].built_algorithm
