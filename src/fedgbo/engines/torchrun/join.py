"""How processes find each other under torchrun, and how they learn why one of them is gone.

The environment that torchrun sets says whether there are several processes. Errors travel as plain JSON, from which
nothing but our own errors is built. Processes that lose a connection ask for each other in torch's key-value store,
which outlives most of them.
"""

import atexit
import functools
import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedgbo.core import ConfigError, FedGBOError, RankError, errors

if TYPE_CHECKING:
    from fedgbo.engines.torchrun.ranks import Ranks

PLACES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TIMEOUT = "FEDGBO_TIMEOUT"
SECONDS = 300.0  # by default; a process that dies is noticed at once, this is for machines that vanish


def under_torchrun() -> bool:
    """Return whether torchrun, or something like it, started this process as one of several."""
    return all(place in os.environ for place in PLACES) and os.environ["WORLD_SIZE"] != "1"


@functools.cache
def join() -> "Ranks":
    """Return the group of processes that this one belongs to; waits for the others at the first call."""
    from torch import distributed as dist

    if not dist.is_available():
        raise ConfigError("this torch was built without torch.distributed; run fedgbo without torchrun")
    # torch imports this sooner or later; once there is a group, its functions' default arguments would hold on to that
    import_module("torch.distributed.nn.functional")
    seconds = _seconds()
    timeout = timedelta(seconds=seconds)
    from torch.distributed.rendezvous import rendezvous

    from fedgbo.engines.torchrun.ranks import Ranks, close

    try:
        if dist.is_initialized():  # by the user's own program: leave that group, and its store, to it
            store, group = None, dist.new_group(backend="gloo", timeout=timeout)
        else:
            store, rank, size = next(iter(rendezvous("env://", timeout=timeout)))
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
            group = None  # torch's default; a reference of our own would keep it from being closed
            atexit.register(close, group)
    except (RuntimeError, ValueError) as error:
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise RankError(
            f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} cannot join the others at {place}: {error}"
        ) from error
    call = RollCall(store, dist.get_rank(group), dist.get_world_size(group), seconds)
    local_rank, local_size = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return Ranks(group, call, local_rank, local_size, timeout)


def joined() -> "Ranks | None":
    """Return the group if this process has joined one."""
    return join() if join.cache_info().currsize else None


def _seconds() -> float:
    text = os.environ.get(TIMEOUT, str(SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < 1e6:
        raise ConfigError(f"{TIMEOUT} must be a number of seconds above 0, such as 300, not {text!r}")
    return seconds


def told(error: BaseException) -> bytes:
    """Return the error as a message."""
    text = str(error.args[0]) if isinstance(error, FedGBOError) and error.args else str(error)
    return json.dumps({"error": type(error).__name__, "text": text}).encode()


def rebuilt(message: bytes, rank: int) -> Exception:
    """Return the error that process `rank` raised, if it is one of ours, or one that says what happened there.

    >>> rebuilt(told(errors.ConfigError("rounds must be positive")), rank=1)
    ConfigError('rounds must be positive')
    >>> rebuilt(told(OSError("disk full")), rank=1)
    RankError('rank 1 failed: OSError: disk full')
    """
    content = json.loads(message)
    name, text = str(content["error"]), str(content["text"])
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, FedGBOError):
        return kind(text)
    return RankError(f"rank {rank} {ending(message)}")


def ending(message: bytes) -> str:
    """Say how a process ended that left this message.

    >>> ending(told(KeyboardInterrupt()))
    'was stopped (by Ctrl-C, a signal or torchrun)'
    """
    content = json.loads(message)
    if content["error"] == "KeyboardInterrupt":
        return "was stopped (by Ctrl-C, a signal or torchrun)"
    return f"failed: {content['error']}: {content['text']}"


ANSWER_SECONDS = 2.0  # that the others have to answer; the store itself answers in less than a millisecond
POLL = 0.02


class RollCall:
    """Finds out which processes are left. Without a store nobody can be asked."""

    def __init__(self, store: Any | None, rank: int, size: int, timeout: float) -> None:
        self.over = False  # whether this process has left, or has found others gone
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout

    def leave(self, message: bytes) -> None:
        """Write why this process ends into the store, for the other processes."""
        self.over = True
        with suppress(RuntimeError, KeyboardInterrupt), _quiet():  # no store any more, or no time
            if self._store is not None:
                self._store.set(f"fedgbo/left/{self._rank}", message)

    def ask(self, cause: str) -> tuple[int, str]:
        """Return the lowest rank that answers or left a message, and a sentence about the missing ranks."""
        self.over = True
        here, left = {self._rank}, dict[int, bytes]()
        missing = self._collect(here, left, ANSWER_SECONDS)
        return min(here | left.keys()), self._sentence(missing, left, cause)

    def linger(self) -> None:
        """Wait until the others have read the message, if this process hosts the store."""
        if self._rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            self._collect({0}, {}, ANSWER_SECONDS / 4)

    def _collect(self, here: set[int], left: dict[int, bytes], seconds: float) -> list[int]:
        """Add the ranks that answer to `here`, and what others have left to `left`; return the ranks that are missing.

        The store lies on the machine of rank 0, so that a store that is gone means that rank 0 is.
        """
        if self._store is None:
            return []
        try:
            with _quiet(), suppress(KeyboardInterrupt):  # torchrun ends all
                self._ask(self._store, here, left, seconds)
        except RuntimeError:
            return [0]
        return sorted(set(range(self._size)) - here)

    def _ask(self, store: Any, here: set[int], left: dict[int, bytes], seconds: float) -> None:
        store.set(f"fedgbo/here/{self._rank}", b"1")
        end = time.monotonic() + seconds
        while len(here) + len(left) < self._size and time.monotonic() < end:
            for rank in set(range(self._size)) - here - left.keys():
                if store.check([f"fedgbo/left/{rank}"]):
                    left[rank] = store.get(f"fedgbo/left/{rank}")
                elif store.check([f"fedgbo/here/{rank}"]):
                    here.add(rank)
            time.sleep(POLL)

    def _sentence(self, missing: list[int], left: dict[int, bytes], cause: str) -> str:
        if left:
            return "; ".join(f"rank {rank} {ending(message)}" for rank, message in sorted(left.items()))
        who = f"rank {' or '.join(map(str, missing))}" if missing else "another rank"
        if "timed out" in cause.lower() or "timeout" in cause.lower():
            return (
                f"no answer from {who} within {self._timeout:g} s; "
                "if a round takes longer than that, set FEDGBO_TIMEOUT to more seconds"
            )
        return f"the connection to {who} broke: the process was killed, or its machine or network failed"


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch's own C++ code from printing stacks of addresses when it finds the store gone."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
