"""Exact sums and means against math.fsum, in C and in torch, and the median by hand."""

import math

import pytest
import torch

import fedgbo
from fedgbo.core.pipeline import Upload
from fedgbo.core.state import State
from fedgbo.native import library
from fedgbo.pipeline import aggregators
from fedgbo.pipeline.aggregators import ExactMean, ExactSum, Median, WeightedSum


@pytest.fixture(params=["native", "torch"])
def backend(request, monkeypatch):
    """The C code and, as without a compiler, torch's operations."""
    if request.param == "torch":
        monkeypatch.setattr(aggregators, "library", lambda: None)
    elif library() is None:
        pytest.skip("no C compiler here")


def wild(count, length, dtype=torch.float32, seed=0):
    """Numbers of all signs and of magnitudes from 1e-12 to 1e8, whose float64 sums depend on their order."""
    random = torch.Generator().manual_seed(seed)
    size = 10 ** (20 * torch.rand(count, length, generator=random, dtype=torch.float64) - 12)
    return (size * torch.randn(count, length, generator=random, dtype=torch.float64)).to(dtype)


def exact(vectors, weights=None):
    columns = vectors.double().T.tolist()
    if weights is not None:
        columns = [[x * w for x, w in zip(column, weights, strict=True)] for column in columns]
    return torch.tensor([math.fsum(column) for column in columns], dtype=torch.float64)


def summed(vectors):
    total = ExactSum.like(vectors[0])
    total.add(*vectors)
    return total


def upload(client, params, samples=1, **stats):
    return Upload(client, State(params, stats), steps=1, samples=samples, loss=0.0, nbytes=0)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_are_exact_whatever_their_order(dtype):
    vectors = wild(30, 2051, dtype)  # two blocks of the C loop, and 3 numbers more
    plain = vectors.double().cumsum(0)[-1]
    assert not torch.equal(plain, vectors.double().flip(0).cumsum(0)[-1])  # else this would show nothing
    for order in (range(30), range(29, -1, -1), [*range(1, 30, 2), *range(0, 30, 2)]):
        total = summed(vectors[list(order)])
        assert torch.equal(total.total + total.rest, exact(vectors))
        assert torch.equal(total.mean(30, torch.float64), exact(vectors) / 30)


@pytest.mark.skipif(library() is None, reason="no C compiler here")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [1, 7, 1023, 1024, 1025, 3000])
@pytest.mark.parametrize("count", [1, 2, 9])
def test_the_c_code_has_the_bits_of_torch(dtype, length, count, monkeypatch):
    vectors = wild(count, length, dtype, seed=length + count)
    native = summed(vectors)
    native.add(vectors[0], vectors[-1])
    native_means = [native.mean(count + 2, kind) for kind in (torch.float32, torch.float64)]
    monkeypatch.setattr(aggregators, "library", lambda: None)
    torchs = summed(vectors)
    torchs.add(vectors[0], vectors[-1])
    assert torch.equal(native.total, torchs.total)
    assert torch.equal(native.rest, torchs.rest)
    for mean, kind in zip(native_means, (torch.float32, torch.float64), strict=True):
        assert mean.dtype == kind
        assert torch.equal(mean, torchs.mean(count + 2, kind))


@pytest.mark.usefixtures("backend")
def test_views_and_other_types_are_added_too():
    total = ExactSum.like(torch.zeros(4))
    total.add(torch.arange(8.0)[::2], torch.ones(()).expand(4))
    total.add(torch.full((4,), 0.5, dtype=torch.bfloat16))
    total.add(torch.ones(4), torch.ones(4, dtype=torch.float64))
    assert total.mean(1, torch.float32).tolist() == [3.5, 5.5, 7.5, 9.5]


@pytest.mark.usefixtures("backend")
def test_numbers_that_are_not_finite_are_seen():
    for value in (math.inf, math.nan):
        total = summed(torch.tensor([[1.0], [value], [2.0]]))
        assert not math.isfinite(total.mean(3, torch.float32).item())


