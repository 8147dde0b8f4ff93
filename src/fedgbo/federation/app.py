"""App directories: the few files that make a run of ours an app of Flower's, for the user to read and change.

pyproject.toml   what Flower wants to know, and the options of the run
task.py          what is learnt: one of our tasks by name, or the user's own file
own_*.py         further files of the user's own, such as an algorithm's
client_app.py    what runs at a node
server_app.py    what runs at the server
settings.toml    the run's settings; `fedgbo run settings.toml` does the same without a federation
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
    "clients": 0,
    "deadline": 120.0,
    "quorum": 0.5,
    "over-select": 0,
    "wait": 120.0,
    "min-nodes": 0,
    "weighted": False,
    "max-norm": 100.0,
    "attempts": 3,
    "poll": 0.1,
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

_APP = '''\
"""{about}"""

from fedgbo.flower import {kind}_app
{imports}

app = {kind}_app({arguments})
'''

_OURS = '''\
"""The task, by its name in fedgbo's catalogue; its parameters are in settings.toml."""

build_task = "{name}"
'''

_LINK = '''\
"""What is the user's own, loaded from where it lies, on every machine."""

from fedgbo.runs.describe import load

{names}
'''


def write_app(folder: Path, config: RunConfig, options: Mapping[str, Any], *, link: bool = False) -> Path:
    """Write the app of a run into a new folder and return its settings file.

    Files of the user's own, such as a task's in file.py:function, are copied beside the others and so sent to the nodes
    by Flower; with `link` they are loaded from where they lie, for a federation on one machine.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunFolderError(f"{folder} is there already and not empty; choose a new folder")
    settings = config.complete().model_dump()
    try:
        own = _linked(settings) if link else _copied(settings, folder.absolute())
        imports = "\n".join(f"from {module} import {name}" for module, name in own.names)
        task, classes = own.names[0][1], [name for _, name in own.names[1:]]
        nodes = f"{task}, own=[{', '.join(classes)}]" if classes else task
        files = {
            **own.files,
            "pyproject.toml": _PYPROJECT.format(
                name=_project_name(folder.name),
                label=config.label,
                task=config.task["name"].rpartition(":")[2],
                options=to_toml({**OPTIONS, **options}),
            ),
            "client_app.py": _APP.format(
                about="What runs at a node: local training of the clients that it hosts.",
                kind="client",
                imports=imports,
                arguments=nodes,
            ),
            "server_app.py": _APP.format(
                about="What runs at the server: rounds, averages, checkpoints.",
                kind="server",
                imports=f"from {own.names[0][0]} import {task}",
                arguments=task,
            ),
            SETTINGS: to_toml(own.settings),
        }
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"cannot write the app into {folder}: {error.strerror}; choose another place") from error
    return folder / SETTINGS


@dataclass(frozen=True)
class _Own:
    """What an app has of the user's: files, (module, name) of the task and then of classes, settings that name them."""

    files: Mapping[str, str]
    names: list[tuple[str, str]]
    settings: Mapping[str, Any]


def _linked(settings: Mapping[str, Any]) -> _Own:
    """Load everything from where it lies."""
    task, *others = _places(settings)
    lines = [f"build_task = load({task!r})" if ":" in task else f'build_task = "{task}"']
    lines += [f"{place.rpartition(':')[2]} = load({place!r})" for place in others]
    names = [("task", "build_task"), *(("task", place.rpartition(":")[2]) for place in others)]
    return _Own({"task.py": _LINK.format(names="\n".join(lines))}, names, settings)


def _copied(settings: Mapping[str, Any], folder: Path) -> _Own:
    """Copy the user's files: the task's is task.py, others keep their names after `own_`."""
    task, *others = _places(settings)
    files, names, modules, moved = {}, [], dict[str, str](), dict[str, str]()
    if ":" not in task:
        files["task.py"], names = _OURS.format(name=task), [("task", "build_task")]
    for place in [task, *others]:
        file, _, name = place.rpartition(":")
        if not file:
            continue
        stem = re.sub(r"\W", "_", Path(file).stem)
        stem = f"{stem}_{len(modules)}" if f"own_{stem}" in modules.values() else stem  # of another folder's file
        module = modules.setdefault(file, f"own_{stem}" if names else "task")
        files[f"{module}.py"] = Path(file).read_text(encoding="utf-8")
        names.append((module, name))
        moved[place] = f"{folder / module}.py:{name}"
    return _Own(files, names, _renamed(settings, moved))


def _places(settings: Mapping[str, Any]) -> list[str]:
    """Return the task's name, and those in the algorithm's table that are file.py:Class, each once."""
    return list(dict.fromkeys([settings["task"]["name"], *_own_names(settings["algorithm"])]))


def _own_names(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if ":" in str(value.get("name", "")):
            yield value["name"]
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _own_names(part)


def _renamed(value: Any, moved: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {
            key: moved.get(each, each) if key == "name" and isinstance(each, str) else _renamed(each, moved)
            for key, each in value.items()
        }
    return [_renamed(part, moved) for part in value] if isinstance(value, list) else value


def _project_name(text: str) -> str:
    """Return a name that Flower takes: at most 32 letters, digits and hyphens, the first a letter.

    >>> _project_name("2nd_try at digits!"), _project_name("hearts")
    ('app-2nd-try-at-digits', 'hearts')
    """
    plain = re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")
    return (plain if plain[:1].isalpha() else f"app-{plain}")[:32].rstrip("-") or "app"
