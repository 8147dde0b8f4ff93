"""A run as the user asks for it, in flags or in a TOML file; presets fill in the missing settings."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedgbo.core import ConfigError, FedGBOError, unknown
from fedgbo.experiments.presets import algorithm_table, known_name, preset, preset_of, presets, task_names
from fedgbo.runs.config import RunConfig, Table
from fedgbo.runs.describe import find

Setting = float | Table | None  # a number or, as a table, a schedule over rounds
SETTINGS = (
    "lr", "server_lr", "beta", "beta1", "beta2", "eps", "weight_decay", "mu", "alpha", "rho", "q", "lam", "tau",
)  # fmt: skip


class Request(BaseModel):
    """A run as the user writes it. Hyperparameters are flat; `algorithm_table` sorts them into the optimisers."""

    model_config = ConfigDict(extra="forbid", strict=True)

    task: str | Table = "digits"
    algorithm: str | Table = "fedgbo"
    optimiser: str | None = None
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
    engine: Literal["auto", "plain"] | None = None

    def resolve(self) -> tuple[RunConfig, str | None]:
        """Return the run, and a note about the settings that a preset filled in."""
        task: Table = {"name": self.task} if isinstance(self.task, str) else self.task
        settings = {key: value for key in SETTINGS if (value := getattr(self, key)) is not None}
        table: Table = {"name": self.algorithm} if isinstance(self.algorithm, str) else dict(self.algorithm)
        note = None
        if set(table) == {"name"}:
            table, note = self._from_settings(str(task.get("name")), table["name"], settings)
        elif given := [*settings, *(["optimiser"] if self.optimiser else [])]:
            raise ConfigError(f"algorithm is a full table, so {', '.join(given)} must be written inside it")
        if self.objective:
            table["objective"] = self.objective
        shared = self.model_dump(include={*RunConfig.model_fields} - {"task", "algorithm"})
        return RunConfig(task=task, algorithm=table, **shared), note

    def _from_settings(self, task: str, algorithm: str, settings: Table) -> tuple[Table, str | None]:
        for kind, name in (("task", task), ("algorithm", algorithm), ("optimiser", self.optimiser or "sgd")):
            find(kind, name)  # raises if it is unknown
        chosen, row = self.preset or preset_of(task) or "none", None
        steps = self.local_steps if isinstance(self.local_steps, int) else None
        if chosen != "none":
            row = preset(chosen, task, known_name(algorithm), self.optimiser and known_name(self.optimiser), steps)
            if self.preset and (row is None or steps not in (None, row.local_steps)):
                raise ConfigError(_no_row(chosen, task, algorithm, self.optimiser, steps))
        if row is None:
            return algorithm_table(algorithm, self.optimiser, settings), None
        taken = ", ".join(f"{key}={value:g}" for key, value in row.settings.items() if key not in settings)
        tuned = "" if steps in (None, row.local_steps) else f" (tuned for K={row.local_steps})"
        table = algorithm_table(algorithm, row.optimiser, {**row.settings, **settings})
        return table, f"preset {chosen}: {taken}{tuned}" if taken else None


def read_request(file: Path | None, flags: Mapping[str, Any], overrides: Sequence[str]) -> Request:
    """Combine a TOML file, flags and `key=value` overrides; each takes precedence over the one before."""
    text, content = ("", {}) if file is None else read_toml(file)
    content.update({key: value for key, value in flags.items() if value is not None})
    for override in overrides:
        parse_override(content, override)
    try:
        return Request(**content)
    except ValidationError as error:
        raise ConfigError(explain(error, file, text, Request)) from error


def point_at(error: FedGBOError, file: Path) -> FedGBOError:
    """Return the error with the line of the TOML file that contains the word it quotes, if there is one."""
    text = read_toml(file)[0]
    for word in re.findall(r"'([^']+)'", str(error)):
        if line := _line_of(text, word):
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


def parse_override(content: Table, override: str) -> None:
    """Set one `key=value`. The value is TOML or else plain text; dots in the key reach into tables."""
    key, equals, value = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"'{override}' must be key=value, e.g. rounds=50 or lr=0.1")
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    *path, last = key.strip().split(".")
    table = content
    for part in path:
        inner = table.get(part, {})
        table[part] = {"name": inner} if isinstance(inner, str) else inner
        table = table[part]
        if not isinstance(table, dict):
            raise ConfigError(f"'{override}': {part} is not a table")
    table[last] = parsed


def explain(error: ValidationError, file: Path | None, text: str, model: type[BaseModel]) -> str:
    """Return a message that names every wrong setting."""
    messages: dict[str, str] = {}
    for item in error.errors():
        key = str(item["loc"][0])
        if item["type"] == "extra_forbidden":
            message = unknown("setting", key, model.model_fields)
        else:
            message = f"{key}: {item['msg'].lower()}, not {item['input']!r}"
        line = _line_of(text, key)
        place = f"{file}, line {line}: " if file and line else ""
        messages.setdefault(key, place + message)  # pydantic reports every member of a union
    return "; ".join(messages.values())


def _line_of(text: str, word: str) -> int | None:
    """Return the number of the first line with `word` as a key or a value."""
    pattern = re.compile(rf"(^|[\s\[{{.,\"'=]){re.escape(word)}($|[\s\]}}.,\"'=])")
    return next((n for n, line in enumerate(text.splitlines(), 1) if pattern.search(line)), None)


def _no_row(name: str, task: str, algorithm: str, optimiser: str | None, steps: int | None) -> str:
    asked = ", ".join(str(part) for part in (task, algorithm, optimiser, f"K={steps}" if steps else None) if part)
    rows = [row for row in presets(name) if row.task in task_names(task)]
    have = sorted({f"{row.algorithm} {row.optimiser} K={row.local_steps}" for row in rows})
    return f"preset {name} has no settings for {asked}; it has: {', '.join(have) or 'nothing for this task'}"
