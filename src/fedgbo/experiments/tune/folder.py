"""The folder of a search: tune.json says which, trials/ holds the runs, study.db the study unless it lies elsewhere."""

import json
from pathlib import Path

from fedgbo.core.errors import RunFolderError
from fedgbo.experiments.tune.plan import Plan
from fedgbo.runs.files import write_atomic


def claim_folder(out: Path, plan: Plan, study: str) -> None:
    """Make the folder, or check that it is of this very search; several processes may do so at the same time."""
    content = json.dumps({"study": study, **json.loads(plan.identity())}, indent=2) + "\n"
    file = out / "tune.json"
    try:
        out.mkdir(parents=True, exist_ok=True)
        held = {entry.name for entry in out.iterdir() if not entry.name.startswith(".")}
        if held and not file.exists():
            raise RunFolderError(f"{out} is not empty (it holds {min(held)}); choose a new or empty folder")
        if not file.exists():
            write_atomic(file, content.encode())
        if file.read_text(encoding="utf-8") != content:
            raise RunFolderError(f"{out} holds another search; choose another folder, or repeat that one's settings")
    except OSError as error:
        raise RunFolderError(f"cannot write into {out}: {error.strerror}; choose another place") from error
