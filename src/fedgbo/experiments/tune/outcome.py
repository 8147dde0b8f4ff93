"""What came out of a search: the best settings, all that were tried, and what it cost."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import optuna
from optuna.trial import FrozenTrial, TrialState

from fedgbo.core.errors import RunFolderError
from fedgbo.core.optimiser import Optimiser
from fedgbo.experiments.presets import Preset, optimiser_slots, preset_file
from fedgbo.experiments.tune.claims import standing
from fedgbo.experiments.tune.plan import Plan
from fedgbo.experiments.tune.study import settings_of
from fedgbo.experiments.tune.trial import Cost
from fedgbo.reports.sensitivity import Tried
from fedgbo.runs.describe import find


@dataclass(frozen=True)
class Outcome:
    """A search that has ended, or as it stands."""

    tried: Sequence[Tried]  # in the order in which they were begun
    cost: Cost  # of all
    lost_rounds: int  # done twice, because a worker died far from its last checkpoint
    taken_up: int  # trials that were cut off and gone on with

    @property
    def best(self) -> Tried:
        """The setting with the highest score among those that were tried to the end."""
        whole = [tried for tried in self.tried if tried.state == "finished"]
        if not whole:
            raise RunFolderError(
                "no setting was tried to the end: all diverged or were stopped; search smaller learning rates, or give "
                "the search more trials"
            )
        return max(whole, key=lambda tried: tried.score or 0.0)

    def count(self, state: str) -> int:
        """Return how many trials ended so."""
        return sum(tried.state == state for tried in self.tried)


def outcome_of(study: optuna.Study, plan: Plan) -> Outcome:
    """Read the study."""
    now = standing(study.get_trials(deepcopy=False))
    over = {index: trial for index, trial in now.items() if "cost" in trial.user_attrs and trial.state.is_finished()}
    return Outcome(
        tried=[_tried(index, trial, plan) for index, trial in over.items()],
        cost=sum((Cost(**trial.user_attrs["cost"]) for trial in over.values()), Cost()),
        lost_rounds=sum(trial.user_attrs.get("lost", 0) for trial in over.values()),
        taken_up=sum("again" in trial.user_attrs for trial in over.values()),
    )


def edges(plan: Plan, best: Tried) -> list[str]:
    """Say where the best setting lies at the end of what was searched, so that a better one may lie beyond."""
    return [
        f"{axis.name}={best.settings[axis.name]:g} is the end of what was searched; a better one may lie beyond"
        for axis in plan.axes
        if best.settings[axis.name] in (axis.low, axis.high)
    ]


def winner(plan: Plan, best: Tried) -> str:
    """Return the best setting as a preset file."""
    takes = Optimiser in optimiser_slots(find("algorithm", plan.algorithm)).values()
    optimiser = (plan.optimiser or "sgdm") if takes else "sgd"
    settings = {**plan.fixed, **best.settings}
    return preset_file([Preset(str(plan.task["name"]), plan.algorithm, optimiser, plan.local_steps, settings)])


def table(plan: Plan, tried: Sequence[Tried]) -> str:
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


def _tried(index: int, trial: FrozenTrial, plan: Plan) -> Tried:
    states = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "stopped early"}
    return Tried(
        index=index,
        settings=settings_of(trial, plan) or {},
        state="diverged" if "diverged" in trial.user_attrs else states.get(trial.state, "failed"),
        score=trial.value,
        cost=trial.user_attrs["cost"],
    )
