"""The options of a federation's server, and their defaults."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from fedgbo.core import ConfigError, not_negative, positive, whole

APP_KEYS: Mapping[str, Any] = {  # of an app's configuration, besides the options, with their defaults
    "run-folder": "",
    "settings": "",
    "resume": False,
    "clients": 0,
    "started-by": "",
    "started-at": "",
}


@dataclass(frozen=True)
class Options:
    """All times are in seconds. In an app's configuration `over_select` is written `over-select`, and so on."""

    deadline: float = 120.0  # for a round's updates; later ones do not count
    quorum: float = 0.5  # share of the M clients of a round whose updates it needs; a whole number is a count
    over_select: int = 0  # additional clients; the round uses the first M valid updates
    wait: float = 120.0  # for nodes, at the start and when a round is retried
    min_nodes: int = 0  # to begin with; 0: all registered nodes, and as many as are needed to host all clients
    weighted: bool = False  # mean by the clients' numbers of samples instead of the plain mean
    max_norm: float = 100.0  # times the median of the others, or of earlier rounds; larger: rejected; 0: no limit
    max_update: float = 1e6  # times the norm of the model (at least 1); a larger update is rejected; 0: no limit
    attempts: int = 3  # at a round, before the run stops (it can be resumed)
    poll: float = 0.1  # between looks for replies, for each that is awaited
    nodes: str = ""  # folder of the registry of nodes and their clients; empty: any node may host any client

    def __post_init__(self) -> None:
        for name in ("deadline", "wait", "poll", "quorum"):
            positive(name, getattr(self, name))
        not_negative("max-norm", self.max_norm)
        not_negative("max-update", self.max_update)
        whole("over-select", self.over_select, least=0)
        whole("min-nodes", self.min_nodes, least=0)
        whole("attempts", self.attempts)
        if not isinstance(self.weighted, bool):
            raise ConfigError(f"weighted must be true or false, not {self.weighted!r}")
        if self.quorum > 1 and self.quorum != int(self.quorum):
            raise ConfigError(f"quorum must be a share of at most 1.0, or a whole number, not {self.quorum!r}")

    def needed(self, cohort_size: int) -> int:
        """Return how many valid updates a round needs.

        >>> Options(quorum=0.5).needed(5), Options(quorum=2).needed(5), Options(quorum=1.0).needed(5)
        (3, 2, 5)
        """
        is_count = isinstance(self.quorum, int) or self.quorum > 1
        count = self.quorum if is_count else self.quorum * cohort_size
        return min(cohort_size, max(1, math.ceil(count)))

    def decisive(self) -> dict[str, Any]:
        """Return the options that decide which updates count, and so the result."""
        names = ("quorum", "over_select", "weighted", "max_norm", "max_update")
        return {name.replace("_", "-"): getattr(self, name) for name in names}

    @classmethod
    def names(cls) -> dict[str, str]:
        """Map the options' names in an app's configuration to their names here."""
        return {field.name.replace("_", "-"): field.name for field in fields(cls)}

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Options":
        """Read the options from an app's configuration; other keys are ignored."""
        names = cls.names()
        return cls(**{names[key]: value for key, value in config.items() if key in names})
