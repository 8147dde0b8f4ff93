"""App directories: the few files that make a run of ours an app of Flower's, for the user to read and change.

pyproject.toml   what Flower wants to know, and the options of the run
task.py          what is learnt: one of our tasks by name, or the user's own file
client_app.py    what runs at a node
server_app.py    what runs at the server
settings.toml    the run's settings; `fedgbo run settings.toml` does the same without a federation
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedgbo.core.errors import RunFolderError
from fedgbo.federation.toml import to_toml
from fedgbo.runs.config import RunConfig

SETTINGS = "settings.toml"
OPTIONS: Mapping[str, Any] = {
    "run-folder": "",
    "settings": "",
    "resume": False,
    "deadline": 120.0,
    "quorum": 0.5,
    "over-select": 0,
    "wait": 120.0,
    "min-nodes": 0,
    "weighted": False,
    "max-norm": 10.0,
    "attempts": 3,
}

_PYPROJECT = """\
[project]
name = "{name}"
version = "1.0.0"
description = "{label} on {task}, by fedgbo"
license = "MIT"
dependencies = ["fedgbo[flower]"]

[tool.flwr.app]
publisher = "fedgbo"

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"

# Options of the run. `fedgbo federation run` fills in run-folder and settings.
[tool.flwr.app.config]
{options}"""

_CLIENT = '''\
"""What runs at a node: local training of the clients that it hosts."""

from fedgbo.flower import client_app
from task import {builder}

app = client_app({builder})
'''

_SERVER = '''\
"""What runs at the server: rounds, averages, checkpoints."""

from fedgbo.flower import server_app
from task import {builder}

app = server_app({builder})
'''

_OURS = '''\
"""The task, by its name in fedgbo's catalogue; its parameters are in settings.toml."""

build_task = "{name}"
'''

_LINK = '''\
"""The task, taken from the file it was given in, which must lie there on every machine."""

from fedgbo.runs.describe import load

build_task = load({place!r})
'''


def write_app(folder: Path, config: RunConfig, options: Mapping[str, Any], *, link: bool = False) -> Path:
    """Write the app of a run into a new folder and return its settings file.

    A task of the user's own, file.py:function, is copied into task.py, which Flower then sends to the nodes; with
    `link` it is loaded from where it lies, for a federation on one machine.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunFolderError(f"{folder} is there already and not empty; choose a new folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        task, builder = _task_file(config.task["name"], link)
        own = ":" in config.task["name"] and not link
        settings = config.complete().model_dump()
        if own:
            settings["task"] = {**config.task, "name": f"{folder.absolute() / 'task.py'}:{builder}"}
        files = {
            "pyproject.toml": _PYPROJECT.format(
                name=_project_name(folder.name),
                label=config.label,
                task=config.task["name"].rpartition(":")[2],
                options=to_toml({**OPTIONS, **options}),
            ),
            "task.py": task,
            "client_app.py": _CLIENT.format(builder=builder),
            "server_app.py": _SERVER.format(builder=builder),
            SETTINGS: to_toml(settings),
        }
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"cannot write the app into {folder}: {error.strerror}; choose another place") from error
    return folder / SETTINGS


def _task_file(name: str, link: bool) -> tuple[str, str]:
    """Return what task.py holds, and the name in it that stands for the task."""
    if ":" not in name:
        return _OURS.format(name=name), "build_task"
    file, _, function = name.rpartition(":")
    path = Path(file).expanduser().resolve()
    if link:
        return _LINK.format(place=f"{path}:{function}"), "build_task"
    return path.read_text(encoding="utf-8"), function


def _project_name(text: str) -> str:
    """Return a name that Flower takes: at most 32 letters, digits and hyphens, the first a letter.

    >>> _project_name("2nd_try at digits!"), _project_name("hearts")
    ('app-2nd-try-at-digits', 'hearts')
    """
    plain = re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")
    return (plain if plain[:1].isalpha() else f"app-{plain}")[:32].rstrip("-") or "app"
