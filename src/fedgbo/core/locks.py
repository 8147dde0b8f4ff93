"""Locks on open files, which the system frees when a process dies: flock, or its counterpart on Windows."""

from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
try:
    import msvcrt
except ImportError:  # everywhere else
    msvcrt = None  # type: ignore[assignment]

BYTE = 1 << 30  # that Windows locks: beyond the contents, since others could not read a locked byte


def lock(file: IO[Any], *, shared: bool = False, wait: bool = False) -> bool:
    """Lock an open file until it is closed; return False if another process holds it.

    Shared locks exclude only exclusive ones; Windows has none, so a shared lock is exclusive there.
    """
    try:
        if fcntl is not None:
            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.flock(file, kind if wait else kind | fcntl.LOCK_NB)
        else:
            place = file.tell()
            file.seek(BYTE)
            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
            file.seek(place)
    except (BlockingIOError, PermissionError):
        return False
    return True
