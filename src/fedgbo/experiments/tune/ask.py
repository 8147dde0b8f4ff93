"""From what a user asks to a plan: defaults filled in, and everything checked before anything is trained."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from fedgbo.core.errors import ConfigError
from fedgbo.experiments.presets import known_name
from fedgbo.experiments.tune.axes import axes_of
from fedgbo.experiments.tune.plan import Plan
from fedgbo.runs.describe import find

TRIALS = 30  # of TPE without a budget
UNLIMITED = 1_000_000  # trials, where a budget of rounds ends the search
POINTS = 20  # of a curve


def plan_of(task: str, algorithm: str, optimiser: str | None, ranges: Sequence[str], asked: Mapping[str, Any]) -> Plan:
    """Return the plan; `asked` has the fields of a Plan that were given, the others are None or not there.

    Only `held_out` says something by being None: to tune on the test set.
    """
    find("task", task)
    find("algorithm", algorithm)
    if optimiser is not None:
        find("optimiser", optimiser)
    axes, fixed = axes_of(algorithm, optimiser, ranges)
    given = {key: value for key, value in asked.items() if value is not None or key == "held_out"}
    try:
        plan = Plan(
            task={"name": task},
            algorithm=known_name(algorithm),
            optimiser=optimiser and known_name(optimiser),
            axes=tuple(axes),
            fixed=fixed,
            **{"trials": UNLIMITED if "budget" in given else TRIALS, **given},
        )
    except ValidationError as error:
        item = error.errors()[0]
        name = str(item["loc"][0]).replace("_", "-")
        raise ConfigError(f"--{name}: {item['msg'].lower()}, not {item['input']!r}") from error
    changes: dict[str, Any] = {}
    if plan.search == "grid":
        changes["trials"] = min(plan.cells, plan.trials if "trials" in given else plan.cells)
    if "eval_every" not in given:
        changes["eval_every"] = max(1, plan.rounds // POINTS)
    plan = plan.model_copy(update=changes)
    plan.check()
    return plan
