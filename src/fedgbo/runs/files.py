"""Files that are there whole or not at all."""

import os
import secrets
from pathlib import Path


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
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
