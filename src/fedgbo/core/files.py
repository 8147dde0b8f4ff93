"""Files: written whole or not at all, and locks that the system frees when a process dies."""

import os
import secrets
from contextlib import suppress
from pathlib import Path
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


def write_atomic(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write to a temporary file beside `path`, then rename: a crash leaves the old file or the new one.

    With `durable` the content is on disk before the rename, so that a power failure leaves no empty file.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")  # with the permissions that any new file gets
    try:
        with temporary.open("xb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):  # a read-only file system refuses even what is not there
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno:  # a failed write names no file, others name the temporary one
            error.filename = str(path)
        raise
