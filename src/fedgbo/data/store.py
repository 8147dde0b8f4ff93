"""The packed store: a folder of contiguous, memory-mapped arrays, and a small JSON file that says what they are.

store.json     format, task, meta, and each array's type and shape
<name>.npy     one array each
"""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedgbo.core.errors import DataError

FORMAT = 1
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Store:
    """An opened store: arrays that are read from disk as they are touched."""

    path: Path
    meta: Mapping[str, Any]
    arrays: Mapping[str, Array]

    @classmethod
    def open(cls, path: Path) -> "Store":
        """Open a store; raise DataError, naming the file, on anything that is not a whole one."""
        try:
            about = json.loads((path / "store.json").read_text(encoding="utf-8"))
            listed, meta, version = about["arrays"], about["meta"], about["format"]
        except FileNotFoundError as error:
            raise DataError(f"{path} holds no packed data (no store.json)") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path / 'store.json'} is damaged ({error}); pack the data again") from error
        if version != FORMAT:
            raise DataError(f"{path} has format {version}, this version reads {FORMAT}; pack the data again")
        arrays = {name: _map(path / f"{name}.npy", kind) for name, kind in listed.items()}
        return cls(path, meta, arrays)

    @staticmethod
    def write(path: Path, arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
        """Write a store, whole or not at all; one that is there already is replaced at the end."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        try:
            listed = {}
            for name, array in arrays.items():
                np.save(draft / f"{name}.npy", np.ascontiguousarray(array), allow_pickle=False)
                listed[name] = {"dtype": str(array.dtype), "shape": list(array.shape)}
            about = {"format": FORMAT, "meta": dict(meta), "arrays": listed}
            (draft / "store.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
            draft.chmod(0o777 & ~_umask())
            if path.exists():
                shutil.rmtree(path)
            draft.replace(path)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise


def _map(path: Path, kind: Mapping[str, Any]) -> Array:
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is missing or damaged ({error}); pack the data again") from error
    if str(array.dtype) != kind["dtype"] or list(array.shape) != kind["shape"]:
        raise DataError(f"{path} is not the array that store.json describes; pack the data again")
    return array


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
