"""Local training of a linear model on sparse samples, compiled by numba: a share of a cohort in one call.

An optimiser with fixed statistics steps y <- y - (offset + scale · (g + pull · (y - x))), elementwise, and in a linear
model a sample has a gradient only where it has a feature. So each client keeps a small table of the features it meets,
and brings a row of it up to date when a sample asks for that feature again: n steps without a gradient have a closed
form, a geometric sum. Features that a client never meets are not touched; `drift` knows what became of them.

All arithmetic is float64, also where the model is float32: these loops wait for memory and not for arithmetic, one
kernel serves both, and what differs from the plain engine is that engine's rounding alone.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np

Array = np.ndarray[Any, Any]
F = TypeVar("F", bound=Callable[..., Any])


class Rows(NamedTuple):
    """The samples of all clients, as in SparseSamples."""

    indptr: Array
    indices: Array
    counts: Array
    labels: Array


class Step(NamedTuple):
    """The model x that a round begins with, and the step that all clients take; vectors as in nn.Linear, (P,)."""

    start: Array
    offset: Array
    scale: Array
    pull: float


class Table(NamedTuple):
    """What one worker needs for one client at a time: row s is of the s-th feature that the client met."""

    row_of: Array  # (features + 1,): of each feature; -1 for none. The bias is one more feature, and always 1
    features: Array  # (features + 1,): the other way round
    reached: Array  # (features + 1,): the number of steps that the row has seen
    weights: Array  # (features + 1, 4, classes): where it began, how far it moved, its offset, its scale


class Moved(NamedTuple):
    """What clients give: client i's features and how far they moved, from bounds[i] on, sizes[i] of them."""

    bounds: Array
    sizes: Array
    features: Array
    moves: Array  # (·, classes): x - y_K, less that of a client that never met the feature
    losses: Array  # mean over the client's minibatches


