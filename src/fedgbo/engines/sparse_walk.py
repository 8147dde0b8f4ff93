"""The order in which a client walks through its samples, compiled: bit for bit that of engines/batches.py."""

from typing import Any

import numpy as np

from fedgbo.engines.sparse_arrays import Array, compiled


@compiled
def mixed(number: Any) -> Any:
    """SplitMix64, as in core/random.py."""
    number = np.uint64(number) + np.uint64(0x9E3779B97F4A7C15)
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))


@compiled
def shuffle(name: Any, order: Array, keys: Array) -> None:
    """Fill `order` with the permutation that core/random.py draws from the stream of that name; `keys` is scratch.

    The hash is a bijection, so that no two keys are alike and any way of sorting gives the same order. Shell's needs no
    more than this: for the few samples of a client it beats np.argsort, which moreover takes 3 seconds to compile.
    """
    size = len(order)
    for i in range(size):
        order[i], keys[i] = i, mixed(np.uint64(i) ^ name)
    gap = 1 if size < 24 else size * 5 // 11
    while gap > 0:
        for i in range(gap, size):
            index, key, at = order[i], keys[i], i
            while at >= gap and keys[at - gap] > key:
                order[at], keys[at] = order[at - gap], keys[at - gap]
                at -= gap
            order[at], keys[at] = index, key
        gap = gap * 5 // 11 if gap != 2 else 1


@compiled
def walk(name: Any, size: int, first: int, count: int) -> Array:
    """Return rows `first` to `first + count` of a client's walk through its samples, as in engines/batches.py."""
    rows = np.empty(count, np.int64)
    order, keys = np.empty(size, np.int64), np.empty(size, np.uint64)
    lap, at = first // size, first % size
    shuffle(mixed(name ^ np.uint64(lap)), order, keys)
    for i in range(count):
        if at == size:
            lap, at = lap + 1, 0
            shuffle(mixed(name ^ np.uint64(lap)), order, keys)
        rows[i] = order[at]
        at += 1
    return rows
