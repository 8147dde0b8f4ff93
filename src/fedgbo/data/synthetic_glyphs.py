"""A stand-in for FEMNIST: 62 made-up characters in the hands of many writers, drawn on demand.

A class is a few curved strokes, kept as its distance field. A writer has a slant, a width, a height, a place and a pen,
and a taste for some of the classes; a sample adds small changes of its own, which belong to its row number. Nothing is
stored but the labels and the writers' styles: as bytes, the images of 3,000 writers would take 400 MB.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgbo.core.checks import whole
from fedgbo.core.random import Rows, check_seed, stream
from fedgbo.data.rowwise import uniforms
from fedgbo.data.store import Array

CLASSES, SIZE, FINENESS = 62, 28, 3  # a distance field has 3 x 3 points for a pixel
MEAN_SAMPLES, SPREAD, FEWEST = 170, 0.45, 20  # of a log-normal number of samples a writer
DIGITS = 0.5  # share of the ten digits among all samples
SKEW = 0.3  # of Dirichlet draws around the classes' shares: the smaller, the fewer classes a writer has
STYLE = np.array([0.25, 0.12, 0.12, 1.2, 1.2, 0.25])  # std over writers of slant, width, height, right, down, pen
JITTER = np.array([0.2, 0.12, 0.12, 1.5, 1.5, 0.25])  # largest change in a sample, of the same
PEN = 1.0  # half of a stroke's width in pixels


@dataclass(frozen=True, eq=False)
class SyntheticGlyphs:
    """Images of the given labels and writers as uint8 (N, 1, 28, 28), 255 being paper; `first` is row 0's number."""

    labels: Array  # (N,)
    writers: Array  # (N,)
    styles: Array  # (writers, 6)
    fields: Array  # (62, 84, 84): distance to the nearest stroke, in pixels
    seed: int
    first: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Samples, channels, height, width."""
        return len(self.labels), 1, SIZE, SIZE

    def __getitem__(self, rows: Rows) -> Array:
        """Draw the rows, pixel by pixel the same in every batch."""
        change = JITTER * (2 * uniforms(rows + self.first, 6, self.seed) - 1)
        slant, width, height, right, down, pen = (self.styles[self.writers[rows]] + change).T[:, :, None]  # (B, 1) each
        axis = np.arange(SIZE) - (SIZE - 1) / 2
        y = (axis - down) / (1 + height)  # (B, 28)
        x = ((axis - right) / (1 + width))[:, None, :] + (slant * y)[:, :, None]  # (B, 28, 28)
        labels = self.labels[rows][:, None, None]
        ink = np.clip(PEN + pen[:, :, None] - self.fields[labels, _point(y)[:, :, None], _point(x)] + 0.5, 0, 1)
        images: Array = (255 - np.rint(255 * ink)).astype(np.uint8)[:, None]
        return images


def synthetic_glyphs(clients: int, test_samples: int, seed: int) -> dict[str, Any]:
    """Make the stand-in, under the names that the packed FEMNIST has. The test set is by the same writers."""
    check_seed(seed)
    whole("clients", clients)
    whole("test_samples", test_samples)
    rng = stream(seed, "synthetic glyphs")
    fields = _distance_fields(rng)
    sizes = np.exp(rng.normal(np.log(MEAN_SAMPLES) - SPREAD**2 / 2, SPREAD, clients))
    offsets = np.cumsum([0, *np.maximum(sizes, FEWEST).astype(np.int64)])
    styles = STYLE * np.clip(rng.normal(size=(clients, len(STYLE))), -2.5, 2.5)
    shares = np.where(np.arange(CLASSES) < 10, DIGITS / 10, (1 - DIGITS) / (CLASSES - 10))
    # cumulative tastes of writer w, moved to w ... w + 1: one search serves all samples of all writers
    tastes = np.cumsum(rng.dirichlet(SKEW * CLASSES * shares, size=clients), axis=1)
    tastes = np.minimum(tastes / tastes[:, -1:], 1) + np.arange(clients)[:, None]

    def drawn(writers: Array, first: int) -> SyntheticGlyphs:
        places = np.searchsorted(tastes.ravel(), writers + rng.random(len(writers)), side="right")
        labels = np.minimum(places - writers * CLASSES, CLASSES - 1).astype(np.uint8)
        return SyntheticGlyphs(labels, writers.astype(np.int32), styles, fields, seed, first)

    train = drawn(np.repeat(np.arange(clients), np.diff(offsets)), 0)
    test = drawn(np.sort(rng.integers(clients, size=test_samples)), int(offsets[-1]))
    return {
        "train_images": train,
        "train_labels": train.labels,
        "train_offsets": offsets,
        "test_images": test,
        "test_labels": test.labels,
    }


def _point(place: Array) -> Array:
    """Return the number of the distance field's point nearest to a place, in pixels from the centre."""
    points = np.rint((place + SIZE / 2) * FINENESS - 0.5)
    return np.clip(points, 0, SIZE * FINENESS - 1).astype(np.int64)


def _distance_fields(rng: np.random.Generator) -> Array:
    """Two or three strokes a class, each a quadratic Bézier curve through the middle of the image."""
    side = SIZE * FINENESS
    axis = (np.arange(side) + 0.5) / FINENESS - SIZE / 2
    t = np.linspace(0, 1, 24)[:, None]
    fields = np.empty((CLASSES, side, side), dtype=np.float32)
    for field in fields:
        strokes = rng.uniform(-8.5, 8.5, (rng.integers(2, 4), 3, 1, 2))  # three control points each
        ends = [(1 - t) ** 2 * a + 2 * t * (1 - t) * b + t**2 * c for a, b, c in strokes]
        points = np.concatenate(ends)  # (24 x strokes, 2)
        down, right = ((axis[:, None] - points[:, k]) ** 2 for k in (0, 1))  # (84, points) each
        field[:] = np.sqrt((down[:, None, :] + right[None, :, :]).min(axis=2))
    return fields
