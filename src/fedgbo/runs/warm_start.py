"""Training that starts from a model that exists: a state_dict, a module or a safetensors file."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from safetensors.torch import load_file
from torch import Tensor, nn

from fedgbo.core import ConfigError, DataError
from fedgbo.tasks.task import Task

Initial = Tensor | np.ndarray[Any, Any] | Mapping[str, Tensor] | nn.Module | str | Path


def starting_from(task: Task, initial: Any) -> Task:
    """Return the task with a model that starts from a state_dict, a module or a safetensors file."""
    if isinstance(initial, str | Path):
        values, where = _read(Path(initial)), str(initial)
    elif isinstance(initial, nn.Module):
        values, where = initial.state_dict(), "the given module"
    elif isinstance(initial, Mapping):
        values, where = dict(initial), "the given state_dict"
    else:
        raise ConfigError(
            "initial_params must be a state_dict, a module, the path of a safetensors file, or a flat vector, not "
            f"{type(initial).__name__}"
        )
    values = {name: value.detach().clone() if isinstance(value, Tensor) else value for name, value in values.items()}

    def make() -> nn.Module:
        module = task.make_model()
        _load(module, values, where)
        return module

    return replace(task, model=make)


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise DataError(f"{path} cannot be read as a safetensors file: {error}") from error


def _load(module: nn.Module, values: Mapping[str, Any], where: str) -> None:
    """Load a state dict; a tied weight may be there under one of its names."""
    own = module.state_dict(keep_vars=True)
    there = {id(own[name]) for name in values if name in own}
    missing = [name for name in own if name not in values and id(own[name]) not in there]
    extra = [name for name in values if name not in own]
    if missing or extra:
        lacks = f" lacks {', '.join(missing[:5])}" if missing else ""
        has = f" has {', '.join(extra[:5])}, which the model does not have" if extra else ""
        raise DataError(f"{where}{lacks}{' and' if lacks and has else ''}{has}; it must be a state_dict of this model")
    try:
        module.load_state_dict(dict(values), strict=False)
    except RuntimeError as error:
        raise DataError(f"{where} does not fit the model: {error}") from error
