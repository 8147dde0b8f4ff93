"""The paper's vocabulary for Shakespeare: 79 characters, as numbers 0 to 78."""

import string

import numpy as np

from fedgbo.core.errors import DataError
from fedgbo.data.store import Array

VOCABULARY = " !\"&'(),-." + string.digits + ":;>?" + string.ascii_uppercase + "[]" + string.ascii_lowercase + "}"
UNKNOWN = 255
_NUMBERS = np.full(256, UNKNOWN, dtype=np.uint8)
_NUMBERS[np.frombuffer(VOCABULARY.encode("ascii"), dtype=np.uint8)] = np.arange(len(VOCABULARY))


def encode(text: str, where: str) -> Array:
    """Return the characters' numbers; `where` names the text if one is not in the vocabulary.

    >>> encode("Ay, no.", "here").tolist()
    [24, 76, 7, 0, 65, 66, 9]
    """
    numbers = _NUMBERS[np.frombuffer(text.encode("latin-1", errors="replace"), dtype=np.uint8)]
    unknown = (numbers == UNKNOWN) | (np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32) > UNKNOWN)
    if unknown.any():
        at = int(np.argmax(unknown))
        raise DataError(
            f"{where}: {text[at]!r} after {text[max(0, at - 20) : at]!r} is none of the {len(VOCABULARY)} characters "
            "of the paper's vocabulary; this is another text or edition"
        )
    return numbers


def decode(numbers: Array) -> str:
    """Return the text of the numbers."""
    return "".join(VOCABULARY[n] for n in numbers)
