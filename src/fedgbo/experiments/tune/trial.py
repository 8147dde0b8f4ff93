"""One trial: a setting's runs, seed after seed, each in a run folder, until the end or as long as it is worth it."""

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import optuna
from optuna.trial import TrialState

from fedgbo.core.errors import DivergenceError, RunFolderError
from fedgbo.experiments.shelf import look, set_aside
from fedgbo.experiments.tune.claims import Claim
from fedgbo.experiments.tune.plan import FIRST_SEED, Plan, Settings
from fedgbo.experiments.tune.score import score
from fedgbo.runs.config import RunConfig, execute
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.loop import Callback
from fedgbo.runs.record import Record
from fedgbo.runs.round import Progress


@dataclass(frozen=True)
class Cost:
    """What a search, or a part of it, took: on all clients together."""

    rounds: int = 0
    client_steps: int = 0
    upload_bytes: int = 0
    download_bytes: int = 0
    flops: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        mine, theirs = asdict(self), asdict(other)
        return Cost(**{key: mine[key] + theirs[key] for key in mine})


class _Runs:
    """The runs of one trial so far: what is told to the study, and when to stop."""

    def __init__(self, plan: Plan, trial: optuna.Trial) -> None:
        self.plan, self.trial = plan, trial
        self.curves: list[dict[int, Record]] = []  # by seed, records by round
        self.pruned = False
        self._told = max(trial._cached_frozen_trial.intermediate_values, default=0)

    def value(self) -> float | None:
        """The score of what there is."""
        return score([list(curve.values()) for curve in self.curves], self.plan.score, self.plan.warm_up)

    def watch(self, progress: Progress) -> bool:
        """Take what a run measured; return whether it should stop."""
        curve = self.curves[-1]
        for later in [round for round in curve if round > progress.ledger.round]:
            del curve[later]  # measured before a cut, and about to be measured again
        if progress.record is None:
            return False
        curve[progress.record.round] = progress.record
        step = (len(self.curves) - 1) * self.plan.rounds + progress.record.round
        value = self.value()
        if value is not None and self._told < step < self.plan.trial_rounds:
            self._told = step
            self.trial.report(value, step)
            self.pruned = self.trial.should_prune()
        return self.pruned


@dataclass(frozen=True, eq=False)
class Bench:
    """What a worker needs for every trial."""

    study: optuna.Study
    plan: Plan
    out: Path
    cohort: int  # clients in a round
    threads: int  # clients trained at the same time
    watch: Callback  # called after every round


def carry_out(bench: Bench, claim: Claim, trial: optuna.Trial, settings: Settings) -> None:
    """Run a trial, or what is left of it, and tell the study how it ended.

    A trial that is stopped early or diverges is pruned in Optuna's terms. An interrupt leaves it as it is: whoever
    finds it goes on from the runs' checkpoints.
    """
    plan, runs = bench.plan, _Runs(bench.plan, trial)
    folders = [bench.out / "trials" / f"{claim.index:04d}" / f"seed{FIRST_SEED + n}" for n in range(plan.seeds)]
    for number, folder in enumerate(folders):
        _check(folder, plan.config(settings, FIRST_SEED + number))
    if claim.before is not None and (reached := claim.before.last_step) is not None:
        lost = max(0, reached - sum(_reached(folder) for folder in folders))
        trial.set_user_attr("lost", trial.user_attrs.get("lost", 0) + lost)
    diverged = None
    for number, folder in enumerate(folders):
        runs.curves.append({})
        try:
            _run(bench, plan.config(settings, FIRST_SEED + number), folder, runs)
        except DivergenceError as error:
            diverged = str(error.args[0])
        if runs.pruned or diverged:
            break
    _tell(bench, trial, runs, diverged)
    for folder in folders:
        for checkpoint in RunFolder(folder).checkpoints():
            checkpoint.unlink()  # a search would fill the disk with them


def _check(folder: Path, config: RunConfig) -> None:
    """Set a damaged folder aside, and say so: the search stops once, and does that run anew when it is repeated."""
    if look(folder, config.complete()).state != "damaged":
        return
    found, aside = set_aside(folder, config.complete())
    if aside is not None:
        raise RunFolderError(f"damaged, set aside as {aside}: {found.reason}; repeat the command to do that run anew")


def _run(bench: Bench, config: RunConfig, folder: Path, runs: _Runs) -> None:
    """Run one seed from where its folder stands."""
    begun = (folder / "run.json").exists()
    if folder.exists() and not begun:
        shutil.rmtree(folder)  # cut off before it held anything
    kept = RunFolder(folder).records() if begun else []
    runs.curves[-1].update({record.round: record for record in kept})
    status = RunFolder(folder).status() if begun else {}
    if status.get("status") == "diverged":
        raise DivergenceError(status.get("reason", "diverged"))
    if status.get("status") != "finished":
        execute(config, folder, [runs.watch, bench.watch], begun, bench.threads)


def _tell(bench: Bench, trial: optuna.Trial, runs: _Runs, diverged: str | None) -> None:
    trial.set_user_attr("cost", asdict(_cost(bench, runs)))
    if diverged:
        trial.set_user_attr("diverged", diverged)
    if diverged or runs.pruned:
        bench.study.tell(trial, state=TrialState.PRUNED)
    else:
        bench.study.tell(trial, runs.value())


def _cost(bench: Bench, runs: _Runs) -> Cost:
    total = Cost()
    for curve in runs.curves:
        if curve:
            last = curve[max(curve)]
            totals = (last.upload_bytes, last.download_bytes, last.flops, last.seconds)
            total += Cost(last.round, last.round * bench.cohort * bench.plan.local_steps, *totals)
    return total


def _reached(folder: Path) -> int:
    """Return the round that a run will go on from: its last record's, for a checkpoint follows each."""
    records = RunFolder(folder).records()
    return records[-1].round if records else 0
