"""Rounds of a linear model on sparse samples, one after the other in one compiled call.

Operation by operation it is what one round at a time does, and so are the bits: `sparse.py` and `sparse_client.py` have
the clients' part of it, `runs/server.py` the server's.
"""

import os
from typing import Any

import numpy as np
from numba import types

# with d09879554766b6cf: numba looks for changes in this file alone, so a test holds that these are noticed here
from fedgbo.engines.sparse_arrays import Array, Rows, Step, Table, compiled
from fedgbo.engines.sparse_kernel import add_up, drift, room, train

# of the C library: the time that this process has used
clock: Any = types.ExternalFunction("clock", types.int32() if os.name == "nt" else types.int64())


@compiled
def play(
    table: Table,
    rows: Rows,
    offsets: Array,
    cohorts: Array,
    steps: Array,
    batch: int,
    names: Array,
    share: float,
    scale: Array,
    pull: float,
    keep: Array,
    take: Array,
    states: Array,
    losses: Array,
) -> tuple[int, int]:
    """Run a round with each of the cohorts (R, M), from the vectors in states[0] (V, P) on; fill the rest of `states`,
    and `losses` (R, M). Return how many rounds ended with finite numbers, and the time that the server's steps took.
    """
    length, spent = states.shape[2], 0
    start, exact = np.empty(length), np.empty((2, length))
    for r in range(len(cohorts)):
        for p in range(length):
            start[p] = states[r, 0, p]
            exact[0, p] = exact[1, p] = 0.0
        step = Step(start, states[r, len(keep) - 1], share, scale, pull)
        moved = room(rows, offsets, cohorts[r], table.weights.shape[2])
        train(table, 0, 1, rows, step, moved, offsets, cohorts[r], steps, batch, 0, names[r])
        add_up(moved, exact)
        loss, mean = 0.0, exact[0]
        for i in range(len(steps)):
            losses[r, i] = moved.losses[i]
            loss += moved.losses[i]
        for p in range(length):
            mean[p] += exact[1, p]
        drift(step, steps, mean)
        for p in range(length):
            mean[p] = start[p] - (start[p] - mean[p] / len(steps))
        began = clock()
        finite = advance(keep, take, states[r], mean, states[r + 1])
        spent += clock() - began
        if not finite or not np.isfinite(loss):
            return r, spent
    return len(cohorts), spent


@compiled
def advance(keep: Array, take: Array, before: Array, mean: Array, after: Array) -> bool:
    """Fill after[v] (P,) with keep[v] · before[v] + take[v] · mean; return whether all numbers are finite."""
    if len(keep) == 2 and keep[1] == 0.0:
        return add_and_multiply(keep[0], before[0], take[0], mean, after[0], take[1], after[1])
    finite = True
    for v in range(len(keep)):
        finite &= add(keep[v], before[v], take[v], mean, after[v])
    return finite


@compiled
def add(a: float, x: Array, b: float, y: Array, out: Array) -> bool:
    """Fill `out` with a x + b y; return whether all numbers are finite."""
    finite = 0
    for p in range(len(out)):
        out[p] = a * x[p] + b * y[p]
        finite += np.isfinite(out[p])
    return finite == len(out)


@compiled
def add_and_multiply(a: float, x: Array, b: float, y: Array, out: Array, c: float, other: Array) -> bool:
    """Fill `out` with a x + b y and `other` with c y, in one pass; return whether all numbers are finite.

    So are both, if their sum is. Sums of the largest numbers are not, but then it is one round at a time that decides.
    """
    finite = 0
    for p in range(len(out)):
        out[p] = a * x[p] + b * y[p]
        other[p] = c * y[p]
        finite += np.isfinite(out[p] + other[p])
    return finite == len(out)
