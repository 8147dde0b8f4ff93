"""From objects to plain tables and back: how a configuration names a task, an algorithm, an optimiser, a schedule.

A table has a `name` from a catalogue, or `path/to/file.py:Class`, and the constructor's arguments, which may be tables:

    {"name": "fedgbo", "optimiser": {"name": "sgdm", "lr": 0.1, "beta": 0.9}}
"""

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from torch import Tensor

from fedgbo.algorithms import ALGORITHMS
from fedgbo.core import SCHEDULES, TERMS, ConfigError, FedGBOError, unknown
from fedgbo.optimisers import OPTIMISERS
from fedgbo.pipeline.aggregators import AGGREGATORS
from fedgbo.pipeline.samplers import SAMPLERS
from fedgbo.pipeline.transforms import TRANSFORMS
from fedgbo.tasks import TASKS

CATALOGUES: dict[str, Mapping[str, Any]] = {
    "algorithm": ALGORITHMS,
    "optimiser": OPTIMISERS,
    "objective": TERMS,
    "schedule": SCHEDULES,
    "task": TASKS,
    "sampler": SAMPLERS,
    "transform": TRANSFORMS,
    "aggregator": AGGREGATORS,
}
WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", type(None): "none"}
_KIND_OF_SLOT = {
    "base": "algorithm",
    "client": "optimiser",
    "objective": "objective",
    "optimiser": "optimiser",
    "server": "optimiser",
}


Own = Mapping[str, Any]  # classes of the user's by their names


def find(kind: str, name: str, own: Own | None = None) -> Any:
    """Return what `name` stands for: an entry of the catalogue, or a class or function in the user's file.

    With `own`, no file is loaded, whatever the name says: file.py:Class must be among these classes.
    """
    if ":" in name and own is not None:
        if (short := name.rpartition(":")[2]) not in own:
            raise ConfigError(f"the {kind} {short} is not known here (known custom ones: {', '.join(own) or 'none'})")
        return own[short]
    if ":" in name:
        return load(name)
    catalogue = CATALOGUES[kind]
    if name.lower() not in catalogue:
        hint = "" if kind == "schedule" else f"; your own: my_file.py:{'function' if kind == 'task' else 'Class'}"
        raise ConfigError(unknown(kind, name, catalogue) + hint)
    return catalogue[name.lower()]


def build(kind: str, table: Mapping[str, Any], own: Own | None = None) -> Any:
    """Build what the table describes; for `own` see `find`."""
    arguments = dict(table)
    name = arguments.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(f"{kind} needs a name (known: {', '.join(sorted(CATALOGUES[kind]))})")
    maker = find(kind, name, own)
    accepted, hints = parameters(maker), _hints(maker)
    for key, value in arguments.items():
        if key not in accepted:
            raise ConfigError(f"{kind} {name}: " + unknown("setting", key, accepted))
        arguments[key] = _build_argument(key, value, own)
        _check_plain(f"{kind} {name}: {key}", arguments[key], hints.get(key))
    missing = [key for key, needed in accepted.items() if needed and key not in arguments]
    if missing:
        raise ConfigError(f"{kind} {name} needs {', '.join(missing)}")
    try:
        return maker(**arguments)
    except FedGBOError as error:
        raise type(error)(f"{kind} {name}: {error}") from error
    except (TypeError, ValueError) as error:  # raised by a class of the user's
        raise ConfigError(f"{kind} {name}: {error}") from error


