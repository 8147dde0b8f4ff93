"""A run in several processes under torchrun: what they share before the first round, and which of them speaks."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fedgbo.core.errors import ConfigError
from fedgbo.engines.join import join, joined, started_as_team
from fedgbo.engines.team import Team

__all__ = ["ask_leader", "check_alike", "leads", "refuse_team", "speaks", "started_as_team"]


def check_alike(team: Team, about: Mapping[str, Any], device: torch.device) -> None:
    """Raise unless all processes are about to do the same run with the same data and the same initial model."""
    ours = {**about, "device": device.type, "torch": torch.__version__}
    theirs = json.loads(team.lead(lambda: json.dumps(ours).encode()))

    def compare() -> None:
        for key, value in json.loads(json.dumps(ours)).items():
            if value != theirs[key]:
                raise ConfigError(
                    f"rank {team.rank} has another {key} than rank 0: {value}, not {theirs[key]}; "
                    "give all machines the same program, settings and data"
                )

    team.together(compare)


def ask_leader(make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Let the first process alone find something out, such as what its files say, and return that in all of them."""
    answer: dict[str, Any] = json.loads(join().lead(lambda: json.dumps(make()).encode()))
    return answer


def leads() -> bool:
    """Return whether this process writes files and shows progress and results: the first of a team, or the only one."""
    return join().leads


def speaks() -> bool:
    """Return whether this process tells of errors: as `leads`, but another one does if the first is gone."""
    team = joined()
    return team is None or team.speaks


def refuse_team(command: str) -> None:
    """Raise if several processes were started for a command that is for one."""
    if started_as_team() and join() is not None:
        raise ConfigError(f"{command} is for one process; under torchrun there are `fedgbo run` and `fedgbo resume`")
