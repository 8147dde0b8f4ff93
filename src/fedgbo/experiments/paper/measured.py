"""The paper's experiments: the files that are shipped, and their runs by task, K, algorithm and optimiser."""

import tomllib
from collections.abc import Iterable, Sequence
from importlib.resources import files

from fedgbo.algorithms import ALGORITHMS
from fedgbo.core.optimiser import Optimiser
from fedgbo.experiments.changes import Changes
from fedgbo.experiments.experiment import Experiment, make_experiment, only
from fedgbo.experiments.paper.published import PaperTask, tasks
from fedgbo.experiments.presets import optimiser_slots
from fedgbo.experiments.survey import Results
from fedgbo.optimisers import OPTIMISERS
from fedgbo.reports.load import Group, group_runs
from fedgbo.runs.config import RunConfig

Key = tuple[str, int, str, str]  # task, K, algorithm, optimiser


def paper_experiment(
    name: str, changes: Changes, task_names: Sequence[str] = (), optimisers: Sequence[str] = ()
) -> Experiment:
    """Return the experiment behind a figure or a table, or a part of it."""
    text = files("fedgbo.experiments.paper").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return only(make_experiment(tomllib.loads(text), name, changes), task=task_names, optimiser=optimisers)


def key_of(config: RunConfig) -> Key:
    """Return which curve of the paper a run belongs to."""
    optimiser = (config.algorithm.get("server") or config.algorithm["optimiser"])["name"]
    steps = config.local_steps if isinstance(config.local_steps, int) else 0
    return str(config.task["name"]).removesuffix("-synthetic"), steps, str(config.algorithm["name"]), str(optimiser)


def by_key(results: Results) -> dict[Key, Group]:
    """Return the finished runs, those that differ only in their seed together."""
    return {key_of(group.runs[0].config): group for group in group_runs(results.finished)}


def lost(results: Results) -> dict[Key, int]:
    """Return how many seeds diverged."""
    keys = [key_of(place.config) for place in results.diverged]
    return {key: keys.count(key) for key in keys}


def titles(keys: Iterable[Key]) -> dict[str, PaperTask]:
    """Return the paper's tasks that occur, in the paper's order."""
    there = {key[0] for key in keys}
    return {name: task for name, task in tasks().items() if name in there}


def takes_optimiser(algorithm: str) -> bool:
    """Return whether the algorithm is one of those that the paper runs with three optimisers."""
    return Optimiser in optimiser_slots(ALGORITHMS[algorithm]).values()


def algorithm_title(name: str) -> str:
    """Write an algorithm's name as the paper does."""
    return ALGORITHMS[name].__name__


def optimiser_title(name: str) -> str:
    """Write an optimiser's name as the paper does."""
    return OPTIMISERS[name].__name__
