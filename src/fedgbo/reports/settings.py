"""A run's settings as flat text, and the ones in which runs differ."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedgbo.runs.config import RunConfig

NOT_SETTINGS = {"seed", "rounds", "eval_every", "metrics"}  # how often, how long and what was measured
Settings = dict[str, str]


def settings_of(config: RunConfig) -> Settings:
    """Return every setting that was given or filled in.

    >>> config = RunConfig(task={"name": "digits"}, algorithm={"name": "fedavg", "optimiser": {"lr": 0.1}}, rounds=3)
    >>> settings_of(config)
    {'task': 'digits', 'algorithm': 'fedavg', 'optimiser.lr': '0.1', 'local_steps': '10'}
    """
    return dict(_flat("", {key: value for key, value in config.model_dump().items() if key not in NOT_SETTINGS}))


def differing(several: Sequence[Settings]) -> list[str]:
    """Return the names of the settings in which these differ, in the order in which they come."""
    names = dict.fromkeys(name for settings in several for name in settings)
    return [name for name in names if len({settings.get(name) for settings in several}) > 1]


def distinct(names: Sequence[str], several: Sequence[Settings]) -> list[str]:
    """Return the names; where some are equal, with the settings that tell them apart.

    >>> distinct(["fedavg", "fedgbo", "fedavg"], [{"lr": "1"}, {"lr": "1"}, {"lr": "2"}])
    ['fedavg (lr=1)', 'fedgbo', 'fedavg (lr=2)']
    """
    told: list[str] = []
    for name, settings in zip(names, several, strict=True):
        rivals = [other for other_name, other in zip(names, several, strict=True) if other_name == name]
        apart = [f"{_short(key)}={settings.get(key, 'default')}" for key in differing(rivals)]
        told.append(f"{name} ({', '.join(apart)})" if apart else name)
    return told


def _flat(prefix: str, table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if value is None or value == []:
            continue
        name = f"{prefix}.{key}".removeprefix(".").removesuffix(".name").removeprefix("algorithm.")
        if isinstance(value, Mapping):
            yield from _flat(name, value)
        else:
            yield name, value if isinstance(value, str) else json.dumps(value)


def _short(name: str) -> str:
    return "K" if name == "local_steps" else name.removeprefix("optimiser.")
