"""Files that only their owner may read, in folders that only their owner may enter, and that are never overwritten."""

import os
from pathlib import Path

from fedgbo.core.errors import RunFolderError

PRIVATE_FILE = 0o600
PUBLIC_FILE = 0o644
PRIVATE_FOLDER = 0o700


def private_folder(path: Path) -> Path:
    """Make the folder, closed to others; one that is there already is closed too."""
    try:
        path.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        path.chmod(PRIVATE_FOLDER)
    except OSError as error:
        raise RunFolderError(
            f"cannot make the private folder {path}: {error.strerror}; choose another place"
        ) from error
    return path


def write_new(path: Path, content: bytes, mode: int = PRIVATE_FILE) -> None:
    """Write a file that must not be there yet; its mode is there before its content is."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError as error:
        raise RunFolderError(f"{path} is there already and is never overwritten; choose another folder") from error
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {error.strerror}") from error
    with os.fdopen(handle, "wb") as file:
        os.fchmod(handle, mode)  # whatever the umask says
        file.write(content)
        file.flush()
        os.fsync(handle)


def check_private(path: Path) -> None:
    """Raise unless the file is there and nobody else may read it."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise RunFolderError(f"there is no key {path}: {error.strerror}") from error
    if mode & 0o077:
        raise RunFolderError(f"{path} is a private key that others may read; close it with: chmod 600 {path}")
