"""The packed store: a folder of contiguous, memory-mapped arrays and a small JSON file that describes them.

store.json     format, meta, and each array's type and shape
<name>.npy     one array each
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from fedgbo.core import DataError

FORMAT = 1
VARIABLE = "FEDGBO_DATA"
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Packed:
    """The result of reading public files: arrays by name, and the meta data for store.json."""

    arrays: Mapping[str, Array]
    meta: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Store:
    """An opened store; its arrays are read from disk as they are accessed."""

    path: Path
    meta: Mapping[str, Any]
    arrays: Mapping[str, Array]

    @classmethod
    def open(cls, path: Path) -> "Store":
        """Open a store; raise DataError, with the file's name, if it is missing, damaged or incomplete."""
        try:
            about = json.loads((path / "store.json").read_text(encoding="utf-8"))
            listed, meta, version = about["arrays"], about["meta"], about["format"]
        except FileNotFoundError as error:
            raise DataError(f"{path} holds no packed data (no store.json)") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path / 'store.json'} is damaged ({error}); pack the data again") from error
        if version != FORMAT:
            raise DataError(f"{path} has format {version}, this version reads {FORMAT}; pack the data again")
        return cls(path, meta, {name: _map(path / f"{name}.npy", kind) for name, kind in listed.items()})

    @staticmethod
    def write(path: Path, arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
        """Write a store completely or not at all; an existing one is replaced at the end."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{uuid4().hex}")
        draft.mkdir()
        try:
            listed = {}
            for name, array in arrays.items():
                np.save(draft / f"{name}.npy", np.ascontiguousarray(array), allow_pickle=False)
                listed[name] = {"dtype": str(array.dtype), "shape": list(array.shape)}
            about = {"format": FORMAT, "meta": dict(meta), "arrays": listed}
            (draft / "store.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
            if path.exists():
                shutil.rmtree(path)
            draft.replace(path)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise


def data_home(given: Path | str | None = None) -> Path:
    """Return the data folder: the given one, else $FEDGBO_DATA, else fedgbo in the user's cache folder.

    >>> data_home("/tmp/mine").as_posix()
    '/tmp/mine'
    """
    if given is None:
        given = os.environ.get(VARIABLE) or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "fedgbo"
    return Path(given).expanduser()


def open_packed(task: str, given: Path | str | None = None) -> Store:
    """Open the task's store in the data folder; if there is none, the error says how to make it."""
    home = data_home(given)
    if not (home / task / "store.json").is_file():
        raise DataError(
            f"there are no packed {task} data in {home} (another folder: the option data, or ${VARIABLE}); pack the "
            f"public files with: fedgbo data prepare {task} --from PATH, or take the task {task}-synthetic"
        )
    return Store.open(home / task)


def _map(path: Path, kind: Mapping[str, Any]) -> Array:
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is missing or damaged ({error}); pack the data again") from error
    if str(array.dtype) != kind["dtype"] or list(array.shape) != kind["shape"]:
        raise DataError(f"{path} is not the array that store.json describes; pack the data again")
    return array
