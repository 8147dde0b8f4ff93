"""What happens in a federation, as it happens: one JSON object a line in the run folder's events.jsonl, and the log."""

import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

LOG = logging.getLogger("fedgbo.flower")
LOUD = {"refused", "duplicate", "rejected", "dropped", "late", "abandoned", "stopped"}


class Events:
    """Writes events down. Until the run's folder is known to be this run's own they go to the log only."""

    def __init__(self) -> None:
        self.folder: Path | None = None

    def __call__(self, kind: str, **more: Any) -> None:
        """Write one event."""
        LOG.log(logging.WARNING if kind in LOUD else logging.INFO, "%s %s", kind, json.dumps(more))
        if self.folder is None:
            return
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "kind": kind, **more})
        with (self.folder / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")
