"""Who tries what: each setting of a search is tried by one worker, and again by another if that one dies.

The only thing that a storage must do for us is to number new trials one after the other, which every Optuna storage
does in a transaction. The n-th new trial has the index n, and so its setting (a grid's cell, the seed of TPE's draw):
two workers cannot get the same. Whoever finds a trial cut off makes a new one for the same index, as its next attempt;
if two do so at the same time, the lower number counts and the other is dropped. No locks, no queue.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import optuna
from optuna.exceptions import OptunaError, UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState, create_trial

from fedgbo.experiments.tune.alive import Watch, Worker
from fedgbo.experiments.tune.plan import Plan


@dataclass(frozen=True, eq=False)
class Claim:
    """A trial that is this worker's to carry out; `before` is the attempt that was cut off, if there was one."""

    trial_id: int
    index: int
    before: FrozenTrial | None = None


def standing(trials: Iterable[FrozenTrial]) -> dict[int, FrozenTrial]:
    """Return the trial that counts for each index: the last attempt, and of several the one that came first.

    An earlier attempt that was finished after all counts more than a later one: its worker had only been slow.
    """
    found: dict[tuple[int, int], FrozenTrial] = {}
    fresh = 0
    for trial in sorted(trials, key=lambda trial: trial.number):
        index, attempt = trial.user_attrs.get("again", (fresh, 0))
        fresh += "again" not in trial.user_attrs
        found.setdefault((index, attempt), trial)
    now: dict[int, FrozenTrial] = {}
    for index, attempt in sorted(found):
        if index not in now or now[index].state not in (TrialState.COMPLETE, TrialState.PRUNED):
            now[index] = found[index, attempt]
    return now


def claim_next(study: optuna.Study, plan: Plan, me: Worker, watch: Watch) -> Claim | None:
    """Return a trial to carry out: one that was cut off, or else a new one; None if there is none to be had now."""
    now = standing(study.get_trials(deepcopy=False))
    for index, trial in now.items():
        others = [other for other in now.values() if other is not trial]
        if index < plan.trials and _cut_off(trial, me, watch) and not _beyond(plan, others, one_more=True):
            return _take_up(study, me, index, trial)
    if len(now) < plan.trials and not _beyond(plan, now.values(), one_more=True):
        return _begin(study, plan, me)
    return None


def running(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials that somebody is at, or was when it died."""
    return [trial for trial in trials if trial.state == TrialState.RUNNING]


def spent(trials: Iterable[FrozenTrial]) -> int:
    """Return the rounds that trials took, with those that were lost and done again."""
    return sum(trial.user_attrs.get("cost", {}).get("rounds", 0) + trial.user_attrs.get("lost", 0) for trial in trials)


def _beyond(plan: Plan, trials: Iterable[FrozenTrial], one_more: bool = False) -> bool:
    """Return whether the budget would not do if all that run now (and one more) went on to their end."""
    counted = list(trials)
    reserved = (len(running(counted)) + one_more) * plan.trial_rounds
    return plan.budget is not None and spent(counted) + reserved > plan.budget


def _cut_off(trial: FrozenTrial, me: Worker, watch: Watch) -> bool:
    if trial.state != TrialState.RUNNING:
        return trial.state == TrialState.FAIL
    if trial.user_attrs.get("folder") == me.folder:
        return not me.sees(trial.user_attrs["worker"])
    return watch.stopped(trial._trial_id, trial.user_attrs.get("beat", 0))


def _begin(study: optuna.Study, plan: Plan, me: Worker) -> Claim | None:
    mine = _create(study, {"worker": me.id, "folder": me.folder})
    now = standing(study.get_trials(deepcopy=False))
    index = next(index for index, trial in now.items() if trial._trial_id == mine)
    earlier = [trial for trial in now.values() if trial.number <= now[index].number]
    if index >= plan.trials or _beyond(plan, earlier):
        drop(study, mine)  # others were quicker
        return None
    return Claim(mine, index)


def _take_up(study: optuna.Study, me: Worker, index: int, before: FrozenTrial) -> Claim | None:
    attempt = before.user_attrs.get("again", (index, 0))[1] + 1
    attributes = {"lost": before.user_attrs.get("lost", 0), "again": (index, attempt)}
    mine = _create(study, {**attributes, "worker": me.id, "folder": me.folder}, before)
    now = standing(study.get_trials(deepcopy=False))[index]
    if now._trial_id != mine:
        drop(study, mine)
        return None
    drop(study, before._trial_id)
    return Claim(mine, index, before)


def _create(study: optuna.Study, attributes: dict[str, object], like: FrozenTrial | None = None) -> int:
    """Make a running trial, at once with what it carries on from another."""
    template = create_trial(
        state=TrialState.RUNNING,
        params=like.params if like else {},
        distributions=like.distributions if like else {},
        user_attrs=attributes,
        system_attrs=like.system_attrs if like else {},  # how far successive halving has let it through
        intermediate_values=like.intermediate_values if like else {},
    )
    return study._storage.create_new_trial(study._study_id, template)


def drop(study: optuna.Study, trial_id: int) -> None:
    """Mark a trial as failed, so that its index is free to be tried again."""
    try:
        study._storage.set_trial_state_values(trial_id, TrialState.FAIL)
    except UpdateFinishedTrialError:
        return  # it has ended by itself, or somebody else has dropped it


def beat(study: optuna.Study, trial_id: int, number: int) -> None:
    """Say that a trial is still being worked on; a beat that does not get through is only a beat."""
    try:
        study._storage.set_trial_user_attr(trial_id, "beat", number)
    except OptunaError:
        return
