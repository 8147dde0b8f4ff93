"""States as Flower's arrays and back: the plain npy format, one copy out, none in, and nothing believed.

What comes in is compared with what is expected (names, type, length) before a byte of it is used. The npy header is
read by numpy's own parser of literals; no array is ever unpickled, and none is made that is larger than what came.
"""

import io
import warnings
from collections.abc import Iterable

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from numpy.lib import format as npy
from torch import Tensor

from fedgbo.core.errors import DataError
from fedgbo.core.state import State

STYPE = "numpy.ndarray"  # Flower's name for npy, its default
MAX_HEADER = 1_000  # characters; a flat vector's header has about a hundred


def to_record(state: State) -> ArrayRecord:
    """Return the state's vectors by name (`params`, `stats.m`, ...)."""
    return ArrayRecord({name: _to_array(tensor) for name, tensor in state.tensors().items()})


def from_record(record: ArrayRecord, names: Iterable[str], like: Tensor) -> State:
    """Return the state in a record; raise DataError unless it has just these names, each a vector as `like` is."""
    wanted = list(names)
    missing, extra = sorted(set(wanted) - set(record)), sorted(set(record) - set(wanted))
    if missing or extra:
        parts = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has an extra {_short(extra)}"] * bool(extra)
        raise DataError(f"the update {' and '.join(parts)}; it must be {', '.join(wanted)}")
    return State.of_tensors({name: _from_array(name, record[name], like) for name in wanted})


def wire_bytes(messages: Iterable[Message]) -> list[int]:
    """Return the bytes that each message takes on the wire: all the pieces that Flower cuts it into.

    A piece that several messages share, as the model is, goes from the server app to the SuperLink once, and from there
    to each node. It is counted for each.
    """
    known: dict[str, int] = {}
    totals = []
    with no_object_id_recompute():
        for message in messages:
            pieces = get_all_nested_objects(message)
            known |= {key: len(piece.deflate()) for key, piece in pieces.items() if key not in known}
            totals.append(sum(known[key] for key in pieces))
    return totals


def _to_array(tensor: Tensor) -> Array:
    values = tensor.detach().cpu().contiguous().numpy()
    head = io.BytesIO()
    npy.write_array_header_1_0(head, npy.header_data_from_array_1_0(values))
    data = b"".join((head.getvalue(), values.data))  # the only copy
    return Array(dtype=str(values.dtype), shape=tuple(values.shape), stype=STYPE, data=data)


def _from_array(name: str, array: Array, like: Tensor) -> Tensor:
    """Return the vector in an array, in the memory that it came in; nobody may write into it."""
    kind = str(like.dtype).removeprefix("torch.")
    if array.stype != STYPE:
        raise DataError(f"{name} is coded as {_short([array.stype])}, not as {STYPE}")
    if array.dtype != kind:
        raise DataError(f"{name} has type {_short([array.dtype])}, not {kind}")
    if tuple(array.shape) != tuple(like.shape):
        raise DataError(f"{name} has shape {_short([str(tuple(array.shape))])}, not {tuple(like.shape)}")
    start = _header(name, array.data, np.dtype(kind), tuple(like.shape))
    if len(array.data) - start != like.numel() * like.element_size():
        raise DataError(
            f"{name} has {len(array.data) - start} bytes, not the {like.numel() * like.element_size()} of its shape"
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(array.data, dtype=like.dtype, offset=start)


def _header(name: str, data: bytes, kind: np.dtype[np.generic], shape: tuple[int, ...]) -> int:
    """Check the npy header against what was promised; return where the numbers begin."""
    head = io.BytesIO(data[: MAX_HEADER + 20])
    try:
        version = npy.read_magic(head)
        if version != (1, 0):
            raise ValueError(f"npy version {version}")
        found, fortran, stored = npy.read_array_header_1_0(head, max_header_size=MAX_HEADER)
    except Exception as error:  # numpy's reader raises IndexError, TypeError and TokenError too on what is no header
        raise DataError(f"{name} is no npy array: {_short([str(error)])}") from error
    if fortran or tuple(found) != shape or stored != kind:
        is_really = _short([f"{stored} of shape {tuple(found)}"])
        raise DataError(f"{name} says it is {kind} of shape {shape}, its bytes are {is_really}")
    return head.tell()


def _short(names: Iterable[str]) -> str:
    """Return what came from outside in a form that fits in a log: printable, and not long."""
    text = ", ".join(names)
    return ascii(text[:80])[1:-1] + ("..." if len(text) > 80 else "")
