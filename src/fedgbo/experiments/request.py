"""What a user asks for, in flags or in a TOML file, and how it becomes a run: presets fill in what was left open."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedgbo.core.errors import ConfigError, FedGBOError, unknown
from fedgbo.experiments.presets import Preset, algorithm_table, known_name, preset, preset_of, presets
from fedgbo.runs.config import RunConfig, Table
from fedgbo.runs.describe import find

Setting = float | Table | None  # a number or, as a table, a schedule over rounds
AS_THEY_ARE = {
    "rounds", "local_steps", "seed", "eval_every", "clients_per_round", "batch_size", "test_samples", "metrics",
}  # fmt: skip
SETTINGS = ("lr", "server_lr", "beta", "beta1", "beta2", "eps", "mu")


class Request(BaseModel):
    """A run in the user's words. Hyperparameters are flat; `algorithm_table` knows where each belongs."""

    model_config = ConfigDict(extra="forbid", strict=True)

    task: str | Table = "digits"
    algorithm: str | Table = "fedgbo"
    optimiser: str | None = None
    objective: Table | list[Table] | None = None
    preset: str | None = None  # a name, a .csv file, or "none"; by default the task's own, where it has one
    lr: Setting = None
    server_lr: Setting = None
    beta: Setting = None
    beta1: Setting = None
    beta2: Setting = None
    eps: Setting = None
    mu: Setting = None
    rounds: int = Field(default=100, ge=1)
    local_steps: int | list[int] | Table = 10
    seed: int = Field(default=0, ge=0)
    eval_every: int | None = Field(default=None, ge=1)
    clients_per_round: int | Literal["all"] | None = None
    batch_size: int | Literal["full"] | None = None
    test_samples: int | None = Field(default=None, ge=1)
    metrics: list[str] = []

    def resolve(self) -> tuple[RunConfig, str | None]:
        """Return the run, and a line about the preset that filled in what was left open."""
        task: Table = {"name": self.task} if isinstance(self.task, str) else self.task
        settings = {key: value for key in SETTINGS if (value := getattr(self, key)) is not None}
        if isinstance(self.algorithm, dict) and set(self.algorithm) != {"name"}:
            if settings or self.optimiser:
                given = ", ".join([*settings, *(["optimiser"] if self.optimiser else [])])
                raise ConfigError(f"algorithm is a full table, so {given} must be written inside it")
            table, note = dict(self.algorithm), None
        else:
            name = self.algorithm["name"] if isinstance(self.algorithm, dict) else self.algorithm
            table, note = self._from_settings(str(task.get("name")), name, settings)
        if self.objective:
            table["objective"] = self.objective
        return RunConfig(task=task, algorithm=table, **self.model_dump(include=AS_THEY_ARE)), note

    def _from_settings(self, task: str, algorithm: str, settings: Table) -> tuple[Table, str | None]:
        find("task", task)
        find("algorithm", algorithm)
        if self.optimiser:
            find("optimiser", self.optimiser)
        chosen = self.preset or preset_of(task) or "none"
        optimiser, note = self.optimiser, None
        if chosen != "none":
            steps = self.local_steps if isinstance(self.local_steps, int) else None
            row = preset(chosen, task, known_name(algorithm), optimiser and known_name(optimiser), steps)
            if self.preset and (row is None or steps not in (None, row.local_steps)):
                raise ConfigError(_no_row(chosen, task, algorithm, optimiser, steps))
            if row is not None:
                optimiser = row.optimiser
                note = _note(chosen, row, settings, steps)
                settings = {**row.settings, **settings}
        return algorithm_table(algorithm, optimiser, settings), note


def read_request(file: Path | None, flags: Mapping[str, Any], overrides: Sequence[str]) -> Request:
    """Join a TOML file, flags, and `key=value` overrides, each stronger than the one before."""
    content: Table = {}
    text = ""
    if file is not None:
        text, content = read_toml(file)
    content.update({key: value for key, value in flags.items() if value is not None})
    for override in overrides:
        parse_override(content, override)
    try:
        return Request(**content)
    except ValidationError as error:
        raise ConfigError(explain(error, file, text, Request)) from error


def point_at(error: FedGBOError, file: Path) -> FedGBOError:
    """Return the error with the line of the TOML file that has the word it complains of, if one has."""
    text = read_toml(file)[0]
    for word in re.findall(r"'([^']+)'", str(error)):
        if line := _line_of(text, word):
            return type(error)(f"{file}, line {line}: {error}")
    return type(error)(f"{file}: {error}")


def read_toml(file: Path) -> tuple[str, Table]:
    """Return a file's text, and what it says."""
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
    """Put one `key=value` in; the value is TOML, or plain text where that fails; dots reach into tables."""
    key, equals, value = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"'{override}' must be key=value, e.g. rounds=50 or lr=0.1")
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    *path, last = key.strip().split(".")
    place = content
    for part in path:
        inner = place.get(part, {})
        place[part] = {"name": inner} if isinstance(inner, str) else inner
        place = place[part]
        if not isinstance(place, dict):
            raise ConfigError(f"'{override}': {part} is no table")
    place[last] = parsed


def explain(error: ValidationError, file: Path | None, text: str, model: type[BaseModel]) -> str:
    """Say all that is wrong in the user's terms."""
    messages: dict[str, str] = {}
    for item in error.errors():
        key = str(item["loc"][0])
        if item["type"] == "extra_forbidden":
            message = unknown("setting", key, model.model_fields)
        else:
            message = f"{key}: {item['msg'].lower()}, not {item['input']!r}"
        line = _line_of(text, key)
        place = f"{file}, line {line}: " if file and line else ""
        messages.setdefault(key, place + message)  # a union reports each of its members: the first will do
    return "; ".join(messages.values())


def _line_of(text: str, word: str) -> int | None:
    """Return the number of the first line that has `word` as a key or a value."""
    pattern = re.compile(rf"(^|[\s\[{{.,\"'=]){re.escape(word)}($|[\s\]}}.,\"'=])")
    return next((n for n, line in enumerate(text.splitlines(), 1) if pattern.search(line)), None)


def _note(name: str, row: Preset, given: Mapping[str, Any], steps: int | None) -> str | None:
    """Say what a preset filled in."""
    taken = ", ".join(f"{key}={value:g}" for key, value in row.settings.items() if key not in given)
    tuned = "" if steps in (None, row.local_steps) else f" (tuned for K={row.local_steps})"
    return f"preset {name}: {taken}{tuned}" if taken else None


def _no_row(name: str, task: str, algorithm: str, optimiser: str | None, steps: int | None) -> str:
    asked = ", ".join(str(part) for part in (task, algorithm, optimiser, f"K={steps}" if steps else None) if part)
    rows = [row for row in presets(name) if row.task in (task, task.removesuffix("-synthetic"))]
    have = sorted({f"{row.algorithm} {row.optimiser} K={row.local_steps}" for row in rows})
    return f"preset {name} has no settings for {asked}; it has: {', '.join(have) or 'nothing for this task'}"
