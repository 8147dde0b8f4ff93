"""The study that all workers share: Optuna's storage, sampler and pruner, and the outcome of a search."""

import csv
import io
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import optuna
import sqlalchemy
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import RandomSampler, TPESampler
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from fedgbo.core import ConfigError, MissingExtraError, RunFolderError, name_of
from fedgbo.experiments.presets import Preset, preset_file, slot_names
from fedgbo.experiments.tune.claims import standing
from fedgbo.experiments.tune.plan import Axis, Plan
from fedgbo.reports.sensitivity import Tried

BUSY_SECONDS = 60.0  # that SQLite waits for another process's write
TRIES = 8  # to open the storage: processes that start together may collide while the first one makes the tables


def open_study(plan: Plan, url: str, name: str) -> optuna.Study:
    """Open or make the study `name` in the storage at `url`; an existing study must be of the same search."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
    if plan.prune:
        pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=plan.first_look, reduction_factor=plan.prune)
    storage, sampler = _storage(url), RandomSampler(seed=0)  # `suggest` replaces the sampler where TPE chooses
    study = optuna.create_study(
        storage=storage, sampler=sampler, pruner=pruner, study_name=name, direction="maximize", load_if_exists=True
    )
    if "plan" not in study.user_attrs:
        study.set_user_attr("plan", plan.identity())
    theirs, ours = json.loads(study.user_attrs["plan"]), json.loads(plan.identity())
    if theirs != ours:
        key = next((key for key in ours if theirs.get(key) != ours[key]), "plan")
        raise RunFolderError(
            f"the study '{name}' belongs to another search: its {key} is {theirs.get(key)}, here it is {ours.get(key)}"
            "; repeat its settings, or choose another folder or --study"
        )
    return study


def local_url(out: Path) -> str:
    """Return the URL of the SQLite file in a folder."""
    return f"sqlite:///{out.resolve() / 'study.db'}"


def suggest(study: optuna.Study, trial_id: int, plan: Plan, index: int) -> tuple[optuna.Trial, dict[str, float]]:
    """Return the trial and its settings: those it already has, those planned for its index, or TPE's choice."""
    planned = plan.spread(index)
    if planned is None:
        seed = name_of(0, "tune", index) % 2**32  # different for each trial, so that no two workers draw the same
        study.sampler = TPESampler(n_startup_trials=0, multivariate=True, constant_liar=True, seed=seed)
    else:
        fixed = {_parameter(axis): _coordinate(axis, planned[axis.name]) for axis in plan.axes}
        study._storage.set_trial_system_attr(trial_id, "fixed_params", fixed)  # as `enqueue_trial` does
    trial = optuna.Trial(study, trial_id)
    found = {axis.name: trial._suggest(_parameter(axis), _distribution(axis, plan)) for axis in plan.axes}
    return trial, {axis.name: _value(axis, found[axis.name]) for axis in plan.axes}


def trial_settings(trial: FrozenTrial, plan: Plan) -> dict[str, float] | None:
    """Return the settings of a trial; None if it was interrupted before it had them."""
    if any(_parameter(axis) not in trial.params for axis in plan.axes):
        return None
    return {axis.name: _value(axis, trial.params[_parameter(axis)]) for axis in plan.axes}


def _parameter(axis: Axis) -> str:
    return f"1 - {axis.name}" if axis.decay else axis.name


def _distribution(axis: Axis, plan: Plan) -> BaseDistribution:
    if plan.search == "grid":
        return CategoricalDistribution([_coordinate(axis, value) for value in axis.values])
    low, high = sorted((_coordinate(axis, axis.low), _coordinate(axis, axis.high)))
    return FloatDistribution(low, high, log=axis.logarithmic)


def _coordinate(axis: Axis, value: float) -> float:
    return float(f"{1 - value:.12g}") if axis.decay else value


def _value(axis: Axis, coordinate: float) -> float:
    """Undo `_coordinate`, to six readable digits. Values that the user gave are returned exactly."""
    value = 1 - coordinate if axis.decay else coordinate
    near = next((given for given in axis.values if abs(given - value) < 1e-9 * abs(given)), None)
    return float(f"{value:.6g}") if near is None else near


