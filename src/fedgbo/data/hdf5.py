"""TFF's federated data in HDF5: /examples/<client>/<field>, one array a field."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fedgbo.core.errors import DataError
from fedgbo.data.archives import SourceFile
from fedgbo.data.extras import h5py

GROUP = "examples"
DAMAGE = (OSError, RuntimeError, KeyError, TypeError, ValueError, MemoryError)  # all that the library raises on it


@contextmanager
def open_clients(source: SourceFile) -> Iterator[Any]:
    """Open the group that has the clients; damage met inside the `with` becomes a DataError with the file's name."""
    library = h5py()
    with source.open_seekable() as stream:
        try:
            with library.File(stream, "r") as file:
                if not _inside(file, GROUP) or not isinstance(file[GROUP], library.Group) or len(file[GROUP]) == 0:
                    raise DataError(f"{source.where} has no group '{GROUP}' with clients in it, as TFF's files have")
                yield file[GROUP]
        except DataError:
            raise
        except DAMAGE as error:
            raise DataError(f"{source.where} is no whole HDF5 file ({error}); get it again") from error


def client_names(clients: Any) -> list[str]:
    """Return the clients' names, numbers in the order of numbers."""
    return sorted(clients, key=lambda name: (len(name), name) if name.isdigit() else (1 << 30, name))


def client_fields(clients: Any, name: str, fields: Sequence[str], where: str) -> Mapping[str, Any]:
    """Return a client's datasets, all with equally many rows and at least one; nothing is read of them yet."""
    place = f"{where}: client '{name}'"
    client = clients[name] if _inside(clients, name) else None
    found = {}
    for field in fields:
        dataset = client[field] if client is not None and _inside(client, field) else None
        if not isinstance(dataset, h5py().Dataset) or not dataset.shape or dataset.is_virtual or dataset.external:
            raise DataError(f"{place} has no array '{field}' of its own; its fields must be {', '.join(fields)}")
        found[field] = dataset
    counts = {field: dataset.shape[0] for field, dataset in found.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{count} of {field}" for field, count in counts.items())
        raise DataError(f"{place} has unequally many samples: {listed}; get the file again")
    if counts[fields[0]] == 0:
        raise DataError(f"{place} has no samples; every client needs some")
    return found


def _inside(group: Any, name: str) -> bool:
    """Whether the group itself holds `name`: a link to another file would let a file read what is not in it."""
    return isinstance(group, h5py().Group) and isinstance(group.get(name, getlink=True), h5py().HardLink)
