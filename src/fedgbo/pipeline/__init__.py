"""The replaceable parts of a round between clients and server: a sampler, transforms and an aggregator."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedgbo.core import Aggregator, ConfigError, Mean, Sampler, State, Transform, Upload, stream
from fedgbo.pipeline.aggregators import ExactMean
from fedgbo.pipeline.samplers import FixedSize


@dataclass(frozen=True)
class Pipeline:
    """Who takes part in a round, and what happens to uploads on their way to the server."""

    sampler: Sampler
    transforms: tuple[Transform, ...] = ()
    aggregator: Aggregator = ExactMean()  # noqa: RUF009 - frozen

    @classmethod
    def of(
        cls,
        clients_per_round: int,
        sampler: Sampler | None,
        transforms: Sequence[Transform] | Transform,
        aggregator: Aggregator | None,
        weights: str,
    ) -> "Pipeline":
        """Put together what a user asks for; `weights` is a short way to name the mean."""
        if aggregator is not None and weights != "clients":
            raise ConfigError(f"weights={weights!r} is for the mean; leave it out where aggregator= is given")
        chosen = ExactMean(weights) if aggregator is None else aggregator
        own = FixedSize(clients_per_round) if sampler is None else sampler
        for name, part, kind in (("sampler", own, Sampler), ("aggregator", chosen, Aggregator)):
            if not isinstance(part, kind):
                raise ConfigError(f"{name} must be a fedgbo.{kind.__name__}, not {part!r}")
        if own.most_stale():
            _check_averaged(own, chosen)
        transforms = (transforms,) if isinstance(transforms, Transform) else tuple(transforms or ())
        for transform in transforms:
            if not isinstance(transform, Transform):
                raise ConfigError(f"transforms takes transforms such as ClipNorm(1.0), not {transform!r}")
        return cls(own, transforms, chosen)

    def cohort(self, clients: int, seed: int, t: int) -> list[int]:
        """Return round t's clients, in ascending order."""
        sampled = self.sampler.sample(clients, t, stream(seed, "cohort", t))
        try:
            cohort = [int(client) for client in sampled]
        except TypeError:
            cohort = [-1]
        if cohort != sorted(set(cohort)) or (cohort and not 0 <= cohort[0] <= cohort[-1] < clients):
            raise ConfigError(
                f"{type(self.sampler).__name__}.sample returned {str(sampled)[:80]}; it must return different clients "
                f"from 0 to {clients - 1}, in ascending order"
            )
        return cohort

    def groups(self, clients: int, seed: int, t: int) -> dict[int, list[int]]:
        """Return round t's clients by how many rounds ago they downloaded: all of them by 0, but for asynchronous
        samplers.
        """
        cohort, groups = self.cohort(clients, seed, t), dict[int, list[int]]()
        for client, staleness in zip(cohort, self.sampler.staleness(clients, t) or [0] * len(cohort), strict=True):
            groups.setdefault(int(staleness), []).append(client)
        if len(groups) > 1:
            _check_averaged(self.sampler, self.aggregator)
        return dict(sorted(groups.items()))

    def encode(self, upload: Upload, seed: int, t: int) -> Upload:
        """Return what the client sends."""
        for number, transform in enumerate(self.transforms):
            name, sent = f"{type(transform).__name__}.encode", upload
            upload = transform.encode(sent, stream(seed, "encode", t, sent.client, number))
            if not isinstance(upload, Upload):
                raise ConfigError(f"{name} must return an Upload, not {type(upload).__name__}")
            State.expect(upload.state, name, sent.state.params)
            if upload.state.buffers is None and sent.state.buffers is not None:
                upload = replace(upload, state=upload.state.with_buffers(sent.state.buffers))
            if not isinstance(upload.nbytes, int) or upload.nbytes < 0:
                raise ConfigError(f"{name} set nbytes to {upload.nbytes!r}; it must be a whole number of at least 0")
        return upload

    def decode(self, mean: Mean, seed: int, t: int) -> Mean:
        """Return what the server sees: the transforms in reverse order."""
        for number, transform in reversed(list(enumerate(self.transforms))):
            decoded = transform.decode(mean, stream(seed, "decode", t, number))
            if not isinstance(decoded, Mean):
                raise ConfigError(f"{type(transform).__name__}.decode must return a Mean, not {type(decoded).__name__}")
            mean = decoded if decoded.buffers is not None else replace(decoded, buffers=mean.buffers)
        return mean


def _check_averaged(sampler: Sampler, aggregator: Aggregator) -> None:
    """Raise unless uploads are averaged, which is all that is defined for clients from different server states."""
    if not isinstance(aggregator, ExactMean):
        raise ConfigError(
            f"{type(sampler).__name__} and {type(aggregator).__name__} cannot be combined: uploads of clients that "
            "started from different server states are only averaged; leave out aggregator="
        )
