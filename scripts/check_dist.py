"""Check dist/: the sdist has every tracked file, so that tests pass from it; the wheel has all code and data files.

python scripts/check_dist.py     # after python -m build: make dist
"""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Print the files that are missing, and exit with 1 if there are any."""
    (sdist,), (wheel,) = (ROOT / "dist").glob("*.tar.gz"), (ROOT / "dist").glob("*.whl")
    tracked = set(subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines())
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as archive:
        installed = set(archive.namelist())
    missing = [f"{sdist.name} lacks {name}" for name in sorted(tracked - packed)]
    package = {name.removeprefix("src/") for name in tracked if name.startswith("src/fedgbo/")}
    missing += [f"{wheel.name} lacks {name}" for name in sorted(package - installed)]
    if not any(name.endswith("portable.so") for name in installed):  # a build without a compiler does not fail
        missing.append(f"{wheel.name} lacks the C code: see the warnings of the build")
    print("\n".join(missing) or f"{sdist.name} and {wheel.name} are complete")
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
