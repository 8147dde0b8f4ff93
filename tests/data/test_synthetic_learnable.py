import numpy as np
import pytest

from fedgbo.data.synthetic_images import synthetic_glyphs, synthetic_photos


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
