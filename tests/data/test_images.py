import numpy as np
import pytest
import torch

from fedgbo.core.errors import ConfigError, DataError
from fedgbo.data.images import ImageSamples, image_data
from fedgbo.data.store import Store

MEAN, STD = (0.5, 0.25, 0.0), (0.5, 0.25, 2.0)


def pictures(count=6, size=8, channels=3):
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (count, channels, size, size), dtype=np.uint8), np.arange(count, dtype=np.uint8)


def augmented_by_hand(image, flip, top, left, crop, padding):
    """What the class does to one normalised image (C, H, W), written as loops."""
    channels, size, _ = image.shape
    out = np.zeros((channels, crop, crop), dtype=np.float32)
    for c in range(channels):
        for i in range(crop):
            for j in range(crop):
                y, x = top + i - padding, left + j - padding
                if 0 <= y < size and 0 <= x < size:
                    out[c, i, j] = image[c, y, size - 1 - x if flip else x]
    return out


def test_pixels_are_normalised_by_channel():
    images = np.zeros((1, 3, 2, 2), dtype=np.uint8)
    images[0, :, 0, 0] = 255
    x, y = ImageSamples(images, np.array([7], dtype=np.uint8), MEAN, STD).batch(np.array([0]))
    assert x[0, :, 0, 0].tolist() == [1.0, 3.0, 0.5]
    assert x[0, :, 1, 1].tolist() == [-1.0, -1.0, 0.0]
    assert y.tolist() == [7]
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)


def test_inverted_paper_is_exactly_zero_and_ink_exactly_one():
    images = np.array([255, 0], dtype=np.uint8).reshape(1, 1, 1, 2)
    x, _ = ImageSamples(images, np.zeros(1, dtype=np.uint8), invert=True).batch(np.array([0]))
    assert x.flatten().tolist() == [0.0, 1.0]


@pytest.mark.parametrize(("crop", "padding"), [(8, 2), (5, 0), (6, 3)])
def test_augmentation_flips_then_crops_out_of_the_padded_image(crop, padding):
    images, labels = pictures()
    rows = np.array([5, 0, 3, 3, 1, 2, 4, 0])
    samples = ImageSamples(images, labels, MEAN, STD, flip=True, crop=crop, padding=padding)
    x, y = samples.batch(rows, np.random.default_rng(3))
    plain, _ = ImageSamples(images, labels, MEAN, STD).batch(rows)

    rng = np.random.default_rng(3)
    places = 8 + 2 * padding - crop + 1
    flips, tops, lefts = rng.random(len(rows)) < 0.5, rng.integers(places, size=8), rng.integers(places, size=8)
    assert 0 < flips.sum() < len(flips)
    for k in range(len(rows)):
        want = augmented_by_hand(plain[k].numpy(), flips[k], tops[k], lefts[k], crop, padding)
        np.testing.assert_array_equal(x[k].numpy(), want)
    assert y.tolist() == rows.tolist()


def test_every_place_of_the_crop_occurs():
    images = np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4)
    samples = ImageSamples(images, np.zeros(1, dtype=np.uint8), crop=4, padding=1)
    x, _ = samples.batch(np.zeros(300, dtype=np.int64), np.random.default_rng(0))
    assert len(torch.unique(x.flatten(1), dim=0)) == 9


def test_without_a_generator_nothing_is_random_and_the_crop_is_central():
    images, labels = pictures()
    samples = ImageSamples(images, labels, MEAN, STD, flip=True, crop=4, padding=1)
    x, _ = samples.batch(np.array([2, 4]))
    whole, _ = ImageSamples(images, labels, MEAN, STD).batch(np.array([2, 4]))
    assert torch.equal(x, whole[:, :, 2:6, 2:6])
    assert torch.equal(x, samples.batch(np.array([2, 4]))[0])


def test_same_generator_same_batch_and_the_store_is_left_alone(tmp_path):
    images, labels = pictures()
    Store.write(tmp_path / "s", {"images": images, "labels": labels}, {})
    arrays = Store.open(tmp_path / "s").arrays
    samples = ImageSamples(arrays["images"], arrays["labels"], MEAN, STD, invert=True, flip=True, crop=8, padding=4)
    first = samples.batch(np.arange(6), np.random.default_rng(1))[0]
    again = samples.batch(np.arange(6), np.random.default_rng(1))[0]
    assert torch.equal(first, again)
    np.testing.assert_array_equal(arrays["images"], images)


def test_length_and_labels():
    images, labels = pictures()
    samples = ImageSamples(images, labels)
    assert len(samples) == 6
    assert samples.label_range() == (0, 5)


def test_images_without_a_label_each_are_refused():
    images, labels = pictures()
    with pytest.raises(DataError, match=r"one label each, not \(6, 3, 8, 8\) with labels of shape \(5,\)"):
        ImageSamples(images, labels[:5])
    with pytest.raises(DataError, match="samples, channels, height, width"):
        ImageSamples(images[0], labels[:3])


@pytest.mark.parametrize("crop", [0, 9])
def test_impossible_crop_is_refused(crop):
    images, labels = pictures()
    with pytest.raises(ConfigError, match="from 1 to the images' size, 8"):
        ImageSamples(images, labels, crop=crop)


def test_negative_padding_is_refused():
    images, labels = pictures()
    with pytest.raises(ConfigError, match="padding must be 0 or more, not -1"):
        ImageSamples(images, labels, crop=8, padding=-1)


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


@pytest.mark.parametrize("changes", [{"train_images": np.zeros((6, 1, 4, 4))}, {"test_labels": np.zeros(4)}])
def test_other_types_are_refused(changes):
    with pytest.raises(DataError, match=r"here: images must be bytes with whole numbers as labels, not .*float64"):
        image_data(arrays(**changes), "here")
