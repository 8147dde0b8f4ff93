"""A task in numbers."""

from typing import Any

import numpy as np

from fedgbo.data.federated import compare_memory
from fedgbo.reports.skew import Skew
from fedgbo.tasks.task import Task


def overview(task: Task, skew: Skew | None, memory: bool = False) -> dict[str, Any]:
    """Return clients, samples, classes and label skew; with `memory`, also what the naive way would take."""
    sizes = np.diff(task.data.offsets)
    numbers: dict[str, Any] = {
        "task": task.name,
        "clients": task.data.clients,
        "clients_per_round": task.cohort_size,
        "batch_size": task.batch_size,
        "train_samples": len(task.data.train),
        "test_samples": len(task.data.test),
        "least_samples": int(sizes.min()),
        "mean_samples": float(sizes.mean()),
        "most_samples": int(sizes.max()),
    }
    if skew is not None:
        numbers["classes"] = skew.counts.shape[1]
        numbers["classes_per_client"] = skew.classes_per_client
        numbers["label_distance"] = skew.distance
    if memory:
        compared = compare_memory(task.data)
        numbers["naive_bytes"], numbers["packed_bytes"] = compared.naive, compared.packed
        numbers["memory_ratio"] = compared.ratio
    return numbers
