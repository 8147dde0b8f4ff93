"""All C code, built at installation (build.py), and its loader; without a compiler, callers use torch's operations."""

import ctypes
import functools
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedgbo.core import AffineStep
from fedgbo.native.build import BUILT, PORTABLE, digest

SWITCH = "FEDGBO_NATIVE"  # set to 0 in the environment to use torch's operations
TYPES = {torch.float32: "float", torch.float64: "double"}  # that the C functions exist for, and their suffixes

WORTH_ONEDNN = 1 << 20  # multiply-adds of a product, for which oneDNN's 10 µs of preparation are little

log = logging.getLogger(__name__)


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the library for this processor, or None if there is none: callers then use torch's own operations."""
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        portable = ctypes.CDLL(str(BUILT / f"{PORTABLE}.so"))
        portable.fedgbo_digest.restype = portable.fedgbo_level.restype = ctypes.c_char_p
        if portable.fedgbo_digest().decode() != digest():
            log.warning("the C code has changed since it was built, and is not used; run `make setup`")
            return None
        best = BUILT / f"{portable.fedgbo_level().decode()}.so"
        return _declare(ctypes.CDLL(str(best)) if best.exists() else portable)
    except (OSError, AttributeError) as error:
        log.info("there is no C code, so layers run on torch's own operations: %s", error)
        return None


def kernel() -> str:
    """Return what computes where there is C code for it: the level of instructions of that code, or "torch"."""
    found = library()
    return "torch" if found is None else Path(found._name).stem


def compiler() -> str | None:
    """Return the compiler that built the C code in use; None where there is none."""
    found = library()
    return None if found is None else found.fedgbo_compiler().decode()


def slow_mkl() -> bool:
    """Tell whether torch's own products use half of this processor's speed, and oneDNN's are there to replace them."""
    native = library()
    return native is not None and native.fedgbo_slow_mkl() == 1 and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def by_onednn(size: int, *tensors: Tensor) -> bool:
    """Tell whether oneDNN is faster than MKL for a product of so many multiply-adds on this processor."""
    return size >= WORTH_ONEDNN and all(x.dtype == torch.float32 and x.is_cpu for x in tensors) and slow_mkl()


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a @ b + bias for two matrices, outside of autograd."""
    if by_onednn(a.numel() * b.shape[1], a, b):
        # `default` is the only overload: torch would look for it at every call
        out: Tensor = torch.ops.mkldnn._linear_pointwise.default(_dense(a), _dense(b).t(), bias, "none", [], "")
        return out
    return a @ b if bias is None else torch.addmm(bias, a, b)


def _dense(x: Tensor) -> Tensor:
    """Return the matrix without gaps in memory, row by row or column by column; with gaps, oneDNN is slow."""
    return x.t().contiguous().t() if x.stride(0) < x.stride(1) else x.contiguous()


def _declare(loaded: ctypes.CDLL) -> ctypes.CDLL:
    """Give the functions their C types, so that plain numbers and addresses can be passed."""
    number, size, address = ctypes.c_int, ctypes.c_long, ctypes.c_void_p
    loaded.fedgbo_lanes.argtypes = []
    loaded.fedgbo_compiler.restype = ctypes.c_char_p
    loaded.fedgbo_walk.argtypes = [ctypes.c_uint64] * 4 + [size, size, address]
    loaded.fedgbo_walk.restype = size
    loaded.fedgbo_conv_forward.argtypes = [number] * 8 + [address] * 6
    loaded.fedgbo_conv_backward.argtypes = [number] * 7 + [address] * 7
    loaded.fedgbo_gru_forward.argtypes = [number] * 3 + [address] * 5
    loaded.fedgbo_gru_backward.argtypes = [number] * 3 + [address] * 5 + [size] * 2 + [address] * 2
    loaded.fedgbo_lstm_forward.argtypes = [number] * 4 + [address] * 5
    loaded.fedgbo_lstm_backward.argtypes = [number] * 5 + [address] * 5 + [size] * 2 + [address] * 3
    for kind, own in (("float", ctypes.c_float), ("double", ctypes.c_double)):
        getattr(loaded, f"fedgbo_step_{kind}").argtypes = [size] + [address] * 4 + [own]
        network = getattr(loaded, f"fedgbo_network_{kind}")
        network.argtypes = [address] * 4 + [size] + [address] * 3 + [own] + [address] * 2 + [own] * 2 + [address] * 3
        network.restype = size
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


def step_in_parts(step: AffineStep, y: Tensor, grads: Sequence[tuple[int, Tensor]]) -> bool:
    """Take the step in place for parts of y, each given by where it begins and its gradient; little Python for each.

    Return False, and do nothing, if there is no C code for it, or if a gradient is not contiguous and of y's type.
    """
    native, kind = library() if y.is_cpu and y.dtype in TYPES else None, y.dtype
    if native is None or not all(grad.dtype is kind and grad.is_contiguous() for _, grad in grads):
        return False
    take, size, (first, second, rate) = getattr(native, f"fedgbo_step_{TYPES[kind]}"), y.element_size(), addresses(step)
    base = y.data_ptr()
    for begin, grad in grads:
        at = begin * size
        take(grad.numel(), base + at, grad.data_ptr(), first and first + at, second and second + at, rate)
    return True


def step_in_place(step: AffineStep, y: Tensor, grad: Tensor, begin: int = 0) -> None:
    """Take the step y <- y - (offset + scale g) in place, for the contiguous parameters from `begin` on."""
    native = library() if y.is_cpu and y.dtype in TYPES else None
    if native is not None:
        take = getattr(native, f"fedgbo_step_{TYPES[y.dtype]}")
        shift = begin * y.element_size()
        first, second, rate = addresses(step)  # of vectors, or null pointers
        take(y.numel(), y.data_ptr(), grad.data_ptr(), first and first + shift, second and second + shift, rate)
        return
    part = slice(begin, begin + y.numel())
    offset = step.offset[part] if isinstance(step.offset, Tensor) else step.offset
    scale = step.scale[part] if isinstance(step.scale, Tensor) else step.scale
    y, grad = y.view(-1), grad.reshape(-1)
    y.sub_(offset)
    if isinstance(scale, Tensor):
        y.addcmul_(scale, grad, value=-1)
    else:
        y.add_(grad, alpha=-scale)
