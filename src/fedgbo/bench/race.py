"""Contenders in processes of their own, that take turns: so threads, memory and caches of one are not another's."""

from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection

from fedgbo.bench.contender import Contender, Lap, prepare
from fedgbo.core.errors import FedGBOError


class BenchError(FedGBOError):
    """A contender could not run."""


def race(contenders: Sequence[Contender], seconds: float, repeats: int) -> list[list[Lap]]:
    """Return, for every contender, `repeats` laps of about so many seconds; nobody works while another does."""
    context = get_context("spawn")
    pipes, processes = [], []
    try:
        for who in contenders:
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, who), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
            _answer(ours, who)  # one after the other: they are ready when they answer
        laps: list[list[Lap]] = [[] for _ in contenders]
        for _ in range(repeats):
            for who, pipe, mine in zip(contenders, pipes, laps, strict=True):
                pipe.send(seconds)
                mine.append(_answer(pipe, who))
        return laps
    finally:
        for pipe in pipes:
            pipe.close()  # which ends the process
        for process in processes:
            process.join(5)
            process.kill()


def _answer(pipe: Connection, who: Contender) -> Lap:
    try:
        answer = pipe.recv()
    except EOFError as error:
        raise BenchError(
            f"{who.kind} on {who.task or 'matrices'} ended before it was measured; is there memory enough?"
        ) from error
    if isinstance(answer, str):
        raise BenchError(f"{who.kind} on {who.task or 'matrices'} failed: {answer}")
    lap: Lap = answer
    return lap


def _work(pipe: Connection, who: Contender) -> None:
    try:
        work = prepare(who)
        pipe.send(work(0.0))
        while True:
            pipe.send(work(pipe.recv()))
    except (EOFError, KeyboardInterrupt, BrokenPipeError):
        return
    except Exception as error:  # told to the parent, which stops the bench
        pipe.send(f"{type(error).__name__}: {error}")
