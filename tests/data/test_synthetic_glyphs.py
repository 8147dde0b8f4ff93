import numpy as np
import pytest

from fedgbo.core.errors import ConfigError
from fedgbo.data.synthetic_images import synthetic_glyphs


def test_size_and_imbalance_are_those_of_the_real_task():
    arrays = synthetic_glyphs(clients=3000, test_samples=10_000, seed=0)
    sizes = np.diff(arrays["train_offsets"])
    assert len(sizes) == 3000
    assert 160 < sizes.mean() < 180
    assert sizes.min() >= 20
    assert sizes.max() > 4 * sizes.min()
    assert arrays["train_images"].shape == (sizes.sum(), 1, 28, 28)
    assert arrays["test_images"].shape == (10_000, 1, 28, 28)
    assert len(np.unique(arrays["train_labels"])) == 62
    assert 0.45 < (arrays["train_labels"] < 10).mean() < 0.55
    kept = sum(a.nbytes for a in vars(arrays["train_images"]).values() if isinstance(a, np.ndarray))
    assert kept < 10e6  # the images as bytes would take 400e6


def test_writers_have_classes_of_their_own():
    arrays = synthetic_glyphs(clients=100, test_samples=100, seed=0)
    classes = [len(np.unique(labels)) for labels in np.split(arrays["train_labels"], arrays["train_offsets"][1:-1])]
    assert np.mean(classes) < 40


def test_writers_have_a_style():
    arrays = synthetic_glyphs(clients=40, test_samples=100, seed=0)
    images, offsets = arrays["train_images"], arrays["train_offsets"]
    ink = [255 - images[np.arange(offsets[c], offsets[c] + 20)].astype(float) for c in range(40)]
    weight = np.array([writer.mean(axis=(1, 2, 3)) for writer in ink])  # (writers, 20): thin and thick pens
    assert weight.mean(axis=1).var() > 3 * weight.var(axis=1).mean() / 20  # more than 20 random samples would differ


def test_an_image_is_the_same_in_every_batch_and_is_mostly_paper():
    images = synthetic_glyphs(20, 100, seed=0)["train_images"]
    rows = np.array([1999, 5, 77, 5])
    batch = images[rows]
    assert (batch.dtype, batch.shape) == (np.uint8, (4, 1, 28, 28))
    for k, row in enumerate(rows):
        np.testing.assert_array_equal(batch[k], images[np.array([row])][0])
    many = images[np.arange(500)]
    assert len({image.tobytes() for image in many}) == 500
    assert (many == 255).mean() > 0.7
    assert (many.min(axis=(1, 2, 3)) < 128).all()  # and every one has ink


def test_seed():
    first, again, other = (synthetic_glyphs(3, 10, seed)["train_images"][np.arange(9)] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize("counts", [(0, 10), (10, 0)])
def test_impossible_counts(counts):
    with pytest.raises(ConfigError, match="must be a whole number of at least 1"):
        synthetic_glyphs(*counts, seed=0)
