"""Studies at equal effort: every contender gets the same search on held-out data, then its best setting is run.

A study is a TOML file. Each contender has a grid of settings, and all grids must have the same size. The trials of a
grid are scored on training data that clients hold out, never on the test set. A search can have several stages: the
better half of the trials is repeated with more rounds. The best setting is then run on all training data with other
seeds, and evaluated on the test set.

All finished runs are kept in one CSV file. A run in that file is not repeated, on whichever machine the study goes on.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedgbo.core import ConfigError, RunFolderError
from fedgbo.core.files import write_atomic
from fedgbo.experiments.experiment import Changes, make_experiment
from fedgbo.experiments.jobs import Ending, Job
from fedgbo.experiments.request import read_toml
from fedgbo.experiments.shelf import folder_name, identity, look
from fedgbo.reports.load import Group, RunData, group_runs, metrics_csv, read_metrics
from fedgbo.reports.sections import differing, settings_of
from fedgbo.reports.table import Cell
from fedgbo.reports.table import Table as ResultTable
from fedgbo.runs.config import RunConfig, Table, explain

Runs = Mapping[str, RunData]  # that ended, by identity
Trial = tuple[RunConfig, ...]  # one setting, with a run for every seed of the search
RunAll = Callable[[Sequence[Job]], Mapping[int, Ending]]  # run these; return by number why some did not finish


class Search(BaseModel):
    """How the settings of every contender are chosen."""

    model_config = ConfigDict(extra="forbid", strict=True)

    rounds: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]  # of the trials in each stage
    trials: Annotated[int, Field(ge=1)]  # of each contender in the first stage; the better half go on to the next
    seeds: Annotated[list[int], Field(min_length=1)] = [100]  # other ones than those of the final runs
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.2


class Final(BaseModel):
    """How the chosen settings are run."""

    model_config = ConfigDict(extra="forbid", strict=True)

    rounds: Annotated[int, Field(ge=1)]
    seeds: Annotated[list[int], Field(min_length=1)]


class StudyFile(BaseModel):
    """The content of a study's file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    title: str
    search: Search
    final: Final
    shared: Table  # settings of all runs: the task, local_steps, eval_every ...
    contender: Annotated[list[Table], Field(min_length=1)]  # a grid each, as in the file of an experiment


