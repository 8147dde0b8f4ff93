"""Where packed data live: one folder for all tasks, with one store a task."""

import os
from pathlib import Path

from fedgbo.core.errors import DataError
from fedgbo.data.store import Store

VARIABLE = "FEDGBO_DATA"


def data_home(given: Path | str | None = None) -> Path:
    """Return the data folder: the given one, else $FEDGBO_DATA, else fedgbo in the user's cache folder.

    >>> data_home("/tmp/mine").as_posix()
    '/tmp/mine'
    """
    if given is not None:
        return Path(given).expanduser()
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "fedgbo"


def open_packed(task: str, given: Path | str | None = None) -> Store:
    """Open the task's store in the data folder; where there is none, say how to make it."""
    home = data_home(given)
    if not (home / task / "store.json").is_file():
        raise DataError(
            f"there are no packed {task} data in {home}; make them once with: fedgbo data prepare {task} --from PATH, "
            f"where PATH has the public files (another folder: the option data, or ${VARIABLE}); "
            f"or take the task {task}-synthetic, which needs no files"
        )
    return Store.open(home / task)
