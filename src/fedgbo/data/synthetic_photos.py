"""A stand-in for CIFAR-100: colour images drawn on demand from 100 classes in 20 coarse ones.

Each fine class has a smooth pattern, half its own and half its coarse class's. An image is that pattern at a random
place, with random contrast and noise that belong to its row number: nothing is stored but the labels.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from fedgbo.core.checks import whole
from fedgbo.core.random import Rows, check_seed, stream
from fedgbo.data.partition import pachinko
from fedgbo.data.rowwise import uniforms
from fedgbo.data.store import Array

FINE, COARSE, SIZE, MARGIN = 100, 20, 32, 4  # a pattern is MARGIN wider than an image on each side
PIXELS = 3 * SIZE * SIZE
NOISE = 1 << 20  # places in the noise where an image's noise may start
AMPLITUDE, NOISE_STD = 30.0, 40.0  # grey levels


@dataclass(frozen=True, eq=False)
class SyntheticPhotos:
    """Images of the given labels as uint8 (N, 3, 32, 32); `first` is the number of row 0."""

    labels: Array  # (N,)
    patterns: Array  # (100, 3, 40, 40) int16
    noise: Array  # (NOISE + PIXELS,) int16
    seed: int
    first: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Samples, channels, height, width."""
        return len(self.labels), 3, SIZE, SIZE

    def __getitem__(self, rows: Rows) -> Array:
        """Draw the rows. All in whole numbers, so an image has the same bytes in every batch."""
        chance = uniforms(rows + self.first, 4, self.seed)  # (B, 4)
        tops, lefts = (chance[:, :2] * (2 * MARGIN + 1)).astype(np.int64).T
        contrast = (48 + chance[:, 2] * 32).astype(np.int16)  # of 64: three to five quarters
        places = sliding_window_view(self.patterns, (SIZE, SIZE), axis=(2, 3))  # (100, 3, 9, 9, 32, 32)
        images = places[self.labels[rows], :, tops, lefts] * contrast[:, None, None, None] // 64
        starts = (chance[:, 3] * NOISE).astype(np.int64)
        images += sliding_window_view(self.noise, PIXELS)[starts].reshape(images.shape)
        return np.clip(images + 128, 0, 255).astype(np.uint8)


def synthetic_photos(clients: int, samples: int, test_samples: int, seed: int) -> dict[str, Any]:
    """Make the stand-in, under the names that the packed CIFAR-100 has; clients differ by Pachinko allocation."""
    check_seed(seed)
    whole("clients", clients)
    whole("test_samples", test_samples)
    rng = stream(seed, "synthetic photos")
    fine = np.arange(max(clients * samples, FINE), dtype=np.int64) % FINE
    order = np.concatenate(pachinko(fine * COARSE // FINE, fine, clients, samples, seed=seed))
    train, test = fine[order].astype(np.uint8), (np.arange(test_samples) % FINE).astype(np.uint8)
    patterns = _patterns(rng)
    noise = np.rint(rng.normal(0, NOISE_STD, NOISE + PIXELS)).astype(np.int16)
    return {
        "train_images": SyntheticPhotos(train, patterns, noise, seed),
        "train_labels": train,
        "train_offsets": np.arange(clients + 1, dtype=np.int64) * samples,
        "test_images": SyntheticPhotos(test, patterns, noise, seed, first=len(train)),
        "test_labels": test,
    }


def _patterns(rng: np.random.Generator) -> Array:
    """Smooth random patterns: a coarse grid of values, interpolated."""
    side = SIZE + 2 * MARGIN
    grid = rng.normal(0, AMPLITUDE, (FINE, 3, 6, 6)) + np.repeat(
        rng.normal(0, AMPLITUDE, (COARSE, 3, 6, 6)), FINE // COARSE, axis=0
    )
    weights = np.array([np.interp(np.linspace(0, 5, side), np.arange(6), unit) for unit in np.eye(6)])  # (6, side)
    patterns: Array = np.rint(np.einsum("kcij,iy,jx->kcyx", grid, weights, weights, optimize=True)).astype(np.int16)
    return patterns
