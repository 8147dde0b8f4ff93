"""The device that a run computes on."""

import re

import torch

from fedgbo.core.errors import ConfigError
from fedgbo.engines.team import ALONE, Team


def device_of(name: str, team: Team = ALONE) -> torch.device:
    """Return the device of that name: cpu, cuda, cuda:1 ..., or auto for a GPU where there is one.

    Under torchrun `cuda` is, for each process, the GPU of its own number on its machine.

    >>> device_of("cpu")
    device(type='cpu')
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda" if gpus else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    match = re.fullmatch(r"cuda(?::(\d+))?", name)
    if match is None:
        raise ConfigError(f"device must be cpu, cuda, cuda:<number> or auto, not {name!r}")
    if match[1] is not None and team.local_size > 1:
        raise ConfigError(
            f"device {name} would be shared by {team.local_size} processes of this machine; give cuda, "
            "and each process takes the GPU of its own number"
        )
    number = team.local_rank if match[1] is None else int(match[1])
    if number >= gpus:
        hint = "start no more processes than there are GPUs" if team.size > 1 else "give one of these, or auto"
        raise ConfigError(f"there is no device cuda:{number} here: {_there(gpus)}; {hint}")
    return torch.device("cuda", number)


def generator_of(device: torch.device) -> torch.Generator:
    """Return the generator that random layers (dropout) draw from on the device."""
    return torch.default_generator if device.type == "cpu" else torch.cuda.default_generators[device.index]


def _there(gpus: int) -> str:
    """Say what there is.

    >>> _there(0), _there(2)
    ('torch sees cpu and no GPU', 'torch sees cpu, cuda:0, cuda:1')
    """
    return "torch sees cpu" + ("".join(f", cuda:{number}" for number in range(gpus)) or " and no GPU")
