"""A run as the user asks for it, in flags or in a TOML file; presets fill in the missing settings."""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedgbo.core import ConfigError, FedGBOError, unknown
from fedgbo.experiments.presets import (
    accepted_settings,
    algorithm_table,
    check_complete,
    known_name,
    no_row,
    optimiser_slots,
    preset,
    preset_of,
)
from fedgbo.runs.config import RunConfig, Table, explain, line_of
from fedgbo.runs.describe import find, parameters

Setting = float | Table | None  # a number or, as a table, a schedule over rounds
PYTHON = {"True": True, "False": False, "None": None}
GLOBAL = ("fedgbo", "mfl", "mimelite", "mimexlite")  # they share an optimiser's statistics
SETTINGS = (
    "lr", "server_lr", "beta", "beta1", "beta2", "eps", "weight_decay", "mu", "alpha", "rho", "q", "lam", "tau",
    "average",
)  # fmt: skip


class Request(BaseModel):
    """A run as the user writes it. Hyperparameters are flat; `algorithm_table` sorts them into the optimisers.

    Other names are hyperparameters of the algorithm or the optimiser, which may be classes of the user's.
    """

    model_config = ConfigDict(extra="allow", strict=True)

    task: str | Table = "digits"
    algorithm: str | Table = "fedgbo"
    optimiser: str | Table | None = None
    objective: Table | list[Table] | None = None
    preset: str | None = None  # a name, a .csv file, or "none"; None: the task's default
    lr: Setting = None
    server_lr: Setting = None
    beta: Setting = None
    beta1: Setting = None
    beta2: Setting = None
    eps: Setting = None
    weight_decay: Setting = None
    mu: Setting = None
    alpha: Setting = None
    rho: Setting = None
    q: Setting = None
    lam: Setting = None
    tau: int | None = None
    average: Setting = None
    rounds: int = Field(default=100, ge=1)
    local_steps: int | list[int] | Table = 10
    seed: int = Field(default=0, ge=0)
    eval_every: int | None = Field(default=None, ge=1)
    clients_per_round: int | Literal["all"] | None = None
    batch_size: int | Literal["full"] | None = None
    test_samples: int | None = Field(default=None, ge=1)
    metrics: list[str] = []
    weights: Literal["clients", "samples"] | None = None
    sampler: Table | str | None = None
    transforms: list[Table | str] = []
    aggregator: Table | str | None = None
    engine: Literal["auto", "plain", "vmap"] | None = None
    keep_best: bool | None = None

    @property
    def hyperparameters(self) -> Table:
        """The hyperparameters that were given, with those of an optimiser's table in a table."""
        given = {key: getattr(self, key) for key in SETTINGS} | (self.model_extra or {})
        if isinstance(self.optimiser, dict):
            given["optimiser"] = {key: value for key, value in self.optimiser.items() if key != "name"}
        return {key: value for key, value in given.items() if value is not None}

    @property
    def optimiser_name(self) -> str | None:
        """The optimiser, where one was named."""
        return self.optimiser.get("name") if isinstance(self.optimiser, dict) else self.optimiser

    def resolve(self) -> tuple[RunConfig, str | None]:
        """Return the run, and a note about the settings that a preset filled in."""
        self._check_files()
        task: Table = {"name": self.task} if isinstance(self.task, str) else self.task
        own: Table = {"name": self.algorithm} if isinstance(self.algorithm, str) else self.algorithm
        table: Table = {"name": Request.model_fields["algorithm"].default, **own}
        note = None
        if not _names_optimiser(table):
            table, note = self._from_settings(str(task.get("name")), table)
        else:
            self._check_names(())
            if given := [*self.hyperparameters, *(["optimiser"] if self.optimiser_name else [])]:
                raise ConfigError(f"algorithm is a full table, so {', '.join(given)} must be written inside it")
        if self.objective:
            table["objective"] = self.objective
        shared = self.model_dump(include={*RunConfig.model_fields} - {"task", "algorithm"})
        return RunConfig(task=task, algorithm=table, **shared), note

    def _from_settings(self, task: str, table: Table) -> tuple[Table, str | None]:
        algorithm, optimiser = str(table.pop("name")), self.optimiser_name
        settings = self.hyperparameters | table
        for kind, name in (("task", task), ("algorithm", algorithm), ("optimiser", optimiser or "sgd")):
            find(kind, name)  # raises if it is unknown
        self._check_names((*accepted_settings(algorithm, optimiser), *parameters(find("algorithm", algorithm))))
        chosen, row = self.preset or preset_of(task) or "none", None
        steps = self.local_steps if isinstance(self.local_steps, int) else None
        if chosen != "none":
            row = preset(chosen, task, known_name(algorithm), optimiser and known_name(optimiser), steps)
            if self.preset and (row is None or steps not in (None, row.local_steps)):
                raise ConfigError(no_row(chosen, task, algorithm, optimiser, steps))
        if row is None:
            table = algorithm_table(algorithm, optimiser, settings)
            check_complete(table)
            return table, None
        inside = settings.get("optimiser", {})
        taken = ", ".join(f"{k}={value:g}" for k, value in row.settings.items() if k not in (*settings, *inside))
        tuned = "" if steps in (None, row.local_steps) else f" (tuned for K={row.local_steps})"
        table = algorithm_table(algorithm, row.optimiser, {**row.settings, **settings})
        return table, f"preset {chosen}: {taken}{tuned}" if taken else None

    def _check_files(self) -> None:
        """Raise on a file of the user's without the name of what is in it."""
        own = {"task": (self.task, "function"), "algorithm": (self.algorithm, "Class")}
        for kind, (given, what) in {**own, "optimiser": (self.optimiser, "Class")}.items():
            name = given.get("name") if isinstance(given, dict) else given
            if isinstance(name, str) and name.endswith(".py"):
                raise ConfigError(f"{kind} {name} is a file; add :{what}, the name of the {what.lower()} in it")

    def _check_names(self, accepted: Sequence[str]) -> None:
        """Raise on a name that is neither a setting of a run nor one of the algorithm's."""
        if strange := [key for key in self.model_extra or {} if key not in accepted]:
            known = [name for name in Request.model_fields if name not in SETTINGS]
            raise ConfigError(unknown("setting", strange[0], (*known, *(accepted or SETTINGS))))


