"""Libraries that only some readers need."""

from importlib import import_module
from typing import Any

from fedgbo.core.errors import MissingExtraError


def h5py() -> Any:
    """Return the h5py module, which reads TFF's HDF5 files."""
    try:
        return import_module("h5py")
    except ImportError as error:
        raise MissingExtraError("HDF5 files need h5py; install it with: pip install 'fedgbo[data]'") from error
