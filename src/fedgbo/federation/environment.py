"""What Flower's processes find around them: a home of our own, nothing sent to anybody, nothing installed."""

import os
import shutil
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from fedgbo.core.errors import MissingExtraError
from fedgbo.federation.extras import require_flower
from fedgbo.federation.secret_files import private_folder

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # a second otherwise, for each message
    "PYTHONUNBUFFERED": "1",
    "NO_COLOR": "1",
}
HERE = "localhost,127.0.0.1,::1"  # never by way of a web proxy


def flower_environment(home: Path) -> dict[str, str]:
    """Return the environment of a Flower process with `home` for its things; the user's own FLWR_* do not count."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FLWR_")}
    past = kept.get("NO_PROXY") or kept.get("no_proxy")
    direct = f"{past},{HERE}" if past else HERE
    path = os.pathsep.join([_scripts(), kept.get("PATH", os.defpath)])  # Flower finds its own commands there
    home = private_folder(home).absolute()
    return {**kept, **QUIET, "FLWR_HOME": str(home), "PATH": path, "NO_PROXY": direct, "no_proxy": direct}


def flower_command(name: str, environment: Mapping[str, str]) -> str:
    """Return the full path of one of Flower's commands."""
    require_flower()
    found = shutil.which(name, path=environment["PATH"])
    if found is None:
        raise MissingExtraError(
            f"Flower's command {name} is not beside this Python; install it with: pip install 'fedgbo[flower]'"
        )
    return found


def _scripts() -> str:
    return sysconfig.get_path("scripts")
