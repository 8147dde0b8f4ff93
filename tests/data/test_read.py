"""Clients' data in memory: arrays, dicts, tuples and data frames, and what is refused."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import fedgbo
from fedgbo import FederatedData

X, Y = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([0, 1, 0, 1])


def rows(samples, *numbers):
    return samples.batch(np.array(numbers))


def frame(label=Y, **more):
    return pd.DataFrame(X, columns=["a", "b", "c"]).assign(label=label, **more)


def test_editing_arrays_afterwards_changes_nothing():
    x, y, tested, flat = X.copy(), torch.tensor(Y), X.copy(), X.copy()
    clients = FederatedData.from_clients(train=[(x, y)], test=(tested, y), client_tests=[(tested, y)])
    parts = FederatedData.from_arrays(flat, y, parts=[[0, 1], [2, 3]], test=(tested, y))
    before = clients.digest(), parts.digest()
    x[:], tested[:], flat[:] = 9, 9, 9
    y.fill_(7)
    assert (clients.digest(), parts.digest()) == before
    assert rows(clients.test, 1)[0].tolist() == [[3, 4, 5]]


def test_inputs_may_be_dicts_and_tuples():
    data = FederatedData.from_clients(train=[({"a": X, "b": Y}, Y)] * 2, test=({"a": X, "b": Y}, Y))
    inputs, targets = rows(data.train, 5)
    assert inputs["a"].tolist() == [[3, 4, 5]]
    assert (inputs["b"].tolist(), targets.tolist()) == ([1], [1])
    data = FederatedData.from_clients(train=[((X, Y), None)], test=((X, Y), None))
    inputs, targets = rows(data.train, 2)
    assert isinstance(inputs, tuple)
    assert inputs[1].tolist() == [0]
    assert targets is None
    assert len(data.train) == 4


def test_a_dict_of_arrays_has_its_targets_by_name():
    data = FederatedData.from_clients(train=[{"x": X, "label": Y}], target="label")
    inputs, targets = rows(data.train, 1)
    assert (inputs.tolist(), targets.tolist()) == ([[3, 4, 5]], [1])  # the only input is given by itself
    data = FederatedData.from_clients(train=[{"x": X, "labels": Y}])
    assert set(rows(data.train, 1)[0]) == {"x", "labels"}  # for a model that computes its own loss


def test_columns_of_data_frames_are_found_by_name():
    reordered = frame()[["label", "c", "a", "b"]]
    data = FederatedData.from_clients(train=[frame(), reordered], test=reordered, target="label")
    for samples, row in ((data.train, 1), (data.train, 5), (data.test, 1)):
        inputs, targets = rows(samples, row)
        assert inputs.dtype == torch.float32
        assert (inputs.tolist(), targets.tolist()) == ([[3, 4, 5]], [1])
    two = FederatedData.from_clients(train=[frame()], target=["c", "label"])
    assert rows(two.train, 1)[1].tolist() == [[5, 1]]


def test_truth_values_are_labels_and_odd_types_are_read():
    data = FederatedData.from_clients(train=[(X.astype(">f4"), Y.astype(bool))])
    assert data.train.label_range() == (0, 1)
    assert rows(data.train, 1)[0].tolist() == [[3, 4, 5]]
    assert FederatedData.from_clients(train=[(X, Y.astype("uint16"))]).train.label_range() == (0, 1)
    assert FederatedData.from_clients(train=[(X[::-1], Y)]).size(0) == 4


def test_a_tensor_dataset_is_in_memory():
    x, y = torch.tensor(X), torch.tensor(Y)
    data = FederatedData.from_clients(train=[TensorDataset(x, y)], test=TensorDataset(x, y))
    assert data.train.inputs.equal(x)
    assert FederatedData.from_clients(train=[TensorDataset(x)]).train.targets is None


class Stream(IterableDataset):
    def __iter__(self):
        yield 1


@pytest.mark.parametrize(
    ("client", "message"),
    [
        ((X, ["cat"] * 4), "client 0: targets cannot be read.*they are texts; encode them as numbers"),
        ((np.array([[1, 2]], dtype=object), [0]), "client 0: inputs cannot be read.*of type object"),
        (([[1, 2], [3]], [0, 1]), "client 0: inputs cannot be read.*different lengths, pad them, or give collate="),
        (([torch.zeros(2), torch.zeros(3)], [0, 1]), "client 0: inputs have different shapes.*collate="),
        ((np.ma.array(X), Y), "client 0: inputs are a masked array"),
        ((scipy.sparse.csr_matrix(X), Y), r"client 0: inputs are a sparse matrix; give toarray\(\)"),
        ((torch.tensor(X).to_sparse(), Y), r"client 0: inputs are a sparse tensor; give to_dense\(\)"),
        ((np.array(["2020-01-01"], dtype="M8[D]"), [0]), "client 0: inputs cannot be read.*datetime64"),
        (((X, X[:2]), Y), "client 0: inputs have parts of 4 and of 2 samples"),
        ((X, Y, Y), "expected an .inputs, targets. pair.*not tuple of 3 parts; several inputs are"),
        (None, "client 0: expected an .inputs, targets. pair.*not NoneType"),
        (Stream(), "client 0: Stream cannot be read by sample number; give a torch Dataset"),
        (DataLoader([1]), "client 0: DataLoader cannot be read by sample number"),
        ((pair for pair in [(X, Y)]), "client 0: generator cannot be read by sample number"),
        (frame(a=np.nan), r"client 0: values of column 'a' have a NaN.*sample 0"),
        (frame(a="x"), "client 0: values of column 'a' cannot be read.*they are texts"),
        (frame("x"), "client 0: targets in column 'label' cannot be read.*texts"),
        (frame().rename(columns={"label": "y"}), "client 0 has no column 'label' .it has a, b, c, y"),
        (frame()[["label"]], "client 0 needs columns of inputs"),
        ({"x": X, "y": Y}, "client 0 has no 'label' .it has x, y"),
        ({"label": Y}, "client 0 has only targets"),
    ],
)
def test_what_cannot_be_read_is_named(client, message):
    with pytest.raises(fedgbo.DataError, match=message):
        FederatedData.from_clients(train=[client], target="label")


def test_frames_must_be_alike_and_have_a_target():
    with pytest.raises(fedgbo.DataError, match="client 1: only some data frames have the columns c, d"):
        FederatedData.from_clients(train=[frame(), frame().rename(columns={"c": "d"})], target="label")
    with pytest.raises(fedgbo.DataError, match="client 0 is a DataFrame; name its column of targets with target="):
        FederatedData.from_clients(train=[frame()])


@pytest.mark.parametrize("train", [{"a": (X, Y)}, X, "abc", 3])
def test_train_is_a_list(train):
    with pytest.raises(fedgbo.DataError, match="train must be a list with one entry for each client, not"):
        FederatedData.from_clients(train=train)


def test_train_may_be_a_generator():
    assert FederatedData.from_clients(train=((X, Y) for _ in range(3))).clients == 3


def test_client_tests():
    data = FederatedData.from_clients(train=[(X, Y)] * 3, client_tests=[(X, Y), None, (X[:1], Y[:1])])
    assert data.test is None
    assert data.client_tests.offsets.tolist() == [0, 4, 4, 5]
    with pytest.raises(fedgbo.DataError, match="client_tests has 1 entries, but there are 3 clients"):
        FederatedData.from_clients(train=[(X, Y)] * 3, client_tests=[(X, Y)])
    with pytest.raises(fedgbo.DataError, match="client_tests has no samples"):
        FederatedData.from_clients(train=[(X, Y)], client_tests=[None])
    with pytest.raises(fedgbo.DataError, match=r"clients' test: inputs are float32 of shape \(2,\) a sample, but"):
        FederatedData.from_clients(train=[(X, Y)], client_tests=[(X[:, :2], Y)])


def test_a_validation_part_belongs_to_clients():
    data = FederatedData.from_clients(train=[(X, Y)] * 2, test=(X, Y))
    split = data.split_validation(0.25, seed=3)
    assert (split.size(0), split.size(1)) == (3, 3)
    assert split.validation.offsets.tolist() == [0, 1, 2]
    assert split.test is data.test
    kept = {tuple(x) for x in rows(split.train, 0, 1, 2)[0].tolist()}
    assert tuple(rows(split.validation.samples, 0)[0][0].tolist()) not in kept
    assert split.digest() != data.digest()
    with pytest.raises(fedgbo.ConfigError, match="have a validation part already"):
        split.split_validation()