@pytest.mark.usefixtures("backend")
def test_a_mean_keeps_what_float32_would_lose_and_is_of_the_uploads_type():
    uploads = [upload(c, torch.tensor([x]), m=torch.tensor([2 * x])) for c, x in enumerate((1e8, 1.0, -1e8))]
    mean = ExactMean().combine(uploads)
    assert mean.params.dtype == torch.float32
    assert mean.params.item() == torch.tensor(1 / 3).item()
    assert mean.stats["m"].item() == torch.tensor(2 / 3).item()


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("held", [1, 10**9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_mean_is_exact_however_many_uploads_are_held(held, dtype, monkeypatch):
    monkeypatch.setattr(aggregators, "HELD", held)  # each added at once, or all in the last pass
    vectors = wild(7, 300, dtype)
    mean = ExactMean().combine(upload(c, x, m=2 * x) for c, x in enumerate(vectors))
    assert torch.equal(mean.params, (exact(vectors) / 7).to(dtype))
    assert torch.equal(mean.stats["m"], (2 * exact(vectors) / 7).to(dtype))


@pytest.mark.usefixtures("backend")
def test_a_mean_over_samples():
    vectors, samples = wild(5, 100), [3, 1, 400, 17, 1]
    uploads = [upload(c, x, n) for c, (x, n) in enumerate(zip(vectors, samples, strict=True))]
    mean = ExactMean("samples").combine(uploads)
    assert torch.equal(mean.params, (exact(vectors, samples) / sum(samples)).float())
    assert [ExactMean("samples").weight(one) for one in uploads] == samples
    assert [ExactMean().weight(one) for one in uploads] == [1] * 5
    with pytest.raises(fedgbo.ConfigError, match='weights must be "clients" or "samples", not \'steps\''):
        ExactMean("steps")


@pytest.mark.parametrize("aggregator", [ExactMean(), Median()])
def test_vectors_that_cannot_be_combined(aggregator):
    short = [upload(0, torch.zeros(4)), upload(1, torch.zeros(3))]
    with pytest.raises(fedgbo.ConfigError, match=r"shape \(4,\) and \(3,\), which cannot be combined"):
        aggregator.combine(short)
    other = [upload(0, torch.zeros(4)), upload(1, torch.zeros(4), m=torch.zeros(4))]
    with pytest.raises(fedgbo.ConfigError, match=r"uploads params, stats\.m, and another one params; client_"):
        aggregator.combine(other)


def test_vectors_that_cannot_be_combined_are_noticed_after_a_pass_too(monkeypatch):
    monkeypatch.setattr(aggregators, "HELD", 1)
    with pytest.raises(fedgbo.ConfigError, match=r"uploads params, stats\.m, and another one params"):
        ExactMean().combine([upload(0, torch.zeros(4)), upload(1, torch.zeros(4), m=torch.zeros(4))])
    with pytest.raises(fedgbo.ConfigError, match=r"shape \(4,\) and \(3,\), which cannot be combined"):
        ExactMean().combine([upload(0, torch.zeros(4)), upload(1, torch.zeros(3))])


def test_a_vector_that_changes_after_its_upload_is_noticed():
    """A user's algorithm may use a buffer again: the mean would be of its last contents alone."""
    buffer = torch.ones(4)
    changing = (upload(value, buffer.fill_(value)) for value in (1, 2))
    with pytest.raises(fedgbo.ConfigError, match=r"client 1 uploaded were changed afterwards.* not a buffer that it"):
        ExactMean().combine(changing)
    same = [upload(0, buffer), upload(1, buffer)]  # one vector twice is no change
    assert ExactMean().combine(same).params.tolist() == [2.0] * 4


def test_no_more_uploads_are_held_than_allowed(monkeypatch):
    monkeypatch.setattr(aggregators, "HELD", 3 * 4 * 10)
    total = WeightedSum(ExactMean())
    for count in range(1, 8):
        total.add(upload(count, torch.ones(10)))
        assert len(total._held) == count % 3


@pytest.mark.parametrize(
    ("values", "median"), [([5.0], 5.0), ([1.0, 4.0], 2.5), ([9.0, -1e30, 2.0], 2.0), ([1.0, 1e30, 3.0, -7.0], 2.0)]
)
def test_a_median_by_hand(values, median):
    uploads = [upload(c, torch.tensor([x, -x]), m=torch.tensor([2 * x])) for c, x in enumerate(values)]
    combined = Median().combine(uploads)
    assert combined.params.tolist() == [median, -median]
    assert combined.stats["m"].tolist() == [2 * median]


def test_a_minority_cannot_move_a_median_far():
    honest = [upload(c, torch.tensor([1.0 + c / 10])) for c in range(3)]
    liars = [upload(3 + c, torch.tensor([1e9])) for c in range(2)]
    assert 1.0 <= Median().combine(honest + liars).params.item() <= 1.2 + 1e-6
