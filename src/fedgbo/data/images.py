"""Images as bytes, made into normalised and augmented batches one batch at a time."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedgbo.core.errors import ConfigError, DataError
from fedgbo.core.random import Rows
from fedgbo.data.samples import Samples
from fedgbo.data.store import Array

FRAME = 256  # the code of a pixel outside the image; those inside have 0 to 255


class Pictures(Protocol):
    """What images are taken from: an array of bytes, in memory or mapped, or something that draws them on demand."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Samples, channels, height, width."""

    def __getitem__(self, rows: Rows) -> Array:
        """Return the rows as a new (B, C, H, W) array of uint8."""


@dataclass(frozen=True, eq=False)
class ImageSamples(Samples):
    """Images (N, C, H, W) and labels (N,), both uint8, never copied as a whole.

    A pixel becomes (p / 255 - mean) / std by channel, p being 255 - p first where `invert` is set. In training (with a
    random generator) an image is flipped left to right with probability 1/2 where `flip` is set, then framed by
    `padding` zeros, then cut to crop x crop at a random place. In testing it is cut to crop x crop at the centre.
    """

    images: Pictures
    labels: Array
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    invert: bool = False
    flip: bool = False
    crop: int | None = None
    padding: int = 0

    def __post_init__(self) -> None:
        shape = self.images.shape
        if len(shape) != 4 or self.labels.shape != shape[:1]:
            raise DataError(
                f"images must be (samples, channels, height, width) with one label each, not {tuple(shape)} "
                f"with labels of shape {tuple(self.labels.shape)}; pack the data again"
            )
        if self.crop is not None and not 0 < self.crop <= min(shape[2:]):
            raise ConfigError(f"crop must be from 1 to the images' size, {min(shape[2:])}, not {self.crop}")
        if self.padding < 0:
            raise ConfigError(f"padding must be 0 or more, not {self.padding}")

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self.labels)

    def batch(self, rows: Rows, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return float images and whole-numbered labels of `rows`, augmented if there is a generator."""
        labels = torch.from_numpy(self.labels[rows].astype(np.int64))
        pixels = np.asarray(self.images[rows])  # (B, C, H, W)
        if rng is not None:
            codes = self._augmented(pixels, rng)
        else:
            codes = pixels if self.crop is None else _centre(pixels, self.crop)
        values = self._values
        images = np.empty(codes.shape, np.float32)
        for channel, value in enumerate(values):
            np.take(value, codes[:, channel], out=images[:, channel], mode="clip")  # codes are in range: no check
        return torch.from_numpy(images), labels

    @cached_property
    def _values(self) -> Array:
        """What each pixel code becomes in each channel (C, 257): looked up, not computed again for every pixel."""
        codes = torch.arange(256.0)
        images = (255 - codes if self.invert else codes).div(255).repeat(self.images.shape[1], 1)
        images = images.sub_(_by_channel(self.mean)).div_(_by_channel(self.std))
        return torch.nn.functional.pad(images, (0, 1)).numpy()  # the last one is FRAME

    def labels_of(self, rows: Rows) -> Array:
        """Return the labels of `rows`."""
        return self.labels[rows]

    def label_range(self) -> tuple[int, int]:
        """Return the smallest and the largest label."""
        return int(self.labels.min()), int(self.labels.max())

    def _augmented(self, pixels: Array, rng: np.random.Generator) -> Array:
        """Return pixel codes, FRAME for those outside the image: a byte or two to move about instead of a float."""
        count, channels, height, width = pixels.shape
        if self.flip:
            flipped = rng.random(count) < 0.5
            pixels[flipped] = pixels[flipped, :, :, ::-1]
        if self.crop is None:
            return pixels
        if self.padding:
            edge = self.padding
            framed = np.full((count, channels, height + 2 * edge, width + 2 * edge), FRAME, np.uint16)
            framed[:, :, edge:-edge, edge:-edge] = pixels
            pixels = framed
        windows = np.lib.stride_tricks.sliding_window_view(pixels, (self.crop, self.crop), axis=(2, 3))
        tops = rng.integers(windows.shape[2], size=count)
        lefts = rng.integers(windows.shape[3], size=count)
        cut: Array = windows[np.arange(count), :, tops, lefts]
        return cut


def _by_channel(values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None]


def _centre(pixels: Array, crop: int) -> Array:
    top, left = (pixels.shape[2] - crop) // 2, (pixels.shape[3] - crop) // 2
    return pixels[:, :, top : top + crop, left : left + crop]
