"""Images stored as bytes, normalised and augmented one batch at a time."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgbo.core import ConfigError, DataError, Rows
from fedgbo.data.federated import FederatedData
from fedgbo.data.partition import Split
from fedgbo.data.samples import LabelledSamples
from fedgbo.data.store import Array, Store

FRAME = 256  # the code of a pixel outside the image; pixels inside have 0 to 255


@dataclass(frozen=True, eq=False)
class ImageSamples(LabelledSamples):
    """Images (N, C, H, W) and labels (N,), both uint8, never copied as a whole.

    A pixel p becomes (p / 255 - mean) / std by channel; `invert` replaces p by 255 - p first. In training (with a
    random generator), `flip` mirrors an image left to right with probability 1/2; then the image is padded with
    `padding` zeros and cropped to crop x crop at a random position. In testing it is cropped at the centre.
    """

    images: Any  # an array in memory or mapped, or an object with a shape that draws rows on demand
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
            found = f"{tuple(shape)} with labels of shape {tuple(self.labels.shape)}; pack the data again"
            raise DataError(f"images must be (samples, channels, height, width) with one label each, not {found}")
        if self.crop is not None and not 0 < self.crop <= min(shape[2:]):
            raise ConfigError(f"crop must be from 1 to the images' size, {min(shape[2:])}, not {self.crop}")
        if self.padding < 0:
            raise ConfigError(f"padding must be 0 or more, not {self.padding}")

    def batch(self, rows: Rows, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        codes = np.asarray(self.images[rows])  # (B, C, H, W)
        if rng is not None:
            codes = self._augmented(codes, rng)
        elif self.crop is not None:
            top, left = (codes.shape[2] - self.crop) // 2, (codes.shape[3] - self.crop) // 2
            codes = codes[:, :, top : top + self.crop, left : left + self.crop]
        images = np.empty(codes.shape, np.float32)
        for channel, values in enumerate(self._values):
            np.take(values, codes[:, channel], out=images[:, channel], mode="clip")  # "clip" skips a range check
        return torch.from_numpy(images), torch.from_numpy(self.labels[rows].astype(np.int64))

    @cached_property
    def _values(self) -> Array:
        """The float value of each pixel code in each channel, (C, 257); FRAME's is 0."""
        codes = torch.arange(256.0)
        values = (255 - codes if self.invert else codes).div(255).repeat(self.images.shape[1], 1)
        mean, std = (torch.tensor(numbers, dtype=torch.float32)[:, None] for numbers in (self.mean, self.std))
        values = values.sub_(mean).div_(std)
        return torch.nn.functional.pad(values, (0, 1)).numpy()

    def _augmented(self, pixels: Array, rng: np.random.Generator) -> Array:
        """Return pixel codes, FRAME for those outside the image. Moving codes is cheaper than moving floats."""
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
        return np.asarray(windows[np.arange(count), :, tops, lefts])


@dataclass(frozen=True, eq=False)
class Rearranged:
    """Images in another order: row r is images[order[r]]. Nothing is copied before it is taken."""

    images: Any
    order: Rows

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.order), *self.images.shape[1:])

    def __getitem__(self, rows: Rows) -> Array:
        return np.asarray(self.images[self.order[rows]])


def split_image_data(store: Store, split: Split, **options: Any) -> FederatedData:
    """Open packed images that have no clients, and deal them; `options` are those of `ImageSamples`."""
    arrays, where = store.arrays, str(store.path)
    if "train_labels" not in arrays or "train_images" not in arrays:
        raise DataError(f"{where} lacks train_images or train_labels; pack the data again")
    _check_types(arrays["train_images"], arrays["train_labels"], where)
    parts = split.parts(arrays["train_labels"])
    order = np.concatenate(parts)
    dealt = {
        "train_images": Rearranged(arrays["train_images"], order),
        "train_labels": np.asarray(arrays["train_labels"])[order],
        "train_offsets": np.cumsum([0, *map(len, parts)], dtype=np.int64),
    }
    return replace(image_data({**arrays, **dealt}, where, **options), content_digest=store.digest)


def _check_types(images: Any, labels: Array, where: str) -> None:
    if labels.dtype.kind not in "iu" or (isinstance(images, np.ndarray) and images.dtype != np.uint8):
        kinds = f"{getattr(images, 'dtype', 'bytes')} with {labels.dtype} labels"
        raise DataError(f"{where}: images must be bytes with whole numbers as labels, not {kinds}; pack the data again")


def image_data(arrays: Mapping[str, Any], where: str, *, clients: int | None = None, **options: Any) -> FederatedData:
    """Open packed or synthetic images; `options` are those of `ImageSamples`. Test images are never augmented.

    `clients` limits the data to the first clients. Their test set is their own if the arrays have test_offsets,
    otherwise it is the whole one. `where` names the arrays in errors.
    """

    def samples(half: str) -> ImageSamples:
        images, labels = arrays[f"{half}_images"], arrays[f"{half}_labels"]
        _check_types(images, labels, where)
        if half == "train":
            return ImageSamples(images, labels, **options)
        if clients is not None and "test_offsets" in arrays and clients < len(arrays["test_offsets"]) - 1:
            end = int(arrays["test_offsets"][clients])
            images, labels = images[:end], labels[:end]
        return ImageSamples(images, labels, **options | {"flip": False, "padding": 0})

    data = FederatedData.from_packed(arrays, where, samples)
    return data if clients is None else replace(data, offsets=data.offsets[: clients + 1])
