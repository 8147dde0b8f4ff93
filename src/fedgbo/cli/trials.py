"""How a search is shown: a line for each trial that ends, a status line meanwhile, and what came out in the end."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import optuna
from rich.markup import escape
from rich.status import Status

from fedgbo.cli.console import err, out, quantity
from fedgbo.core.errors import MissingExtraError
from fedgbo.experiments.tune.plan import Plan
from fedgbo.reports.charts import save_chart
from fedgbo.experiments.tune.study import Outcome, edges, outcome_of, trials_csv, winner
from fedgbo.reports.chart import save_chart
from fedgbo.reports.sensitivity import Scale, Tried, sensitivity_chart
from fedgbo.runs.files import write_atomic

LOOK_SECONDS = 2.0  # between two looks at the study


class Show:
    """Called with the study, now and then; shows what has happened since, whoever did it."""

    def __init__(self, plan: Plan, folder: Path, workers: int, quiet: bool) -> None:
        self._plan, self._quiet = plan, quiet
        self._known: set[int] = set()
        self._last = float("-inf")
        self._status = Status("", console=err) if err.is_terminal and not quiet else None
        if not quiet:
            many = f"{plan.trials} trials" if plan.budget is None else f"{plan.budget} rounds"
            told = f"{plan.search}: {many} of {plan.trial_rounds} rounds each, {workers} at a time, into {folder}"
            err.print(escape(told))

    def __enter__(self) -> "Show":
        if self._status:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status:
            self._status.stop()

    def __call__(self, study: optuna.Study) -> None:
        """Show what is new."""
        if self._quiet or time.monotonic() - self._last < LOOK_SECONDS:
            return
        self._last = time.monotonic()
        now = outcome_of(study, self._plan)
        for tried in now.tried:
            if tried.index not in self._known:
                err.print(f"trial {tried.index}: {_line(tried)}")
        self._known = {tried.index for tried in now.tried}
        if self._status:
            whole = [tried for tried in now.tried if tried.state == "finished"]
            best = f"; best so far: {_line(now.best)}" if whole else ""
            self._status.update(f"{len(now.tried)} trials, {now.cost.rounds} rounds{best}")


def report(study: optuna.Study, plan: Plan, folder: Path, as_json: bool, seconds: float) -> None:
    """Write the files and print what came out."""
    found = outcome_of(study, plan)
    best = found.best
    write_atomic(folder / "preset.csv", winner(plan, best).encode())
    write_atomic(folder / "trials.csv", trials_csv(plan, found.tried).encode())
    what = measured(study, plan)
    summary = _summary(found, plan, folder, what)
    write_atomic(folder / "result.json", (json.dumps(summary, indent=2) + "\n").encode())
    try:
        files = save_chart(_chart(found, plan, what), folder / "sensitivity")
    except MissingExtraError as error:
        files = []
        err.print(escape(str(error)))
    if as_json:
        out.print_json(json.dumps(summary))
        return
    out.print(f"best: {_line(best)}")
    for warning in edges(plan, best):
        err.print(f"[bold yellow]note:[/] {warning}")
    out.print(_spent(found, seconds))
    out.print(escape(f"preset   {folder / 'preset.csv'}\ntrials   {folder / 'trials.csv'}"))
    for file in files:
        out.print(escape(f"picture  {file}"))
    out.print(escape(f"use it: {_command(plan, folder)}"))


def _line(tried: Tried) -> str:
    settings = ", ".join(f"{key}={value:g}" for key, value in tried.settings.items())
    score = "" if tried.score is None else f", {tried.score:.4f}"
    how = "" if tried.state == "finished" else f", {tried.state} at round {tried.cost['rounds']}"
    return f"{settings}{score}{how}"


def _spent(found: Outcome, seconds: float) -> str:
    cost, many = found.cost, len(found.tried)
    again = f"; {found.taken_up} gone on with after a cut, {found.lost_rounds} rounds lost" if found.taken_up else ""
    return (
        f"cost: {many} {'trial' if many == 1 else 'trials'} ({found.count('stopped early')} stopped early, "
        f"{found.count('diverged')} diverged{again}), {cost.rounds} rounds, {cost.client_steps} client steps, "
        f"{quantity(cost.upload_bytes, 'B', 1024)} up, {quantity(cost.flops, 'FLOP')} on clients, "
        f"{cost.seconds:.0f} s of training; {seconds:.0f} s in this command"
    )


def _summary(found: Outcome, plan: Plan, folder: Path, what: str) -> dict[str, Any]:
    return {
        "out": str(folder),
        "settings": {**plan.fixed, **found.best.settings},
        "score": found.best.score,
        "measured": what,
        "trials": len(found.tried),
        "stopped_early": found.count("stopped early"),
        "diverged": found.count("diverged"),
        "taken_up": found.taken_up,
        "lost_rounds": found.lost_rounds,
        **asdict(found.cost),
    }


def measured(study: optuna.Study, plan: Plan) -> str:
    """Name what the score is."""
    kind = {"curve": "mean", "best": "best", "last": "last"}[plan.score]
    where = "test" if plan.held_out is None else "held-out"
    what = "accuracy" if study.user_attrs["metric"] else "loss, negative"
    return f"{kind} {where} {what}" + (f" after round {plan.warm_up}" if plan.warm_up else "")


def _chart(found: Outcome, plan: Plan, what: str) -> Any:
    grid = plan.search == "grid"
    scales = [Scale(a.name, a.values if grid else None, a.decay, a.logarithmic) for a in plan.axes]
    title = f"{plan.task['name']}: {plan.algorithm} {plan.optimiser or ''}".rstrip()
    return sensitivity_chart(found.tried, scales, title, what)


def _command(plan: Plan, folder: Path) -> str:
    optimiser = f" --optimiser {plan.optimiser}" if plan.optimiser else ""
    steps = "" if plan.local_steps == 10 else f" --local-steps {plan.local_steps}"
    task = f"--task {plan.task['name']} --algorithm {plan.algorithm}{optimiser}{steps}"
    return f"fedgbo run --preset {folder / 'preset.csv'} {task}"
