"""Many runs, a few at a time, each in a process of its own and in its own folder.

What a folder has finished is not run again; what was begun goes on from its checkpoint.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from queue import Empty
from typing import Any

from fedgbo.core.errors import FedGBOError, FolderBusyError, RunFolderError
from fedgbo.runs.config import RunConfig, execute
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.loop import cores
from fedgbo.runs.round import Progress

TELL_SECONDS = 0.2  # between two reports of one run
WAIT_SECONDS = 0.2  # between two looks at a folder that another process writes into


@dataclass(frozen=True)
class Job:
    """A run, the folder it goes into, and what to call it."""

    config: RunConfig
    out: Path
    name: str = ""

    @property
    def title(self) -> str:
        """Its name or, without one, algorithm and seed."""
        return self.name or f"{self.config.label} seed {self.config.seed}"


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

    A run that diverges, fails or is killed does not keep the others from running. Ctrl-C stops all runs at their next
    round, with a checkpoint each, and then raises KeyboardInterrupt. One at a time needs no other process.
    """
    if workers == 1:
        return _run_here(jobs, tell)
    failed: dict[int, str] = {}
    left = dict(enumerate(jobs))
    while left:
        ended = _run_there(left, workers, tell)
        failed |= {number: how for number, how in ended.items() if how != "finished"}
        left = {number: job for number, job in left.items() if number not in ended}
    return failed


def _run_there(jobs: Mapping[int, Job], workers: int, tell: Callable[[News], None]) -> dict[int, str]:
    """Run jobs in processes, and return how they ended: all or, if a process died, those that had their turn.

    A pool does not say whose process died, but jobs have their turn in order: it was one of the first of those left.
    """
    context = get_context("spawn")  # a fork would copy torch's threads in an undefined state
    news: Queue[News] = context.Queue()
    stop = context.Event()
    ended: dict[int, str] = {}
    cut_off: list[int] = []
    threads = max(1, cores() // workers)  # for each run

    def note(number: int, how: str) -> None:
        ended[number] = how
        tell(News(number, 0, 0, None, how))

    with ProcessPoolExecutor(workers, context, _start_worker, (news, stop, threads)) as pool:
        waiting: dict[Future[str], int] = {}
        with _ctrl_c_ignored(), suppress(BrokenProcessPool):  # one may die before all are in the queue
            for number, job in jobs.items():
                waiting[pool.submit(_work, number, job)] = number
        cut_off += [number for number in jobs if number not in waiting.values()]
        try:
            while waiting:
                _pass_on(news, tell)
                for future in [future for future in waiting if future.done()]:
                    _pass_on(news, tell, wait=False)
                    if isinstance(future.exception(), BrokenProcessPool):
                        cut_off.append(waiting.pop(future))
                    else:
                        note(waiting.pop(future), _outcome(future.result))
        except KeyboardInterrupt:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    for number in sorted(cut_off)[:workers]:
        note(number, "its process died, or one beside it (out of memory?); run the same command again to go on")
    return ended


def _run_here(jobs: Sequence[Job], tell: Callable[[News], None]) -> dict[int, str]:
    _worker.update(tell=tell, stop=threading.Event(), threads=cores())
    failed: dict[int, str] = {}
    for number, job in enumerate(jobs):
        ended = _outcome(partial(_work, number, job))
        if ended != "finished":
            failed[number] = ended
        tell(News(number, 0, 0, None, ended))
    return failed


@contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """Start processes that never hear of Ctrl-C, not even while they import: whether to stop, their parent decides."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # children inherit it
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _pass_on(news: "Queue[News]", tell: Callable[[News], None], wait: bool = True) -> None:
    try:
        while True:
            tell(news.get(timeout=0.1) if wait else news.get_nowait())
            wait = False
    except Empty:
        return


def _outcome(result: Callable[[], str]) -> str:
    try:
        return result()
    except Exception as error:  # a mistake in a user's own file, or in ours, must not keep the other runs from running
        return f"{type(error).__name__}: {error}"


_worker: dict[str, Any] = {}


def _start_worker(news: "Queue[News]", stop: Event, threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker.update(tell=news.put, stop=stop, threads=threads)
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    """End this process when its parent is killed: nobody would hear of it, and it would keep folders locked."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(number: int, job: Job) -> str:
    """Run one job in a worker; return "finished" or what went wrong."""
    last_told = 0.0

    def watch(progress: Progress) -> None:
        nonlocal last_told
        if _worker["stop"].is_set():
            raise Interrupted
        if progress.record is not None or time.monotonic() - last_told > TELL_SECONDS:
            last_told = time.monotonic()
            accuracy = progress.record.accuracy if progress.record else None
            ledger = progress.ledger
            _worker["tell"](News(number, ledger.round, progress.rounds, accuracy, seconds=ledger.seconds))

    while True:
        begun = (job.out / "run.json").exists()
        try:
            if begun and RunFolder(job.out).status().get("status") in ("finished", "diverged"):
                status = RunFolder(job.out).status()
                return "finished" if status["status"] == "finished" else str(status.get("reason", "diverged"))
            execute(job.config, job.out, [watch], resume=begun, workers=_worker["threads"])
            return "finished"
        except Interrupted:
            return "interrupted"
        except FedGBOError as error:
            taken = isinstance(error, RunFolderError) and not begun and (job.out / "run.json").exists()
            if not isinstance(error, FolderBusyError) and not taken:
                return str(error)
        if _worker["stop"].wait(WAIT_SECONDS):  # another experiment does this very run: wait for it
            return "interrupted"