def describe(thing: Any) -> Any:
    """Undo `build`: return the table that describes an object, or the plain value itself."""
    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    if isinstance(thing, np.generic):
        return thing.item()
    if isinstance(thing, np.ndarray | Tensor):
        return {"array": hashlib.sha256(np.ascontiguousarray(thing).tobytes()).hexdigest(), "shape": list(thing.shape)}
    if isinstance(thing, Mapping):
        return {str(key): describe(value) for key, value in thing.items()}
    if isinstance(thing, Sequence):
        return [describe(part) for part in thing]
    if callable(thing) and not is_dataclass(thing):
        return {"function": f"{getattr(thing, '__module__', '?')}.{getattr(thing, '__qualname__', repr(thing))}"}
    settings = {f.name: getattr(thing, f.name) for f in fields(thing)} if is_dataclass(thing) else vars(thing)
    return {"name": name_of(type(thing))} | {key: describe(value) for key, value in settings.items()}


def name_of(kind: type) -> str:
    """Return the catalogue's name for a class or, for a user's own, file.py:Class."""
    for catalogue in CATALOGUES.values():
        for name, entry in catalogue.items():
            if entry is kind:
                return name
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return f"{file or kind.__module__}:{kind.__qualname__}"


def label_of(algorithm: Mapping[str, Any]) -> str:
    """Return a short name for the table of an algorithm: its name, and its optimiser's unless that is plain SGD.

    The name of an algorithm around another one is followed by that of its base.

    >>> label_of({"name": "fedgbo", "optimiser": {"name": "sgdm", "lr": 0.1, "beta": 0.9}})
    'fedgbo-sgdm'
    """
    if isinstance(base := algorithm.get("base"), Mapping):
        return f"{algorithm['name'].rpartition(':')[2].lower()}-{label_of(base)}"
    optimiser = algorithm.get("server") or algorithm.get("optimiser") or {}
    names = [algorithm["name"], optimiser.get("name", "sgd")]
    return "-".join(short for name in names if (short := name.rpartition(":")[2].lower()) != "sgd")


def parameters(maker: Any) -> dict[str, bool]:
    """Return the names of a constructor's arguments, and whether each must be given."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    signature = inspect.signature(maker)
    return {p.name: p.default is p.empty for p in signature.parameters.values() if p.kind in kinds}


def load(place: str) -> Any:
    """Load `path/to/file.py:Name`."""
    file, _, name = place.rpartition(":")
    path = Path(file).expanduser().resolve()
    if path.suffix != ".py":
        raise ConfigError(f"'{place}' must be path/to/file.py:Name, but {file} is not a .py file")
    if not path.is_file():
        raise ConfigError(f"'{place}': there is no file {path}")
    module_name = f"fedgbo_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None:
            raise ConfigError(f"'{place}': {path} cannot be loaded as a Python module")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))  # so that the file can import its neighbours
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[module_name]
            raise ConfigError(f"'{place}': loading {path} failed: {type(error).__name__}: {error}") from error
    module = sys.modules[module_name]
    if not hasattr(module, name):
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module_name]
        raise ConfigError(f"{path}: " + unknown("name", name, own))
    return getattr(module, name)


def _hints(maker: Any) -> dict[str, Any]:
    try:
        signature = inspect.signature(maker, eval_str=True)
        return {name: parameter.annotation for name, parameter in signature.parameters.items()}
    except (NameError, TypeError, AttributeError):  # a class of the user's with names that only a type checker knows
        return {}


def _check_plain(what: str, value: Any, hint: Any) -> None:
    """Raise if a text or number was given to an argument that is annotated as another kind of plain value."""
    kinds = get_args(hint) or (hint,)
    if not isinstance(value, str | bool | int | float) or not all(kind in WORDS for kind in kinds):
        return
    fits = type(value) in kinds or (type(value) is int and float in kinds)
    if not fits:
        allowed = " or ".join(WORDS[kind] for kind in kinds if kind is not type(None))
        raise ConfigError(f"{what} must be {allowed}, not {value!r}")


def _build_argument(key: str, value: Any, own: Own | None) -> Any:
    if isinstance(value, list):
        return [_build_argument(key, part, own) for part in value]
    if not isinstance(value, Mapping):
        return value
    return build(_KIND_OF_SLOT.get(key, "schedule"), value, own)
