"""Jobs: many runs, several at a time, each in its own process and folder.

Finished runs are not repeated; runs that were begun continue from their checkpoint.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from queue import Empty
from typing import Any

from fedgbo.core import DivergenceError, FedGBOError, FolderBusyError, RunFolderError
from fedgbo.engines.device import cores
from fedgbo.runs.callbacks import Callback
from fedgbo.runs.config import RunConfig, execute
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.record import ACCURACY
from fedgbo.runs.round import Progress

TELL_SECONDS = 0.2  # between two reports of one run
STOPS = [getattr(signal, name) for name in ("SIGINT", "SIGHUP") if hasattr(signal, name)]  # Windows has no SIGHUP
WAIT_SECONDS = 0.2  # between two looks at a folder that another process writes into


@dataclass(frozen=True)
class Job:
    """A run, its folder, and its name."""

    config: RunConfig
    out: Path
    title: str = ""


@dataclass(frozen=True)
class News:
    """Progress of a job: its number in the list, the rounds done, the last value of the metric, and how it ended."""

    job: int
    round: int = 0
    rounds: int = 0
    accuracy: float | None = None
    metric: str = ACCURACY
    ended: str | None = None  # "finished", or the error
    seconds: float = 0.0


@dataclass(frozen=True)
class Ending:
    """How a job ended: "finished", or the error with its exit code."""

    how: str
    exit_code: int = 0


Tell = Callable[[News], None]


def code_of(endings: Iterable[Ending]) -> int:
    """Return the exit code of a command some of whose jobs failed: that of all of them, or 1 if they differ."""
    codes = {ending.exit_code for ending in endings}
    return codes.pop() if len(codes) == 1 else 1


def run_or_resume(config: RunConfig, out: Path, callbacks: Sequence[Callback], threads: int) -> None:
    """Run what is missing in a run's folder: nothing if it is finished; raise DivergenceError if it diverged."""
    begun = (out / "run.json").exists()
    status = RunFolder(out).status() if begun else {}
    if status.get("status") == "diverged":
        raise DivergenceError(status.get("reason", "diverged"))
    if status.get("status") != "finished":
        execute(config, out, callbacks, resume=begun, workers=threads)


class Interrupted(KeyboardInterrupt):
    """The parent process asked this worker to stop."""


def run_jobs(jobs: Sequence[Job], workers: int, tell: Tell) -> dict[int, Ending]:
    """Run all jobs, whether or not others fail, and return by number how those ended that did not finish.

    Ctrl-C stops all runs at their next round, with a checkpoint each, and then raises KeyboardInterrupt.
    """
    ended: dict[int, Ending] = {}
    if workers == 1:
        for number, job in enumerate(jobs):
            ended[number] = _run(number, job, tell, threading.Event(), cores())
            tell(News(number, ended=ended[number].how))
    while left := {number: job for number, job in enumerate(jobs) if number not in ended}:
        ended |= _run_in_processes(left, workers, tell)
    return {number: ending for number, ending in ended.items() if ending.how != "finished"}


def _run_in_processes(jobs: Mapping[int, Job], workers: int, tell: Tell) -> dict[int, Ending]:
    """Run jobs in processes, and return how they ended: all jobs or, if a process died, those that were started.

    A pool does not report whose process died, but jobs are started in order: it was one of the first of those left.
    """
    context = get_context("spawn")  # a fork would copy torch's threads in an undefined state
    with ctrl_c_ignored():  # they start a process that tracks resources
        news: Queue[News] = context.Queue()
        stop, ready = context.Event(), context.Event()
    ended: dict[int, Ending] = {}
    threads = max(1, cores() // workers)  # for each run
    with ProcessPoolExecutor(workers, context, _start_worker, (news, stop, ready, threads)) as pool:
        waiting: dict[Future[Ending], int] = {}
        with ctrl_c_ignored(), suppress(BrokenProcessPool):  # a process may die before all jobs are submitted
            for number, job in jobs.items():
                waiting[pool.submit(_run_in_worker, number, job)] = number
        cut_off = [number for number in jobs if number not in waiting.values()]
        try:
            while waiting:
                _pass_on(news, tell)
                for future in [future for future in waiting if future.done()]:
                    _pass_on(news, tell, wait=False)
                    number = waiting.pop(future)
                    if isinstance(future.exception(), BrokenProcessPool):
                        cut_off.append(number)
                    else:
                        ended[number] = future.result()
                        tell(News(number, ended=ended[number].how))
        except KeyboardInterrupt:
            stop.set()
            if not ready.is_set():  # all still import, which can take long: there is no round to wait for
                for process in active_children():
                    process.terminate()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    for number in sorted(cut_off)[:workers]:
        died = "its process or a parallel process died (out of memory?); repeat the command to continue"
        ended[number] = Ending(died, FedGBOError.exit_code)
        tell(News(number, ended=died))
    return ended


@contextmanager
def ctrl_c_ignored() -> Iterator[None]:
    """Start processes that ignore Ctrl-C and a closed terminal, even while they import: their parent stops them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in STOPS}  # children inherit it
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _pass_on(news: "Queue[News]", tell: Tell, wait: bool = True) -> None:
    with suppress(Empty):
        while True:
            tell(news.get(timeout=0.1) if wait else news.get_nowait())
            wait = False


_worker: dict[str, Any] = {}  # the arguments of `_run` that all jobs of this process share


def _start_worker(news: "Queue[News]", stop: Event, ready: Event, threads: int) -> None:
    ready.set()
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    _worker.update(tell=news.put, stop=stop, threads=threads)
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    """End this process when its parent is killed; otherwise it would keep folders locked."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run_in_worker(number: int, job: Job) -> Ending:
    return _run(number, job, **_worker)


def _run(number: int, job: Job, tell: Tell, stop: Event | threading.Event, threads: int) -> Ending:
    """Run one job."""
    last_told = 0.0

    def watch(progress: Progress) -> None:
        nonlocal last_told
        if stop.is_set():
            raise Interrupted
        if progress.record is not None or time.monotonic() - last_told > TELL_SECONDS:
            last_told = time.monotonic()
            news = News(number, progress.ledger.round, progress.rounds, seconds=progress.ledger.seconds)
            if (record := progress.record) is not None:
                news = replace(news, accuracy=record.accuracy, metric=record.metric)
            tell(news)

    while True:
        begun = (job.out / "run.json").exists()
        try:
            run_or_resume(job.config, job.out, [watch], threads)
            return Ending("finished")
        except Interrupted:
            return Ending("interrupted")
        except FedGBOError as error:
            taken = isinstance(error, RunFolderError) and not begun and (job.out / "run.json").exists()
            if not isinstance(error, FolderBusyError) and not taken:
                return Ending(str(error), error.exit_code)
        except Exception as error:  # a mistake in a user's own file, or in ours, must not stop the other runs
            return Ending(f"{type(error).__name__}: {error}", FedGBOError.exit_code)
        if stop.wait(WAIT_SECONDS):  # another experiment carries out this run: wait for it
            return Ending("interrupted")
