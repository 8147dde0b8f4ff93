"""The tables as printed, and the tasks' sizes: data files beside this module, typed off the paper."""

import csv
import tomllib
from dataclasses import dataclass
from importlib.resources import files

from fedgbo.costs.closed import Workload


@dataclass(frozen=True)
class PaperTask:
    """One of the paper's four tasks."""

    title: str
    type: str
    classes: int
    model: str
    clients: int
    clients_per_round: int  # M
    batch_size: int  # B
    mean_samples: int  # n
    params: int  # |x|
    macs: int  # F

    def workload(self) -> Workload:
        """Return what its FLOPs are computed from."""
        return Workload(self.params, self.macs, self.batch_size, self.mean_samples)


def tasks() -> dict[str, PaperTask]:
    """Return the tasks by our names, in the paper's order."""
    return {name: PaperTask(**entry) for name, entry in tomllib.loads(_read("sizes.toml")).items()}


def rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a printed table."""
    return list(csv.DictReader(line for line in _read(f"{name}.csv").splitlines() if not line.startswith("#")))


def _read(name: str) -> str:
    return files("fedgbo.experiments.paper").joinpath("published", name).read_text(encoding="utf-8")