def _names_optimiser(algorithm: Table) -> bool:
    """Return whether an algorithm's table is complete, as it names an optimiser."""
    slots = (algorithm.get(slot) for slot in optimiser_slots(find("algorithm", str(algorithm["name"]))))
    return any("name" in given for given in slots if isinstance(given, dict))


def same_as_fedavg(config: RunConfig) -> str | None:
    """Say so where an algorithm trains the model that FedAvg trains: plain SGD has no statistics to share."""
    algorithm, optimiser = config.algorithm["name"], config.algorithm.get("optimiser") or {}
    if algorithm not in GLOBAL or not isinstance(optimiser, dict) or optimiser.get("name") != "sgd":
        return None
    return f"{algorithm} with sgd trains the same model as fedavg; choose another optimiser, such as {algorithm}:sgdm"


def requested_config(
    file: Path | None, flags: Mapping[str, Any] = MappingProxyType({}), overrides: Sequence[str] = ()
) -> tuple[RunConfig, str | None]:
    """Return the run that a TOML file, flags and `key=value` describe, and a note about its preset.

    An error is blamed on the file only if the file alone has the same error.
    """
    try:
        return _built(file, flags, overrides)
    except FedGBOError as error:
        if file is None:
            raise
        try:
            _built(file, {}, ())
        except FedGBOError as own:
            if str(own) == str(error):
                raise point_at(error, file) from error
        raise


def _built(file: Path | None, flags: Mapping[str, Any], overrides: Sequence[str]) -> tuple[RunConfig, str | None]:
    config, note = read_request(file, flags, overrides).resolve()
    _ = config.built_algorithm
    return config, note


