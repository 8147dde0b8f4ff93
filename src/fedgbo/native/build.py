"""Builds the C code, once for each level of instructions, when the package is installed. `library` picks a level.

Run by hatch_build.py, which has nothing but the standard library, or as a script after a change of the C code.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
BUILT = HERE / "built"
FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-Wno-psabi")
PORTABLE = "portable"  # without any flag: every processor of its kind can run it
X86 = {"avx512": ("-march=x86-64-v4",), "avx2": ("-march=x86-64-v3",)}
TIMEOUT = 300  # seconds for one file, on a slow machine


class BuildError(Exception):
    """There is no C compiler, or it failed."""


def digest() -> str:
    """Return a hash of all C files, which the library keeps too: a change without a new build is noticed."""
    files = sorted(path for path in HERE.iterdir() if path.suffix in (".c", ".h"))
    return hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in files)).hexdigest()[:16]


def levels(machine: str = platform.machine()) -> dict[str, tuple[str, ...]]:
    """Return the compiler's flags for each level of this kind of processor, the best first."""
    x86 = X86 if machine.lower() in ("x86_64", "amd64") else {}
    return {**x86, PORTABLE: ()}


def build(folder: Path = BUILT) -> list[Path]:
    """Build a library for each level that the compiler knows into `folder`; return them."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise BuildError("there is no C compiler")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as room, ThreadPoolExecutor(os.cpu_count()) as threads:
        works = {name: threads.submit(_runs, [compiler, *flags, "-E", "-"]) for name, flags in levels().items()}
        known = {name: flags for name, flags in levels().items() if works[name].result()}
        if PORTABLE not in known:
            raise BuildError(f"the C compiler {compiler} does not work")
        jobs = {
            name: [threads.submit(_compiled, compiler, flags, source, Path(room) / name) for source in _sources()]
            for name, flags in known.items()
        }
        return [
            _linked(compiler, [job.result() for job in objects], folder / f"{name}.so")
            for name, objects in jobs.items()
        ]


def _sources() -> list[Path]:
    """Return all C files, the longest first, so that none is waited for at the end."""
    return sorted(HERE.glob("*.c"), key=lambda path: "network" not in path.name)


def _compiled(compiler: str, flags: tuple[str, ...], source: Path, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    target = folder / f"{source.stem}.o"
    _run([compiler, *FLAGS, *flags, f'-DDIGEST="{digest()}"', "-c", "-o", str(target), str(source)])
    return target


def _linked(compiler: str, objects: list[Path], target: Path) -> Path:
    temporary = objects[0].parent / target.name
    _run([compiler, "-shared", "-o", str(temporary), *map(str, objects), "-lm"])
    temporary.replace(target)  # whole, for a process that loads it at this moment
    return target


def _runs(command: list[str]) -> bool:
    try:
        _run(command)
    except BuildError:
        return False
    return True


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as error:
        message = getattr(error, "stderr", None) or b""
        raise BuildError(f"{' '.join(command)} failed: {error} {message.decode(errors='replace')}") from error


if __name__ == "__main__":
    build()
