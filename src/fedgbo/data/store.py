"""The packed store: one file of contiguous arrays that are memory-mapped, with a header that describes them.

packed.bin     MAGIC, the length of the header (8 bytes), the header as JSON, then the arrays, aligned to 64 bytes
lock           claimed while a process writes

The header has each array's type, shape, place and SHA-256, and one digest of them all, so that opening a store tells
its content without reading it. A store is written under another name, flushed to disk and renamed: a crash leaves the
old store or the new one.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import numpy as np

from fedgbo.core import DataError, FolderBusyError, RunFolderError
from fedgbo.core.files import lock

MAGIC = b"fedgbo2\n"
FILE = "packed.bin"
DRAFT = ".draft-"  # what a process that was killed may leave behind
ALIGNMENT = 64
LONGEST_HEADER = 1 << 24
KINDS = "biufU"  # of arrays: bool, integers, floats, text
VARIABLE = "FEDGBO_DATA"
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Packed:
    """The result of reading public files: arrays by name, meta data, and notes on what was left out or is unusual."""

    arrays: Mapping[str, Array]
    meta: Mapping[str, Any]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Store:
    """An opened store; its arrays are read from disk as they are accessed.

    `digest` identifies the arrays: their names, types, shapes and bytes. It does not depend on the meta data.
    """

    path: Path
    meta: Mapping[str, Any]
    arrays: Mapping[str, Array]
    digest: str
    checksums: Mapping[str, str]  # SHA-256 of each array's bytes

    @classmethod
    def open(cls, path: Path) -> "Store":
        """Open a store; raise DataError if it is missing, damaged or incomplete."""
        file = path / FILE
        try:
            with file.open("rb") as stream:
                header, start = _read_header(stream, file)
        except FileNotFoundError as error:
            if (path / "store.json").is_file():
                raise DataError(f"{path} was packed by an older version of fedgbo; pack the data again") from error
            raise DataError(f"{path} holds no packed data (no {FILE})") from error
        except OSError as error:
            raise disk_error(f"cannot read {file}", error) from error
        try:
            listed = dict(header["arrays"])
            arrays = {name: _map(file, start, kind) for name, kind in listed.items()}
            sums = {name: str(kind["sha256"]) for name, kind in listed.items()}
            digest, meta = str(header["digest"]), dict(header["meta"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(f"{file} is damaged ({error}); pack the data again") from error
        if digest != _digest(arrays, sums):
            raise DataError(f"{file} is damaged (its header does not match its digest); pack the data again")
        return cls(path, meta, arrays, digest, sums)

    @staticmethod
    def write(path: Path, arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> str:
        """Write a store completely or not at all, replace an existing one, and return the new one's digest."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            with _claimed(path):
                for draft in path.glob(f"{DRAFT}*"):
                    draft.unlink()
                digest = _write(path, {name: np.ascontiguousarray(array) for name, array in arrays.items()}, meta)
                _remove_format_1(path)
        except OSError as error:
            raise disk_error(f"cannot write the packed data in {path}", error) from error
        return digest

    def verify(self) -> None:
        """Read all arrays; raise DataError unless each has the checksum in the header."""
        for name, array in self.arrays.items():
            if _checksum(array) != self.checksums[name]:
                raise DataError(
                    f"{self.path / FILE}: the array {name} does not match its checksum; pack the data again"
                )

    @property
    def nbytes(self) -> int:
        return (self.path / FILE).stat().st_size


def data_home(given: Path | str | None = None) -> Path:
    """Return the data folder: the given one, else $FEDGBO_DATA, else fedgbo in the user's cache folder.

    >>> data_home("/tmp/mine").as_posix()
    '/tmp/mine'
    """
    if given is None:
        given = os.environ.get(VARIABLE) or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "fedgbo"
    return Path(given).expanduser()


def open_packed(task: str, given: Path | str | None = None, instead: str = "") -> Store:
    """Open the task's store in the data folder; if there is none, the error says how to make it.

    `instead` names a task that needs no files.
    """
    home = data_home(given)
    if not any(there(home / task / name) for name in (FILE, "store.json")):
        stand_in = f", or use the task {instead}" if instead else ""
        raise DataError(
            f"there is no packed {task} data in {home} (to use another folder, set the option data or ${VARIABLE}); "
            f"download the public files with: fedgbo data fetch {task}, or pack files that you have with: "
            f"fedgbo data prepare {task} --from PATH{stand_in}"
        )
    return Store.open(home / task)


