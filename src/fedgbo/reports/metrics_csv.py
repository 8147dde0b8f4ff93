"""The metrics of many runs as one small CSV file, and back; it keeps the numbers after the run folders are deleted.

A row is an evaluation. Settings are in columns named after their place in run.json, such as algorithm.optimiser.lr:
names as plain text, all other values as JSON. An empty cell is a setting that the run does not have, or a number that
was not measured. Numbers keep all digits.
"""

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import Any

from fedgbo.core.errors import FedGBOError, RunFolderError
from fedgbo.reports.load import RunData, checked_config, flatten, in_order
from fedgbo.reports.table import numbers_csv
from fedgbo.runs.record import Record

MEASURED = tuple(field.name for field in fields(Record) if field.name != "drift")
TEXT = ("run", "status")  # the folder's name, and how the run ended


def metrics_csv(runs: Iterable[RunData]) -> str:
    """Write all evaluations of some runs; runs without evaluations are left out."""
    given = [(run, _settings(run)) for run in runs]
    empty = dict.fromkeys((name for _, settings in given for name in settings), "")
    return numbers_csv(
        [
            {**empty, **settings, **{name: getattr(record, name) for name in MEASURED}}
            for run, settings in given
            for record in run.records
        ]
    )


def read_metrics(file: Path) -> list[RunData]:
    """Undo `metrics_csv`; raise RunFolderError, naming the file, if its content is damaged."""
    try:
        with file.open(encoding="utf-8", newline="") as opened:
            rows = list(csv.DictReader(opened))
        settings = [[(key, row[key]) for key in row if key not in MEASURED and row[key]] for row in rows]
        return [
            _run(dict(same), [row for _, row in members], file)
            for same, members in groupby(zip(settings, rows, strict=True), key=lambda pair: pair[0])
        ]
    except FedGBOError:
        raise
    except (OSError, csv.Error, ValueError, TypeError, KeyError, RecursionError) as error:
        raise RunFolderError(f"{file} cannot be read as metrics of runs: {error!r}") from error


def _run(settings: Mapping[str, str], rows: Iterable[Mapping[str, str]], file: Path) -> RunData:
    content: dict[str, Any] = {}
    for key, cell in settings.items():
        *path, last = key.split(".")
        inner = content
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = cell if last == "name" or key in TEXT else json.loads(cell)
    name, status = (content.pop(key) for key in TEXT)
    config = checked_config(content, file)
    records = in_order((_record(row, file) for row in rows), file)
    return RunData(file.with_name(name), config, status, records, max(config.rounds, records[-1].round))


def _record(row: Mapping[str, str], file: Path) -> Record:
    try:
        return Record.of_line(json.dumps({name: json.loads(row[name]) if row[name] else None for name in MEASURED}))
    except RunFolderError as error:
        raise RunFolderError(f"{file} is damaged: {error}") from error


def _settings(run: RunData) -> dict[str, str]:
    given = {key: value for key, value in run.config.model_dump().items() if value is not None and value != []}
    cells = {name: value if name.endswith(".name") else json.dumps(value) for name, value in flatten(given)}
    return {"run": run.path.name, "status": run.status, **cells}
