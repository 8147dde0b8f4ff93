"""TensorFlow Federated's files: HDF5 (/examples/<client>/<field>) and SQLite (rows of serialized tf.train.Example).

Nothing in them is trusted. HDF5 can refer to other files (links, virtual and external storage) and can announce arrays
of any size; SQLite can have views and virtual tables that compute. All of these are refused.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import PurePosixPath
from typing import Any

from fedgbo.core import DataError, FedGBOError, MissingExtraError
from fedgbo.data.archives import LIMIT, SourceFile

GROUP = "examples"
LARGEST = 1 << 28  # bytes of one array, and of one compressed piece of it
LARGEST_DATABASE = 1 << 29  # bytes; it is read into memory
WRITE_AHEAD = b"\x02\x02"  # the versions in the header of a file that was written with such a log
COLUMNS = ("split_name", "client_id", "serialized_example_proto")
DAMAGE = (OSError, RuntimeError, KeyError, TypeError, ValueError, MemoryError, OverflowError)  # what h5py raises


def is_hdf5(source: SourceFile) -> bool:
    """Return whether a file's name is that of an HDF5 file."""
    return source.name.endswith((".h5", ".hdf5"))


def tff_half(files: Sequence[SourceFile], half: str, data_set: str, where: object) -> SourceFile:
    """Return the HDF5 file with the half ("train" or "test") in its name."""
    fitting = [file for file in files if is_hdf5(file) and half in PurePosixPath(file.name).name]
    if len(fitting) != 1:
        found = f"{where} has {len(fitting)} HDF5 files with {half!r} in their names"
        raise DataError(f"{found}, where one is needed; TFF's are {data_set}_train.h5 and {data_set}_test.h5")
    return fitting[0]


@contextmanager
def tff_clients(source: SourceFile, *fields: str) -> Iterator[Mapping[str, Mapping[str, Any]]]:
    """Open an HDF5 file and yield each client's datasets by field, numbered clients in the order of their numbers.

    All datasets of a client have the same number of rows; none has been read yet. Damage found inside the `with`
    becomes a DataError with the file's name.
    """
    try:
        h5py = import_module("h5py")
    except ImportError as error:
        raise MissingExtraError("HDF5 files need h5py; install it with: pip install 'fedgbo[data]'") from error

    def own(group: Any, name: str) -> Any:
        """Return a group's member, or None. A link is not followed: it could lead to another file."""
        hard = isinstance(group, h5py.Group) and isinstance(group.get(name, getlink=True), h5py.HardLink)
        return group[name] if hard else None

    def datasets(client: Any, where: str) -> dict[str, Any]:
        found = {field: own(client, field) for field in fields}
        for field, data in found.items():
            if not isinstance(data, h5py.Dataset) or not data.shape or data.is_virtual or data.external:
                raise DataError(f"{where} has no array '{field}' of its own; its fields must be {', '.join(fields)}")
            if _announced(data) > LARGEST:
                raise DataError(f"{where}: '{field}' declares {_announced(data):,} bytes, more than any public file")
        counts = {field: data.shape[0] for field, data in found.items()}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{count} of {field}" for field, count in counts.items())
            raise DataError(f"{where} has unequal numbers of samples: {listed}; get the file again")
        return found

    with source.open_seekable() as stream:
        try:
            with h5py.File(stream, "r") as file:
                group = own(file, GROUP)
                if not isinstance(group, h5py.Group) or len(group) == 0:
                    raise DataError(f"{source.where} has no group '{GROUP}' with clients in it, as TFF's files have")
                names = sorted(group, key=lambda name: (len(name), name) if name.isdigit() else (1 << 30, name))
                clients = {name: datasets(own(group, name), f"{source.where}: client '{name}'") for name in names}
                if sum(data.nbytes for client in clients.values() for data in client.values()) > LIMIT:
                    raise DataError(f"{source.where} declares more than {LIMIT:,} bytes in all; refused")
                yield clients
        except FedGBOError:
            raise
        except DAMAGE as error:
            raise DataError(f"{source.where} is not a complete HDF5 file ({error}); get it again") from error


