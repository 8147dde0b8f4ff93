"""Many runs, a few at a time, each in a process of its own and in its own folder.

What a folder has finished is not run again; what was begun goes on from its checkpoint.
"""

import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from queue import Empty
from typing import Any

from fedgbo.core.errors import FedGBOError
from fedgbo.runs.config import RunConfig
from fedgbo.runs.execute import execute
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.loop import cores
from fedgbo.runs.round import Progress

TELL_SECONDS = 0.2  # between two reports of one run


@dataclass(frozen=True)
class Job:
    """A run, and the folder it goes into."""

    config: RunConfig
    out: Path


@dataclass(frozen=True)
class News:
    """How a job is doing: its number in the list, rounds done, the last accuracy; and when it ended, how."""

    job: int
    round: int
    rounds: int
    accuracy: float | None
    ended: str | None = None  # "finished", or what went wrong
    seconds: float = 0.0


class Interrupted(KeyboardInterrupt):
    """The parent process asked this worker to stop."""


def run_jobs(jobs: Sequence[Job], workers: int, tell: Callable[[News], None]) -> dict[int, str]:
    """Run all jobs, and return by number how those ended that did not finish.

    A run that diverges or fails does not keep the others from running. Ctrl-C stops all runs at their next round,
    with a checkpoint each, and then raises KeyboardInterrupt.
    """
    context = get_context("spawn")  # a fork would copy torch's threads in an undefined state
    news: Queue[News] = context.Queue()
    stop = context.Event()
    failed: dict[int, str] = {}
    threads = max(1, cores() // workers)  # for each run
    with ProcessPoolExecutor(workers, context, _start_worker, (news, stop, os.getpid(), threads)) as pool:
        waiting = {pool.submit(_work, number, job): number for number, job in enumerate(jobs)}
        try:
            while waiting:
                _pass_on(news, tell)
                for future in [future for future in waiting if future.done()]:
                    ended = _outcome(future)
                    if ended != "finished":
                        failed[waiting[future]] = ended
                    _pass_on(news, tell, wait=False)
                    tell(News(waiting.pop(future), 0, 0, None, ended))
        except KeyboardInterrupt:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return failed


def _pass_on(news: "Queue[News]", tell: Callable[[News], None], wait: bool = True) -> None:
    try:
        while True:
            tell(news.get(timeout=0.1) if wait else news.get_nowait())
            wait = False
    except Empty:
        return


def _outcome(future: "Future[str]") -> str:
    try:
        return future.result()
    except BrokenProcessPool:
        return "its process died (out of memory?); run the same command again to go on"


_worker: dict[str, Any] = {}


def _start_worker(news: "Queue[News]", stop: Event, parent: int, threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    _worker.update(news=news, stop=stop, parent=parent, threads=threads)


def _work(number: int, job: Job) -> str:
    """Run one job in a worker; return "finished" or what went wrong."""
    last_told = 0.0

    def watch(progress: Progress) -> None:
        nonlocal last_told
        if _worker["stop"].is_set() or os.getppid() != _worker["parent"]:
            raise Interrupted
        if progress.record is not None or time.monotonic() - last_told > TELL_SECONDS:
            last_told = time.monotonic()
            accuracy = progress.record.accuracy if progress.record else None
            ledger = progress.ledger
            _worker["news"].put(News(number, ledger.round, progress.rounds, accuracy, seconds=ledger.seconds))

    try:
        begun = (job.out / "run.json").exists()
        if begun and RunFolder(job.out).status().get("status") in ("finished", "diverged"):
            status = RunFolder(job.out).status()
            return "finished" if status["status"] == "finished" else str(status.get("reason", "diverged"))
        execute(job.config, job.out, [watch], resume=begun, workers=_worker["threads"])
        return "finished"
    except Interrupted:
        return "interrupted"
    except FedGBOError as error:
        return str(error)
