import numpy as np
import pytest

from fedgbo.core.errors import ConfigError
from fedgbo.data.synthetic_images import synthetic_glyphs, synthetic_photos, uniforms


def test_a_row_has_its_numbers_in_every_batch():
    rows = np.array([7, 3, 7, 100_000])
    batch = uniforms(rows, 5, seed=2)
    np.testing.assert_array_equal(batch[0], batch[2])
    for k, row in enumerate(rows):
        np.testing.assert_array_equal(batch[k], uniforms(np.array([row]), 5, seed=2)[0])


def test_numbers_are_uniform_and_unrelated():
    numbers = uniforms(np.arange(20_000), 4, seed=0)
    assert 0 <= numbers.min() < numbers.max() < 1
    np.testing.assert_allclose(np.histogram(numbers, bins=10, range=(0, 1))[0] / numbers.size, 0.1, atol=0.005)
    flat = numbers.ravel()
    pairs = [numbers[:, 0], numbers[:, 1], np.roll(numbers[:, 0], 1), uniforms(np.arange(20_000), 4, seed=1)[:, 0]]
    np.testing.assert_allclose(np.corrcoef(pairs), np.eye(4), atol=0.03)
    assert len(np.unique(flat)) == flat.size


def test_shapes_and_clients_are_those_of_the_real_task():
    arrays = synthetic_photos(clients=500, samples=100, test_samples=10_000, seed=0)
    assert arrays["train_images"].shape == (50_000, 3, 32, 32)
    assert arrays["test_images"].shape == (10_000, 3, 32, 32)
    assert np.bincount(arrays["train_labels"]).tolist() == [500] * 100
    assert np.bincount(arrays["test_labels"]).tolist() == [100] * 100
    coarse = arrays["train_labels"].reshape(500, 100) // 5
    assert 4 < np.mean([len(np.unique(row)) for row in coarse]) < 9  # of 20: as Pachinko allocation has it


def test_an_image_is_the_same_in_every_batch_and_no_two_are():
    images = synthetic_photos(20, 100, 100, seed=0)["train_images"]
    rows = np.array([1999, 5, 77, 5])
    batch = images[rows]
    assert (batch.dtype, batch.shape) == (np.uint8, (4, 3, 32, 32))
    for k, row in enumerate(rows):
        np.testing.assert_array_equal(batch[k], images[np.array([row])][0])
    assert len({image.tobytes() for image in images[np.arange(500)]}) == 500


def test_test_images_are_no_training_images():
    arrays = synthetic_photos(2, 100, 100, seed=0)
    train = {image.tobytes() for image in arrays["train_images"][np.arange(200)]}
    assert not train & {image.tobytes() for image in arrays["test_images"][np.arange(100)]}


def test_seed_of_photos():
    first, again, other = (synthetic_photos(2, 100, 100, seed)["train_images"][np.arange(9)] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize("counts", [(0, 10), (10, 0)])
def test_impossible_counts_of_photos(counts):
    with pytest.raises(ConfigError, match="must be a whole number of at least 1"):
        synthetic_photos(counts[0], 100, counts[1], seed=0)


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


def test_seed_of_glyphs():
    first, again, other = (synthetic_glyphs(3, 10, seed)["train_images"][np.arange(9)] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize("counts", [(0, 10), (10, 0)])
def test_impossible_counts_of_glyphs(counts):
    with pytest.raises(ConfigError, match="must be a whole number of at least 1"):
        synthetic_glyphs(*counts, seed=0)


@pytest.mark.parametrize(
    ("arrays", "least"),
    [
        (synthetic_photos(20, 100, 500, seed=0), 0.3),  # chance is 0.01
        (synthetic_glyphs(20, 500, seed=0), 0.4),  # guessing the commonest class gives less than 0.1
    ],
    ids=["photos", "glyphs"],
)
def test_the_nearest_class_mean_tells_classes_apart(arrays, least):
    train, labels = arrays["train_images"][np.arange(2000)], arrays["train_labels"][:2000]
    test = arrays["test_images"][np.arange(500)].reshape(500, -1).astype(float)
    kinds = np.unique(labels)
    means = np.stack([train[labels == kind].mean(axis=0).ravel() for kind in kinds])
    guesses = kinds[((means**2).sum(axis=1) - 2 * test @ means.T).argmin(axis=1)]
    assert (guesses == arrays["test_labels"]).mean() > least
    assert np.bincount(arrays["test_labels"]).max() / 500 < least / 2