def there(path: Path) -> bool:
    """Return whether something is at the path; a folder above it that may not be read is an error."""
    try:
        return path.exists()
    except OSError as error:
        raise disk_error(f"cannot read {path}", error) from error


def disk_error(what: str, error: OSError) -> RunFolderError:
    """Return the error for a full disk, a missing permission and the like; `what` says what could not be done."""
    reason = error.strerror or str(error)
    return RunFolderError(f"{what}: {reason}; check the permissions and the free space, or choose another folder")


def _write(path: Path, arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> str:
    for name, array in arrays.items():
        if array.dtype.kind not in KINDS:
            raise DataError(f"{path}: the array {name} is of {array.dtype}, which a store cannot hold")
    sums = {name: _checksum(array) for name, array in arrays.items()}
    digest, listed, place = _digest(arrays, sums), {}, 0
    for name, array in arrays.items():
        kind = {"dtype": array.dtype.str, "shape": list(array.shape)}
        listed[name] = {**kind, "offset": place, "sha256": sums[name]}
        place += _aligned(array.nbytes)
    header = json.dumps({"digest": digest, "meta": dict(meta), "arrays": listed}).encode()
    draft = path / f"{DRAFT}{uuid4().hex}"
    try:
        with draft.open("xb") as file:
            head = MAGIC + len(header).to_bytes(8, "little") + header
            file.write(head.ljust(_aligned(len(head)), b" "))
            for array in arrays.values():
                file.write(_bytes(array))
                file.write(bytes(_aligned(array.nbytes) - array.nbytes))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path / FILE)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    if os.name != "nt":  # where a folder cannot be opened
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)  # the rename, too
        finally:
            os.close(folder)
    return digest


@contextmanager
def _claimed(path: Path) -> Iterator[None]:
    """Let one process at a time write into the store's folder; the system releases the lock of a killed process."""
    with (path / "lock").open("a") as file:
        if not lock(file):
            raise FolderBusyError(f"another process is packing data into {path}; wait for it or stop it")
        yield


def _remove_format_1(path: Path) -> None:
    """Remove the files of a store of format 1, a folder of .npy files, which the new store replaces."""
    if (path / "store.json").is_file():
        for old in (*path.glob("*.npy"), path / "store.json"):
            old.unlink()


def _read_header(stream: BinaryIO, file: Path) -> tuple[dict[str, Any], int]:
    """Return the header, and the place of the first array's first byte."""
    start = stream.read(16)
    length = int.from_bytes(start[8:], "little")
    if start[:8] != MAGIC or length > LONGEST_HEADER:
        raise DataError(f"{file} is not a packed store of this version; pack the data again")
    try:
        header = json.loads(stream.read(length))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file} is damaged ({error}); pack the data again") from error
    if not isinstance(header, dict):
        raise DataError(f"{file} is damaged (its header is not a table); pack the data again")
    return header, _aligned(16 + length)


def _map(file: Path, start: int, kind: Mapping[str, Any]) -> Array:
    dtype, shape, offset = np.dtype(str(kind["dtype"])), tuple(kind["shape"]), kind["offset"]
    if dtype.kind not in KINDS or not all(type(n) is int and n >= 0 for n in (*shape, offset)):
        raise ValueError("an array without a proper type, shape or place")
    if start + offset + math.prod(shape) * dtype.itemsize > file.stat().st_size:
        raise ValueError("cut short")
    if math.prod(shape) * dtype.itemsize == 0:  # nothing that could be mapped
        return np.empty(shape, dtype)
    return np.memmap(file, dtype=dtype, mode="r", offset=start + offset, shape=shape)


def _bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _checksum(array: Array) -> str:
    return hashlib.sha256(_bytes(array)).hexdigest()


def _digest(arrays: Mapping[str, Array], sums: Mapping[str, str]) -> str:
    listed = [[name, arrays[name].dtype.str, list(arrays[name].shape), sums[name]] for name in sorted(arrays)]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
