"""Runs as TensorBoard's event files, a folder for each run."""

from collections.abc import Sequence
from pathlib import Path

from fedgbo.reports.events import scalar_event, version_event
from fedgbo.reports.load import RunData
from fedgbo.reports.measures import drift_of
from fedgbo.reports.sections import Section, slug, unique
from fedgbo.runs.files import write_atomic
from fedgbo.runs.record import Record

LARGEST = 3.4e38  # of a float32, in which TensorBoard keeps numbers
FILE = "events.out.tfevents.fedgbo"  # TensorBoard looks for "tfevents"


def write_events(sections: Sequence[Section], folder: Path) -> list[Path]:
    """Write folder/section/algorithm-seed for each run; return the files. Steps are rounds."""
    files = []
    for section in sections:
        runs = [run for line in section.lines for run in line.runs]
        labels = [f"{line.label}-seed{run.config.seed}" for line in section.lines for run in line.runs]
        for run, name in zip(runs, unique([slug(label) for label in labels]), strict=True):
            file = folder / section.slug / name / FILE
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(file, _events(run))
            files.append(file)
    return files


def _events(run: RunData) -> bytes:
    """Times are the run's: when its run.json was written, and the seconds since, pauses left out."""
    began = (run.path / "run.json").stat().st_mtime
    events = [scalar_event(began + r.seconds, r.round, _scalars(r)) for r in run.records]
    return version_event(began) + b"".join(events)


def _scalars(record: Record) -> dict[str, float]:
    values = {
        "score/accuracy": record.accuracy,
        "score/loss": record.loss,
        "score/train_loss": record.train_loss,
        "cost/upload_bytes": record.upload_bytes,
        "cost/download_bytes": record.download_bytes,
        "cost/flops": record.flops,
        "cost/seconds": record.seconds,
        **{f"drift/{key}": value for key, value in drift_of(record).items()},
    }
    return {key: max(-LARGEST, min(LARGEST, value)) for key, value in values.items() if value is not None}
