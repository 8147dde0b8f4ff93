"""Reads pickles of arrays, lists, numbers and text without trusting them.

A pickle is a program: it names functions and has them called. Here the few names that a pickled numpy array needs lead
to inert stand-ins of our own, which only record their arguments; every other name is refused. So nothing that a file
names is ever run, not even numpy's own code, and an array is only built after its parts have been checked.
"""

import math
import pickle
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from fedgbo.core import DataError
from fedgbo.data.store import Array

INTEGERS = {f"{sign}{size}": size for sign in "iu" for size in (1, 2, 4, 8)}
ORDERS = ("|", "<", ">", "=")


def load_plain(stream: BinaryIO, where: str) -> dict[str, Any]:
    """Return the pickled dictionary, with its keys as text and its arrays as numpy arrays; `where` is for messages."""
    try:
        loaded = _Reader(stream, where).load()
        if not isinstance(loaded, dict):
            kind = type(loaded).__name__
            raise DataError(f"{where} is a pickled {kind}, where a dictionary is needed; get it again")
        named = {text(key): value for key, value in loaded.items()}
    except DataError:
        raise
    except Exception as error:  # a damaged or hostile pickle can raise anything
        reason = str(error) or type(error).__name__
        raise DataError(f"{where} cannot be read as a pickle of arrays ({reason}): damaged; get it again") from error
    return {k: value.array(f"{where}: {k}") if isinstance(value, _Array) else value for k, value in named.items()}


def text(value: Any) -> str:
    """Return a name as text, which Python 2 pickled as bytes; raise TypeError for anything else.

    >>> text(b"apple")
    'apple'
    """
    if not isinstance(value, bytes | str):
        raise TypeError(f"{type(value).__name__} in place of a name")
    return value.decode("latin1") if isinstance(value, bytes) else value


class _Reader(pickle.Unpickler):
    def __init__(self, stream: BinaryIO, where: str) -> None:
        super().__init__(stream, encoding="bytes")  # keeps Python 2's strings, among them the pixels, as bytes
        self._where = where

    def find_class(self, module: str, name: str) -> Any:
        stand_in = _ADMITTED.get((module.replace("numpy._core", "numpy.core"), name))
        if stand_in is None:
            call = f"{self._where} wants to call {module}.{name}"
            raise DataError(f"{call}; refused, and nothing was run: do not trust this file")
        return stand_in


class _Dtype:
    __slots__ = ("name", "order")

    def __init__(self, name: Any) -> None:
        self.name, self.order = text(name), "|"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = text(state[1])


class _Array:
    __slots__ = ("data", "dtype", "fortran", "shape")

    def __init__(self) -> None:
        self.__setstate__((1, (0,), None, False, b""))

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, self.shape, self.dtype, self.fortran, self.data = state

    def array(self, where: str) -> Array:
        dtype = self.dtype
        if not isinstance(dtype, _Dtype) or dtype.name not in INTEGERS or dtype.order not in ORDERS:
            raise DataError(f"{where} is an array of values other than whole numbers; get the file again")
        shape = self.shape if isinstance(self.shape, tuple) else ()
        if not all(type(n) is int and n >= 0 for n in shape) or not isinstance(self.data, bytes | bytearray):
            raise DataError(f"{where} is an array without a proper shape or content; get the file again")
        if len(self.data) != math.prod(shape) * INTEGERS[dtype.name]:
            raise DataError(f"{where} has {len(self.data)} bytes for an array of shape {shape}; get the file again")
        flat = np.frombuffer(self.data, dtype=np.dtype(f"{dtype.order}{dtype.name}"))
        return flat.reshape(shape, order="F" if self.fortran else "C")


class _StandIn:
    """Stands for a name of numpy's or Python's; without attributes, so that a pickle cannot store anything in it."""

    __slots__ = ()


class _Reconstruct(_StandIn):  # numpy's _reconstruct(subtype, shape, dtype): an empty array, filled later by its state
    __slots__ = ()

    def __call__(self, *ignored: Any) -> _Array:
        return _Array()


class _FromBuffer(_StandIn):  # numpy's _frombuffer(buffer, dtype, shape, order), of protocol 5
    __slots__ = ()

    def __call__(self, buffer: Any, dtype: Any, shape: Any, order: Any) -> _Array:
        array = _Array()
        array.__setstate__((1, shape, dtype, text(order) == "F", buffer))
        return array


class _MakeDtype(_StandIn):  # numpy.dtype(name, align, copy)
    __slots__ = ()

    def __call__(self, name: Any, *ignored: Any) -> _Dtype:
        return _Dtype(name)


class _Encode(_StandIn):  # _codecs.encode(text, "latin1"), which is how Python 3 writes bytes for Python 2
    __slots__ = ()

    def __call__(self, characters: str, encoding: Any) -> bytes:
        if text(encoding) != "latin1":
            raise pickle.UnpicklingError(f"bytes in the encoding {encoding!r}")
        return characters.encode("latin1")


_ADMITTED: Mapping[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _StandIn(),  # which pickles only pass on to _reconstruct
    ("numpy", "dtype"): _MakeDtype(),
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy.core.numeric", "_frombuffer"): _FromBuffer(),
    ("_codecs", "encode"): _Encode(),
}
