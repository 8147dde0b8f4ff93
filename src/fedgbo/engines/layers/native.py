"""The C loops next to this file: built once by the machine's own compiler, or done without."""

import ctypes
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = ("combine.c", "conv.c", "draw.c", "gru.c", "pool.c", "stack.c", "step.c", "sum.c")
HEADERS = ("pool_loops.h", "vectors.h")
FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-Wno-psabi")
TIMEOUT = 20  # seconds; a build takes about one
SWITCH = "FEDGBO_NATIVE"  # set to 0 in the environment to do without

log = logging.getLogger(__name__)


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the loaded loops, or None without a compiler: callers then take torch's own operations."""
    if os.environ.get(SWITCH) == "0":
        return None
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        log.info("no C compiler: layers run on torch's own operations")
        return None
    for target in (("-march=native",), ()):
        try:
            return _declare(ctypes.CDLL(str(_built(compiler, (*FLAGS, *target)))))
        except (OSError, AttributeError, subprocess.SubprocessError) as error:
            log.info("building the layer loops with %s %s failed: %s", compiler, " ".join(target), error)
    return None


def _built(compiler: str, flags: tuple[str, ...]) -> Path:
    """Return the shared library, from the cache if this source was built for this machine before."""
    target = [flag for flag in flags if flag.startswith("-m")]
    # all predefined macros: they tell the compiler's version and the instructions of this processor
    macros = _run([compiler, *target, "-dM", "-E", "-x", "c", os.devnull])
    digest = hashlib.sha256(macros + " ".join(flags).encode())
    for name in (*SOURCES, *HEADERS):
        digest.update((HERE / name).read_bytes())
    name = f"layers-{digest.hexdigest()[:16]}.so"
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedgbo"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (folder / name).exists():
            return folder / name
        handle, temporary = tempfile.mkstemp(dir=folder, suffix=".so")
    except (OSError, RuntimeError):  # no home, or one that cannot be written
        folder = Path(tempfile.mkdtemp(prefix="fedgbo-"))
        handle, temporary = tempfile.mkstemp(dir=folder, suffix=".so")
    os.close(handle)
    try:
        _run([compiler, *flags, "-o", temporary, *(str(HERE / source) for source in SOURCES), "-lm"])
        Path(temporary).replace(folder / name)  # another process may build the same: the last one wins, whole
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return folder / name


def _run(command: list[str]) -> bytes:
    return subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT).stdout


def _declare(loaded: ctypes.CDLL) -> ctypes.CDLL:
    """Give the functions their C types, so that plain numbers and addresses can be passed."""
    number, size, address = ctypes.c_int, ctypes.c_long, ctypes.c_void_p
    loaded.fedgbo_lanes.argtypes = []
    loaded.fedgbo_draw.argtypes = [size] * 4 + [address] * 2
    loaded.fedgbo_conv_forward.argtypes = [number] * 8 + [address] * 6
    loaded.fedgbo_conv_backward.argtypes = [number] * 7 + [address] * 7
    loaded.fedgbo_gru_forward.argtypes = [number] * 3 + [address] * 5
    loaded.fedgbo_gru_backward.argtypes = [number] * 3 + [address] * 5 + [size] * 2 + [address] * 2
    loaded.fedgbo_stack.argtypes = [address] * 7 + [ctypes.c_float] + [address] * 2
    loaded.fedgbo_stack.restype = size
    for kind, own in (("float", ctypes.c_float), ("double", ctypes.c_double)):
        getattr(loaded, f"fedgbo_step_{kind}").argtypes = [size] + [address] * 4 + [own]
        getattr(loaded, f"fedgbo_add_{kind}").argtypes = [size] * 2 + [address] * 3 + [size, ctypes.c_double]
        getattr(loaded, f"fedgbo_combine_{kind}").argtypes = [size] * 4 + [address] * 2
        getattr(loaded, f"fedgbo_combine_{kind}").restype = size
        getattr(loaded, f"fedgbo_pool_{kind}_forward").argtypes = [number] * 5 + [address] * 3
        getattr(loaded, f"fedgbo_pool_{kind}_backward").argtypes = [number] * 4 + [address] * 3
    return loaded
