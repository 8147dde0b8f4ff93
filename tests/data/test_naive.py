import numpy as np

from fedgbo.data.federated import FederatedData, compare_memory
from fedgbo.data.shakespeare import window_data
from fedgbo.data.synthetic_text import synthetic_text


def test_text_stored_once_takes_a_fiftieth_and_less():
    arrays = synthetic_text(5, 500, seed=0)
    data = window_data(arrays, "here")
    memory = compare_memory(data, clients=2)
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
