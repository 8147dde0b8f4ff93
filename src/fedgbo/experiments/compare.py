"""Comparisons: several algorithms on the same seeds (`fedgbo compare`)."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgbo.algorithms import PAPER
from fedgbo.core import ConfigError, whole
from fedgbo.experiments.jobs import Job
from fedgbo.experiments.presets import takes_optimiser
from fedgbo.experiments.request import read_request
from fedgbo.experiments.shelf import claim_folder
from fedgbo.runs.config import RunConfig

EVERYTHING = PAPER  # until all algorithms have tuned digits presets


def plan(algorithms: Sequence[str], seeds: int, shared: Mapping[str, Any]) -> tuple[list[RunConfig], list[str]]:
    """Return the runs of name, name:optimiser or path/to/file.py:Class, and notes about the presets used."""
    whole("seeds", seeds)
    if not algorithms:
        raise ConfigError(f"name the algorithms to compare, or all ({', '.join(EVERYTHING)})")
    configs, notes = [], []
    for entry in EVERYTHING if list(algorithms) == ["all"] else algorithms:
        name, optimiser = parse_entry(entry)
        if optimiser is None and takes_optimiser(name):
            optimiser = shared.get("optimiser")
        config, note = read_request(None, {**shared, "algorithm": name, "optimiser": optimiser}, ()).resolve()
        if note:
            notes.append(f"{config.label}: {note}")
        configs += [config.model_copy(update={"seed": seed}).complete() for seed in range(seeds)]
    return configs, notes


def jobs_of(configs: Sequence[RunConfig], out: Path) -> list[Job]:
    """Return a job with its own folder for each run."""
    counts = Counter((config.label, config.seed) for config in configs)
    if twice := [label for (label, _), count in counts.items() if count > 1]:
        raise ConfigError(f"{twice[0]} is named twice; name each algorithm once")
    return [Job(config, out / "runs" / f"{config.label}-seed{config.seed}") for config in configs]


def claim(out: Path, configs: Sequence[RunConfig]) -> bool:
    """Make the comparison's folder, or return True if it already holds the same comparison."""
    content = json.dumps([config.model_dump() for config in configs], indent=2) + "\n"
    return claim_folder(out, "compare.json", content, "comparison")


def parse_entry(entry: str) -> tuple[str, str | None]:
    """Split name:optimiser.

    >>> parse_entry("FedGBO:Adam"), parse_entry("fedavg"), parse_entry("mine.py:Own")
    (('fedgbo', 'adam'), ('fedavg', None), ('mine.py:Own', None))
    """
    if ".py:" in entry:
        return entry, None
    name, _, optimiser = entry.partition(":")
    return name.lower(), optimiser.lower() or None
