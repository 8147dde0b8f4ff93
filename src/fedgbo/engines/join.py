"""Joining the team: found by the environment that torchrun sets, and nothing of torch.distributed without it."""

import atexit
import functools
import math
import os
from datetime import timedelta
from importlib import import_module

from fedgbo.core.errors import ConfigError, RankError
from fedgbo.engines.team import ALONE, Team

PLACES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TIMEOUT = "FEDGBO_TIMEOUT"
SECONDS = 300.0  # by default; a process that dies is noticed at once, this is for machines that vanish


def started_as_team() -> bool:
    """Return whether torchrun, or something like it, started this process as one of several."""
    return all(place in os.environ for place in PLACES) and os.environ["WORLD_SIZE"] != "1"


@functools.cache
def join() -> Team:
    """Return the team of this process, for as long as the process lives; waits for the others at the first call."""
    if not started_as_team():
        return ALONE
    from torch import distributed as dist

    if not dist.is_available():
        raise ConfigError("this torch was built without torch.distributed; run fedgbo without torchrun")
    # torch imports this sooner or later; once there is a group, its functions' default arguments would hold on to that
    import_module("torch.distributed.nn.functional")
    seconds = _seconds()
    timeout = timedelta(seconds=seconds)
    from torch.distributed.rendezvous import rendezvous

    from fedgbo.engines.distributed import Distributed, close
    from fedgbo.engines.rollcall import RollCall

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
    return Distributed(group, call, local_rank, local_size, timeout)


def joined() -> Team | None:
    """Return the team if this process has joined one, or knows that it is alone."""
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
