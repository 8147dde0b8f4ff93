"""From a store's arrays of images, or what stands in for them, to federated data."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedgbo.core.errors import DataError
from fedgbo.data.federated import FederatedData
from fedgbo.data.images import ImageSamples
from fedgbo.data.store import Array

NAMES = ("train_images", "train_labels", "train_offsets", "test_images", "test_labels")


def image_data(
    arrays: Mapping[str, Any],
    where: str,
    *,
    mean: tuple[float, ...] = (0.0,),
    std: tuple[float, ...] = (1.0,),
    invert: bool = False,
    flip: bool = False,
    crop: int | None = None,
    padding: int = 0,
    clients: int | None = None,
) -> FederatedData:
    """Join the arrays; `clients` takes only so many, the first. For the other options see `ImageSamples`.

    Where the arrays have test_offsets, the test set is that of the clients taken, else it is the whole one.
    """
    missing = [name for name in NAMES if name not in arrays]
    if missing:
        raise DataError(f"{where} lacks {', '.join(missing)}; pack the data again")
    pixels: dict[str, Any] = {"mean": mean, "std": std, "invert": invert, "crop": crop}
    train = ImageSamples(arrays["train_images"], arrays["train_labels"], **pixels, flip=flip, padding=padding)
    test = ImageSamples(arrays["test_images"], arrays["test_labels"], **pixels)
    if len(test) == 0:
        raise DataError(f"{where}: the test set is empty; pack the data again")
    offsets = _offsets(arrays["train_offsets"], len(train), f"{where}: train_offsets")
    if clients is not None and clients < len(offsets) - 1:
        offsets = offsets[: clients + 1]
        if "test_offsets" in arrays:
            end = int(arrays["test_offsets"][clients])
            test = ImageSamples(arrays["test_images"][:end], arrays["test_labels"][:end], **pixels)
    return FederatedData(train=train, offsets=offsets, test=test)


def _offsets(offsets: Array, samples: int, where: str) -> Array:
    whole = offsets.ndim == 1 and len(offsets) > 1 and np.issubdtype(offsets.dtype, np.integer)
    if not whole or offsets[0] != 0 or offsets[-1] != samples or (np.diff(offsets) < 1).any():
        raise DataError(
            f"{where} must rise from 0 to the {samples} training samples, with some for every client; "
            "pack the data again"
        )
    return np.asarray(offsets, dtype=np.int64)
