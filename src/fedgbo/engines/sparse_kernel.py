"""Local training of a linear model on sparse samples, compiled by numba: a share of a cohort in one call.

An optimiser with fixed statistics steps y <- y - (offset + scale · (g + pull · (y - x))), elementwise, and in a linear
model a sample has a gradient only where it has a feature. So each client keeps a small table of the features it meets,
and brings a row of it up to date when a sample asks for that feature again: n steps without a gradient have a closed
form, a geometric sum. Features that a client never meets are not touched; `drift` knows what became of them.

All arithmetic is float64, also where the model is float32: these loops wait for memory and not for arithmetic, one
kernel serves both, and what differs from the plain engine is that engine's rounding alone.
"""

from typing import Any

import numpy as np

# with f56f5e3ce69f503a: numba looks for changes in this file alone, so a test holds that these are noticed here
from fedgbo.engines.sparse_arrays import Array, Batch, Moved, Rows, Step, Table, compiled
from fedgbo.engines.sparse_walk import mixed, walk


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
def read(rows: Rows, table: Table, first: int, walked: Array) -> tuple[Batch, int]:
    """Read the samples first + walked, each once, into the table's terms; return how many features they have."""
    indptr, indices, counts, labels = rows
    row_of, features = table.row_of, table.features
    begins = np.full(walked.max() + 1, -1, np.int64)
    ends = np.empty(len(begins), np.int64)
    room = 0
    for sample in walked:
        if begins[sample] < 0:
            begins[sample] = room
            room += indptr[first + sample + 1] - indptr[first + sample]
            ends[sample] = room
    at, values = np.empty(room, np.uint32), np.empty(room, np.float64)
    bias = len(row_of) - 1
    row_of[bias], features[0], met = 0, bias, 1  # the bias is a feature that all samples have, and the first row
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
    return Batch(begins, ends, at, values, labels[first : first + len(begins)]), met


@compiled
def load(step: Step, table: Table, met: int) -> None:
    """Fill the first `met` rows of the table with the model and the step at their features."""
    features, weights = table.features, table.weights
    width, classes = len(table.row_of) - 1, weights.shape[2]
    for row in range(met):
        for c in range(classes):
            p = c * width + features[row] if row > 0 else classes * width + c
            weights[row, 0, c] = weights[row, 1, c] = step.start[p]
            weights[row, 2, c], weights[row, 3, c] = step.share * step.offset[p], step.scale[p]


@compiled
def descend(samples: Batch, weights: Array, walked: Array, steps: int) -> float:
    """Take `steps` steps on equal shares of the samples `walked`, with no pull; return the mean loss.

    The offset is left out of the weights: after k steps a sample's scores lack k times those of the offset, which are
    the same at every step.
    """
    begins, ends, at, values, labels = samples
    classes, batch = weights.shape[2], len(walked) // steps
    drops = np.empty((len(begins), classes))
    for sample in range(len(begins)):
        for c in range(classes):
            drop = weights[0, 2, c]
            for i in range(begins[sample], ends[sample] if begins[sample] >= 0 else -1):
                drop += weights[at[i], 2, c] * values[i]
            drops[sample, c] = drop
    loss, scores = 0.0, np.empty((batch, classes))
    for k in range(steps):
        for b in range(batch):
            sample = walked[k * batch + b]
            for c in range(0, classes, 2):  # two at a time, so that a pair of rows and values is read once for both
                d = min(c + 1, classes - 1)
                one, other = weights[0, 0, c] - k * drops[sample, c], weights[0, 0, d] - k * drops[sample, d]
                for i in range(begins[sample], ends[sample]):
                    one += weights[at[i], 0, c] * values[i]
                    other += weights[at[i], 0, d] * values[i]
                scores[b, c], scores[b, d] = one, other
            loss += to_gradient(scores, b, labels[sample], 1.0 / batch)
        for b in range(batch):
            sample = walked[k * batch + b]
            for c in range(0, classes, 2):
                d = min(c + 1, classes - 1)
                one, other = scores[b, c], scores[b, d] if d > c else 0.0
                weights[0, 0, c] -= weights[0, 3, c] * one
                weights[0, 0, d] -= weights[0, 3, d] * other
                for i in range(begins[sample], ends[sample]):
                    weights[at[i], 0, c] -= weights[at[i], 3, c] * values[i] * one
                    weights[at[i], 0, d] -= weights[at[i], 3, d] * values[i] * other
    return loss / len(walked)


@compiled
def descend_pulled(samples: Batch, weights: Array, reached: Array, walked: Array, steps: int, pull: float) -> float:
    """Take `steps` steps with a pull towards the start; return the mean loss.

    A row is brought up to date when a sample asks for it: `reached` has the number of steps that it has seen, and the
    steps since then had no gradient.
    """
    begins, ends, at, values, labels = samples
    classes, batch = weights.shape[2], len(walked) // steps
    loss, scores = 0.0, np.empty((batch, classes))
    for k in range(steps):
        settle(weights, reached, 0, k, pull)
        for b in range(batch):
            sample = walked[k * batch + b]
            for i in range(begins[sample], ends[sample]):
                settle(weights, reached, at[i], k, pull)
            for c in range(classes):
                total = weights[0, 0, c]
                for i in range(begins[sample], ends[sample]):
                    total += weights[at[i], 0, c] * values[i]
                scores[b, c] = total
            loss += to_gradient(scores, b, labels[sample], 1.0 / batch)
        settle(weights, reached, 0, k + 1, pull)
        for b in range(batch):
            sample = walked[k * batch + b]
            for i in range(begins[sample], ends[sample]):
                settle(weights, reached, at[i], k + 1, pull)
            for c in range(classes):
                weights[0, 0, c] -= weights[0, 3, c] * scores[b, c]
                for i in range(begins[sample], ends[sample]):
                    weights[at[i], 0, c] -= weights[at[i], 3, c] * values[i] * scores[b, c]
    for row in range(len(reached)):
        settle(weights, reached, row, steps, pull)
        for c in range(classes):  # leave the offset out at last, as `descend` does
            weights[row, 0, c] += weights[row, 2, c] * geometric(1.0 - weights[row, 3, c] * pull, steps)[1]
    return loss / len(walked)


