"""All C code and its loader. The machine's compiler builds it once; without one, callers use torch's operations."""

import ctypes
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from fedgbo.core import AffineStep

HERE = Path(__file__).parent
SOURCES = ("conv.c", "gru.c", "pool.c", "sparse.c", "stack.c", "step.c", "sum.c", "walk.c")
HEADERS = ("pool_loops.h", "vectors.h")
FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-Wno-psabi")
TIMEOUT = 20  # seconds; a build takes about one
SWITCH = "FEDGBO_NATIVE"  # set to 0 in the environment to use torch's operations
TYPES = {torch.float32: "float", torch.float64: "double"}  # that the C functions exist for, and their suffixes

log = logging.getLogger(__name__)


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the loaded library, or None without a compiler: callers then use torch's own operations."""
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
            log.info("building the C code with %s %s failed: %s", compiler, " ".join(target), error)
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
    loaded.fedgbo_walk.argtypes = [ctypes.c_uint64, size, size, address]
    loaded.fedgbo_walk.restype = size
    loaded.fedgbo_conv_forward.argtypes = [number] * 8 + [address] * 6
    loaded.fedgbo_conv_backward.argtypes = [number] * 7 + [address] * 7
    loaded.fedgbo_gru_forward.argtypes = [number] * 3 + [address] * 5
    loaded.fedgbo_gru_backward.argtypes = [number] * 3 + [address] * 5 + [size] * 2 + [address] * 2
    loaded.fedgbo_stack.argtypes = [address] * 7 + [ctypes.c_float] + [address] * 2
    loaded.fedgbo_stack.restype = size
    for kind, own in (("float", ctypes.c_float), ("double", ctypes.c_double)):
        getattr(loaded, f"fedgbo_step_{kind}").argtypes = [size] + [address] * 4 + [own]
        getattr(loaded, f"fedgbo_add_{kind}").argtypes = [size] * 2 + [address] * 3
        getattr(loaded, f"fedgbo_mean_{kind}").argtypes = [size] + [address] * 2 + [ctypes.c_double, address]
        sparse = getattr(loaded, f"fedgbo_sparse_{kind}")
        sparse.argtypes = (
            [size] * 2 + [address] * 4 + [size] * 2 + [address] * 4 + [ctypes.c_double] * 2 + [address] * 2
        )
        sparse.restype = ctypes.c_double
        getattr(loaded, f"fedgbo_pool_{kind}_forward").argtypes = [number] * 5 + [address] * 3
        getattr(loaded, f"fedgbo_pool_{kind}_backward").argtypes = [number] * 4 + [address] * 3
    return loaded


def addresses(step: AffineStep) -> tuple[int | None, int | None, float]:
    """Return offset, scale and rate as the C functions take them: null pointers for no offset and for equal scales."""
    offset = step.offset.data_ptr() if isinstance(step.offset, Tensor) else None
    return (offset, step.scale.data_ptr(), 0.0) if isinstance(step.scale, Tensor) else (offset, None, step.scale)


def step_in_place(step: AffineStep, y: Tensor, grad: Tensor, begin: int = 0) -> None:
    """Take the step y <- y - (offset + scale g) in place, for the contiguous parameters from `begin` on."""
    part = slice(begin, begin + y.numel())
    offset = step.offset[part] if isinstance(step.offset, Tensor) else step.offset
    scale = step.scale[part] if isinstance(step.scale, Tensor) else step.scale
    native = library() if y.is_cpu and y.dtype in TYPES else None
    if native is not None:
        take = getattr(native, f"fedgbo_step_{TYPES[y.dtype]}")
        take(y.numel(), y.data_ptr(), grad.data_ptr(), *addresses(AffineStep(offset, scale)))
        return
    y, grad = y.view(-1), grad.reshape(-1)
    y.sub_(offset)
    if isinstance(scale, Tensor):
        y.addcmul_(scale, grad, value=-1)
    else:
        y.add_(grad, alpha=-scale)
