"""Windows of 80 characters, one character apart, over texts that are stored once."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedgbo.core.errors import DataError
from fedgbo.core.random import Rows
from fedgbo.data.samples import Samples
from fedgbo.data.store import Array

WINDOW = 80


@dataclass(frozen=True, eq=False)
class WindowSamples(Samples):
    """Runs of windows: run r has counts[r] samples, the first of them at text[starts[r]].

    The sample at position p is text[p : p + 80] with the target text[p + 80]. Only a batch is ever made of windows.
    """

    text: Array  # (characters,) uint8
    starts: Array  # (runs,) int64
    counts: Array  # (runs,) int64
    ends: Array = field(init=False)  # (runs,) int64, the row after each run's last

    def __post_init__(self) -> None:
        beyond = np.max(self.starts + self.counts, initial=0) + WINDOW > len(self.text)
        if len(self.starts) == 0 or np.min(self.starts) < 0 or np.min(self.counts) < 1 or beyond:
            raise DataError("the windows do not fit the text; pack the data again")
        object.__setattr__(self, "ends", np.cumsum(self.counts))

    def __len__(self) -> int:
        """How many windows there are."""
        return int(self.ends[-1])

    def batch(self, rows: Rows, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return windows (B, 80) and the characters after them (B,), as torch's long."""
        first = self._first(rows)  # (B,)
        taken = self.text[first[:, None] + np.arange(WINDOW + 1)].astype(np.int64)  # (B, 81)
        windows = torch.from_numpy(taken)
        return windows[:, :WINDOW], windows[:, WINDOW]

    def labels_of(self, rows: Rows) -> Array:
        """Return the characters after the windows."""
        labels: Array = self.text[self._first(rows) + WINDOW]
        return labels

    @property
    def overlap(self) -> int:
        """Windows nearer than this have characters in common."""
        return WINDOW

    def take(self, rows: Rows) -> "WindowSamples":
        """Return the rows as runs over the same text: a few numbers for each stretch of neighbours, no copy."""
        run = np.searchsorted(self.ends, rows, side="right")
        begins = np.flatnonzero(np.concatenate([[True], (np.diff(rows) != 1) | (np.diff(run) != 0)]))
        return WindowSamples(self.text, self._first(rows[begins]), np.diff(np.append(begins, len(rows))))

    def _first(self, rows: Rows) -> Array:
        """Return where the windows begin in the text."""
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise IndexError(f"rows go from {rows.min()} to {rows.max()}, but there are {len(self)} samples")
        run = np.searchsorted(self.ends, rows, side="right")
        first: Array = self.starts[run] + rows - (self.ends[run] - self.counts[run])
        return first

    def label_range(self) -> tuple[int, int]:
        """Return the smallest and the largest character of the text, which no label exceeds."""
        return int(self.text.min()), int(self.text.max())
