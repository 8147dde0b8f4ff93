"""App folders: the files that make a run a Flower app, for the user to read and change.

pyproject.toml   Flower's metadata, and the options of the run
task.py          the task: one of ours by name, or the user's own file
own_*.py         further files of the user's own, such as an algorithm's
client_app.py    the app of a node
server_app.py    the app of the server
settings.toml    the run's settings; `fedgbo run settings.toml` does the same without a federation
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgbo.core import RunFolderError
from fedgbo.flower.options import APP_KEYS, Options
from fedgbo.runs.config import RunConfig

SETTINGS = "settings.toml"
# The keys of an app's configuration with their defaults; Flower lets a run override these and no others
OPTIONS: Mapping[str, Any] = {**APP_KEYS, **{name: getattr(Options, key) for name, key in Options.names().items()}}

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
"""The {kind} app: {about}."""

from fedgbo.flower import {kind}_app
{imports}

app = {kind}_app({arguments})
'''

_OURS = '''\
"""The task, by its name in fedgbo's catalogue; its parameters are in settings.toml."""

build_task = "{name}"
'''

_LINK = '''\
"""The user's own code, loaded from its original file."""

from fedgbo.runs.describe import load

{names}
'''


def check_new(folder: Path, advice: str = "choose a new folder") -> None:
    """Raise RunFolderError unless `folder` does not exist or is empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunFolderError(f"{folder} already exists and is not empty; {advice}")


def write_app(folder: Path, config: RunConfig, options: Mapping[str, Any], *, link: bool = False) -> Path:
    """Write the app of a run into a new folder and return its settings file.

    The user's own files, such as the file of a task file.py:function, are copied into the folder, and Flower sends them
    to the nodes. With `link` they are loaded from their original place, for a federation on one machine.
    """
    check_new(folder)
    settings = config.complete().model_dump()
    task, *classes = dict.fromkeys([settings["task"]["name"], *_own_names(settings["algorithm"])])
    try:
        if link:
            files, names = _linked(task, classes)
        else:
            files, names, moved = _copied(task, classes, folder.absolute())

            def renamed(table: dict[str, Any]) -> dict[str, Any]:
                return {key: moved.get(value, value) if key == "name" else value for key, value in table.items()}

            settings = json.loads(json.dumps(settings), object_hook=renamed)
        imports = [f"from {module} import {name}" for module, name in names]
        builder, *own = [name for _, name in names]
        arguments = f"{builder}, own=[{', '.join(own)}]" if own else builder
        files |= {
            "pyproject.toml": _PYPROJECT.format(
                name=_project_name(folder.name),
                label=config.label,
                task=task.rpartition(":")[2],
                options=to_toml({**OPTIONS, **options}),
            ),
            "client_app.py": _APP.format(
                kind="client", about="trains a node's clients", imports="\n".join(imports), arguments=arguments
            ),
            "server_app.py": _APP.format(
                kind="server", about="rounds, averages, checkpoints", imports=imports[0], arguments=builder
            ),
            SETTINGS: to_toml(settings),
        }
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"cannot write the app into {folder}: {error.strerror}; choose another place") from error
    return folder / SETTINGS


def _linked(task: str, classes: Sequence[str]) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return files that load the user's code from its place, and the (module, name) of the task and the classes."""
    own = {place.rpartition(":")[2]: place for place in classes}
    lines = [f"build_task = load({task!r})" if ":" in task else f'build_task = "{task}"']
    lines += [f"{name} = load({place!r})" for name, place in own.items()]
    return {"task.py": _LINK.format(names="\n".join(lines))}, [("task", name) for name in ("build_task", *own)]


def _copied(
    task: str, classes: Sequence[str], folder: Path
) -> tuple[dict[str, str], list[tuple[str, str]], dict[str, str]]:
    """Return copies of the user's files, (module, name) of the task and the classes, and their new places.

    The task's file becomes task.py, others get the prefix `own_`.
    """
    files, names, modules, moved = dict[str, str](), list[tuple[str, str]](), dict[str, str](), dict[str, str]()
    if ":" not in task:
        files["task.py"], names = _OURS.format(name=task), [("task", "build_task")]
    for place in [task, *classes]:
        file, _, name = place.rpartition(":")
        if not file:
            continue
        stem = re.sub(r"\W", "_", Path(file).stem)
        stem = f"{stem}_{len(modules)}" if f"own_{stem}" in modules.values() else stem  # same name in another folder
        module = modules.setdefault(file, f"own_{stem}" if names else "task")
        files[f"{module}.py"] = Path(file).read_text(encoding="utf-8")
        names.append((module, name))
        moved[place] = f"{folder / module}.py:{name}"
    return files, names, moved


def _own_names(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if ":" in str(value.get("name", "")):
            yield value["name"]
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _own_names(part)


def _project_name(text: str) -> str:
    """Return a valid name of a Flower app: at most 32 letters, digits and hyphens, the first a letter.

    >>> _project_name("2nd_try at digits!"), _project_name("hearts")
    ('app-2nd-try-at-digits', 'hearts')
    """
    plain = re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")
    return (plain if plain[:1].isalpha() else f"app-{plain}")[:32].rstrip("-") or "app"


def to_toml(table: Mapping[str, Any]) -> str:
    """Return a table of settings as TOML; None, which TOML does not have, is left out.

    >>> print(to_toml({"rounds": 5, "algorithm": {"name": "fedavg", "lr": 0.1}, "seed": None}), end="")
    rounds = 5
    <BLANKLINE>
    [algorithm]
    name = "fedavg"
    lr = 0.1
    """
    import tomli_w

    def without_none(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: without_none(one) for key, one in value.items() if one is not None}
        return [without_none(one) for one in value] if isinstance(value, list | tuple) else value

    return tomli_w.dumps(without_none(table))
