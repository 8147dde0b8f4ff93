"""Workers: processes, on one machine or several, that carry out one trial after the other."""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from pathlib import Path

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState

from fedgbo.core import DivergenceError, FedGBOError, RunFolderError
from fedgbo.engines.device import cores
from fedgbo.experiments.jobs import Interrupted, ctrl_c_ignored, run_or_resume
from fedgbo.experiments.shelf import look, set_aside
from fedgbo.experiments.tune.claims import Claim, Watch, Worker, claim_next, drop, heartbeat, running, standing
from fedgbo.experiments.tune.plan import FIRST_SEED, Plan, Settings, score
from fedgbo.experiments.tune.study import Cost, open_study, suggest
from fedgbo.runs.config import RunConfig
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.record import Record
from fedgbo.runs.round import Progress

POLL_SECONDS = 0.5  # while other workers carry out the last trials


@dataclass(frozen=True, eq=False)
class SearchContext:
    """Everything that a worker needs for its trials."""

    study: optuna.Study
    plan: Plan
    out: Path
    cohort: int  # clients in a round
    threads: int  # clients trained at the same time
    watch: Callable[[Progress | None], None]  # called after every round, and while there is nothing to do


def search(plan: Plan, out: Path, url: str, name: str, jobs: int, show: Callable[[optuna.Study], None]) -> optuna.Study:
    """Work on the study with `jobs` processes until all trials have ended, also those of other workers; return it.

    `show` is called repeatedly. Ctrl-C stops all processes at their next round, with a checkpoint each.
    """
    task = plan.config({axis.name: axis.low for axis in plan.axes}, FIRST_SEED).build_task()
    study = open_study(plan, url, name)
    study.set_user_attr("metric", task.metric is not None)
    processes = get_context("spawn")
    with ctrl_c_ignored():  # they start a process that tracks resources
        stop, errors = processes.Event(), processes.SimpleQueue()
    context = SearchContext(study, plan, out, task.cohort_size, max(1, cores() // jobs), lambda _: show(study))
    theirs = replace(context, watch=partial(_stop_if_asked, stop))
    children = [processes.Process(target=_work_in_child, args=(theirs, errors)) for _ in range(jobs - 1)]
    with ctrl_c_ignored():
        for process in children:
            process.start()
    try:
        work(context)
        while any(process.is_alive() for process in children):
            show(study)
            time.sleep(POLL_SECONDS)
    finally:
        stop.set()
        for process in children:
            process.join()
    if not errors.empty():
        raise RunFolderError(f"a worker failed: {errors.get()}")
    if any(process.exitcode for process in children):
        raise RunFolderError("a worker died; repeat the command to continue")
    return study


def _work_in_child(context: SearchContext, errors: "SimpleQueue[str]") -> None:
    try:
        work(context)
    except Interrupted:
        return
    except FedGBOError as error:
        errors.put(str(error))


def _stop_if_asked(stop: Event, progress: Progress | None) -> None:
    parent = parent_process()
    if stop.is_set() or (parent is not None and not parent.is_alive()):
        raise Interrupted


def work(context: SearchContext) -> None:
    """Claim and carry out trials until none is left and no other worker carries one out."""
    watch = Watch()
    with Worker(context.out) as me:
        while True:
            busy = running(standing(context.study.get_trials(deepcopy=False)).values())
            claim = claim_next(context.study, context.plan, me, watch)
            if claim is not None:
                _attempt(context, claim)
            elif busy:
                context.watch(None)
                time.sleep(POLL_SECONDS)
            else:
                return


def _attempt(context: SearchContext, claim: Claim) -> None:
    study = context.study
    try:
        with heartbeat(study, claim.trial_id):
            trial, settings = suggest(study, claim.trial_id, context.plan, claim.index)
            _carry_out(context, claim, trial, settings)
    except UpdateFinishedTrialError:
        return  # this worker counted as dead, and another one has taken over
    except FedGBOError:
        drop(study, claim.trial_id)  # it can be tried again when the error has been corrected
        raise


def _carry_out(context: SearchContext, claim: Claim, trial: optuna.Trial, settings: Settings) -> None:
    """Run a trial, or the rest of an interrupted one, and report its end to the study."""
    plan, curves = context.plan, _Curves(context.plan, trial)
    folder = context.out / "trials" / f"{claim.index:04d}"
    runs = {folder / f"seed{seed}": plan.config(settings, seed) for seed in range(FIRST_SEED, FIRST_SEED + plan.seeds)}
    for path, config in runs.items():
        _check_folder(path, config.complete())
    if claim.before is not None and (reached := claim.before.last_step) is not None:
        kept = sum(max((record.round for record in RunFolder(path).records()), default=0) for path in runs)
        trial.set_user_attr("lost", trial.user_attrs.get("lost", 0) + max(0, reached - kept))
    diverged = None
    for path, config in runs.items():
        try:
            _run_seed(context, config, path, curves)
        except DivergenceError as error:
            diverged = str(error.args[0])
        if curves.pruned or diverged:
            break
    trial.set_user_attr("cost", asdict(curves.cost(context.cohort)))
    if diverged:
        trial.set_user_attr("diverged", diverged)
    if diverged or curves.pruned:
        context.study.tell(trial, state=TrialState.PRUNED)  # Optuna has no state for diverged trials
    else:
        context.study.tell(trial, curves.score())
    for path in runs:
        for checkpoint in RunFolder(path).checkpoints():
            checkpoint.unlink()  # the checkpoints of a whole search would fill the disk


def _check_folder(path: Path, config: RunConfig) -> None:
    """Set a damaged folder aside and raise RunFolderError: the search stops, and a repeated command redoes the run."""
    if look(path, config).state != "damaged":
        return
    found, aside = set_aside(path, config)
    if aside is not None:
        raise RunFolderError(
            f"damaged, set aside as {aside}: {found.reason}; repeat the command to start that run again"
        )


def _run_seed(context: SearchContext, config: RunConfig, path: Path, curves: "_Curves") -> None:
    """Run one seed from the last checkpoint in its folder."""
    begun = (path / "run.json").exists()
    if path.exists() and not begun:
        shutil.rmtree(path)  # interrupted before the run began
    curves.begin(RunFolder(path).records() if begun else [])
    run_or_resume(config, path, [curves.watch, context.watch], context.threads)


class _Curves:
    """The records of a trial's runs, reported to the study, which decides when to stop."""

    def __init__(self, plan: Plan, trial: optuna.Trial) -> None:
        self._plan, self._trial = plan, trial
        self._curves: list[dict[int, Record]] = []  # by seed, records by round
        self._told = max(trial._cached_frozen_trial.intermediate_values, default=0)
        self.pruned = False

    def begin(self, records: Sequence[Record]) -> None:
        self._curves.append({record.round: record for record in records})

    def score(self) -> float | None:
        return score([list(curve.values()) for curve in self._curves], self._plan.score, self._plan.warm_up)

    def watch(self, progress: Progress) -> None:
        """Callback of a run: add its record; stop it if the study prunes the trial."""
        curve = self._curves[-1]
        for later in [round for round in curve if round > progress.ledger.round]:
            del curve[later]  # measured before an interrupt, and about to be measured again
        if progress.record is None:
            return
        curve[progress.record.round] = progress.record
        rounds = (len(self._curves) - 1) * self._plan.rounds + progress.record.round
        value = self.score()
        if value is not None and self._told < rounds < self._plan.trial_rounds:
            self._told = rounds
            self._trial.report(value, rounds)
            self.pruned = self._trial.should_prune()
        if self.pruned:
            progress.stop()

    def cost(self, cohort: int) -> Cost:
        total = Cost()
        for last in (curve[max(curve)] for curve in self._curves if curve):
            steps = last.round * cohort * self._plan.local_steps
            total += Cost(last.round, steps, last.upload_bytes, last.download_bytes, last.flops or 0.0, last.seconds)
        return total
