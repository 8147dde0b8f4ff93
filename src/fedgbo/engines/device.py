"""The device and the memory that a run computes with."""

import ctypes
import os
import re

import torch

from fedgbo.core import ConfigError

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # <malloc.h>
LARGE = 2**31 - 1  # bytes, the most that mallopt takes
NEVER = -1  # the M_TRIM_THRESHOLD that switches trimming off
CPU = torch.device("cpu")


def device_of(name: str, local_rank: int = 0, local_size: int = 1) -> torch.device:
    """Return the device of that name: cpu, cuda, cuda:1 ..., mps, or auto for a GPU of CUDA where there is one.

    Under torchrun `cuda` is, for each process, the GPU of its own number among the processes of its machine.

    >>> device_of("cpu")
    device(type='cpu')
    """
    name = str(name) if isinstance(name, torch.device) else name
    if not isinstance(name, str):
        raise ConfigError(f"device must be cpu, cuda, cuda:<number>, mps or auto, not {name!r}")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda" if gpus else "cpu"
    if name == "cpu" or (name == "mps" and torch.backends.mps.is_available()):
        return torch.device(name)
    if name == "mps":
        raise ConfigError(f"there is no device mps here: {_there(gpus)}; give one of these, or auto")
    match = re.fullmatch(r"cuda(?::(\d+))?", name)
    if match is None:
        raise ConfigError(f"device must be cpu, cuda, cuda:<number>, mps or auto, not {name!r}")
    if match[1] is not None and local_size > 1:
        raise ConfigError(
            f"device {name} would be shared by {local_size} processes of this machine; give cuda, "
            "and each process takes the GPU of its own number"
        )
    number = local_rank if match[1] is None else int(match[1])
    if number >= gpus:
        hint = "start no more processes than there are GPUs" if local_size > 1 else "give one of these, or auto"
        raise ConfigError(f"there is no device cuda:{number} here: {_there(gpus)}; {hint}")
    return torch.device("cuda", number)


def generator_of(device: torch.device) -> torch.Generator:
    """Return the generator that random layers (dropout) draw from on the device."""
    if device.type == "mps":
        return torch.mps._get_default_mps_generator()
    return torch.default_generator if device.type == "cpu" else torch.cuda.default_generators[device.index]


def _there(gpus: int) -> str:
    """Say what there is.

    >>> _there(0), _there(2)
    ('torch sees cpu and no GPU', 'torch sees cpu, cuda:0, cuda:1')
    """
    return "torch sees cpu" + ("".join(f", cuda:{number}" for number in range(gpus)) or " and no GPU")


def keep_freed_memory() -> bool:
    """Let this process reuse the blocks it frees; return whether the C library could be told so.

    A step frees and takes tens of megabytes, and each page that comes back from the kernel is zeroed and mapped anew.
    Large blocks come from the heaps (no mmap of their own, which ends with the block), and the heaps are not trimmed.
    Each thread has a heap of its own: with one for all, two threads waited for each other at every operation and were
    little faster than one.
    The process then stays at its peak memory, and that is somewhat higher: freed blocks are not always filled again.
    Does nothing where there is no glibc (macOS, Windows, musl).
    """
    try:
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018 - musl has a mallopt too, which does nothing
        mallopt = libc.mallopt
    except (OSError, TypeError, AttributeError):
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    settings = {M_MMAP_THRESHOLD: LARGE, M_TRIM_THRESHOLD: NEVER, M_TOP_PAD: 16 << 20}
    taken = [mallopt(setting, value) == 1 for setting, value in settings.items()]
    return all(taken)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
