import numpy as np
import pytest

from fedgbo.core.errors import DataError
from fedgbo.data.images import image_data


def arrays(**changes):
    good = {
        "train_images": np.zeros((6, 1, 4, 4), dtype=np.uint8),
        "train_labels": np.arange(6, dtype=np.uint8),
        "train_offsets": np.array([0, 1, 3, 6]),
        "test_images": np.zeros((4, 1, 4, 4), dtype=np.uint8),
        "test_labels": np.arange(4, dtype=np.uint8),
    }
    return good | changes


def test_all_clients():
    data = image_data(arrays(), "here")
    assert [data.size(c) for c in range(data.clients)] == [1, 2, 3]
    assert len(data.test) == 4


def test_the_first_clients_and_their_test_samples_where_these_are_known():
    assert image_data(arrays(), "here", clients=9).clients == 3
    data = image_data(arrays(), "here", clients=2)
    assert (data.clients, len(data.test)) == (2, 4)
    data = image_data(arrays(test_offsets=np.array([0, 1, 3, 4])), "here", clients=2)
    assert (data.clients, len(data.test)) == (2, 3)


def test_only_training_images_are_augmented():
    data = image_data(arrays(), "here", flip=True, crop=4, padding=1)
    assert (data.train.flip, data.train.padding) == (True, 1)
    assert (data.test.flip, data.test.padding) == (False, 0)


def test_missing_arrays_are_named():
    with pytest.raises(DataError, match="here lacks the array train_offsets; pack the data again"):
        image_data({name: array for name, array in arrays().items() if name != "train_offsets"}, "here")


@pytest.mark.parametrize("offsets", [[0, 1, 3, 5], [1, 3, 6], [0, 3, 3, 6], [0, 4, 3, 6], [0.0, 6.0], [6]])
def test_offsets_that_fit_nothing(offsets):
    with pytest.raises(DataError, match="here: train_offsets must rise from 0 to the 6 training samples"):
        image_data(arrays(train_offsets=np.array(offsets)), "here")


def test_empty_test_set():
    empty = {"test_images": np.zeros((0, 1, 4, 4), dtype=np.uint8), "test_labels": np.zeros(0, dtype=np.uint8)}
    with pytest.raises(DataError, match="here: the test set is empty"):
        image_data(arrays(**empty), "here")
