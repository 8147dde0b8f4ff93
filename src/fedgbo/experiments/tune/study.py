"""The study that all workers share: Optuna's storage, sampler and pruner."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial

from fedgbo.core.errors import ConfigError, MissingExtraError, RunFolderError
from fedgbo.core.random import name_of
from fedgbo.experiments.tune.axes import Axis
from fedgbo.experiments.tune.plan import Plan

BUSY_SECONDS = 60.0  # that SQLite waits for another process's write
TRIES = 8  # at opening: processes that start together may meet while the first makes the tables


def open_study(plan: Plan, url: str, name: str) -> optuna.Study:
    """Open or make the study `name` in the storage at `url`; it must hold this search or none."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        storage=_storage(url), study_name=name, direction="maximize", pruner=_pruner(plan), load_if_exists=True
    )
    if "plan" not in study.user_attrs:
        study.set_user_attr("plan", plan.identity())
    held = study.user_attrs["plan"]
    if held != plan.identity():
        theirs, ours = json.loads(held), json.loads(plan.identity())
        key = next((key for key in ours if theirs.get(key) != ours[key]), "plan")
        raise RunFolderError(
            f"the study '{name}' is of another search: its {key} is {theirs.get(key)}, here it is {ours[key]}; "
            "repeat that one's settings, or choose another folder or --study"
        )
    return study


def local_url(out: Path) -> str:
    """Return the address of the SQLite file in a folder."""
    return f"sqlite:///{out.resolve() / 'study.db'}"


def parameter(axis: Axis) -> str:
    """Return the name by which the study knows an axis."""
    return f"1 - {axis.name}" if axis.decay else axis.name


def distribution(axis: Axis, plan: Plan) -> BaseDistribution:
    """Return where the study may look along an axis: a grid's values, or all between its ends."""
    if plan.search == "grid":
        return CategoricalDistribution([_coordinate(axis, value) for value in axis.values])
    low, high = sorted((_coordinate(axis, axis.low), _coordinate(axis, axis.high)))
    return FloatDistribution(low, high, log=axis.logarithmic)


def suggest(study: optuna.Study, trial_id: int, plan: Plan, index: int) -> tuple[optuna.Trial, dict[str, float]]:
    """Return the trial and its settings: those it has, or those planned for its index, or what TPE thinks best."""
    study.sampler = _sampler(plan, index)
    trial = optuna.Trial(study, trial_id)
    settings = {}
    for axis in plan.axes:
        found = trial._suggest(parameter(axis), distribution(axis, plan))
        settings[axis.name] = _value(axis, found)
    return trial, settings


def settings_of(trial: FrozenTrial, plan: Plan) -> dict[str, float] | None:
    """Return the settings that a trial was given, if it got so far."""
    if any(parameter(axis) not in trial.params for axis in plan.axes):
        return None
    return {axis.name: _value(axis, trial.params[parameter(axis)]) for axis in plan.axes}


def _coordinate(axis: Axis, value: float) -> float:
    return float(f"{1 - value:.12g}") if axis.decay else value


def _value(axis: Axis, coordinate: float) -> float:
    """Undo `_coordinate`; six digits are enough, and can be read. What the user gave stays as it is."""
    value = 1 - coordinate if axis.decay else coordinate
    near = next((given for given in axis.values if abs(given - value) < 1e-9 * abs(given)), None)
    return float(f"{value:.6g}") if near is None else near


def _sampler(plan: Plan, index: int) -> BaseSampler:
    seed = name_of(0, "tune", index) % 2**32  # another for each trial: no two workers draw the same
    planned = plan.spread(index)
    if planned is None:
        return TPESampler(n_startup_trials=0, multivariate=True, constant_liar=True, seed=seed)
    return _Planned({parameter(axis): _coordinate(axis, planned[axis.name]) for axis in plan.axes})


class _Planned(BaseSampler):
    """Draws what was decided before."""

    def __init__(self, values: Mapping[str, float]) -> None:
        self._values = values

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Nothing is drawn together."""
        return {}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Nothing is drawn together."""
        return {}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> float:
        """Return the planned value."""
        return self._values[param_name]


def _pruner(plan: Plan) -> optuna.pruners.BasePruner:
    if plan.prune == 0:
        return optuna.pruners.NopPruner()
    return optuna.pruners.SuccessiveHalvingPruner(min_resource=plan.first_look, reduction_factor=plan.prune)


def _storage(url: str) -> RDBStorage:
    connect = {"connect_args": {"timeout": BUSY_SECONDS}} if url.startswith("sqlite") else {}
    try:
        shown = sqlalchemy.make_url(url).render_as_string(hide_password=True)
        for attempt in range(TRIES):
            try:
                return RDBStorage(url, engine_kwargs=connect)
            except (sqlalchemy.exc.OperationalError, sqlalchemy.exc.IntegrityError, RuntimeError):
                if attempt == TRIES - 1:
                    raise
                time.sleep(0.1 * 2**attempt)
    except ImportError as error:
        raise MissingExtraError(f"the storage {shown} needs a driver that is not installed: {error}") from error
    except (sqlalchemy.exc.SQLAlchemyError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"the storage cannot be opened: {reason}; give an Optuna URL such as sqlite:///study.db or "
            "postgresql://user:password@host/database"
        ) from error
    raise AssertionError  # the loop returns or raises