def _announced(data: Any) -> int:
    """Return the bytes that reading the dataset takes: of all of it, or of one piece if that is larger."""
    return max(int(data.nbytes), math.prod(data.chunks or ()) * int(data.dtype.itemsize))


def tff_strings(source: SourceFile, field: str, most: int) -> dict[str, list[bytes]]:
    """Return each client's strings in an HDF5 file, at most `most` bytes in all."""
    found: dict[str, list[bytes]] = {}
    size = 0
    with tff_clients(source, field) as clients:
        for name, fields in clients.items():
            found[name] = []
            for row in range(len(fields[field])):  # one by one: a row's size is not known before
                value = fields[field][row]
                if not isinstance(value, bytes):
                    raise DataError(f"{source.where}: client '{name}' has {field} that are not strings")
                size += len(value)
                if size > most:
                    raise DataError(f"{source.where} has more than {most:,} bytes of {field}; refused")
                found[name].append(value)
    return found


def tff_rows(source: SourceFile, field: str) -> Iterator[tuple[str, str, bytes]]:
    """Yield (split, client, value of the field) of each row of a SQLite file; the field is one string."""
    import sqlite3  # not at the start of every command: it takes a while

    with source.open(LARGEST_DATABASE) as stream:
        content = stream.read()
    with closing(sqlite3.connect(":memory:")) as database:
        try:
            if content[18:20] == WRITE_AHEAD:  # a database in memory has no log; the file has all that was committed
                content = content[:18] + b"\x01\x01" + content[20:]
            database.deserialize(content)
            database.execute("PRAGMA trusted_schema = OFF")
            database.text_factory = lambda text: text.decode("utf-8", errors="replace")
            made = database.execute("SELECT type, sql FROM sqlite_master WHERE name = 'examples'").fetchall()
            if len(made) != 1 or made[0][0] != "table" or "virtual" in made[0][1].lower().split():
                raise DataError(f"{source.where} has no table 'examples' of its own, as TFF's files have")
            rows = database.execute(f"SELECT {', '.join(COLUMNS)} FROM examples ORDER BY rowid")
            for number, (split, client, example) in enumerate(rows, start=1):
                where = f"{source.where}, row {number} of examples"
                if not isinstance(split, str) or not isinstance(client, str) or not isinstance(example, bytes):
                    raise DataError(f"{where}: {', '.join(COLUMNS)} must be text, text and bytes")
                yield split, client, _string(example, field, where)
        except (sqlite3.Error, sqlite3.Warning, MemoryError, OverflowError) as error:
            reason = str(error) or type(error).__name__
            raise DataError(f"{source.where} is not a complete SQLite file of TFF ({reason}); get it again") from error


def _string(example: bytes, field: str, where: str) -> bytes:
    """Return one feature of a serialized tf.train.Example: Example.features.feature[field].bytes_list.value[0]."""
    try:
        for features in _messages(example, 1):
            for entry in _messages(features, 1):
                if [field.encode()] == list(_messages(entry, 1)):
                    (feature,) = _messages(entry, 2)
                    (values,) = _messages(feature, 1)
                    (value,) = _messages(values, 1)
                    return value
    except (ValueError, IndexError) as error:
        raise DataError(f"{where}: '{field}' is not one string in a tf.train.Example ({error})") from error
    raise DataError(f"{where} has no '{field}'; is this another data set of TFF's?")


def _messages(message: bytes, number: int) -> Iterator[bytes]:
    """Yield the length-delimited fields of that number of a protocol buffer message; others are skipped."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        wire = key & 7
        if wire == 0:
            _, at = _varint(message, at)
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        elif wire == 2:
            size, at = _varint(message, at)
            at += size
            if key >> 3 == number and at <= len(message):
                yield message[at - size : at]
        else:
            raise ValueError(f"wire type {wire}")
        if at > len(message):
            raise ValueError("cut short")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number that starts at `at`, seven bits a byte, and the place after it."""
    number = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    raise ValueError("a number of more than 64 bits")