def _storage(url: str) -> RDBStorage:
    connect = {"connect_args": {"timeout": BUSY_SECONDS}} if url.startswith("sqlite") else {}
    try:
        shown = sqlalchemy.make_url(url).render_as_string(hide_password=True)
        for attempt in range(TRIES - 1):
            try:
                return RDBStorage(url, engine_kwargs=connect)
            except (sqlalchemy.exc.OperationalError, sqlalchemy.exc.IntegrityError, RuntimeError):
                time.sleep(0.1 * 2**attempt)
        return RDBStorage(url, engine_kwargs=connect)
    except ImportError as error:
        raise MissingExtraError(f"the storage {shown} needs a driver that is not installed: {error}") from error
    except (sqlalchemy.exc.SQLAlchemyError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"the storage cannot be opened: {reason}; give an Optuna URL such as sqlite:///study.db or "
            "postgresql://user:password@host/database"
        ) from error


@dataclass(frozen=True)
class Cost:
    """The cost of a search or of a part of it, over all clients."""

    rounds: int = 0
    client_steps: int = 0
    upload_bytes: int = 0
    download_bytes: int = 0
    flops: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        ours, theirs = asdict(self), asdict(other)
        return Cost(**{key: ours[key] + theirs[key] for key in ours})


@dataclass(frozen=True)
class Outcome:
    """The present state of a search, or its result."""

    tried: Sequence[Tried]  # in the order in which they were begun
    cost: Cost  # of all trials
    lost_rounds: int  # repeated, because a worker died far from its last checkpoint
    taken_up: int  # trials that were interrupted and continued

    @property
    def best(self) -> Tried:
        whole = [tried for tried in self.tried if tried.state == "finished"]
        if not whole:
            raise RunFolderError(
                "no trial was completed: all diverged or were stopped; search smaller learning rates, or give "
                "the search more trials"
            )
        return max(whole, key=lambda tried: tried.score or 0.0)

    def count(self, state: str) -> int:
        return sum(tried.state == state for tried in self.tried)


def outcome_of(study: optuna.Study, plan: Plan) -> Outcome:
    """Read the outcome from the study."""
    now = standing(study.get_trials(deepcopy=False))
    over = {index: trial for index, trial in now.items() if "cost" in trial.user_attrs and trial.state.is_finished()}
    states = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "stopped early"}
    tried = [
        Tried(
            index=index,
            settings=trial_settings(trial, plan) or {},
            state="diverged" if "diverged" in trial.user_attrs else states.get(trial.state, "failed"),
            score=trial.value,
            cost=trial.user_attrs["cost"],
        )
        for index, trial in over.items()
    ]
    return Outcome(
        tried=tried,
        cost=sum((Cost(**trial.user_attrs["cost"]) for trial in over.values()), Cost()),
        lost_rounds=sum(trial.user_attrs.get("lost", 0) for trial in over.values()),
        taken_up=sum("again" in trial.user_attrs for trial in over.values()),
    )


def edges(plan: Plan, best: Tried) -> list[str]:
    """Say which of the best settings lie at an end of their axis, so that a better value may lie beyond."""
    return [
        f"{axis.name}={best.settings[axis.name]:g} is the end of what was searched; a better one may lie beyond"
        for axis in plan.axes
        if best.settings[axis.name] in (axis.low, axis.high)
    ]


def winner(plan: Plan, best: Tried) -> str:
    """Return the best setting as a preset file."""
    names = list(slot_names(plan.algorithm, plan.optimiser).values()) or ["sgdm"]
    settings = {**plan.fixed, **best.settings}
    return preset_file([Preset(str(plan.task["name"]), plan.algorithm, names[-1], plan.local_steps, settings)])


def trials_csv(plan: Plan, tried: Sequence[Tried]) -> str:
    """Return all trials as CSV."""
    text = io.StringIO()
    names = [axis.name for axis in plan.axes]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", *names, "state", "score", *asdict(Cost())])
    for row in tried:
        values = [f"{row.settings[name]:g}" for name in names]
        score = "" if row.score is None else f"{row.score:.6f}"
        writer.writerow([row.index, *values, row.state, score, *row.cost.values()])
    return text.getvalue()
