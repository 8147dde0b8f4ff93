"""Samplers, transforms and the pipeline itself: by hand, and what is refused."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import fedgbo
from fedgbo.core.pipeline import Mean, Upload
from fedgbo.core.random import stream
from fedgbo.core.state import State
from fedgbo.pipeline import Pipeline
from fedgbo.pipeline.samplers import FixedSize
from tests.conftest import make_task

AVG = fedgbo.FedAvg(fedgbo.SGD(lr=0.3))


def upload(*numbers, client=0, samples=1, **stats):
    state = State(torch.tensor(numbers, dtype=torch.float64), {n: torch.tensor(v).double() for n, v in stats.items()})
    return Upload(client, state, steps=1, samples=samples, loss=0.0, nbytes=state.nbytes)


def test_cohorts_of_a_fixed_size_are_uniform_without_replacement():
    cohorts = [FixedSize(3).sample(10, t, stream(0, "cohort", t)) for t in range(2000)]
    assert all(len(set(cohort)) == 3 and cohort == sorted(cohort) for cohort in cohorts)
    counts = np.bincount(np.concatenate(cohorts), minlength=10)
    assert (abs(counts - 600) < 5 * np.sqrt(600 * 0.7)).all()


def test_poisson_cohorts_have_independent_members():
    cohorts = [fedgbo.Poisson(0.2).sample(50, t, stream(0, "cohort", t)) for t in range(2000)]
    sizes = np.array([len(cohort) for cohort in cohorts])
    assert abs(sizes.mean() - 10) < 5 * np.sqrt(8 / 2000)
    assert abs(sizes.var() - 8) < 1.5


def test_clipping_scales_the_whole_upload():
    rng = stream(0, "encode")
    long = fedgbo.ClipNorm(1.0).encode(upload(3.0, 0.0, c=[0.0, 4.0]), rng)  # the norm is 5
    assert long.state.params.tolist() == pytest.approx([0.6, 0.0])
    assert long.state.stats["c"].tolist() == pytest.approx([0.0, 0.8])
    short = upload(0.3, 0.4)
    assert fedgbo.ClipNorm(1.0).encode(short, rng) is short


@dataclass(frozen=True)
class Scaled(fedgbo.Transform):
    """Doubles on the way up, counts half the bytes, and adds noise on the way in."""

    by: float
    noise: float = 0.0

    def encode(self, upload, rng):
        state = State(upload.state.params * self.by, upload.state.stats)
        return replace(upload, state=state, nbytes=upload.nbytes // 2)

    def decode(self, mean, rng):
        noise = torch.from_numpy(rng.normal(0, self.noise, len(mean.params))).to(mean.params.dtype)
        return Mean(mean.params / self.by + noise, mean.stats, mean.clients, mean.population)


def test_transforms_encode_in_order_and_decode_in_reverse():
    class Plus(fedgbo.Transform):
        def encode(self, upload, rng):
            return replace(upload, state=State(upload.state.params + 1))

        def decode(self, mean, rng):
            return Mean(mean.params - 1)

    pipeline = Pipeline(FixedSize(1), (Scaled(2.0), Plus()))
    assert pipeline.encode(upload(3.0), seed=0, t=0).state.params.tolist() == [7.0]
    assert pipeline.decode(Mean(torch.tensor([7.0])), seed=0, t=0).params.tolist() == [3.0]


def test_what_travels_is_what_is_counted():
    task = make_task(clients_per_round=3)
    plain = fedgbo.run(task, AVG, rounds=2)
    halved = fedgbo.run(task, AVG, rounds=2, transforms=[Scaled(2.0)])
    assert halved.history[-1].upload_bytes == plain.history[-1].upload_bytes // 2
    assert torch.equal(halved.params, plain.params)


def test_noise_is_drawn_from_a_named_stream():
    task = make_task(clients_per_round=3)
    noisy = [fedgbo.run(task, AVG, rounds=3, transforms=[Scaled(2.0, 0.1)], seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(noisy[0].params, noisy[1].params)
    assert not torch.equal(noisy[0].params, noisy[2].params)
    assert not torch.allclose(noisy[0].params, fedgbo.run(task, AVG, rounds=3).params, atol=1e-3)


def test_the_median_of_an_even_number_is_in_the_middle():
    uploads = [
        upload(1.0, 5.0, client=0),
        upload(2.0, -1e9, client=1),
        upload(4.0, 6.0, client=2),
        upload(1e9, 7.0, client=3),
    ]
    assert fedgbo.Median().combine(uploads).params.tolist() == [3.0, 5.5]
    assert fedgbo.Median().combine(uploads[:3]).params.tolist() == [2.0, 5.0]


def test_the_trimmed_mean_leaves_out_the_extremes_of_each_coordinate():
    uploads = [upload(*v) for v in ([1.0, 9.0], [2.0, -1e30], [3.0, 1.0], [1e30, 2.0], [4.0, 3.0])]
    assert fedgbo.TrimmedMean(0.2).combine(uploads).params.tolist() == [3.0, 2.0]
    assert fedgbo.TrimmedMean(0.0).combine(uploads[:1]).params.tolist() == [1.0, 9.0]
    with pytest.raises(fedgbo.ConfigError, match=r"share must be at least 0 and less than 0\.5, not 0\.5"):
        fedgbo.TrimmedMean(0.5)


def test_the_mean_by_samples_by_hand():
    uploads = [upload(1.0, client=0, samples=1), upload(5.0, client=1, samples=3)]
    assert fedgbo.ExactMean("samples").combine(uploads).params.tolist() == [4.0]
    assert fedgbo.ExactMean().combine(uploads).params.tolist() == [3.0]


@dataclass(frozen=True)
class Uneven(fedgbo.FedAvg):
    """Some clients send a statistic that others do not."""

    def client_update(self, down, client):
        up = super().client_update(down, client)
        return State(up.params, {"extra": up.params}) if client.id % 2 else up


@dataclass(frozen=True)
class Reuses(fedgbo.FedAvg):
    """Sends the same memory again and again."""

    def client_update(self, down, client):
        up = super().client_update(down, client)
        buffer = BUFFERS.setdefault("up", torch.empty_like(up.params))
        return State(buffer.copy_(up.params))


BUFFERS = {}


@pytest.mark.parametrize("aggregator", [None, fedgbo.Median()])
def test_uploads_that_cannot_be_combined_are_refused(aggregator):
    task = make_task()
    with pytest.raises(fedgbo.ConfigError, match="the same statistics on every client"):
        fedgbo.run(task, Uneven(fedgbo.SGD(0.1)), rounds=1, aggregator=aggregator)


def test_a_buffer_that_is_used_again_is_refused():
    with pytest.raises(fedgbo.ConfigError, match="vectors of its own, not a buffer"):
        fedgbo.run(make_task(), Reuses(fedgbo.SGD(0.1)), rounds=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "size"}, 'weights must be "clients" or "samples", not'),
        ({"weights": "samples", "aggregator": fedgbo.Median()}, "leave it out where aggregator= is given"),
        ({"aggregator": "median"}, "aggregator must be a fedgbo.Aggregator"),
        ({"sampler": 3}, "sampler must be a fedgbo.Sampler"),
        ({"transforms": ["clip"]}, r"transforms takes transforms such as ClipNorm\(1.0\)"),
        ({"engine": "fast"}, "unknown engine 'fast'"),
    ],
)
def test_bad_options_of_run(options, message):
    with pytest.raises(fedgbo.ConfigError, match=message):
        fedgbo.run(make_task(), AVG, rounds=1, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fedgbo.Poisson(0), "rate must be a finite number above 0"),
        (lambda: fedgbo.Poisson(1.5), "rate must be a probability"),
        (lambda: fedgbo.ClipNorm(-1.0), "norm must be a finite number above 0"),
        (lambda: fedgbo.FixedSize(0), "clients_per_round must be a whole number"),
        (lambda: fedgbo.FixedSize(5).sample(3, 0, stream(0, "cohort")), "clients_per_round is 5, but there are 3"),
    ],
)
def test_bad_parts(make, message):
    with pytest.raises(fedgbo.ConfigError, match=message):
        make()


def returning(kind, method, value):
    """A part of the pipeline whose method returns a value, whatever it is given."""
    return type("Own", (kind,), {method: lambda self, *arguments: value})()


@pytest.mark.parametrize("cohort", [[3, 1], [1, 1, 2], [1, 99], [-1], None, 3])
def test_cohorts_are_checked(cohort):
    with pytest.raises(fedgbo.ConfigError, match=r"Own\.sample returned .* clients from 0 to 3, in ascending"):
        fedgbo.run(make_task(), AVG, rounds=1, sampler=returning(fedgbo.Sampler, "sample", cohort))


@pytest.mark.parametrize("cohort", [np.array([1, 3]), [np.int64(1), np.int64(3)], (1, 3)])
def test_cohorts_may_be_numpys(cohort):
    result = fedgbo.run(make_task(), AVG, rounds=1, sampler=returning(fedgbo.Sampler, "sample", cohort))
    assert result.history[-1].upload_bytes == 2 * result.params.nbytes


class RoundRobin(fedgbo.Sampler):
    def sample(self, clients, t, rng):
        return [t % clients]


def test_a_sampler_knows_the_round():
    task, seen = make_task(), []

    class Watched(fedgbo.FedAvg):
        def client_update(self, down, client):
            seen.append(client.id)
            return super().client_update(down, client)

    fedgbo.run(task, Watched(fedgbo.SGD(0.1)), rounds=5, sampler=RoundRobin())
    assert seen == [0, 1, 2, 3, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aggregator": returning(fedgbo.Aggregator, "combine", None)}, r"Own\.combine must return a fedgbo\.State"),
        ({"aggregator": returning(fedgbo.Aggregator, "combine", State(torch.zeros(3)))}, "a model of shape"),
        (
            {"aggregator": returning(fedgbo.Aggregator, "combine", State(torch.zeros(26)))},
            "go through the uploads",
        ),
        ({"transforms": [returning(fedgbo.Transform, "encode", None)]}, r"Own\.encode must return an Upload"),
    ],
)
def test_what_parts_return_is_checked(options, message):
    with pytest.raises(fedgbo.ConfigError, match=message):
        fedgbo.run(make_task(), AVG, rounds=1, **options)


class Drops(fedgbo.Aggregator):
    def combine(self, uploads):
        return State(torch.stack([upload.state.params for upload in uploads]).mean(dim=0))


class Counts(fedgbo.Transform):
    def encode(self, upload, rng):
        return replace(upload, nbytes=12.5)


class Shortens(fedgbo.Transform):
    def encode(self, upload, rng):
        return replace(upload, state=State(upload.state.params[:3]))


def test_statistics_sizes_and_bytes_are_checked():
    scaffold = fedgbo.SCAFFOLD(fedgbo.SGD(0.1))
    with pytest.raises(fedgbo.ConfigError, match=r"Drops\.combine returned params of uploads of params, stats\.c"):
        fedgbo.run(make_task(), scaffold, rounds=1, aggregator=Drops())
    with pytest.raises(fedgbo.ConfigError, match=r"Counts\.encode set nbytes to 12\.5"):
        fedgbo.run(make_task(), AVG, rounds=1, transforms=Counts())
    with pytest.raises(fedgbo.ConfigError, match=r"Shortens\.encode returned a model of shape \(3,\)"):
        fedgbo.run(make_task(), AVG, rounds=1, transforms=Shortens())


def test_clipping_keeps_the_bytes_of_a_compressed_upload():
    sizes = [
        fedgbo.run(make_task(), AVG, rounds=1, transforms=[Scaled(1.0), fedgbo.ClipNorm(norm)]).history[-1].upload_bytes
        for norm in (1e9, 1e-3)
    ]
    assert sizes[0] == sizes[1]


def test_uploads_are_sent_in_the_models_type():
    class Noisy(fedgbo.FedAvg):
        def client_update(self, down, client):
            up = super().client_update(down, client)
            return State(up.params + torch.from_numpy(client.rng.normal(size=len(up.params))))

    plain, noisy = (fedgbo.run(make_task(), kind(fedgbo.SGD(0.1)), rounds=1) for kind in (fedgbo.FedAvg, Noisy))
    assert noisy.history[-1].upload_bytes == plain.history[-1].upload_bytes