def read_request(file: Path | None, flags: Mapping[str, Any], overrides: Sequence[str]) -> Request:
    """Combine a TOML file, flags and `key=value` overrides; each takes precedence over the one before."""
    text, content = ("", {}) if file is None else read_toml(file)
    given: Table = {key: value for key, value in flags.items() if value is not None}
    content.update(given)
    for override in overrides:
        parse_override(content, override)
        given[override.partition("=")[0].partition(".")[0].strip()] = override
    _split_algorithm(content)
    try:
        return Request(**content)
    except ValidationError as error:
        raise ConfigError(explain(error, file, text, Request, given)) from error


def _split_algorithm(content: Table) -> None:
    """Read algorithm = "fedgbo:adam" as an algorithm and its optimiser."""
    entry = content.get("algorithm")
    algorithm, optimiser = parse_entry(entry) if isinstance(entry, str) and ":" in entry else (entry, None)
    if optimiser is None:
        return
    own = given if isinstance(given := content.get("optimiser"), dict) else {"name": given}
    if own.get("name") not in (None, optimiser):
        raise ConfigError(f"algorithm {entry} names its optimiser; leave out the optimiser {own['name']}")
    content.update(algorithm=algorithm, optimiser={**own, "name": optimiser})


def point_at(error: FedGBOError, file: Path) -> FedGBOError:
    """Return the error with the line of the TOML file that contains the word it quotes, if there is one."""
    text = read_toml(file)[0]
    if str(error).startswith(str(file)):
        return error
    for word in re.findall(r"'([^']+)'", str(error)):
        if line := line_of(text, word):
            return type(error)(f"{file}, line {line}: {error}")
    return type(error)(f"{file}: {error}")


def read_toml(file: Path) -> tuple[str, Table]:
    """Return a file's text and its content."""
    try:
        text = file.read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except FileNotFoundError as error:
        raise ConfigError(f"there is no file {file}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error


def parse_entry(entry: str) -> tuple[str, str | None]:
    """Split name:optimiser, where both may be path/to/file.py:Class.

    >>> parse_entry("FedGBO:Adam"), parse_entry("fedavg"), parse_entry("mine.py:Own")
    (('fedgbo', 'adam'), ('fedavg', None), ('mine.py:Own', None))
    >>> parse_entry("fedgbo:my.py:AdamW"), parse_entry("mine.py:Own:sgdm")
    (('fedgbo', 'my.py:AdamW'), ('mine.py:Own', 'sgdm'))
    """
    names, rest = [], entry
    while rest:
        own = re.match(r"[^:]*\.py:[^:]*|[^:]*", rest)
        name = own[0] if own else rest
        names.append(known_name(name))
        rest = rest[len(name) + 1 :]
    if not 1 <= len(names) <= 2 or not all(names):
        raise ConfigError(f"'{entry}' must be an algorithm, or algorithm:optimiser, e.g. fedavg or fedgbo:sgdm")
    return names[0], names[1] if len(names) > 1 else None


def parse_override(content: Table, override: str) -> None:
    """Set one `key=value`; dots in the key reach into tables."""
    key, equals, value = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"'{override}' must be key=value, e.g. rounds=50 or lr=0.1")
    *path, last = key.strip().split(".")
    table = content
    for part in path:
        inner = table.get(part, {})
        table[part] = {"name": inner} if isinstance(inner, str) else inner
        table = table[part]
        if not isinstance(table, dict):
            raise ConfigError(f"'{override}': {part} is not a table")
    table[last] = parse_value(value)


def _toml_value(text: str) -> Any:
    return tomllib.loads(f"value = {text}")["value"]


def parse_value(text: str) -> Any:
    """Read a value as TOML, as a number, True, False or None of Python's, or else as plain text.

    >>> [parse_value(text) for text in ("0.1", ".1", "1_000", "0x10", "-1e-3", "inf", "[1, 2]", "False", "all")]
    [0.1, 0.1, 1000, 16, -0.001, inf, [1, 2], False, 'all']
    """
    if text.strip() in PYTHON:
        return PYTHON[text.strip()]
    readers: list[Callable[[str], Any]] = [_toml_value, partial(int, base=0), int, float]
    for read in readers:
        with suppress(ValueError):  # tomllib's error is one
            return read(text)
    return text
