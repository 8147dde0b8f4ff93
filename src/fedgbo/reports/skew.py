"""How much clients' labels differ: counts by client and class, and a picture of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgbo.core.random import permutation
from fedgbo.data.federated import FederatedData
from fedgbo.data.store import Array
from fedgbo.reports.chart import altair


@dataclass(frozen=True, eq=False)
class Skew:
    """The labels of some clients."""

    clients: tuple[int, ...]
    counts: Array  # (clients, classes)

    @property
    def classes_per_client(self) -> float:
        """The mean number of classes that a client has."""
        return float((self.counts > 0).sum(axis=1).mean())

    @property
    def distance(self) -> float:
        """The mean total variation distance of a client's labels from all: 0 is IID, 1 is nothing in common."""
        shares = self.counts / self.counts.sum(axis=1, keepdims=True)
        overall = self.counts.sum(axis=0) / self.counts.sum()
        return float(np.abs(shares - overall).sum(axis=1).mean() / 2)


def label_skew(data: FederatedData, most: int = 40) -> Skew:
    """Count the labels of at most `most` clients, drawn at random but always the same ones."""
    labels = data.train.label_range()
    classes = labels[1] + 1 if labels else 0
    chosen = tuple(sorted(permutation(data.clients, 0, "skew")[:most].tolist()))
    counts = np.zeros((len(chosen), classes), dtype=np.int64)
    for i, client in enumerate(chosen):
        rows = np.arange(data.offsets[client], data.offsets[client + 1])
        counts[i] = np.bincount(data.train.labels_of(rows).astype(np.int64), minlength=classes)
    return Skew(chosen, counts)


def skew_chart(skew: Skew, title: str) -> Any:
    """Return an altair heat map: clients by classes, darker where a client has more of a class."""
    alt = altair()
    shade = alt.Color("share:Q", title="share", scale=alt.Scale(scheme="blues", domain=[0, 1]))
    return _heat_map(skew).encode(color=shade).properties(width=640, title=title)


def live_skew_chart(skew: Skew, colour: str) -> dict[str, Any]:
    """Return the specification of the page's heat map: one colour, more opaque where a client has more of a class."""
    alt = altair()
    shade = alt.Opacity("share:Q", title="share", scale=alt.Scale(domain=[0, 1], range=[0.08, 1]))
    chart = _heat_map(skew).encode(opacity=shade, color=alt.value(colour)).properties(width="container")
    spec: dict[str, Any] = chart.to_dict()
    for part in ("config", "$schema"):
        spec.pop(part)
    return spec


def _heat_map(skew: Skew) -> Any:
    alt = altair()
    shares = skew.counts / skew.counts.sum(axis=1, keepdims=True)
    rows = [
        {"client": str(client), "class": label, "share": round(float(shares[i, label]), 4)}
        for i, client in enumerate(skew.clients)
        for label in np.flatnonzero(skew.counts[i]).tolist()
    ]
    labels = alt.X("class:O", title="class", scale=alt.Scale(domain=list(range(skew.counts.shape[1]))))
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_rect()
        .encode(
            x=labels.axis(labelOverlap=True),
            y=alt.Y("client:N", title="client", sort=[str(client) for client in skew.clients]),
            tooltip=["client:N", "class:O", alt.Tooltip("share:Q", format=".0%")],
        )
        .properties(height=14 * len(skew.clients))
    )
