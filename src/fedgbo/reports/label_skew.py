"""Label skew: how much the labels of clients differ, as numbers and as a heat map; and a task in numbers."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgbo.core import FedGBOError, permutation
from fedgbo.data.federated import FederatedData, compare_memory
from fedgbo.data.store import Array
from fedgbo.reports.charts import altair, embedded
from fedgbo.reports.sections import Section
from fedgbo.tasks.task import Task


@dataclass(frozen=True, eq=False)
class Skew:
    """The labels of some clients."""

    clients: tuple[int, ...]
    counts: Array  # (clients, classes)

    @property
    def classes_per_client(self) -> float:
        return float((self.counts > 0).sum(axis=1).mean())

    @property
    def distance(self) -> float:
        """The mean total variation distance between a client's labels and all labels: 0 is IID, 1 is disjoint."""
        shares = self.counts / self.counts.sum(axis=1, keepdims=True)
        overall = self.counts.sum(axis=0) / self.counts.sum()
        return float(np.abs(shares - overall).sum(axis=1).mean() / 2)


Labels = Skew | str  # the label skew of a task, or the reason why it is not known


def label_skew(data: FederatedData, most: int = 40) -> Skew:
    """Count the labels of at most `most` clients, a random but fixed choice."""
    labels = data.train.label_range()
    classes = labels[1] + 1 if labels else 0
    chosen = tuple(sorted(permutation(data.clients, 0, "skew")[:most].tolist()))
    counts = np.zeros((len(chosen), classes), dtype=np.int64)
    for i, client in enumerate(chosen):
        rows = np.arange(data.offsets[client], data.offsets[client + 1])
        labelled = data.train.labels_of(rows).astype(np.int64).reshape(-1)
        counts[i] = np.bincount(labelled[labelled >= 0], minlength=classes)
    return Skew(chosen, counts)


def skew_of(section: Section, own_files: bool = False) -> Labels:
    """Open the section's task and count its labels.

    A task defined in a user's file is opened only with `own_files`: a run folder from elsewhere may name any file, and
    opening its task executes that file.
    """
    config = section.lines[0].runs[0].config
    name = config.task["name"]
    if ":" in name and not own_files:
        return f"the task {name} is defined in a file that would be executed; --own-tasks opens it"
    try:
        data = config.build_task().data
        return "the task has no classes" if data.train.label_range() is None else label_skew(data)
    except (FedGBOError, OSError, TypeError, ValueError, MemoryError, OverflowError) as error:
        return f"the task cannot be opened here: {error}"


def overview(task: Task, skew: Skew | None, memory: bool = False) -> dict[str, Any]:
    """Return clients, samples, classes and label skew; with `memory`, also the bytes of naive and packed storage."""
    sizes = np.diff(task.data.offsets)
    numbers: dict[str, Any] = {
        "task": task.name,
        "clients": task.data.clients,
        "clients_per_round": task.cohort_size,
        "batch_size": task.batch_size,
        "train_samples": len(task.data.train),
        "test_samples": 0 if task.data.test is None else len(task.data.test),
        "least_samples": int(sizes.min()),
        "mean_samples": float(sizes.mean()),
        "most_samples": int(sizes.max()),
    }
    if skew is not None:
        numbers |= {"classes": skew.counts.shape[1], "classes_per_client": skew.classes_per_client}
        numbers["label_distance"] = skew.distance
    if memory:
        compared = compare_memory(task.data)
        numbers |= {"naive_bytes": compared.naive, "packed_bytes": compared.packed, "memory_ratio": compared.ratio}
    return numbers


def skew_chart(skew: Skew, title: str) -> Any:
    """Return an altair heat map: clients by classes, darker where a client has more of a class."""
    alt = altair()
    shade = alt.Color("share:Q", title="share", scale=alt.Scale(scheme="blues", domain=[0, 1]))
    return _heat_map(skew).encode(color=shade).properties(width=640, title=title)


def live_skew_chart(skew: Skew, colour: str) -> dict[str, Any]:
    """Return the specification of the page's heat map: one colour, more opaque where a client has more of a class."""
    alt = altair()
    shade = alt.Opacity("share:Q", title="share", scale=alt.Scale(domain=[0, 1], range=[0.08, 1]))
    return embedded(_heat_map(skew).encode(opacity=shade, color=alt.value(colour)).properties(width="container"))


def _heat_map(skew: Skew) -> Any:
    alt = altair()
    shares = skew.counts / skew.counts.sum(axis=1, keepdims=True)
    rows = [
        {"client": str(client), "class": label, "share": round(float(shares[i, label]), 4)}
        for i, client in enumerate(skew.clients)
        for label in np.flatnonzero(skew.counts[i]).tolist()
    ]
    labels = alt.X("class:O", title="class", scale=alt.Scale(domain=list(range(skew.counts.shape[1]))))
    clients = alt.Y("client:N", title="client", sort=[str(client) for client in skew.clients])
    tooltip = ["client:N", "class:O", alt.Tooltip("share:Q", format=".0%")]
    chart = alt.Chart(alt.Data(values=rows)).mark_rect().properties(height=14 * len(skew.clients))
    return chart.encode(x=labels.axis(labelOverlap=True, labelAngle=0), y=clients, tooltip=tooltip)
