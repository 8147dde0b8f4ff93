"""Is a federation's result that of `fedgbo run`? Two digests tell."""

import tempfile
from pathlib import Path

from fedgbo.core.errors import RunFolderError
from fedgbo.runs.checkpoint import digest
from fedgbo.runs.config import execute, read_config
from fedgbo.runs.folder import RunFolder


def digest_of(run: Path) -> str:
    """Return the digest of the parameters and statistics at the end of a finished run."""
    folder = RunFolder.open(run)
    status = folder.status()
    if status["status"] != "finished":
        raise RunFolderError(
            f"the run in {run} is not finished ({status['status']}), so there is nothing to compare yet"
        )
    checkpoint, _ = folder.latest()
    if checkpoint is None:
        raise RunFolderError(f"{run} has no checkpoint")
    return digest(checkpoint.state.tensors())


def simulated(run: Path) -> str:
    """Do the run in a folder again, here and without a federation, and return the digest of what comes out."""
    config = read_config(run)
    with tempfile.TemporaryDirectory(prefix="fedgbo-") as place:
        return digest(execute(config, Path(place) / "run").state.tensors())
