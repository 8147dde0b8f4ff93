"""Data sets that are read sample by sample, and transforms of training batches."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import fedgbo
from fedgbo import FederatedData
from fedgbo.engines import select

X, Y = torch.arange(30.0).reshape(10, 3), torch.arange(10) % 2
SGD = fedgbo.FedAvg(fedgbo.SGD(0.01))


@pytest.fixture(autouse=True)
def _threads(monkeypatch):
    """Let two workers be two threads for models of any size."""
    monkeypatch.setattr(select, "WORTH_THREADS", 0)


class Items(Dataset):
    def __init__(self, form=lambda x, y: (x, y), count=10):
        self.form, self.count = form, count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        return self.form(X[number], Y[number])


def task(data, **more):
    return fedgbo.Task("items", data, lambda: nn.Linear(3, 2), batch_size=4, **more)


@pytest.mark.parametrize(
    "form",
    [
        lambda x, y: (x, y),
        lambda x, y: [x.numpy(), int(y)],
        lambda x, y: {"x": x, "label": y},
        lambda x, y: (x, bool(y)),
        lambda x, y: (x.tolist(), int(y)),
    ],
)
def test_data_sets_train_as_arrays_do(form):
    data = FederatedData.from_clients(train=[Items(form), Items(form, 5)], test=Items(form), target="label")
    arrays = FederatedData.from_clients(train=[(X, Y), (X[:5], Y[:5])], test=(X, Y))
    ours, theirs = (fedgbo.run(task(d), SGD, rounds=2, local_steps=2) for d in (data, arrays))
    assert torch.equal(ours.params, theirs.params)
    assert (ours.loss, ours.accuracy) == (theirs.loss, theirs.accuracy)


def test_samples_without_targets_are_for_losses_without_them():
    for form in (lambda x, y: x, lambda x, y: (x,)):
        data = FederatedData.from_clients(train=[Items(form)], test=Items(form))
        assert data.train.batch(np.arange(2))[1] is None
        run = fedgbo.run(task(data, loss=lambda outputs, targets: outputs.square().mean()), SGD, rounds=1)
        assert run.loss > 0


class Unreadable(Items):
    def __getitem__(self, number):
        if number == 7:
            raise OSError("disk")
        return super().__getitem__(number)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (Items(lambda x, y: (x, y, y)), "client 1, sample 0 .*a sample has 3 parts; give .inputs, target."),
        (Items(lambda x, y: {"x": x, "y": y}), "client 1, sample 0 .*a sample has no 'label' .it has x, y"),
        (Items(lambda x, y: ("text", y)), "client 1, sample 0 .*inputs hold str; encode texts as numbers"),
        (Items(lambda x, y: (x, "cat")), "client 1, sample 0 .*targets hold str; encode"),
        (Items(lambda x, y: (object(), y)), "client 1, sample 0 .*TypeError: default_collate"),
        (Items(lambda x, y: (x / (x[0] - 9), y)), r"client 1, sample 3 .*inputs have a NaN or an infinity"),
        (Items(lambda x, y: (x[: 1 + int(y)], y)), "client 1: samples 0 to 9 cannot be put into one batch.*collate="),
        (Items(lambda x, y: (x.double(), y)), "client 1, sample 0: inputs are float64.*but client 0 has inputs are"),
        (Unreadable(), "client 1, sample 7: OSError: disk"),
        (Items(count=0), "client 1 has no samples"),
    ],
)
def test_a_bad_sample_is_named_with_its_client(items, message):
    with pytest.raises(fedgbo.DataError, match=message):
        FederatedData.from_clients(train=[Items(), items], target="label")


def test_a_data_set_without_a_length():
    class Endless(Dataset):
        def __getitem__(self, number):
            return X[0], Y[0]

    with pytest.raises(fedgbo.DataError, match="client 0: Endless has no length"):
        FederatedData.from_clients(train=[Endless()])


def test_a_data_set_that_fails_later_is_told_of():
    flaky = Unreadable()
    items = Items()
    data = FederatedData.from_clients(train=[items])
    items.__class__ = type(flaky)
    with pytest.raises(fedgbo.DataError, match="a batch cannot be read: OSError: disk"):
        data.train.batch(np.array([7]))


def pad(items):
    sequences = [torch.as_tensor(sequence) for sequence, _ in items]
    return nn.utils.rnn.pad_sequence(sequences, batch_first=True), torch.tensor([int(y) for _, y in items])


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.out((self.embed(x) * (x > 0)[..., None]).sum(1))


SEQUENCES = ([[1, 2], [3], [4, 5, 6], [7, 8, 1, 2]], [0, 1, 0, 1])


@pytest.mark.parametrize("client", [SEQUENCES, list(zip(*SEQUENCES, strict=True))])
def test_sequences_of_different_lengths_are_collated(client):
    data = FederatedData.from_clients(train=[client] * 2, test=client, collate=pad)
    assert data.train.batch(np.array([0, 6]))[0].tolist() == [[1, 2, 0], [4, 5, 6]]
    assert data.train.label_range() == (0, 1)
    run = fedgbo.run(fedgbo.Task("bags", data, Bag, batch_size=2), SGD, rounds=2)
    assert run.accuracy is not None


def test_collate_may_return_a_dict_but_nothing_else():
    named = FederatedData.from_clients(
        train=[SEQUENCES], collate=lambda items: dict(zip(("x", "label"), pad(items), strict=True)), target="label"
    )
    inputs, targets = named.train.batch(np.array([0]))
    assert (inputs.tolist(), targets.tolist()) == ([[1, 2]], [0])
    with pytest.raises(fedgbo.DataError, match=r"client 0, sample 0 .*collate.items. must return a pair .*not int"):
        FederatedData.from_clients(train=[SEQUENCES], collate=len)
    with pytest.raises(fedgbo.DataError, match="client 0: 4 inputs but 3 targets"):
        FederatedData.from_clients(train=[(SEQUENCES[0], [0, 1, 0])], collate=pad)


def test_a_transform_sees_training_batches_only_with_its_own_generator():
    seen = []

    def transform(inputs, rng):
        seen.append(rng.integers(1000))
        return inputs + seen[-1]

    data = FederatedData.from_clients(train=[(X, Y)] * 2, test=(X, Y), transform=transform).split_validation(0.2)
    assert data.test.batch(np.arange(10))[0].equal(X)
    run = fedgbo.run(task(data), SGD, rounds=2, local_steps=1, workers=1)
    drawn = seen[2:]  # after the trial and the gradient before the first round
    assert len(drawn) == len(set(drawn)) == 4  # two clients in two rounds, each with a stream of its own
    seen.clear()
    again = fedgbo.run(task(data), SGD, rounds=2, local_steps=1, workers=2)
    assert sorted(seen[2:]) == sorted(drawn)
    assert torch.equal(run.params, again.params)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (lambda inputs, rng: inputs[:1], r"must return one row for each sample: it got float32 of shape \(4, 3\)"),
        (lambda inputs, rng: inputs.turned(), r"transform.inputs, rng. fails on float32 .*AttributeError"),
    ],
)
def test_a_wrong_transform(transform, message):
    data = FederatedData.from_clients(train=[(X, Y)], transform=transform)
    with pytest.raises(fedgbo.DataError, match=message):
        fedgbo.run(task(data), SGD, rounds=1)


def test_data_sets_that_draw_give_the_same_bits_for_any_number_of_workers():
    noisy = Items(lambda x, y: (x + torch.randn(3), y))
    data = FederatedData.from_clients(train=[noisy] * 3, test=noisy)
    one, two = (fedgbo.run(task(data), SGD, rounds=3, local_steps=2, workers=workers) for workers in (1, 2))
    assert torch.equal(one.params, two.params)
    assert [record.loss for record in one.history] == [record.loss for record in two.history]


class Table:
    """A Hugging Face data set, as far as it is used: columns by name, and items in a format."""

    format = {"type": None}  # noqa: RUF012 - as theirs

    def __init__(self, columns, kind=None):
        self.table, self.kind, self.column_names = columns, kind, list(columns)

    def with_format(self, kind):
        return Table(self.table, kind)

    def __len__(self):
        return len(self.table["label"])

    def __getitem__(self, number):
        assert self.kind == "torch"
        return {name: torch.tensor(column[number]) for name, column in self.table.items()}


def table(count=10):
    return Table({"x": X[:count].tolist(), "label": Y[:count].tolist()})


class Partitioner:
    """Follows flwr_datasets.partitioner.Partitioner."""

    num_partitions = 3

    def load_partition(self, partition_id):
        return table(4 + partition_id)


class FederatedSet:
    """Follows flwr_datasets.FederatedDataset."""

    partitioners = {"train": Partitioner()}  # noqa: RUF012 - as theirs

    def load_partition(self, partition_id, split=None):
        return self.partitioners[split].load_partition(partition_id)

    def load_split(self, split):
        if split != "test":
            raise ValueError(f"no {split}")
        return table()


def test_partitions_of_flower_datasets_are_clients():
    data = FederatedData.from_flower_datasets(FederatedSet())
    assert [data.size(client) for client in range(3)] == [4, 5, 6]
    assert len(data.test) == 10
    inputs, targets = data.train.batch(np.array([5]))
    assert (inputs.tolist(), targets.tolist()) == ([[3, 4, 5]], [1])
    assert FederatedData.from_flower_datasets(Partitioner()).test is None
    assert FederatedData.from_flower_datasets(FederatedSet(), test_split=None).test is None
    with pytest.raises(fedgbo.DataError, match=r"no partitions of 'trian' .it has train."):
        FederatedData.from_flower_datasets(FederatedSet(), split="trian")
    with pytest.raises(fedgbo.DataError, match="no split 'valid': no valid; give test_split="):
        FederatedData.from_flower_datasets(FederatedSet(), test_split="valid")
    with pytest.raises(fedgbo.DataError, match="or a Partitioner of Flower Datasets, not int"):
        FederatedData.from_flower_datasets(3)
