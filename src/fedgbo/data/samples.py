"""Rows of (input, target) that a batch is taken from."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgbo.core.random import Rows


class Samples(ABC):
    """Numbered samples. How they are stored is this class's own affair; a batch is a pair of tensors."""

    @abstractmethod
    def __len__(self) -> int:
        """How many samples there are."""

    @abstractmethod
    def batch(self, rows: Rows, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of `rows`; `rng` is given where samples are to be augmented for training."""

    @abstractmethod
    def label_range(self) -> tuple[int, int] | None:
        """Return the smallest and the largest label, or None where targets are not whole numbers."""

    def labels_of(self, rows: Rows) -> np.ndarray[Any, np.dtype[Any]]:
        """Return the targets of `rows` alone; overridden where inputs need not be made for it."""
        labels: np.ndarray[Any, np.dtype[Any]] = self.batch(rows)[1].numpy()
        return labels

    @property
    def overlap(self) -> int:
        """How far apart two rows may be and still share content: 0, unless samples are windows over one text."""
        return 0

    def take(self, rows: Rows) -> "Samples":
        """Return these rows, which must ascend, as samples of their own; by default row numbers and no copy."""
        return Subset(self, rows)


class TensorSamples(Samples):
    """Inputs and targets as two tensors in memory."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs = inputs
        self.targets = targets

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self.targets)

    def batch(self, rows: Rows, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return copies of the rows."""
        index = torch.from_numpy(rows)
        return self.inputs[index], self.targets[index]

    def label_range(self) -> tuple[int, int] | None:
        """Return the smallest and the largest label."""
        kind = self.targets.dtype
        if kind.is_floating_point or kind.is_complex or kind == torch.bool:
            return None
        return int(self.targets.min()), int(self.targets.max())


class Subset(Samples):
    """Some samples of others, in the order in which they lie there."""

    def __init__(self, samples: Samples, rows: Rows) -> None:
        self.samples = samples
        self.rows = np.sort(rows)

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self.rows)

    def batch(self, rows: Rows, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return what the others return for the chosen rows."""
        return self.samples.batch(self.rows[rows], rng)

    def labels_of(self, rows: Rows) -> np.ndarray[Any, np.dtype[Any]]:
        """Return what the others return for the chosen rows."""
        return self.samples.labels_of(self.rows[rows])

    @property
    def overlap(self) -> int:
        """As among all: rows that are so far apart here are at least as far apart there."""
        return self.samples.overlap

    def label_range(self) -> tuple[int, int] | None:
        """Return the smallest and the largest label of all, chosen or not."""
        return self.samples.label_range()