def compiled(function: F) -> F:
    """Compile `function` at its first call, without the lock of the interpreter, and keep the result on disk."""
    try:
        return cast(F, numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:  # nowhere to write: compile it again in every process
        return cast(F, numba.njit(nogil=True)(function))


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
    drawn = -1
    for i in range(count):
        lap = (first + i) // size
        if lap != drawn:
            shuffle(mixed(name ^ np.uint64(lap)), order, keys)
            drawn = lap
        rows[i] = order[(first + i) % size]
    return rows


@compiled
def geometric(ratio: float, count: int) -> tuple[float, float]:
    """Return ratio^count and 1 + ratio + ... + ratio^(count - 1), by doubling: no cancellation near ratio = 1."""
    power, total = 1.0, 0.0
    square, part = ratio, 1.0  # ratio^(2^i), and the sum of the first 2^i powers
    while count > 0:
        if count & 1:
            total += power * part
            power *= square
        part *= 1.0 + square
        square *= square
        count >>= 1
    return power, total


@compiled
def descend(rows: Rows, step: Step, table: Table, first: int, walked: Array, steps: int) -> tuple[int, float]:
    """Take `steps` steps on equal shares of the samples first + walked; return how many features were met, and the
    mean loss.

    The table holds the result, and must be cleared before the next client. One long function, because numba counts
    references to the arrays that it hands to another one, which in these loops would take most of the time.
    """
    indptr, indices, counts, labels = rows
    start, offset, scale, pull = step
    row_of, features, reached, weights = table
    width, classes, batch = len(row_of) - 1, weights.shape[2], len(walked) // steps

    # Read the samples, each once: rows of the table instead of features, values instead of counts
    begins = np.full(walked.max() + 1, -1, np.int64)
    ends = np.empty(len(begins), np.int64)
    room = 0
    for i in range(len(walked)):
        if begins[walked[i]] < 0:
            begins[walked[i]] = room
            room += indptr[first + walked[i] + 1] - indptr[first + walked[i]]
            ends[walked[i]] = room
    at, values = np.empty(room, np.uint32), np.empty(room, np.float64)
    row_of[width], features[0], met = 0, width, 1  # the bias is a feature that all samples have
    for sample in range(len(begins)):
        if begins[sample] < 0:
            continue
        shift = indptr[first + sample] - begins[sample]
        tokens = 0
        for i in range(begins[sample], ends[sample]):
            tokens += counts[shift + i]
        for i in range(begins[sample], ends[sample]):
            feature = indices[shift + i]
            if row_of[feature] < 0:
                row_of[feature], features[met] = met, feature
                met += 1
            at[i], values[i] = row_of[feature], np.float32(counts[shift + i] / max(tokens, 1))
    lazy = pull != 0.0
    for row in range(met):
        reached[row] = 0
        for c in range(classes):
            p = c * width + features[row] if row > 0 else classes * width + c
            weights[row, 0, c], weights[row, 1, c] = start[p], 0.0
            weights[row, 2, c], weights[row, 3, c] = offset[p], scale[p]
            lazy = lazy or offset[p] != 0.0

    loss = 0.0
    scores = np.empty((batch, classes), np.float64)
    for k in range(steps):
        for b in range(batch):
            sample = walked[k * batch + b]
            if lazy:
                for i in range(begins[sample], ends[sample]):
                    row = at[i]
                    if reached[row] < k:  # steps without a gradient
                        for c in range(classes):
                            power, total = geometric(1.0 - weights[row, 3, c] * pull, k - reached[row])
                            weights[row, 1, c] = power * weights[row, 1, c] - total * weights[row, 2, c]
                        reached[row] = k
            for c in range(classes):
                total = weights[0, 0, c] + weights[0, 1, c]
                for i in range(begins[sample], ends[sample]):
                    total += (weights[at[i], 0, c] + weights[at[i], 1, c]) * values[i]
                scores[b, c] = total
            loss += to_gradient(scores, b, labels[first + sample], 1.0 / batch)
        for c in range(classes):
            weights[0, 1, c] -= weights[0, 2, c] + weights[0, 3, c] * pull * weights[0, 1, c]
        for b in range(batch):
            sample = walked[k * batch + b]
            if lazy:
                for i in range(begins[sample], ends[sample]):
                    row = at[i]
                    if reached[row] == k:  # y <- y - offset - scale · pull · (y - x), once for all samples
                        for c in range(classes):
                            weights[row, 1, c] -= weights[row, 2, c] + weights[row, 3, c] * pull * weights[row, 1, c]
                        reached[row] = k + 1
            for c in range(classes):
                weights[0, 1, c] -= weights[0, 3, c] * scores[b, c]
                for i in range(begins[sample], ends[sample]):
                    weights[at[i], 1, c] -= weights[at[i], 3, c] * values[i] * scores[b, c]
    for row in range(1, met):
        if lazy and reached[row] < steps:
            for c in range(classes):
                power, total = geometric(1.0 - weights[row, 3, c] * pull, steps - reached[row])
                weights[row, 1, c] = power * weights[row, 1, c] - total * weights[row, 2, c]
    return met, loss / len(walked)


@compiled
def to_gradient(scores: Array, b: int, label: int, share: float) -> float:
    """Turn sample b's scores into the gradient of `share` times its cross-entropy; return that cross-entropy."""
    classes = scores.shape[1]
    largest, picked, total = scores[b, 0], scores[b, label], 0.0
    for c in range(1, classes):
        largest = max(largest, scores[b, c])
    for c in range(classes):
        scores[b, c] = np.exp(scores[b, c] - largest)
        total += scores[b, c]
    for c in range(classes):
        scores[b, c] *= share / total
    scores[b, label] -= share
    return float(np.log(total) + largest - picked)


@compiled
def train(
    table: Table,
    worker: int,
    workers: int,
    rows: Rows,
    step: Step,
    moved: Moved,
    offsets: Array,
    cohort: Array,
    steps: Array,
    batch: int,
    skipped: int,
    name: Any,
) -> None:
    """Train every `workers`-th client of the cohort, from number `worker` on; write what they give into `moved`.

    `batch` is 0 for all samples of a client in order; `skipped` minibatches of each client's walk were used before.
    """
    classes = table.weights.shape[2]
    for i in range(worker, len(cohort), workers):
        begin, size = offsets[cohort[i]], offsets[cohort[i] + 1] - offsets[cohort[i]]
        if batch == 0:
            walked = np.empty(steps[i] * size, np.int64)
            for n in range(len(walked)):
                walked[n] = n % size
        else:
            walked = walk(mixed(name ^ np.uint64(cohort[i])), size, skipped * batch, steps[i] * batch)
        met, moved.losses[i] = descend(rows, step, table, begin, walked, steps[i])
        moved.sizes[i] = met
        for row in range(met):
            feature, out = table.features[row], moved.bounds[i] + row
            table.row_of[feature] = -1
            moved.features[out] = feature
            for c in range(classes):
                offset = table.weights[row, 2, c]
                ratio = 1.0 - table.weights[row, 3, c] * step.pull
                moved.moves[out, c] = -table.weights[row, 1, c] - offset * geometric(ratio, steps[i])[1]


@compiled
def add_up(moved: Moved, total: Array, features: int) -> None:
    """Add what clients gave to `total` (P,), in their order, so that its bits do not depend on who computed what."""
    classes = moved.moves.shape[1]
    for i in range(len(moved.sizes)):
        for out in range(moved.bounds[i], moved.bounds[i] + moved.sizes[i]):
            feature = moved.features[out]
            for c in range(classes):
                at = c * features + feature if feature < features else classes * features + c
                total[at] += moved.moves[out, c]


@compiled
def drift(step: Step, steps: Array, total: Array) -> None:
    """Add to `total` (P,) the x - y_K of clients that meet no feature, one for each entry of `steps`."""
    whole = steps.sum()
    for p in range(len(total)):
        if step.offset[p] == 0.0:
            continue
        if step.pull == 0.0:
            total[p] += step.offset[p] * whole
        else:
            for i in range(len(steps)):
                total[p] += step.offset[p] * geometric(1.0 - step.scale[p] * step.pull, steps[i])[1]


@compiled
def score(rows: Rows, params: Array, outputs: Array, first: int) -> None:
    """Fill `outputs` (n, classes) with the model's scores for samples first, first + 1, ..."""
    classes = outputs.shape[1]
    features = len(params) // classes - 1
    for i in range(len(outputs)):
        begin, end = rows.indptr[first + i], rows.indptr[first + i + 1]
        tokens = 0
        for n in range(begin, end):
            tokens += rows.counts[n]
        for c in range(classes):
            total = float(params[classes * features + c])
            for n in range(begin, end):
                total += params[c * features + rows.indices[n]] * np.float32(rows.counts[n] / max(tokens, 1))
            outputs[i, c] = total
