"""Comparisons: several algorithms on the same seeds (`fedgbo compare`)."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedgbo.algorithms import PAPER, PERSONALISED
from fedgbo.core import ConfigError, whole
from fedgbo.experiments.jobs import Job
from fedgbo.experiments.presets import FIELD, presets, takes_optimiser, task_names
from fedgbo.experiments.request import read_request, same_as_fedavg
from fedgbo.experiments.shelf import claim_folder, group_key
from fedgbo.reports.sections import distinct, settings_of, slug
from fedgbo.runs.config import RunConfig
from fedgbo.runs.describe import build

ALL, PAPERS = "all", "paper"  # names that stand for several algorithms
SHARED = ("task", "algorithm", "seed")  # settings that one algorithm of a comparison cannot have for itself
SETTING = re.compile(r"[A-Za-z_][\w.]*\s*=")  # how key=value begins


class Entry(NamedTuple):
    """An algorithm of a comparison, as the user writes it, with settings of its own."""

    name: str
    optimiser: str | None = None
    settings: tuple[str, ...] = ()  # key=value
    field: bool = False  # whether it is one of `all`, which start from presets tuned with the same effort


def plan(algorithms: Sequence[str], seeds: int, shared: Mapping[str, Any]) -> tuple[list[RunConfig], list[str]]:
    """Return the runs of all entries, and notes about the presets used."""
    whole("seeds", seeds)
    configs, notes = [], []
    for entry in parse_entries(algorithms, everyone(str(shared.get("task") or "digits"))):
        optimiser = entry.optimiser
        if optimiser is None and takes_optimiser(entry.name):
            optimiser = shared.get("optimiser")
        flags = {**shared, "algorithm": entry.name, "optimiser": optimiser}
        if entry.field and flags.get("preset") is None and optimiser in (None, "sgdm"):
            flags["preset"] = FIELD
        config, note = read_request(None, flags, entry.settings).resolve()
        notes += [f"{config.label}: {note}"] if note else []
        notes += [same] if (same := same_as_fedavg(config)) else []
        configs += [config.model_copy(update={"seed": seed}).complete() for seed in range(seeds)]
    return configs, notes


def jobs_of(configs: Sequence[RunConfig], out: Path) -> list[Job]:
    """Return a job with its own folder for each run."""
    labels = labels_of(configs)
    names = [f"{slug(labels[group_key(config)])}-seed{config.seed}" for config in configs]
    if twice := [config for config, name in zip(configs, names, strict=True) if names.count(name) > 1]:
        raise ConfigError(f"{twice[0].label} is named twice with the same settings; name it once")
    titles = [f"{labels[group_key(config)]} seed {config.seed}" for config in configs]
    return [Job(c, out / "runs" / name, title) for c, name, title in zip(configs, names, titles, strict=True)]


def labels_of(configs: Sequence[RunConfig]) -> dict[str, str]:
    """Return a label for each `group_key`; algorithms of the same name get the settings in which they differ."""
    groups = {group_key(config): config for config in configs}
    labels = distinct([config.label for config in groups.values()], [settings_of(c) for c in groups.values()])
    return dict(zip(groups, labels, strict=True))


def claim(out: Path, configs: Sequence[RunConfig]) -> bool:
    """Make the comparison's folder, or return True if it already holds the same comparison."""
    content = json.dumps([config.model_dump() for config in configs], indent=2) + "\n"
    return claim_folder(out, "compare.json", content, "comparison")


def everyone(task: str, field: str = FIELD) -> tuple[str, ...]:
    """Return what `all` stands for: the algorithms that have presets tuned with the same effort for the task.

    Personalised ones are among them where clients have test sets. Without such presets it is the paper's algorithms.
    """
    names = [row.algorithm for row in presets(field) if row.task in task_names(task)]
    own_tests = bool(names) and build("task", {"name": task}).data.client_tests is not None
    return tuple(name for name in names if own_tests or name not in PERSONALISED) or PAPER


def parse_entries(arguments: Sequence[str], all_of_them: Sequence[str] = PAPER) -> list[Entry]:
    """Read algorithms, each followed by its own settings; settings before the first one are for all.

    >>> parse_entries(["lr=.1", "fedavg", "fedgbo:sgdm", "beta=0.9"])[1]
    Entry(name='fedgbo', optimiser='sgdm', settings=('lr=.1', 'beta=0.9'), field=False)
    >>> parse_entries(["fedavg lr=.1", "fedgbo:my.py:AdamW lr=.1"])[1]
    Entry(name='fedgbo', optimiser='my.py:AdamW', settings=('lr=.1',), field=False)
    """
    parts = [part for text in arguments for part in re.split(rf"\s+(?={SETTING.pattern})", text.strip()) if part]
    first = next((i for i, part in enumerate(parts) if not SETTING.match(part)), len(parts))
    named: list[tuple[str, list[str]]] = []
    for part in parts[first:] or [PAPERS]:
        if SETTING.match(part):
            named[-1][1].append(part)
        else:
            named.append((part, []))
    entries = []
    for text, own in named:
        names = {ALL: tuple(all_of_them), PAPERS: PAPER}.get(text.lower(), (text,))
        field = text.lower() == ALL and names != PAPER
        entries += [Entry(*parse_entry(name), (*parts[:first], *own), field) for name in names]
    for setting in (setting for entry in entries for setting in entry.settings):
        if (key := setting.partition("=")[0].strip()) in SHARED:
            raise ConfigError(
                f"'{setting}': all algorithms of a comparison have the same {key}; see --task and --seeds"
            )
    return entries


def parse_entry(entry: str) -> tuple[str, str | None]:
    """Split name:optimiser, where both may be path/to/file.py:Class.

    >>> parse_entry("FedGBO:Adam"), parse_entry("fedavg"), parse_entry("mine.py:Own")
    (('fedgbo', 'adam'), ('fedavg', None), ('mine.py:Own', None))
    >>> parse_entry("fedgbo:my.py:AdamW"), parse_entry("mine.py:Own:sgdm")
    (('fedgbo', 'my.py:AdamW'), ('mine.py:Own', 'sgdm'))
    """
    names, rest = [], entry
    while rest:
        own = re.match(r"[^:]*\.py:[^:]*|[^:]*", rest)
        name = own[0] if own else rest
        names.append(name if ":" in name else name.lower())
        rest = rest[len(name) + 1 :]
    if not 1 <= len(names) <= 2 or not all(names):
        raise ConfigError(f"'{entry}' must be an algorithm, or algorithm:optimiser, e.g. fedavg or fedgbo:sgdm")
    return names[0], names[1] if len(names) > 1 else None
