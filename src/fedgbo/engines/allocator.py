"""Keeping memory between training steps: by default glibc hands every large block back to the kernel."""

import ctypes

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -2, -3, -8  # <malloc.h>
LARGE = 1 << 30


def keep_freed_memory() -> bool:
    """Let this process reuse the blocks it frees; return whether the C library could be told so.

    A step frees and takes tens of megabytes, and each page that comes back from the kernel is zeroed and mapped anew.
    Large blocks come from one heap (no mmap of their own, which ends with the block), the heap is not trimmed, and all
    threads share it: the heaps of further threads hold at most 64 MB and are unmapped when they run empty.
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
    settings = {M_MMAP_THRESHOLD: LARGE, M_TRIM_THRESHOLD: LARGE, M_TOP_PAD: 16 << 20, M_ARENA_MAX: 1}
    taken = [mallopt(setting, value) == 1 for setting, value in settings.items()]
    return all(taken)
