"""An experiment's runs in their folder: what is there, what is to be done, and what came out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedgbo.core.errors import FolderBusyError, RunFolderError
from fedgbo.experiments.experiment import Experiment
from fedgbo.experiments.jobs import Job
from fedgbo.experiments.shelf import Find, folder_name, look, set_aside, title
from fedgbo.reports.load import RunData
from fedgbo.runs.config import RunConfig


@dataclass(frozen=True)
class Place:
    """A run, its folder, and what was found there."""

    config: RunConfig
    path: Path
    find: Find

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to do: a run that diverged would only diverge again."""
        return self.find.state in ("finished", "diverged")

    def job(self) -> Job:
        """Return what is to be run."""
        return Job(self.config, self.path, title(self.config))


@dataclass(frozen=True)
class Results:
    """What an experiment's runs came to."""

    finished: tuple[RunData, ...]
    diverged: tuple[Place, ...]
    failed: tuple[tuple[Place, str], ...]  # and why
    set_aside: tuple[str, ...] = ()  # damaged folders that were found in place of runs

    @property
    def lacking(self) -> list[str]:
        """Say how many runs are in no mean, and so in no picture: what is left may look better than the whole."""
        total = len(self.finished) + len(self.diverged) + len(self.failed)
        said = [f"{len(self.diverged)} of {total} runs diverged (in no mean)"] if self.diverged else []
        return said + ([f"{len(self.failed)} of {total} runs failed (missing)"] if self.failed else [])


def survey(experiment: Experiment, out: Path) -> list[Place]:
    """Look at the place of every run; the folders are shared by all experiments in `out`."""
    if out.exists() and not out.is_dir():
        raise RunFolderError(f"{out} is a file; choose a folder")
    places = []
    for config in experiment.configs:
        path = out / "runs" / folder_name(config)
        places.append(Place(config, path, look(path, config)))
    return places


def clear(places: Sequence[Place]) -> tuple[list[Place], list[str]]:
    """Set damaged folders aside; return the places as they are now, and what to say about it."""
    cleared, said = [], []
    for place in places:
        if place.find.state != "damaged":
            if place.find.state == "begun" and place.find.reason:
                said.append(f"{place.path.name} goes on from an older checkpoint: {place.find.reason}")
            cleared.append(place)
            continue
        try:
            found, aside = set_aside(place.path, place.config)
        except FolderBusyError:  # it looked damaged because a process is just writing it
            cleared.append(replace(place, find=Find("begun")))
            continue
        if aside is None:  # another experiment has put it right meanwhile
            cleared.append(replace(place, find=found))
            continue
        said.append(f"damaged, set aside as {aside.name}, and done anew: {found.reason}")
        cleared.append(replace(place, find=Find("missing")))
    return cleared, said


def results(experiment: Experiment, out: Path, reasons: dict[Path, str], said: Sequence[str] = ()) -> Results:
    """Read what the runs left, from the disk and not from memory: the same whoever ran them, and when."""
    finished: list[RunData] = []
    diverged: list[Place] = []
    failed: list[tuple[Place, str]] = []
    for place in survey(experiment, out):
        if place.find.state == "finished" and place.find.run is not None:
            finished.append(_cut(place.find.run, place.config.rounds))
        elif place.find.state == "diverged":
            diverged.append(place)
        else:
            failed.append((place, reasons.get(place.path) or place.find.reason or place.find.state))
    return Results(tuple(finished), tuple(diverged), tuple(failed), tuple(said))


def heading(experiment: Experiment, found: Results) -> str:
    """Return the title of a table or picture, with all that makes it less than what the file says."""
    return "; ".join([experiment.heading, *found.lacking])


def _cut(run: RunData, rounds: int) -> RunData:
    """Drop what lies beyond the experiment's rounds: somebody may have gone on with the run for longer."""
    return replace(run, records=tuple(record for record in run.records if record.round <= rounds))
