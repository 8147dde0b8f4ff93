"""Claims on trials: one worker tries each setting of a search, and another worker takes over if the first one dies.

Every Optuna storage numbers new trials in a transaction. The n-th new trial has the index n, which determines its
setting (a cell of the grid, or the seed of TPE's draw), so two workers cannot get the same one. A worker that finds an
interrupted trial makes a new trial for the same index, as its next attempt. If two workers do so at the same time, the
lower number counts and the other trial is dropped. Workers that share a folder hold file locks, which even kill -9
frees; other workers are recognised by heartbeats.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from uuid import uuid4

import optuna
from optuna.exceptions import OptunaError, UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState, create_trial

from fedgbo.core.locks import lock
from fedgbo.experiments.tune.plan import Plan

BEAT_SECONDS = 15.0
GRACE_SECONDS = 120.0  # without a heartbeat, after which a worker elsewhere counts as dead


class Worker:
    """This process in the folder `out`: it holds the lock on its own file as long as it lives."""

    def __init__(self, out: Path) -> None:
        self.id = uuid4().hex
        self.folder = _folder_id(out)
        self._path = out / "workers" / self.id

    def __enter__(self) -> "Worker":
        self._path.parent.mkdir(exist_ok=True)
        self._lock = self._path.open("a")
        lock(self._lock, wait=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._path.unlink(missing_ok=True)
        self._lock.close()

    def sees(self, other: str) -> bool:
        """Return whether another worker of this folder is alive."""
        try:
            with (self._path.parent / other).open("r+") as file:
                return not lock(file, shared=True)
        except FileNotFoundError:
            return False


def _folder_id(out: Path) -> str:
    """Return an identifier kept in the folder: the same for all who share the folder itself and not only its path."""
    with (out / "folder.id").open("a+") as file:
        lock(file, wait=True)  # several workers may start at the same time
        file.seek(0)
        if not (name := file.read()):
            name = uuid4().hex
            file.write(name)
    return name


class Watch:
    """When heartbeats of workers elsewhere last changed, by our own clock: theirs may differ."""

    def __init__(self, grace: float = GRACE_SECONDS) -> None:
        self._grace = grace
        self._seen: dict[int, tuple[int, float]] = {}

    def stopped(self, trial: int, beat: int) -> bool:
        """Note the trial's heartbeat; return whether it has been the same for too long."""
        last, since = self._seen.get(trial, (-1, 0.0))
        if beat != last:
            self._seen[trial] = beat, time.monotonic()
            return False
        return time.monotonic() - since > self._grace


@contextmanager
def heartbeat(study: optuna.Study, trial_id: int) -> Iterator[None]:
    """Send heartbeats 1, 2, ... of a trial while the block runs."""
    stop = Event()

    def send() -> None:
        number = 0
        while not stop.wait(BEAT_SECONDS):
            number += 1
            beat(study, trial_id, number)

    thread = Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def beat(study: optuna.Study, trial_id: int, number: int) -> None:
    """Send one heartbeat of a trial; it does not matter if a single one is lost."""
    with suppress(OptunaError):
        study._storage.set_trial_user_attr(trial_id, "beat", number)


@dataclass(frozen=True, eq=False)
class Claim:
    """A trial that this worker carries out; `before` is the interrupted attempt, if there was one."""

    trial_id: int
    index: int
    before: FrozenTrial | None = None


def standing(trials: Iterable[FrozenTrial]) -> dict[int, FrozenTrial]:
    """Return the trial that counts for each index: the last attempt, and of several the first one.

    An earlier attempt that finished counts more than a later one: its worker was slow, not dead.
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
    """Return a trial to carry out: an interrupted one, or else a new one; None if none is available now."""
    now = standing(study.get_trials(deepcopy=False))
    for index, trial in now.items():
        others = [other for other in now.values() if other is not trial]
        if index < plan.trials and _cut_off(trial, me, watch) and not _beyond(plan, others, one_more=True):
            return _take_up(study, me, index, trial)
    if len(now) < plan.trials and not _beyond(plan, now.values(), one_more=True):
        return _begin(study, plan, me)
    return None


def running(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials that a worker carries out, or carried out when it died."""
    return [trial for trial in trials if trial.state == TrialState.RUNNING]


def drop(study: optuna.Study, trial_id: int) -> None:
    """Mark a trial as failed, so that its index can be tried again, unless it has ended meanwhile."""
    with suppress(UpdateFinishedTrialError):
        study._storage.set_trial_state_values(trial_id, TrialState.FAIL)


def _beyond(plan: Plan, trials: Iterable[FrozenTrial], one_more: bool = False) -> bool:
    """Return whether all running trials (and one more), carried out to their end, would exceed the budget."""
    counted = list(trials)
    spent = sum(t.user_attrs.get("cost", {}).get("rounds", 0) + t.user_attrs.get("lost", 0) for t in counted)
    reserved = (len(running(counted)) + one_more) * plan.trial_rounds
    return plan.budget is not None and spent + reserved > plan.budget


def _cut_off(trial: FrozenTrial, me: Worker, watch: Watch) -> bool:
    if trial.state != TrialState.RUNNING:
        return trial.state == TrialState.FAIL
    if trial.user_attrs.get("folder") == me.folder:
        return not me.sees(trial.user_attrs["worker"])
    return watch.stopped(trial._trial_id, trial.user_attrs.get("beat", 0))


def _begin(study: optuna.Study, plan: Plan, me: Worker) -> Claim | None:
    mine = _create(study, me, {})
    now = standing(study.get_trials(deepcopy=False))
    index = next(index for index, trial in now.items() if trial._trial_id == mine)
    earlier = [trial for trial in now.values() if trial.number <= now[index].number]
    if index >= plan.trials or _beyond(plan, earlier):
        drop(study, mine)  # other workers were faster
        return None
    return Claim(mine, index)


def _take_up(study: optuna.Study, me: Worker, index: int, before: FrozenTrial) -> Claim | None:
    attempt = before.user_attrs.get("again", (index, 0))[1] + 1
    mine = _create(study, me, {"lost": before.user_attrs.get("lost", 0), "again": (index, attempt)}, before)
    if standing(study.get_trials(deepcopy=False))[index]._trial_id != mine:
        drop(study, mine)
        return None
    drop(study, before._trial_id)
    return Claim(mine, index, before)


def _create(study: optuna.Study, me: Worker, attributes: dict[str, object], like: FrozenTrial | None = None) -> int:
    """Make a running trial, in one transaction with everything that it takes over from an interrupted one."""
    taken_over = ("params", "distributions", "intermediate_values", "system_attrs")  # the last: rungs of halving passed
    template = create_trial(
        state=TrialState.RUNNING,
        user_attrs={**attributes, "worker": me.id, "folder": me.folder},
        **({name: getattr(like, name) for name in taken_over} if like else {}),
    )
    return study._storage.create_new_trial(study._study_id, template)
