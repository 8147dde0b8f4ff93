"""TFF's federated data in HDF5: /examples/<client>/<field>, one array for each field."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from fedgbo.core import DataError, MissingExtraError
from fedgbo.data.archives import SourceFile

GROUP = "examples"
DAMAGE = (OSError, RuntimeError, KeyError, TypeError, ValueError, MemoryError)  # what h5py raises on damaged files


@contextmanager
def tff_clients(source: SourceFile, *fields: str) -> Iterator[Mapping[str, Mapping[str, Any]]]:
    """Open a file and yield each client's datasets by field, numbered clients in the order of their numbers.

    All datasets of a client have the same number of rows, at least one; none has been read yet. Damage found inside
    the `with` becomes a DataError with the file's name.
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
        counts = {field: data.shape[0] for field, data in found.items()}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{count} of {field}" for field, count in counts.items())
            raise DataError(f"{where} has unequal numbers of samples: {listed}; get the file again")
        if counts[fields[0]] == 0:
            raise DataError(f"{where} has no samples; every client needs some")
        return found

    with source.open_seekable() as stream:
        try:
            with h5py.File(stream, "r") as file:
                group = own(file, GROUP)
                if not isinstance(group, h5py.Group) or len(group) == 0:
                    raise DataError(f"{source.where} has no group '{GROUP}' with clients in it, as TFF's files have")
                names = sorted(group, key=lambda name: (len(name), name) if name.isdigit() else (1 << 30, name))
                yield {name: datasets(own(group, name), f"{source.where}: client '{name}'") for name in names}
        except DataError:
            raise
        except DAMAGE as error:
            raise DataError(f"{source.where} is no complete HDF5 file ({error}); get it again") from error