@dataclass(frozen=True)
class Contender:
    """One algorithm with one optimiser: its trials, and its final runs once a setting has been chosen."""

    label: str
    trials: tuple[Trial, ...]  # of the first stage
    rounds: tuple[int, ...]  # of the trials in each stage
    final: Final

    def score(self, trial: Trial, runs: Runs) -> float | None:
        """Return the mean accuracy from the middle of a trial's rounds on; None if it has not ended.

        The mean depends less on luck than the best evaluation does. A trial that diverged scores below all others.
        """
        ended = [runs.get(identity(config)) for config in trial]
        if any(run is not None and run.status == "diverged" for run in ended):
            return -np.inf
        if any(run is None for run in ended):
            return None
        late = [[r.accuracy for r in run.records if 2 * r.round >= run.rounds] for run in ended if run is not None]
        if any(value is None for values in late for value in values):
            raise ConfigError(f"{self.label}: a study needs a task with a metric")
        return float(np.mean([np.mean(np.array(values, dtype=np.float64)) for values in late]))

    def stages(self, runs: Runs) -> list[list[Trial]]:
        """Return the trials of every stage that is decided; a stage has the better half of the trials before it."""
        stages = [list(self.trials)]
        for rounds in self.rounds[1:]:
            ranked = self._ranked(stages[-1], runs)
            if ranked is None:
                break
            better = ranked[: (len(ranked) + 1) // 2]
            stages.append([tuple(c.model_copy(update={"rounds": rounds}) for c in trial) for trial in better])
        return stages

    def chosen(self, runs: Runs) -> Trial | None:
        """Return the best trial of the last stage, the first of several that are equal; None before all have ended."""
        stages = self.stages(runs)
        ranked = self._ranked(stages[-1], runs) if len(stages) == len(self.rounds) else None
        return ranked[0] if ranked else None

    def _ranked(self, trials: Sequence[Trial], runs: Runs) -> list[Trial] | None:
        """Return trials from the best to the worst; None before all have ended."""
        scores = [self.score(trial, runs) for trial in trials]
        known = [score for score in scores if score is not None]
        if len(known) < len(scores):
            return None
        if max(known) == -np.inf:
            raise ConfigError(f"all trials of {self.label} diverged; give it smaller learning rates")
        return [trials[i] for i in np.argsort(-np.array(known), kind="stable")]

    def final_runs(self, runs: Runs) -> tuple[RunConfig, ...]:
        """Return the runs of the chosen setting, on all training data; none before all trials have ended."""
        if (best := self.chosen(runs)) is None:
            return ()
        common = {"held_out": None, "rounds": self.final.rounds}
        return tuple(best[0].model_copy(update={**common, "seed": seed}) for seed in self.final.seeds)

    def title(self, config: RunConfig) -> str:
        """Name a run: a trial by its setting, a final run by its seed."""
        if config.held_out is None:
            return f"{self.label} seed {config.seed}"
        setting = self.setting(config)
        return f"{self.label} ({setting}) search" if setting else f"{self.label} search"

    def setting(self, config: RunConfig) -> str:
        """Return the settings of a run in which the trials differ."""
        own = settings_of(config)
        return ", ".join(f"{name.rpartition('.')[2]} {own[name]}" for name in self.searched() if name in own)

    def searched(self) -> list[str]:
        """Return the names of the settings in which the trials differ."""
        return differing([settings_of(trial[0]) for trial in self.trials])

    def due(self, runs: Runs) -> list[RunConfig]:
        """Return the runs to be done next: trials or, once a setting has been chosen, final runs."""
        trials = [config for trial in self.stages(runs)[-1] for config in trial]
        configs = trials if self.chosen(runs) is None else list(self.final_runs(runs))
        return [config for config in configs if identity(config) not in runs]


@dataclass(frozen=True)
class Study:
    """Contenders in the order in which they are searched and run."""

    title: str
    contenders: tuple[Contender, ...]

    def next(self, runs: Runs) -> list[tuple[Contender, RunConfig]]:
        """Return the missing trials of one contender or, after all searches, the missing final runs of one seed.

        A study that is stopped can thus compare all contenders on the seeds that are there.
        """
        for contender in self.contenders:
            if contender.chosen(runs) is None:
                return [(contender, config) for config in contender.due(runs)]
        missing = [(contender, config) for contender in self.contenders for config in contender.due(runs)]
        left = {config.seed for _, config in missing}
        first = [seed for seed in self.contenders[0].final.seeds if seed in left][:1]
        return [(contender, config) for contender, config in missing if config.seed in first]


def read_study(file: Path) -> Study:
    """Read a study's file."""
    text, content = read_toml(file)
    try:
        given = StudyFile(**content)
    except ValidationError as error:
        raise ConfigError(explain(error, file, text, StudyFile)) from error
    if both := sorted(set(given.search.seeds) & set(given.final.seeds)):
        raise ConfigError(
            f"{file}: seed {both[0]} is in the search and in the final runs; choose others for the search"
        )
    if any(later <= before for before, later in pairwise(given.search.rounds)):
        raise ConfigError(f"{file}: search.rounds = {given.search.rounds}: every stage needs more rounds than the last")
    return Study(given.title, tuple(_contender(given, table, file) for table in given.contender))


def _contender(given: StudyFile, grid: Table, file: Path) -> Contender:
    search = given.search
    content: dict[str, Any] = {"preset": "none", **given.shared, **grid, "rounds": search.rounds[0]}
    single = make_experiment({**content, "seeds": search.seeds[:1]}, file.stem, Changes()).configs
    label = single[0].label
    if len(single) != search.trials:
        raise ConfigError(
            f"{file}: {label} has {len(single)} settings, but every contender must have {search.trials} (search.trials)"
        )
    held_out = [config.model_copy(update={"held_out": search.held_out}) for config in single]
    trials = tuple(tuple(c.model_copy(update={"seed": seed}) for seed in search.seeds) for c in held_out)
    return Contender(label, trials, tuple(search.rounds), given.final)


def kept_runs(file: Path) -> dict[str, RunData]:
    """Read the runs that ended from the study's CSV file."""
    return {identity(run.config): run for run in read_metrics(file)} if file.exists() else {}


def carry_out(study: Study, out: Path, kept: Path, run_all: RunAll) -> None:
    """Do all runs that are missing, and keep those that end in the file `kept`."""
    while due := study.next(kept_runs(kept)):
        jobs = [Job(c, out / folder_name(c), contender.title(c)) for contender, c in due]
        ended = _collect(jobs, kept)  # by an earlier command that was interrupted
        if todo := [job for job in jobs if identity(job.config) not in ended]:
            for config in {str(job.config.task): job.config for job in todo}.values():
                config.build_task()  # so that an error in the data is reported once, before the first run
            failed = run_all(todo)
            lost = [job for job in todo if identity(job.config) not in _collect(todo, kept)]
            if lost:
                reason = failed.get(todo.index(lost[0]), Ending("it did not finish")).how
                raise RunFolderError(f"{lost[0].out} failed: {reason}; repeat the command to continue")


def _collect(jobs: Iterable[Job], kept: Path) -> dict[str, RunData]:
    """Add the jobs that have ended to the CSV file; return all of its runs."""
    runs = kept_runs(kept)
    for job in jobs:
        found = look(job.out, job.config)
        if found.state in ("finished", "diverged") and found.run is not None:
            runs.setdefault(identity(job.config), found.run)
        elif found.state == "damaged":
            raise RunFolderError(f"{found.reason}; remove {job.out} and repeat the command")
    if runs:
        write_atomic(kept, metrics_csv(runs.values()).encode())
    return runs


def search_table(study: Study, runs: Runs) -> ResultTable:
    """Return the chosen setting of each contender, with its score on held-out data."""
    rows = []
    for contender in study.contenders:
        best, stages = contender.chosen(runs), contender.stages(runs)
        scores = [[contender.score(trial, runs) for trial in trials] for trials in stages]
        settings = [settings_of(trial[0]) for trial in contender.trials]
        chosen = settings_of(best[0]) if best else {}
        ends = [] if best is None else [name for name in contender.searched() if _at_end(name, chosen, settings)]
        rows.append(
            (
                Cell(contender.label),
                Cell(contender.setting(best[0]) if best else "not yet"),
                Cell(f"{100 * max(s for s in scores[-1] if s is not None):.1f}" if best else "-"),
                Cell(", ".join(name.rpartition(".")[2] for name in ends) or "-"),
                Cell(", ".join(f"{sum(s is not None for s in stage)} of {len(stage)}" for stage in scores)),
                Cell(f"{sum(score == -np.inf for stage in scores for score in stage)}"),
            )
        )
    columns = ("Algorithm", "Chosen", "Held-out accuracy (%)", "At the end of its range", "Trials", "Diverged")
    brief = tuple(column for column in columns if column != "At the end of its range")
    return ResultTable("search", f"{study.title}: the search", columns, tuple(rows), measured=True, brief=brief)


def _at_end(name: str, chosen: Mapping[str, str], settings: Sequence[Mapping[str, str]]) -> bool:
    """Return whether a numerical setting is the smallest or the largest of more than two that were tried."""
    values = sorted({float(one[name]) for one in settings if _is_number(one.get(name, ""))})
    return len(values) > 2 and float(chosen[name]) in (values[0], values[-1])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def final_groups(study: Study, runs: Runs) -> list[Group]:
    """Return the final runs that finished, a group for each contender, over the seeds that all of these have."""
    ended = _final_runs(study, runs)
    finished = {label: [run for run in found if run.status != "diverged"] for label, found in ended.items()}
    there = {label: found for label, found in finished.items() if found}
    seeds = set.intersection(*({run.config.seed for run in found} for found in there.values())) if there else set()
    kept = {label: [run for run in found if run.config.seed in seeds] for label, found in there.items()}
    return [replace(group_runs(found)[0], label=label) for label, found in kept.items() if found]


def diverged_contenders(study: Study, runs: Runs) -> dict[str, int]:
    """Return the contenders whose final runs all diverged, with the number of these runs; they have no group."""
    ended = _final_runs(study, runs)
    return {label: len(found) for label, found in ended.items() if found and all(r.status == "diverged" for r in found)}


def diverged_runs(study: Study, runs: Runs) -> list[str]:
    """Return a sentence for each contender with final runs that diverged; `final_groups` leaves out their seeds."""
    said = []
    for label, found in _final_runs(study, runs).items():
        lost = {run.config.seed: run.records[-1].round for run in found if run.status == "diverged"}
        if lost:
            seeds = ", ".join(f"seed {seed} (last evaluated after round {last})" for seed, last in lost.items())
            others = " The table has only the other seeds." if len(lost) < len(found) else ""
            said.append(f"{label}: {len(lost)} of {len(found)} final runs diverged: {seeds}.{others}")
    return said


def _final_runs(study: Study, runs: Runs) -> dict[str, list[RunData]]:
    """Return the final runs that ended, by contender."""
    return {c.label: [runs[identity(f)] for f in c.final_runs(runs) if identity(f) in runs] for c in study.contenders}
