"""The processes that share a run: each trains its share of a cohort, and all go on with the same sums.

Work is numbered, clients in the order of a cohort and chunks in the order of the test set, and number i is that of the
process i mod size. What each piece of work gives is a row of numbers; every process gets all rows, in their order.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from torch import Tensor

from fedgbo.engines.mean import ExactSum

T = TypeVar("T")
Row = Sequence[float]


class Team(ABC):
    """What engines and the round loop ask of it. All processes call the same methods in the same order."""

    rank: int
    size: int
    local_rank: int  # among the processes on this machine
    local_size: int

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes files and talks to the user."""
        return self.rank == 0

    @property
    def speaks(self) -> bool:
        """Whether this is the process that tells of errors: the leader or, if that is gone, the next one."""
        return self.leads

    @property
    def mine(self) -> slice:
        """Which pieces of work are this process's."""
        return slice(self.rank, None, self.size)

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Return this process's part of the work."""
        return items[self.mine]

    @abstractmethod
    def rows(self, own: Iterable[Row], count: int, width: int) -> list[Row]:
        """Go through this process's rows of `width` numbers, and return those of all processes, `count` in all.

        Where going through them raises, in one process or more, all processes raise what the first of the rows raised.
        """

    @abstractmethod
    def add_up(self, sums: Sequence[ExactSum]) -> None:
        """Let each sum be that over all processes, which have the same number of them."""

    @abstractmethod
    def lead(self, work: Callable[[], bytes]) -> bytes:
        """Let the leader alone do some work, and return what that gave, or raise what that raised, everywhere."""

    @abstractmethod
    def spread(self, tensor: Tensor) -> None:
        """Overwrite `tensor`, on the CPU, with the leader's."""

    def leave(self, error: BaseException) -> None:  # noqa: B027 - nothing to do for one who is alone
        """Let the others know that this process cannot go on."""

    def together(self, work: Callable[[], T]) -> T:
        """Do some work in every process; if it raises in one, raise in all."""
        done: list[T] = []

        def once() -> Iterator[Row]:
            done.append(work())
            yield ()

        self.rows(once(), self.size, 0)
        return done[0]


class Alone(Team):
    """A run in one process."""

    rank, size, local_rank, local_size = 0, 1, 0, 1

    def rows(self, own: Iterable[Row], count: int, width: int) -> list[Row]:
        """Return the rows."""
        return list(own)

    def add_up(self, sums: Sequence[ExactSum]) -> None:
        """Leave the sums as they are."""

    def lead(self, work: Callable[[], bytes]) -> bytes:
        """Do the work."""
        return work()

    def spread(self, tensor: Tensor) -> None:
        """Leave the tensor as it is."""


ALONE = Alone()
