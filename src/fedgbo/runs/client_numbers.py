"""Sets of client numbers as users write them: `3`, `0,3,6`, `0-4`, and `1::3` for every third client from 1 on."""

import re
from collections.abc import Sequence

from fedgbo.core import ConfigError

MOST_LISTED = 12  # clients in a sentence
_PART = re.compile(r"(?P<first>\d+)(-(?P<last>\d+)|::(?P<step>[1-9]\d*))?")


def client_numbers(text: str, clients: int) -> list[int]:
    """Return the numbers below `clients` in a set; an open set such as `1::3` ends there, others are not cut off.

    >>> client_numbers("0-2,7", 10), client_numbers("1::3", 8)
    ([0, 1, 2, 7], [1, 4, 7])
    """
    numbers: set[int] = set()
    for part in text.replace(" ", "").split(","):
        found = _PART.fullmatch(part)
        if found is None or int(found["last"] or found["first"]) < int(found["first"]):
            raise ConfigError(f"clients must be numbers such as 0 or 0,3,6 or 0-4 or 1::3, not '{text}'")
        first = int(found["first"])
        if found["step"]:
            numbers |= set(range(first, clients, int(found["step"])))
        else:
            last = min(int(found["last"] or first), max(first, clients))  # one too large is enough to be refused
            numbers |= set(range(first, last + 1))
    return sorted(numbers)


def in_words(numbers: Sequence[int]) -> str:
    """Return client numbers in words.

    >>> in_words([3]), in_words([0, 2]), in_words(list(range(20)))
    ('client 3', 'clients 0, 2', '20 clients: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...')
    """
    if len(numbers) == 1:
        return f"client {numbers[0]}"
    listed = ", ".join(map(str, numbers[:MOST_LISTED]))
    if len(numbers) <= MOST_LISTED:
        return f"clients {listed}" if numbers else "no clients"
    return f"{len(numbers)} clients: {listed}, ..."