@compiled
def settle(weights: Array, reached: Array, row: int, step: int, pull: float) -> None:
    """Bring a row to a step: n times y - x <- ratio · (y - x) - offset, at once."""
    if reached[row] == step:
        return
    for c in range(weights.shape[2]):
        power, total = geometric(1.0 - weights[row, 3, c] * pull, step - reached[row])
        moved = power * (weights[row, 0, c] - weights[row, 1, c]) - total * weights[row, 2, c]
        weights[row, 0, c] = weights[row, 1, c] + moved
    reached[row] = step


@compiled
def to_gradient(scores: Array, b: int, label: int, share: float) -> float:
    """Turn sample b's scores into the gradient of `share` times its cross-entropy; return that cross-entropy."""
    classes = scores.shape[1]
    largest, picked, total = scores[b, 0], scores[b, label], 0.0
    for c in range(1, classes):
        largest = max(largest, scores[b, c])
    for c in range(classes):
        scores[b, c] = np.exp(scores[b, c] - largest) if scores[b, c] != largest else 1.0
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
    weights = table.weights
    for i in range(worker, len(cohort), workers):
        begin, size = offsets[cohort[i]], offsets[cohort[i] + 1] - offsets[cohort[i]]
        if batch == 0:
            walked = np.empty(steps[i] * size, np.int64)
            for k in range(steps[i]):
                for n in range(size):
                    walked[k * size + n] = n
        else:
            walked = walk(mixed(name ^ np.uint64(cohort[i])), size, skipped * batch, steps[i] * batch)
        samples, met = read(rows, table, begin, walked)
        load(step, table, met)
        if step.pull == 0.0:
            moved.losses[i] = descend(samples, weights, walked, steps[i])
        else:
            reached = np.zeros(met, np.int64)
            moved.losses[i] = descend_pulled(samples, weights, reached, walked, steps[i], step.pull)
        moved.sizes[i] = met
        for row in range(met):
            table.row_of[table.features[row]] = -1
            moved.features[moved.bounds[i] + row] = table.features[row]
            for c in range(weights.shape[2]):
                moved.moves[moved.bounds[i] + row, c] = weights[row, 1, c] - weights[row, 0, c]


@compiled
def drift(step: Step, steps: Array, total: Array) -> None:
    """Add to `total` (P,) the x - y_K of clients that meet no feature, one for each entry of `steps`."""
    if step.share == 0.0:
        return
    if step.pull == 0.0:
        whole = steps.sum()
        for p in range(len(total)):
            total[p] += step.share * step.offset[p] * whole
        return
    for p in range(len(total)):
        for i in range(len(steps)):
            total[p] += step.share * step.offset[p] * geometric(1.0 - step.scale[p] * step.pull, steps[i])[1]


@compiled
def add_up(moved: Moved, exact: Array) -> None:
    """Add what clients gave to `exact` (2, P): the sum, and what it rounded away, as in mean.py.

    So its bits depend neither on the clients' order nor on who computed what.
    """
    total, rest = exact
    classes = moved.moves.shape[1]
    features = len(total) // classes - 1
    for i in range(len(moved.sizes)):
        for out in range(moved.bounds[i], moved.bounds[i] + moved.sizes[i]):
            feature = moved.features[out]
            for c in range(classes):
                at = c * features + feature if feature < features else classes * features + c
                a, b = total[at], moved.moves[out, c]
                total[at] = a + b
                z = total[at] - a
                rest[at] += (a - (total[at] - z)) + (b - z)


@compiled
def room(rows: Rows, offsets: Array, cohort: Array, classes: int) -> Moved:
    """Make room for as many features as these clients can meet: one for each pair they own, and the bias."""
    bounds, at = np.empty(len(cohort), np.int64), 0
    for i in range(len(cohort)):
        bounds[i] = at
        at += rows.indptr[offsets[cohort[i] + 1]] - rows.indptr[offsets[cohort[i]]] + 1
    features, moves = np.empty(at, np.int64), np.empty((at, classes))
    return Moved(bounds, np.empty(len(cohort), np.int64), features, moves, np.empty(len(cohort)))


@compiled
def train_alone(
    table: Table,
    rows: Rows,
    step: Step,
    offsets: Array,
    cohort: Array,
    steps: Array,
    batch: int,
    skipped: int,
    name: Any,
    exact: Array,
) -> Array:
    """Train all clients and add what they give to `exact`; return their losses. One call, for small cohorts."""
    moved = room(rows, offsets, cohort, table.weights.shape[2])
    train(table, 0, 1, rows, step, moved, offsets, cohort, steps, batch, skipped, name)
    add_up(moved, exact)
    return moved.losses
