"""Partitioners: split labelled arrays into clients. Each returns the row numbers of every client."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgbo.core import ConfigError, DataError, Rows, check_seed, positive, stream, unknown, whole

SPLITS = ("iid", "dirichlet", "shards")


@dataclass(frozen=True)
class Split:
    """How labelled samples are dealt to clients: one of the partitioners, by name, and its settings."""

    kind: str
    clients: int
    alpha: float = 0.5  # of "dirichlet"
    shards_per_client: int = 2  # of "shards"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in SPLITS:
            raise ConfigError(unknown("split", str(self.kind), SPLITS))
        whole("clients", self.clients)
        positive("alpha", self.alpha)
        whole("shards_per_client", self.shards_per_client)
        check_seed(self.seed)

    def parts(self, labels: Any) -> list[Rows]:
        """Return the row numbers of every client."""
        if self.kind == "iid":
            return iid(len(labels), self.clients, self.seed)
        if self.kind == "dirichlet":
            return dirichlet(labels, self.clients, self.alpha, self.seed)
        return shards(labels, self.clients, self.shards_per_client, self.seed)


def iid(samples: int | Sequence[Any], clients: int, seed: int = 0) -> list[Rows]:
    """Assign the samples at random, as evenly as possible.

    >>> [len(rows) for rows in iid(10, clients=3)]
    [4, 3, 3]
    """
    count = int(samples) if isinstance(samples, int | np.integer) else len(samples)
    _check(count, clients, seed)
    return list(np.array_split(stream(seed, "iid").permutation(count), clients))


def dirichlet(labels: Any, clients: int, alpha: float, seed: int = 0) -> list[Rows]:
    """Label skew: each client draws its own mixture of classes from a Dirichlet distribution (Hsu et al., 2019).

    The parameter of a class is alpha · classes · the class's share, so alpha if classes are equally frequent. Clients
    get the same number of samples, without replacement; as classes run out, the mixtures are renormalised. The smaller
    alpha, the fewer classes a client has: 0.1 is strong skew, 100 almost none.
    """
    labels = _labels(labels)
    positive("alpha", alpha)
    _check(len(labels), clients, seed)
    rng = stream(seed, "dirichlet")
    pools = _pools(labels, rng)
    prior = np.array([len(pool) for pool in pools]) / len(labels)
    sizes = [len(part) for part in np.array_split(labels, clients)]
    mixtures = rng.dirichlet(alpha * len(pools) * prior, size=clients)
    parts = []
    for mixture, size in zip(mixtures, sizes, strict=True):
        classes = (_pick(_cumulative(mixture, map(bool, pools)), rng.random()) for _ in range(size))
        parts.append(np.array([pools[label].pop() for label in classes]))
    return parts


def shards(labels: Any, clients: int, shards_per_client: int = 2, seed: int = 0) -> list[Rows]:
    """Sort by label, cut into clients · shards_per_client shards, assign them at random (McMahan et al., 2017)."""
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
    as classes run out, the mixtures are renormalised.
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
    """Give each distinct id its own client, in the order of the ids' first samples.

    >>> [rows.tolist() for rows in by_id(["ann", "bob", "ann"])]
    [[0, 2], [1]]
    """
    _, first, owner = np.unique(_labels(ids, "ids"), return_index=True, return_inverse=True)
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


def _pools(labels: Any, rng: np.random.Generator) -> list[list[int]]:
    return [rng.permutation(np.flatnonzero(labels == label)).tolist() for label in np.unique(labels)]


def _down_the_tree(
    pools: list[list[int]], branches: list[Rows], samples: int, alpha: float, beta: float, rng: np.random.Generator
) -> Rows:
    """Take one client's rows out of the pools of its fine classes; branches[b] has the fine classes of coarse one b."""
    coarse = rng.dirichlet(np.full(len(branches), alpha))
    fine = [rng.dirichlet(np.full(len(leaves), beta)) for leaves in branches]

    def upper_level() -> list[float]:
        return _cumulative(coarse, (any(pools[leaf] for leaf in leaves) for leaves in branches))

    def lower_level(b: int) -> list[float]:
        return _cumulative(fine[b], (bool(pools[leaf]) for leaf in branches[b]))

    upper, lower = upper_level(), [lower_level(b) for b in range(len(branches))]
    rows = []
    for u, w in rng.random((samples, 2)).tolist():
        b = _pick(upper, u)
        leaf = branches[b][_pick(lower[b], w)]
        rows.append(pools[leaf].pop())
        if not pools[leaf]:  # only now do the mixtures change
            upper, lower[b] = upper_level(), lower_level(b)
    return np.array(rows)


def _cumulative(weights: Any, remaining: Iterable[bool]) -> list[float]:
    """Sum up the weights of the classes with remaining samples; if their weights are all 0, they count equally."""
    mask = np.array(list(remaining))
    shares = np.where(mask, weights, 0.0)
    sums: list[float] = np.cumsum(shares if shares.sum() > 0 else mask.astype(float)).tolist()
    return sums


def _pick(cumulative: list[float], uniform: float) -> int:
    """Return the index that a uniform number from [0, 1) falls on, in proportion to the weights."""
    return bisect_right(cumulative, uniform * cumulative[-1])
