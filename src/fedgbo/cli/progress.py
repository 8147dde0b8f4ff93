"""Live progress: a bar with rate, time left and accuracy on a terminal; now and then a plain line elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.progress import Task as Bar
from rich.text import Text

from fedgbo.cli.console import err
from fedgbo.experiments.jobs import Job, News
from fedgbo.runs.loop import Callback
from fedgbo.runs.round import Progress

PLAIN_SECONDS = 10.0  # between two lines where there is no terminal


class _Rate(ProgressColumn):
    def render(self, bar: Bar) -> Text:
        """Return rounds per second."""
        return Text(f"{bar.speed:.1f} rounds/s" if bar.speed else "")


def _bars() -> Bars:
    return Bars(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[accuracy]}"),
        console=err,
        transient=True,
    )


@contextmanager
def one_run(label: str, quiet: bool) -> Iterator[list[Callback]]:
    """Yield the callbacks that show one run."""
    if quiet:
        yield []
    elif err.is_terminal:
        with _bars() as bars:
            bar = bars.add_task(label, total=None, accuracy="")

            def show(progress: Progress) -> None:
                bars.update(bar, completed=progress.ledger.round, total=progress.rounds)
                if progress.record is not None:
                    bars.update(bar, accuracy=_score(progress.record.accuracy, progress.record.loss))

            yield [show]
    else:
        last = time.monotonic()

        def line(progress: Progress) -> None:
            nonlocal last
            if progress.record is not None and time.monotonic() - last > PLAIN_SECONDS:
                last = time.monotonic()
                score = _score(progress.record.accuracy, progress.record.loss)
                err.print(f"{label}: round {progress.ledger.round} of {progress.rounds}, {score}")

        yield [line]


@contextmanager
def many_runs(jobs: list[Job], quiet: bool) -> Iterator[Callable[[News], None]]:
    """Yield what to tell the news of many jobs to."""
    ended = 0
    total = sum(job.config.rounds for job in jobs)
    done: dict[int, int] = {}
    names = [f"{job.config.label} seed {job.config.seed}" for job in jobs]
    last: dict[int, News] = {}

    def finished(news: News) -> str:
        nonlocal ended
        ended += 1
        before = last.get(news.job)
        score = f"accuracy {before.accuracy:.1%}" if before and before.accuracy is not None else ""
        how = score if news.ended == "finished" else f"{news.ended}"
        took = f", {before.seconds:.1f} s" if before and news.ended == "finished" else ""
        return f"\\[{ended:>{len(str(len(jobs)))}}/{len(jobs)}] {names[news.job]}: {how or 'was finished before'}{took}"

    if quiet or not err.is_terminal:

        def plain(news: News) -> None:
            if news.ended is None:
                last[news.job] = news
            elif not quiet:
                err.print(finished(news))

        yield plain
        return

    with _bars() as bars:
        overall = bars.add_task("all runs", total=total, accuracy="")
        active: dict[int, int] = {}

        def show(news: News) -> None:
            if news.ended is not None:
                if news.job in active:
                    bars.remove_task(active.pop(news.job))  # type: ignore[arg-type]
                done[news.job] = jobs[news.job].config.rounds
                bars.console.print(finished(news))
            else:
                if news.job not in active:
                    active[news.job] = bars.add_task(f"  {names[news.job]}", total=news.rounds, accuracy="")
                shown = {} if news.accuracy is None else {"accuracy": _score(news.accuracy, 0.0)}
                bars.update(active[news.job], completed=news.round, **shown)  # type: ignore[arg-type]
                done[news.job] = news.round
                last[news.job] = news if news.accuracy is not None or news.job not in last else last[news.job]
            bars.update(overall, completed=sum(done.values()))

        yield show


def _score(accuracy: float | None, loss: float) -> str:
    return f"test loss {loss:.4g}" if accuracy is None else f"accuracy {accuracy:.1%}"
