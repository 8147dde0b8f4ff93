import numpy as np
import pytest

import fedgbo
from fedgbo.reports.label_skew import label_skew, overview
from fedgbo.tasks import TASKS


def data_of(*labels):
    train = [(np.zeros((len(y), 2)), np.array(y)) for y in labels]
    return fedgbo.FederatedData.from_clients(train=train, test=(np.zeros((1, 2)), np.array([0])))


def test_by_hand():
    skew = label_skew(data_of([0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 1, 1]))
    assert skew.counts.tolist() == [[4, 0], [0, 4], [2, 2]]
    assert skew.classes_per_client == pytest.approx(4 / 3)
    assert skew.distance == pytest.approx((0.5 + 0.5 + 0) / 3)


def test_iid_is_zero():
    assert label_skew(data_of([0, 1], [1, 0])).distance == 0


@pytest.mark.parametrize("name", [name for name in TASKS if name.endswith("-synthetic") or name == "digits"])
def test_labels_alone_are_the_batches_labels(name):
    data = TASKS[name]().data
    rows = np.array([0, 5, len(data.train) - 1])
    assert data.train.labels_of(rows).tolist() == data.train.batch(rows)[1].tolist()


def test_overview():
    task = TASKS["digits"]()
    numbers = overview(task, label_skew(task.data))
    assert (numbers["clients"], numbers["classes"], numbers["train_samples"]) == (50, 10, 1437)
    assert numbers["classes_per_client"] < 3
