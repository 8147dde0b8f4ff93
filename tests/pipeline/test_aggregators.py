import math

import pytest
import torch

import fedgbo
from fedgbo.core.state import State
from fedgbo.engines import mean as means
from fedgbo.engines.mean import ExactSum, Mean


def wild(count, length, dtype=torch.float32, seed=0):
    """Numbers of all signs and of magnitudes from 1e-12 to 1e8, whose float64 sums depend on their order."""
    random = torch.Generator().manual_seed(seed)
    size = 10 ** (20 * torch.rand(count, length, generator=random, dtype=torch.float64) - 12)
    return (size * torch.randn(count, length, generator=random, dtype=torch.float64)).to(dtype)


def summed(vectors):
    total = ExactSum(vectors[0].to(torch.float64, copy=True))
    for vector in vectors[1:]:
        total.add(vector)
    return total.value()


def test_a_mean_is_float64_and_keeps_what_float32_would_lose():
    mean = Mean()
    for value in (1e8, 1.0, -1e8):
        mean.add(State(torch.tensor([value], dtype=torch.float32), {"m": torch.tensor([2 * value])}))
    value = mean.part(3)
    assert value.params.item() == 1.0 / 3
    assert value.stats["m"].item() == 2.0 / 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("native", [True, False])
def test_sums_are_exact_whatever_their_order(dtype, native, monkeypatch):
    monkeypatch.setattr(means, "WORTH_LOADING", 1 if native else 10**9)
    monkeypatch.setattr(means, "CHUNK", 100)
    vectors = wild(30, 515, dtype)  # 515 = 16 x 32 + 3: what the C loops do at a time, and the rest
    exact = torch.tensor([math.fsum(column) for column in vectors.double().T.tolist()], dtype=torch.float64)
    plain = vectors.double().cumsum(0)[-1]
    assert not torch.equal(plain, vectors.double().flip(0).cumsum(0)[-1])  # else this would show nothing
    for order in (range(30), range(29, -1, -1), [*range(1, 30, 2), *range(0, 30, 2)]):
        assert torch.equal(summed(vectors[list(order)]), exact)


def test_numbers_that_are_not_finite_are_seen():
    for value in (math.inf, math.nan):
        assert not math.isfinite(summed(torch.tensor([[1.0], [value], [2.0]])).item())


def test_vectors_of_different_lengths_have_no_mean():
    mean = Mean()
    mean.add(State(torch.zeros(4)))
    with pytest.raises(fedgbo.ConfigError, match=r"shape \(4,\) and \(3,\), which have no mean"):
        mean.add(State(torch.zeros(3)))


def test_a_vector_that_changes_while_it_waits_is_noticed():
    """An algorithm of the user's own may use a buffer again: the mean would be of its last contents alone."""
    buffer, fixed, mean = torch.ones(4), torch.ones(4), Mean()
    for value in (1.0, 2.0):
        mean.add(State(buffer.fill_(value), {"m": fixed}))
    with pytest.raises(fedgbo.ConfigError, match=r"params .* was changed afterwards.* not a buffer that it uses again"):
        mean.part(2)
    again = Mean()
    for _ in range(2):
        again.add(State(buffer, {"m": fixed}))  # the same one twice is no change
    assert again.part(2).params.tolist() == [2.0] * 4


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("held", [1, 10**9])
def test_a_mean_in_parts_has_the_bits_of_the_whole(native, held, monkeypatch):
    monkeypatch.setattr(means, "WORTH_LOADING", 1 if native else 10**9)
    monkeypatch.setattr(means, "HELD", held)  # each added at once, or all in the last pass
    vectors = wild(7, 300)
    mean = Mean()
    for vector in vectors:
        mean.add(State(vector, {"m": 2 * vector}))
    whole = mean.part(7)
    exact = torch.tensor([math.fsum(column) / 7 for column in vectors.double().T.tolist()], dtype=torch.float64)
    assert torch.equal(whole.params, exact)
    assert torch.equal(whole.stats["m"], 2 * exact)
    parts = [mean.part(7, begin, begin + 128) for begin in range(0, 300, 128)]
    assert torch.equal(torch.cat([part.params for part in parts]), exact)


def test_a_mean_holds_no_more_vectors_than_it_may(monkeypatch):
    monkeypatch.setattr(means, "HELD", 3 * 4 * 10)
    mean = Mean()
    for count in range(1, 8):
        mean.add(State(torch.ones(10)))
        assert len(mean._waiting) == count % 3
