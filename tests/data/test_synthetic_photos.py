import numpy as np
import pytest

from fedgbo.core.errors import ConfigError
from fedgbo.data.synthetic_images import synthetic_photos


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


def test_seed():
    first, again, other = (synthetic_photos(2, 100, 100, seed)["train_images"][np.arange(9)] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize("counts", [(0, 10), (10, 0)])
def test_impossible_counts(counts):
    with pytest.raises(ConfigError, match="must be a whole number of at least 1"):
        synthetic_photos(counts[0], 100, counts[1], seed=0)
