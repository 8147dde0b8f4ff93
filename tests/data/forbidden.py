"""Data that must not be looked at."""

from fedgbo.data.samples import Samples


class Forbidden(Samples):
    """A test set that raises whatever is asked of it."""

    def __len__(self):
        raise AssertionError("the test set was looked at")

    def batch(self, rows, rng=None):
        raise AssertionError("the test set was looked at")

    def label_range(self):
        raise AssertionError("the test set was looked at")
