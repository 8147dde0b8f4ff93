"""Workers: each takes one trial after the other, in this process and in others, here and on other machines."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from pathlib import Path

import optuna
from optuna.exceptions import UpdateFinishedTrialError

from fedgbo.core.errors import FedGBOError, RunFolderError
from fedgbo.experiments.jobs import Interrupted
from fedgbo.experiments.tune.alive import Beats, Watch, Worker
from fedgbo.experiments.tune.claims import Claim, beat, claim_next, drop, running, standing
from fedgbo.experiments.tune.plan import FIRST_SEED, Plan
from fedgbo.experiments.tune.study import open_study, suggest
from fedgbo.experiments.tune.trial import Bench, carry_out
from fedgbo.runs.loop import cores
from fedgbo.runs.round import Progress

POLL_SECONDS = 0.5  # while others are at the last trials
Look = Callable[[optuna.Study], None]


def search(plan: Plan, out: Path, url: str, name: str, jobs: int, look: Look) -> optuna.Study:
    """Work on the study with so many processes until nothing is left to do, also by others; return it.

    `look` is called now and then. Ctrl-C stops all processes at their next round, with a checkpoint each.
    """
    task = plan.config({axis.name: axis.low for axis in plan.axes}, FIRST_SEED).build_task()
    study = open_study(plan, url, name)
    study.set_user_attr("metric", task.metric is not None)
    context = get_context("spawn")
    stop, errors = context.Event(), context.SimpleQueue()
    threads = max(1, cores() // jobs)
    arguments = (plan, out, url, name, task.cohort_size, threads, stop, errors, os.getpid())
    children = [context.Process(target=_child, args=arguments) for _ in range(jobs - 1)]
    if children:
        _start(children)
    try:
        work(Bench(study, plan, out, task.cohort_size, threads, lambda _: look(study)), lambda: look(study))
        _join(children, errors, lambda: look(study))
    finally:
        stop.set()
        for child in children:
            child.join()
    return study


def work(bench: Bench, idle: Callable[[], None], watch: Watch | None = None) -> None:
    """Take and carry out trials until none is left and nobody is at one."""
    watch = watch or Watch()
    with Worker(bench.out) as me:
        while True:
            busy = running(standing(bench.study.get_trials(deepcopy=False)).values())
            claim = claim_next(bench.study, bench.plan, me, watch)
            if claim is not None:
                _attempt(bench, claim)
            elif busy:
                idle()
                time.sleep(POLL_SECONDS)
            else:
                return


def _attempt(bench: Bench, claim: Claim) -> None:
    study = bench.study
    try:
        with Beats(lambda number: beat(study, claim.trial_id, number)):
            trial, settings = suggest(study, claim.trial_id, bench.plan, claim.index)
            carry_out(bench, claim, trial, settings)
    except UpdateFinishedTrialError:
        return  # we were taken for dead, and somebody else is at it
    except FedGBOError:
        drop(study, claim.trial_id)  # to be tried again when what went wrong has been put right
        raise


def _start(children: Sequence[BaseProcess]) -> None:
    """Start processes that do not hear Ctrl-C, from their first moment on: it is the parent who stops them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for child in children:
            child.start()
    finally:
        signal.signal(signal.SIGINT, before)


def _join(children: Sequence[BaseProcess], errors: "SimpleQueue[str]", idle: Callable[[], None]) -> None:
    while any(child.is_alive() for child in children):
        idle()
        time.sleep(POLL_SECONDS)
    if not errors.empty():
        raise RunFolderError(f"a worker failed: {errors.get()}")
    if any(child.exitcode for child in children):
        raise RunFolderError("a worker died; repeat the command to go on")


def _child(
    plan: Plan,
    out: Path,
    url: str,
    name: str,
    cohort: int,
    threads: int,
    stop: Event,
    errors: "SimpleQueue[str]",
    parent: int,
) -> None:
    """Work in a process of its own until done, told to stop, or left alone."""

    def check() -> None:
        if stop.is_set() or os.getppid() != parent:
            raise Interrupted

    def watch(progress: Progress) -> None:
        check()

    try:
        work(Bench(open_study(plan, url, name), plan, out, cohort, threads, watch), check)
    except Interrupted:
        return
    except FedGBOError as error:
        errors.put(str(error))
