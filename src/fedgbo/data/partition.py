"""Partitioners: turn labelled arrays into clients. Each returns, for every client, the row numbers that it gets."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedgbo.core.checks import positive, whole
from fedgbo.core.errors import DataError
from fedgbo.core.random import Rows, check_seed, stream


def iid(samples: int | Sequence[Any], clients: int, seed: int = 0) -> list[Rows]:
    """Deal the samples out at random, as evenly as they go.

    >>> [len(rows) for rows in iid(10, clients=3)]
    [4, 3, 3]
    """
    count = int(samples) if isinstance(samples, int | np.integer) else len(samples)
    _check(count, clients, seed)
    return list(np.array_split(stream(seed, "iid").permutation(count), clients))


def dirichlet(labels: Any, clients: int, alpha: float, seed: int = 0) -> list[Rows]:
    """Label skew: each client draws its own mixture of classes from a Dirichlet distribution (Hsu et al., 2019).

    Its parameter is alpha for each class where classes are equally frequent, else alpha · classes · the class's share.
    Clients get equally many samples, without replacement; as classes run out, the mixtures are renormalised. The
    smaller alpha, the fewer classes a client has: 0.1 is strong skew, 100 almost none.
    """
    labels = _labels(labels)
    positive("alpha", alpha)
    _check(len(labels), clients, seed)
    rng = stream(seed, "dirichlet")
    pools = _pools(labels, rng)
    prior = np.array([len(pool) for pool in pools]) / len(labels)
    sizes = [len(part) for part in np.array_split(labels, clients)]
    mixtures = rng.dirichlet(alpha * len(pools) * prior, size=clients)
    return [_take(pools, mixture.copy(), size, rng) for mixture, size in zip(mixtures, sizes, strict=True)]


def shards(labels: Any, clients: int, shards_per_client: int = 2, seed: int = 0) -> list[Rows]:
    """Sort by label, cut into clients · shards_per_client shards, deal them out at random (McMahan et al., 2017)."""
    labels = _labels(labels)
    whole("shards_per_client", shards_per_client)
    _check(len(labels), clients * shards_per_client, seed, "clients · shards_per_client")
    rng = stream(seed, "shards")
    shuffled = rng.permutation(len(labels))
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    pieces = np.array_split(order, clients * shards_per_client)
    dealt = rng.permutation(len(pieces)).reshape(clients, shards_per_client)
    return [np.concatenate([pieces[piece] for piece in hand]) for hand in dealt]


def pachinko(
    coarse: Any, fine: Any, clients: int, samples: int, alpha: float = 0.1, beta: float = 10.0, seed: int = 0
) -> list[Rows]:
    """Pachinko allocation over two levels of labels (Reddi et al., 2021), as CIFAR-100 is split in the paper.

    Each client draws a mixture of coarse classes from Dirichlet(alpha) and, inside each coarse class, a mixture of its
    fine classes from Dirichlet(beta). Its `samples` samples are drawn one by one down this tree, without replacement;
    a class that has run out leaves the mixtures, which are renormalised.
    """
    coarse, fine = _labels(coarse, "coarse labels"), _labels(fine, "fine labels")
    if len(coarse) != len(fine):
        raise DataError(f"{len(coarse)} coarse labels but {len(fine)} fine ones; each sample needs one of each")
    positive("alpha", alpha)
    positive("beta", beta)
    whole("samples", samples)
    _check(len(fine), clients * samples, seed, "clients · samples")
    rng = stream(seed, "pachinko")
    pools = _pools(fine, rng)
    parents = np.array([coarse[pool[0]] for pool in pools])
    for pool, parent in zip(pools, parents, strict=True):
        if (coarse[pool] != parent).any():
            raise DataError(f"fine label {fine[pool[0]]} lies under two coarse labels; a fine class needs one parent")
    branches = [np.flatnonzero(parents == parent) for parent in np.unique(parents)]
    return [_down_the_tree(pools, branches, samples, alpha, beta, rng) for _ in range(clients)]


def by_id(ids: Any) -> list[Rows]:
    """Give each distinct id its own client, in the order of the ids' first samples: a column of natural owners.

    >>> [rows.tolist() for rows in by_id(["ann", "bob", "ann"])]
    [[0, 2], [1]]
    """
    ids = np.asarray(ids)
    if ids.ndim != 1 or len(ids) == 0:
        raise DataError(f"ids must be a column with one id for each sample, not of shape {ids.shape}")
    _, first, owner = np.unique(ids, return_index=True, return_inverse=True)
    grouped = np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner))[:-1])
    return [grouped[group] for group in np.argsort(first)]


def _labels(labels: Any, what: str = "labels") -> Any:
    labels = np.asarray(labels)
    if labels.ndim != 1 or len(labels) == 0:
        raise DataError(f"{what} must be one column, not of shape {labels.shape}")
    return labels


def _check(samples: int, needed: int, seed: int, what: str = "clients") -> None:
    check_seed(seed)
    whole(what, needed)
    if needed > samples:
        raise DataError(f"{what} is {needed}, but there are only {samples} samples; every client needs some")


def _pools(labels: Any, rng: np.random.Generator) -> list[Rows]:
    """Each class's row numbers, in random order."""
    return [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]


def _down_the_tree(
    pools: list[Rows], branches: list[Rows], samples: int, alpha: float, beta: float, rng: np.random.Generator
) -> Rows:
    """Take one client's rows out of the pools of its fine classes; branches[b] has the fine classes of coarse one b."""
    coarse = rng.dirichlet(np.full(len(branches), alpha))
    fine = [rng.dirichlet(np.full(len(leaves), beta)) for leaves in branches]
    left = [np.array([len(pools[leaf]) for leaf in leaves]) for leaves in branches]
    top = _cumulative(coarse, np.array([counts.any() for counts in left]))
    below = [_cumulative(weights, counts > 0) for weights, counts in zip(fine, left, strict=True)]
    rows = np.empty(samples, dtype=np.int64)
    for i, (u, w) in enumerate(rng.random((samples, 2)).tolist()):
        b = _pick(top, u)
        k = _pick(below[b], w)
        leaf = branches[b][k]
        rows[i], pools[leaf] = pools[leaf][-1], pools[leaf][:-1]
        left[b][k] -= 1
        if left[b][k] == 0:  # only now do the mixtures change
            top = _cumulative(coarse, np.array([counts.any() for counts in left]))
            below[b] = _cumulative(fine[b], left[b] > 0)
    return rows


def _cumulative(weights: Any, open_: Any) -> list[float]:
    """Sum up the weights of what is still open; if all weight is gone, what is open counts alike."""
    shares = np.where(open_, weights, 0.0)
    sums: list[float] = np.cumsum(shares if shares.sum() > 0 else open_.astype(float)).tolist()
    return sums


def _pick(cumulative: list[float], uniform: float) -> int:
    """Return the index that a uniform number from [0, 1) falls on, in proportion to the weights."""
    return bisect_right(cumulative, uniform * cumulative[-1])


def _take(pools: list[Rows], mixture: Any, size: int, rng: np.random.Generator) -> Rows:
    """Take `size` rows out of the pools, each from a class drawn from `mixture`."""
    rows = np.empty(size, dtype=np.int64)
    for i in range(size):
        label = _pick(_cumulative(mixture, np.array([len(pool) > 0 for pool in pools])), rng.random())
        rows[i], pools[label] = pools[label][-1], pools[label][:-1]
    return rows
