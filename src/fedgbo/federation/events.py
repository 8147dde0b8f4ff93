"""What the server's app writes down as it happens, events.jsonl in the run's folder, read while it grows."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME = "events.jsonl"


@dataclass(frozen=True)
class Event:
    """One line: what kind it is, and the rest."""

    kind: str
    content: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.content.get(key)


class EventFile:
    """The events of a run, each read once."""

    def __init__(self, run_folder: Path, skip: bool = False) -> None:
        """`skip` passes over what is there already, as a resumed run's past is."""
        self.path = run_folder / NAME
        self._place = self.path.stat().st_size if skip and self.path.exists() else 0

    def new(self) -> Iterator[Event]:
        """Yield the events that have come since the last time; a line that is still being written waits."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._place)
                content = file.read()
        except FileNotFoundError:
            return
        whole, newline, _ = content.rpartition(b"\n")
        self._place += len(whole) + len(newline)
        for line in whole.splitlines():
            try:
                told = json.loads(line)
            except ValueError:  # cut off by a kill, then written on by the run that resumed
                continue
            if isinstance(told, dict) and isinstance(told.get("kind"), str):
                yield Event(told["kind"], told)
