"""Synthetic stand-ins for CIFAR-100 and FEMNIST. Images are drawn on demand: only labels and styles are stored.

Photos: 100 fine classes in 20 coarse ones. Each fine class has a smooth pattern, half its own and half its coarse
class's. An image is that pattern at a random position, with random contrast and noise.

Glyphs: 62 characters by many writers. A class is a few curved strokes, kept as a distance field. A writer has a slant,
a width, a height, a position, a pen and preferred classes; each sample varies them a little.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from fedgbo.core import Rows, check_seed, stream, whole
from fedgbo.data.partition import pachinko
from fedgbo.data.store import Array

GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio

FINE, COARSE, PHOTO, MARGIN = 100, 20, 32, 4  # a pattern is MARGIN wider than an image on each side
PHOTO_PIXELS = 3 * PHOTO * PHOTO
NOISE = 1 << 20  # positions in the noise where an image's noise may start
AMPLITUDE, NOISE_STD = 30.0, 40.0  # grey levels

GLYPHS, GLYPH, FINENESS = 62, 28, 3  # a distance field has 3 x 3 points for a pixel
MEAN_SAMPLES, SPREAD, FEWEST = 170, 0.45, 20  # of a log-normal number of samples a writer
DIGITS = 0.5  # share of the ten digits among all samples
SKEW = 0.3  # of Dirichlet draws around the classes' shares: the smaller, the fewer classes a writer has
STYLE = np.array([0.25, 0.12, 0.12, 1.2, 1.2, 0.25])  # std over writers of slant, width, height, right, down, pen
JITTER = np.array([0.2, 0.12, 0.12, 1.5, 1.5, 0.25])  # largest change of the same in a sample
PEN = 1.0  # half of a stroke's width in pixels


def uniforms(rows: Rows, count: int, seed: int) -> Array:
    """Return (rows, count) numbers from [0, 1), by SplitMix64 (Steele et al., 2014) of the row, the column and seed.

    A row has the same numbers in every batch.

    >>> whole, one = uniforms(np.arange(5), 3, seed=1), uniforms(np.array([4]), 3, seed=1)
    >>> bool((whole[4] == one[0]).all())
    True
    """
    start = (seed + 1) * GOLDEN % 2**64
    z: Array = rows.astype(np.uint64)[:, None] * np.uint64(count) + np.arange(count, dtype=np.uint64)
    z = (_mix(z + np.uint64(start)) + np.uint64(GOLDEN)) * np.uint64(GOLDEN)
    return (_mix(z) >> np.uint64(11)) * 2.0**-53


def _mix(z: Array) -> Array:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


@dataclass(frozen=True, eq=False)
class SyntheticPhotos:
    """Images of the given labels as uint8 (N, 3, 32, 32); `first` is the number of row 0."""

    labels: Array  # (N,)
    patterns: Array  # (100, 3, 40, 40) int16
    noise: Array  # (NOISE + PHOTO_PIXELS,) int16
    seed: int
    first: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.labels), 3, PHOTO, PHOTO

    def __getitem__(self, rows: Rows) -> Array:
        """Draw the rows, in integers only, so that an image has the same bytes in every batch."""
        chance = uniforms(rows + self.first, 4, self.seed)  # (B, 4)
        tops, lefts = (chance[:, :2] * (2 * MARGIN + 1)).astype(np.int64).T
        contrast = (48 + chance[:, 2] * 32).astype(np.int16)  # of 64: three to five quarters
        places = sliding_window_view(self.patterns, (PHOTO, PHOTO), axis=(2, 3))  # (100, 3, 9, 9, 32, 32)
        images = places[self.labels[rows], :, tops, lefts] * contrast[:, None, None, None] // 64
        starts = (chance[:, 3] * NOISE).astype(np.int64)
        images += sliding_window_view(self.noise, PHOTO_PIXELS)[starts].reshape(images.shape)
        return np.clip(images + 128, 0, 255).astype(np.uint8)


def synthetic_photos(clients: int, samples: int, test_samples: int, seed: int) -> dict[str, Any]:
    """Return arrays like `read_cifar100`'s; clients differ by Pachinko allocation."""
    check_seed(seed)
    whole("clients", clients)
    whole("test_samples", test_samples)
    rng = stream(seed, "synthetic photos")
    fine = np.arange(max(clients * samples, FINE), dtype=np.int64) % FINE
    order = np.concatenate(pachinko(fine * COARSE // FINE, fine, clients, samples, seed=seed))
    train_labels, test_labels = fine[order].astype(np.uint8), (np.arange(test_samples) % FINE).astype(np.uint8)
    own = rng.normal(0, AMPLITUDE, (FINE, 3, 6, 6))
    grid = own + np.repeat(rng.normal(0, AMPLITUDE, (COARSE, 3, 6, 6)), FINE // COARSE, axis=0)
    points = np.linspace(0, 5, PHOTO + 2 * MARGIN)  # a pattern is a coarse grid of random values, interpolated
    weights = np.array([np.interp(points, np.arange(6), unit) for unit in np.eye(6)])  # (6, points)
    patterns = np.rint(np.einsum("kcij,iy,jx->kcyx", grid, weights, weights, optimize=True)).astype(np.int16)
    noise = np.rint(rng.normal(0, NOISE_STD, NOISE + PHOTO_PIXELS)).astype(np.int16)
    train = SyntheticPhotos(train_labels, patterns, noise, seed)
    test = SyntheticPhotos(test_labels, patterns, noise, seed, first=len(train_labels))
    offsets = np.arange(clients + 1, dtype=np.int64) * samples
    return {"train_offsets": offsets, **_half("train", train), **_half("test", test)}


@dataclass(frozen=True, eq=False)
class SyntheticGlyphs:
    """Images of the given labels and writers as uint8 (N, 1, 28, 28), 255 for paper; `first` is the number of row 0."""

    labels: Array  # (N,)
    writers: Array  # (N,)
    styles: Array  # (writers, 6)
    fields: Array  # (62, 84, 84): distance to the nearest stroke, in pixels
    seed: int
    first: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.labels), 1, GLYPH, GLYPH

    def __getitem__(self, rows: Rows) -> Array:
        """Draw the rows; an image has the same bytes in every batch."""
        change = JITTER * (2 * uniforms(rows + self.first, 6, self.seed) - 1)
        slant, width, height, right, down, pen = (self.styles[self.writers[rows]] + change).T[:, :, None]  # (B, 1) each
        axis = np.arange(GLYPH) - (GLYPH - 1) / 2
        y = (axis - down) / (1 + height)  # (B, 28)
        x = ((axis - right) / (1 + width))[:, None, :] + (slant * y)[:, :, None]  # (B, 28, 28)
        labels = self.labels[rows][:, None, None]
        ink = np.clip(PEN + pen[:, :, None] - self.fields[labels, _point(y)[:, :, None], _point(x)] + 0.5, 0, 1)
        return np.asarray((255 - np.rint(255 * ink)).astype(np.uint8)[:, None])


def synthetic_glyphs(clients: int, test_samples: int, seed: int) -> dict[str, Any]:
    """Return arrays like `read_femnist`'s. The test set is by the same writers."""
    check_seed(seed)
    whole("clients", clients)
    whole("test_samples", test_samples)
    rng = stream(seed, "synthetic glyphs")
    fields = _distance_fields(rng)
    sizes = np.exp(rng.normal(np.log(MEAN_SAMPLES) - SPREAD**2 / 2, SPREAD, clients))
    offsets = np.cumsum([0, *np.maximum(sizes, FEWEST).astype(np.int64)])
    styles = STYLE * np.clip(rng.normal(size=(clients, len(STYLE))), -2.5, 2.5)
    shares = np.where(np.arange(GLYPHS) < 10, DIGITS / 10, (1 - DIGITS) / (GLYPHS - 10))
    # cumulative preferences of writer w, moved to w ... w + 1: one search serves all samples of all writers
    tastes = np.cumsum(rng.dirichlet(SKEW * GLYPHS * shares, size=clients), axis=1)
    tastes = np.minimum(tastes / tastes[:, -1:], 1) + np.arange(clients)[:, None]

    def drawn(writers: Array, first: int) -> SyntheticGlyphs:
        places = np.searchsorted(tastes.ravel(), writers + rng.random(len(writers)), side="right")
        labels = np.minimum(places - writers * GLYPHS, GLYPHS - 1).astype(np.uint8)
        return SyntheticGlyphs(labels, writers.astype(np.int32), styles, fields, seed, first)

    train = drawn(np.repeat(np.arange(clients), np.diff(offsets)), 0)
    test = drawn(np.sort(rng.integers(clients, size=test_samples)), int(offsets[-1]))
    return {"train_offsets": offsets, **_half("train", train), **_half("test", test)}


def _point(place: Array) -> Array:
    """Return the number of the distance field's point nearest to a place, in pixels from the centre."""
    points = np.rint((place + GLYPH / 2) * FINENESS - 0.5)
    return np.clip(points, 0, GLYPH * FINENESS - 1).astype(np.int64)


def _distance_fields(rng: np.random.Generator) -> Array:
    """Draw two or three strokes a class, each a quadratic Bézier curve through the middle of the image."""
    side = GLYPH * FINENESS
    axis = (np.arange(side) + 0.5) / FINENESS - GLYPH / 2
    t = np.linspace(0, 1, 24)[:, None]
    fields = np.empty((GLYPHS, side, side), dtype=np.float32)
    for field in fields:
        strokes = rng.uniform(-8.5, 8.5, (rng.integers(2, 4), 3, 1, 2))  # three control points each
        points = np.concatenate([(1 - t) ** 2 * a + 2 * t * (1 - t) * b + t**2 * c for a, b, c in strokes])
        down, right = ((axis[:, None] - points[:, k]) ** 2 for k in (0, 1))  # (84, 24 x strokes) each
        field[:] = np.sqrt((down[:, None, :] + right[None, :, :]).min(axis=2))
    return fields


def _half(half: str, images: SyntheticPhotos | SyntheticGlyphs) -> dict[str, Any]:
    return {f"{half}_images": images, f"{half}_labels": images.labels}
