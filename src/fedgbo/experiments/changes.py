"""What makes an experiment less than its file says: a scale, stand-ins for the data, changed settings, a part of it.

Each of them is said in every output: in titles, in captions and in the names of files.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedgbo.core.errors import ConfigError
from fedgbo.runs.config import RunConfig, Table
from fedgbo.tasks import TASKS

TEST_SAMPLES, FEWEST_TEST_SAMPLES = 10_000, 200  # of a shortened run: the first times the scale, at least the second
FEWEST_SEEDS = 2  # so that there is an interval left
SIZED = {"shakespeare-synthetic": 5573}  # stand-ins whose clients have so many samples that full gradients take minutes
FEWEST_SAMPLES = 64


@dataclass(frozen=True)
class Changes:
    """A scale of 1, real data and no overrides change nothing."""

    scale: float = 1.0
    stand_ins: bool = False
    overrides: tuple[str, ...] = ()  # key=value
    only: tuple[str, ...] = ()  # tasks and optimisers

    def __post_init__(self) -> None:
        if not 0 < self.scale <= 1:
            raise ConfigError(f"scale must be above 0 and at most 1, not {self.scale}; 0.1 is a tenth of the rounds")
        if strange := [text for text in self.overrides if "=" not in text]:
            raise ConfigError(f"'{strange[0]}' must be key=value, e.g. batch_size=16")

    def words(self, configs: Sequence[RunConfig]) -> list[str]:
        """Say in a title what was changed, and what it came to in these runs."""
        said = ["made-up stand-ins for the data"] if self.stand_ins else []
        if self.scale != 1:
            rounds, samples = (_all(getattr(c, key) for c in configs) for key in ("rounds", "test_samples"))
            seeds = len({config.seed for config in configs})
            said.append(f"scale {self.scale:g}: {rounds} rounds, {seeds} seeds, at most {samples} test samples")
            texts = {c.task["samples"] for c in configs if c.task["name"] in SIZED}
            said += [f"shorter texts: {_all(texts)} samples a client"] if texts else []
        said += [f"changed: {', '.join(self.overrides)}"] if self.overrides else []
        return said + ([f"only {', '.join(self.only)}"] if self.only else [])

    @property
    def suffix(self) -> str:
        """What to add to a file's name.

        >>> Changes(0.01, stand_ins=True, overrides=("batch_size=4",)).suffix
        '-stand-ins-scale0.01-batch_size4'
        """
        parts = ["stand-ins"] if self.stand_ins else []
        parts += [] if self.scale == 1 else [f"scale{self.scale:g}"]
        parts += [re.sub(r"[^A-Za-z0-9_.-]+", "", text) for text in (*self.overrides, *self.only)]
        return "".join(f"-{part}" for part in parts)

    def of_grid(self, grid: Mapping[str, Any]) -> Table:
        """Return the grid with stand-ins for its tasks, if they are asked for."""
        if not self.stand_ins or "tasks" not in grid:
            return dict(grid)
        tasks = grid["tasks"] if isinstance(grid["tasks"], list) else [grid["tasks"]]
        return {**grid, "tasks": [self._stand_in(task) for task in tasks]}

    def shortened(self, configs: Sequence[RunConfig]) -> list[RunConfig]:
        """Return fewer and shorter runs: the first seeds of each group, a share of the rounds and of the test set."""
        if self.scale == 1:
            return list(configs)
        groups: dict[str, list[RunConfig]] = defaultdict(list)
        for config in configs:
            groups[json.dumps(config.model_dump(exclude={"seed"}), sort_keys=True)].append(config)
        kept = {id(config) for group in groups.values() for config in group[: self._seeds(len(group))]}
        return [self._shorter(config) for config in configs if id(config) in kept]

    def _seeds(self, count: int) -> int:
        return max(min(count, FEWEST_SEEDS), math.ceil(count * self.scale))

    def _shorter(self, config: RunConfig) -> RunConfig:
        samples = max(FEWEST_TEST_SAMPLES, math.ceil(TEST_SAMPLES * self.scale))
        changed: Table = {
            "rounds": max(1, round(config.rounds * self.scale)),
            "eval_every": max(1, round((config.eval_every or 1) * self.scale)),
            "test_samples": min(samples, config.test_samples or samples),
        }
        if full := SIZED.get(config.task["name"]):
            changed["task"] = {"samples": max(FEWEST_SAMPLES, math.ceil(full * self.scale)), **config.task}
        return config.model_copy(update=changed)

    def _stand_in(self, task: Any) -> Any:
        name = task.get("name") if isinstance(task, dict) else task
        made_up = f"{str(name).removesuffix('-synthetic')}-synthetic"
        if made_up not in TASKS:
            known = sorted(known.removesuffix("-synthetic") for known in TASKS if known.endswith("-synthetic"))
            raise ConfigError(f"there is no stand-in for {name} (there are for: {', '.join(known)})")
        return {**task, "name": made_up} if isinstance(task, dict) else made_up


def _all(values: Iterable[Any]) -> str:
    return " or ".join(map(str, sorted(set(values))))
