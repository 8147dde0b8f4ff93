import numpy as np

from fedgbo.data.synthetic_images import uniforms


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
