"""A small search that tests share."""

from fedgbo.experiments.tune.plan import plan_of
from fedgbo.experiments.tune.study import local_url, open_study
from fedgbo.experiments.tune.worker import SearchContext, work


def small_plan(*ranges, task="digits", **asked):
    asked = {"held_out": 0.2, "rounds": 4, "eval_every": 1, "seeds": 2, "search": "grid", "prune": 0, **asked}
    return plan_of(task, "fedavg", None, ranges or ["lr=0.1,0.2,0.3"], asked)


def small_study(plan, out):
    out.mkdir(exist_ok=True)
    return open_study(plan, local_url(out), "small")


def carry_out_all(plan, out, watch=lambda progress: None):
    """Work alone until the study has ended; return it."""
    study = small_study(plan, out)
    cohort = plan.config({axis.name: axis.low for axis in plan.axes}, 0).build_task().cohort_size
    work(SearchContext(study, plan, out, cohort, 1, watch))
    return study
