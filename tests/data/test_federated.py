import numpy as np
import pytest
import torch

import fedgbo
from fedgbo.algorithms import FedAvg
from fedgbo.core.errors import ConfigError, DataError
from fedgbo.data.federated import FederatedData, compare_memory, hold_out
from fedgbo.data.samples import WINDOW, SparseSamples, TensorSamples, WindowSamples
from fedgbo.data.shakespeare import window_data
from fedgbo.data.synthetic_text import synthetic_text
from fedgbo.engines.one_call import SparseDescent
from fedgbo.engines.select import engine_for
from fedgbo.optimisers import SGD
from fedgbo.runs.config import RunConfig
from fedgbo.tasks import TASKS
from tests.data.forbidden import Forbidden
from tests.engines.sparse_tasks import sparse_samples, sparse_task

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


def numbered(sizes):
    """Clients whose samples are their own row numbers."""
    rows = torch.arange(sum(sizes))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return FederatedData(TensorSamples(rows.double(), rows), offsets, Forbidden())


def contents(samples):
    return samples.labels_of(np.arange(len(samples))).tolist()


def test_every_client_gives_its_share_and_keeps_the_rest():
    sizes = [1, 2, 3, 10, 101]
    data = numbered(sizes)
    split = hold_out(data)
    train, test = contents(split.train), contents(split.test)
    assert sorted(train + test) == list(range(sum(sizes)))
    for c, held in enumerate([0, 0, 1, 2, 20]):
        own = range(data.offsets[c], data.offsets[c + 1])
        assert len(set(own) & set(test)) == held
        assert set(train[split.offsets[c] : split.offsets[c + 1]]) == set(own) - set(test)


def test_the_draw_is_random_and_repeatable():
    data = numbered([200, 200])
    first, again, other = (contents(hold_out(data, seed=seed).test) for seed in (0, 0, 1))
    assert first == again != other
    assert first != list(range(160, 200)) + list(range(360, 400))
    assert [row - 200 for row in first[40:]] != first[:40]


def test_only_row_numbers_are_kept():
    data = numbered([50])
    split = hold_out(data)
    assert split.train.samples is split.test.samples is data.train


def test_windows_hold_out_a_tail_that_shares_no_character():
    text = np.arange(1000, dtype=np.uint16)  # every character is another one
    train = WindowSamples(text, np.array([0, 400, 700]), np.array([300, 10, 200]))
    split = hold_out(FederatedData(train, np.array([0, 310, 510]), Forbidden()))
    assert isinstance(split.train, WindowSamples)
    assert split.train.text is text
    assert len(split.test) == 62 + 40
    for c, (first, last) in enumerate([(0, 310), (310, 510)]):
        rows = np.arange(*split.offsets[c : c + 2])
        seen, _ = split.train.batch(rows)
        assert len(rows) == round(0.8 * (last - first)) - WINDOW
        held, targets = split.test.batch(np.arange(62) if c == 0 else np.arange(62, 102))
        used = {*seen.flatten().tolist(), *split.train.labels_of(rows).tolist()}
        assert not used & {*held.flatten().tolist(), *targets.tolist()}


def test_a_short_text_is_kept_whole():
    train = WindowSamples(np.zeros(1000, dtype=np.uint8), np.array([0, 200]), np.array([90, 500]))
    split = hold_out(FederatedData(train, np.array([0, 90, 590]), Forbidden()))
    assert np.diff(split.offsets).tolist() == [90, 320]


def test_taken_windows_are_the_same_windows():
    samples = WindowSamples(np.arange(500, dtype=np.uint16), np.array([200, 0, 100]), np.array([3, 5, 4]))
    rows = np.array([0, 2, 3, 4, 7, 8, 11])
    taken = samples.take(rows)
    assert taken.batch(np.arange(7))[0].tolist() == samples.batch(rows)[0].tolist()
    assert taken.counts.tolist() == [1, 1, 2, 1, 1, 1]


def test_sparse_samples_stay_fast():
    task = sparse_task()
    algorithm = {"name": "fedavg", "optimiser": {"name": "sgd", "lr": 0.1}}
    config = RunConfig(task={"name": "x"}, algorithm=algorithm, rounds=1, held_out=0.2, test_samples=9)
    samples = sparse_samples(40, 3)
    rows = np.array([0, 3, 4, 39])
    taken = samples.take(rows)
    assert type(taken) is SparseSamples
    every = np.arange(4)
    assert torch.equal(taken.batch(every)[0], samples.batch(rows)[0])
    assert torch.equal(taken.batch(every)[1], samples.batch(rows)[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS, "x", lambda: task)
        built = config.build_task()
    assert len(built.data.test) == 9
    assert isinstance(engine_for(built, FedAvg(SGD(0.1)), 0).descent, SparseDescent)


@pytest.mark.parametrize("share", [0, 1, -0.1, 2])
def test_a_share_that_cannot_be(share):
    with pytest.raises(ConfigError, match="above 0 and below 1"):
        hold_out(numbered([10]), share)


def test_nothing_to_hold_out():
    with pytest.raises(DataError, match=r"no client has enough samples to hold out 0.2"):
        hold_out(numbered([1, 2, 1]))


def test_text_stored_once_takes_a_fiftieth_and_less():
    arrays = synthetic_text(5, 500, seed=0)
    data = window_data(arrays, "here")
    memory = compare_memory(data)
    samples = len(data.train) + len(data.test)
    assert memory.naive == samples * (80 + 1) * 8  # 80 characters and a target, int64
    assert arrays["text"].nbytes < memory.packed < arrays["text"].nbytes + 1000  # the text counted once
    assert memory.ratio == memory.naive / memory.packed
    assert memory.ratio > 50


def test_naive_data_compare_to_themselves():
    x, y = np.ones((4, 10), dtype=np.float32), np.zeros(4, dtype=np.int64)
    memory = compare_memory(FederatedData.from_clients(train=[(x, y), (x, y)], test=(x, y)))
    assert memory.naive == 12 * (40 + 8)
    assert memory.packed == memory.naive + 3 * 8  # the clients' offsets
