"""Collective operations over torch.distributed: gloo between CPUs and for all small messages, NCCL between GPUs."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from fedgbo.core import FedGBOError, RankError
from fedgbo.engines.torchrun.join import RollCall, rebuilt, told
from fedgbo.pipeline.aggregators import ExactSum

T = TypeVar("T")
Row = Sequence[float]
FINE = -1.0  # instead of the number of the piece of work that raised


class Ranks:
    """The processes of a run, which know each other by rank, on one machine or several.

    Work is numbered, clients in the order of a cohort and chunks in the order of the test set, and number i is that of
    rank i mod size. What each piece of work gives is a row of numbers; every process gets all rows, in their order. All
    processes call the same methods in the same order.

    Vectors are added up as in an all-reduce: each process gets everybody's part of its own stretch of the vector, adds
    them up, exactly, and hands the sum round. The small messages go first, so that an error, or a process that is gone,
    is noticed before anybody waits for a vector.
    """

    def __init__(self, group: Any, call: RollCall, local_rank: int, local_size: int, timeout: timedelta) -> None:
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.local_rank, self.local_size = local_rank, local_size
        self._group, self._call, self._timeout = group, call, timeout
        self._gpus: Any = None  # the group for tensors on GPUs, made when the first comes
        self._speaker = 0
        self._agreed: BaseException | None = None  # what all processes raised together

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes files and talks to the user."""
        return self.rank == 0

    @property
    def speaks(self) -> bool:
        """Whether this process reports errors: the lowest rank that is known to be left."""
        return self.rank == self._speaker

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Return this process's part of the work."""
        return items[self.rank :: self.size]

    def together(self, work: Callable[[], T]) -> T:
        """Do some work in every process; if it raises in one, raise in all."""
        done: list[T] = []

        def once() -> Iterator[Row]:
            done.append(work())
            yield ()

        self.rows(once(), self.size, 0)
        return done[0]

    def rows(self, own: Iterable[Row], count: int, width: int) -> list[Row]:
        """Go through this process's rows of `width` numbers, and return those of all processes, `count` in all.

        Where going through them raises, in one process or more, all processes raise what the first of the rows raised.
        """
        found: list[Row] = []
        problem: Exception | None = None
        try:
            for row in own:
                found.append(row)
        except Exception as error:
            problem = error
        block = torch.zeros(1 + math.ceil(count / self.size) * width, dtype=torch.float64)
        block[0] = FINE if problem is None else self.rank + len(found) * self.size
        numbers = [float(number) for row in found for number in row]
        block[1 : 1 + len(numbers)] = torch.tensor(numbers, dtype=torch.float64)
        blocks = [torch.empty_like(block) for _ in range(self.size)]
        with self._watched():
            dist.all_gather(blocks, block, group=self._group)
        lists = [one.tolist() for one in blocks]
        failed = [(numbers[0], rank) for rank, numbers in enumerate(lists) if numbers[0] != FINE]
        if failed:
            self._raise(min(failed)[1], problem)
        ends = [1 + (number // self.size + 1) * width for number in range(count)]
        return [lists[number % self.size][end - width : end] for number, end in enumerate(ends)]

    def add_up(self, sums: Sequence[ExactSum]) -> None:
        """Let each sum be that over all processes, exactly; its second half travels only where some process has one."""
        flags = self.rows([[float(_has_rest(one)) for one in sums]], self.size, len(sums))
        for number, one in enumerate(sums):
            self._add_up(one, any(row[number] for row in flags))

    def lead(self, work: Callable[[], bytes]) -> bytes:
        """Let rank 0 alone do some work, and return what that gave, or raise what that raised, everywhere."""
        content, problem = b"", None
        if self.leads:
            try:
                content = work()
            except Exception as error:
                problem = error
        header = torch.tensor([problem is not None, len(content)])
        with self._watched():
            dist.broadcast(header, 0, group=self._group)
        if header[0]:
            self._raise(0, problem)
        return self._bytes(content, int(header[1]), 0)

    def spread(self, tensor: Tensor, rank: int = 0) -> None:
        """Overwrite `tensor`, on the CPU, with that of a rank."""
        with self._watched():
            dist.broadcast(tensor, rank, group=self._group)

    def leave(self, error: BaseException) -> None:
        """Tell the others that this process cannot go on, and close the connections, unless all have raised this error.

        Our own errors are raised by all processes, together or because they all compute the same.
        """
        if error is self._agreed or isinstance(error, FedGBOError) or self._call.over:
            return
        self._call.leave(told(error))
        close(self._group)
        self._call.linger()

    def _add_up(self, one: ExactSum, with_rest: bool) -> None:
        """Let each process add up its stretch of the vector exactly; then exchange the stretches, rounded once."""
        stretches = one.total.tensor_split(self.size)
        mine, sizes = stretches[self.rank], [len(stretch) for stretch in stretches]
        halves = [one.total, one.rest] if with_rest else [one.total]
        parts = [self._exchanged(half, sizes) for half in halves]
        exact = ExactSum(mine.clone(), one.rest.tensor_split(self.size)[self.rank].clone())
        for theirs in parts:
            for rank, part in enumerate(theirs.view(self.size, len(mine))):
                if rank != self.rank:
                    exact.add(part)
        mine.copy_(exact.total + exact.rest)
        with self._watched():
            group = self._group_of(one.total)
            for work in [dist.broadcast(s, r, group=group, async_op=True) for r, s in enumerate(stretches)]:
                work.wait()
        one.rest.zero_()

    def _exchanged(self, vector: Tensor, sizes: list[int]) -> Tensor:
        """Send each process its stretch of the vector; return all processes' parts of ours, one after the other."""
        mine = sizes[self.rank]
        parts = vector.new_empty(self.size * mine)
        with self._watched():
            dist.all_to_all_single(parts, vector, [mine] * self.size, sizes, group=self._group_of(vector))
        return parts

    def _group_of(self, tensor: Tensor) -> Any:
        if tensor.is_cpu:
            return self._group
        if self._gpus is None:
            self._gpus = dist.new_group(backend="nccl", timeout=self._timeout)
        return self._gpus

    def _raise(self, rank: int, own: Exception | None) -> None:
        """Raise in all processes what process `rank` has raised."""
        content = told(own) if own is not None and rank == self.rank else b""
        length = torch.tensor(len(content))
        with self._watched():
            dist.broadcast(length, rank, group=self._group)
        content = self._bytes(content, int(length), rank)
        self._agreed = own if own is not None and rank == self.rank else rebuilt(content, rank)
        raise self._agreed

    def _bytes(self, content: bytes, length: int, rank: int) -> bytes:
        if length == 0:
            return b""
        blank = bytearray(content if rank == self.rank else length)
        carrier = torch.frombuffer(blank, dtype=torch.uint8)
        with self._watched():
            dist.broadcast(carrier, rank, group=self._group)
        return bytes(blank)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Turn a broken connection into a message that says who is gone."""
        if self._call.over:
            raise RankError("this process has left its group after an error; restart all processes")
        try:
            yield
        except RuntimeError as error:
            close(self._group)  # so that those who wait for this process notice too
            self._speaker, reason = self._call.ask(str(error))
            self._agreed = RankError(reason)
            raise self._agreed from error


def close(group: Any) -> None:
    """Close the connections of a group, None being torch's default, so that nobody waits for this process."""
    with suppress(RuntimeError):  # they may be broken already
        if dist.is_initialized():
            dist.destroy_process_group(group)


def _has_rest(one: ExactSum) -> bool:
    return bool(one.rest.any())
