import numpy as np
import pytest
import torch

import fedgbo

X, Y = np.zeros((4, 3)), np.array([0, 1, 0, 1])


def make(train, test=(X, Y)):
    return fedgbo.FederatedData.from_clients(train=train, test=test)


def test_clients_lie_one_after_the_other():
    data = make([(np.full((2, 3), 1.0), [0, 1]), (np.full((3, 3), 2.0), [1, 1, 0])], (np.zeros((1, 3)), [0]))
    assert data.clients == 2
    assert (data.size(0), data.size(1)) == (2, 3)
    inputs, targets = data.train.batch(np.arange(2, 5))
    assert inputs.eq(2.0).all()
    assert targets.tolist() == [1, 1, 0]


def test_arrays_and_tensors_are_both_taken():
    data = make([(torch.zeros(4, 3, dtype=torch.float64), torch.tensor([0, 1, 0, 1])), (X, Y)])
    assert data.clients == 2


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ([], "train has no clients"),
        ([(X, Y), (X[:0], Y[:0])], "client 1 has no samples; leave it out"),
        ([(X, Y[:3])], "client 0: 4 inputs but 3 targets"),
        (
            [(X, Y), (np.where(np.arange(12).reshape(4, 3) == 7, np.nan, 0.0), Y)],
            r"client 1: inputs have a NaN.*sample 2",
        ),
        ([(X, Y), (np.zeros((4, 5)), Y)], r"client 1: inputs are float64 of shape \(5,\).*client 0 has.*\(3,\)"),
        ([(X, Y), (X.astype("float32"), Y)], "client 1: inputs are float32"),
        ([(X, [["a"]])], "client 0: targets cannot be read"),
        ([X], "client 0: expected an .inputs, targets. pair"),
        ([(1.0, 2.0)], "need a first dimension"),
    ],
)
def test_what_is_wrong_is_named(train, message):
    with pytest.raises(fedgbo.DataError, match=message):
        make(train)


def test_the_test_set_is_checked_too():
    with pytest.raises(fedgbo.DataError, match="test: 4 inputs but 2 targets"):
        make([(X, Y)], (X, Y[:2]))


def test_from_arrays():
    parts = [[0, 2], [1, 3]]
    data = fedgbo.FederatedData.from_arrays(X, Y, parts=parts, test=(X, Y))
    assert data.train.targets.tolist() == [0, 0, 1, 1]
    with pytest.raises(fedgbo.DataError, match=r"parts\[1\] has row numbers outside 0 ... 3"):
        fedgbo.FederatedData.from_arrays(X, Y, parts=[[0], [4]], test=(X, Y))
    with pytest.raises(fedgbo.DataError, match=r"parts\[0\] must be a list of row numbers"):
        fedgbo.FederatedData.from_arrays(X, Y, parts=[[0.5]], test=(X, Y))
