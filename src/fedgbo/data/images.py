"""Images as bytes, made into normalised and augmented batches one batch at a time."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedgbo.core.errors import ConfigError, DataError
from fedgbo.core.random import Rows
from fedgbo.data.samples import Samples
from fedgbo.data.store import Array


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
        pixels = np.asarray(self.images[rows])
        images = torch.from_numpy(255 - pixels if self.invert else pixels).float().div_(255)
        images = images.sub_(_by_channel(self.mean)).div_(_by_channel(self.std))  # (B, C, H, W)
        if rng is not None:
            return self._augmented(images, rng), labels
        return images if self.crop is None else _centre(images, self.crop), labels

    def labels_of(self, rows: Rows) -> Array:
        """Return the labels of `rows`."""
        return self.labels[rows]

    def label_range(self) -> tuple[int, int]:
        """Return the smallest and the largest label."""
        return int(self.labels.min()), int(self.labels.max())

    def _augmented(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        count = len(images)
        if self.flip:
            flipped = torch.from_numpy(rng.random(count) < 0.5)
            images = torch.where(flipped[:, None, None, None], images.flip(3), images)
        if self.crop is None:
            return images
        if self.padding:
            images = torch.nn.functional.pad(images, [self.padding] * 4)
        windows = images.unfold(2, self.crop, 1).unfold(3, self.crop, 1)  # (B, C, tops, lefts, crop, crop), a view
        tops = torch.from_numpy(rng.integers(windows.shape[2], size=count))
        lefts = torch.from_numpy(rng.integers(windows.shape[3], size=count))
        return windows[torch.arange(count), :, tops, lefts]


def _by_channel(values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None, None]


def _centre(images: Tensor, crop: int) -> Tensor:
    top, left = (images.shape[2] - crop) // 2, (images.shape[3] - crop) // 2
    return images[:, :, top : top + crop, left : left + crop].contiguous()
