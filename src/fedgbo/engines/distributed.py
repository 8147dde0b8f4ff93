"""A team over torch.distributed: gloo between CPUs and for all small messages, NCCL between GPUs."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fedgbo.core.errors import FedGBOError, RankError
from fedgbo.engines.mean import ExactSum
from fedgbo.engines.messages import rebuilt, told
from fedgbo.engines.rollcall import RollCall
from fedgbo.engines.team import Row, Team

FINE = -1.0  # instead of the number of the piece of work that raised


class Distributed(Team):
    """Processes that know each other by rank, on one machine or several.

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
    def speaks(self) -> bool:
        """Whether this is the lowest rank that is known to be left."""
        return self.rank == self._speaker

    def rows(self, own: Iterable[Row], count: int, width: int) -> list[Row]:
        """Return the rows of all; one small all-gather."""
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
        """Add up exactly; the second half of each sum only goes over the network where somebody has one."""
        flags = self.rows([[float(_has_rest(one)) for one in sums]], self.size, len(sums))
        for number, one in enumerate(sums):
            self._add_up(one, any(row[number] for row in flags))

    def lead(self, work: Callable[[], bytes]) -> bytes:
        """Broadcast what the leader's work gave: how much, then the bytes themselves."""
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

    def spread(self, tensor: Tensor) -> None:
        """Broadcast the leader's."""
        with self._watched():
            dist.broadcast(tensor, 0, group=self._group)

    def leave(self, error: BaseException) -> None:
        """Leave word, and close the connections, unless all have raised this: then they are still in step.

        Our own errors are raised by all, together or because they all compute the same.
        """
        if error is self._agreed or isinstance(error, FedGBOError) or self._call.over:
            return
        self._call.leave(told(error))
        close(self._group)
        self._call.linger()

    def _add_up(self, one: ExactSum, with_rest: bool) -> None:
        if with_rest and one.rest is None:
            one.rest = torch.zeros_like(one.total)
        stretches = one.total.tensor_split(self.size)
        mine, sizes = stretches[self.rank], [len(stretch) for stretch in stretches]
        halves = [one.total] if one.rest is None or not with_rest else [one.total, one.rest]
        parts = [self._exchanged(half, sizes) for half in halves]
        exact = ExactSum(mine, None if one.rest is None else one.rest.tensor_split(self.size)[self.rank])
        for theirs in parts:
            for rank, part in enumerate(theirs.view(self.size, len(mine))):
                if rank != self.rank:
                    exact.add(part)
        exact.value()  # in place, in this process's stretch of the total
        with self._watched():
            group = self._group_of(one.total)
            for work in [dist.broadcast(s, r, group=group, async_op=True) for r, s in enumerate(stretches)]:
                work.wait()
        one.rest = None

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
            raise RankError("this process has left its team after an error; start all processes anew")
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
    return one.rest is not None and bool(one.rest.any())
