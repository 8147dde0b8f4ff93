"""What a run records: totals that grow round by round, and a record at each evaluation."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from types import MappingProxyType
from typing import Any, NamedTuple

from fedgbo.core import RunFolderError

OPTIONAL = (
    "validation_loss",
    "validation_accuracy",
    "simulated_seconds",
    "drift",
    "note",
)  # left out of a record's line where there are none
WHOLE = ("round", "download_bytes", "upload_bytes")
LARGEST = 1e150  # of what a run can measure: sums and squares of such numbers are still finite
FLOPS = ("flops", "counted_flops")
ACCURACY = "accuracy"  # the metric whose values are written in per cent


def written(value: float, metric: str, decimals: int = 1) -> str:
    """Write a value of a metric.

    >>> written(0.4023, "accuracy"), written(-7.25, "neg_mae")
    ('40.2%', '-7.25')
    """
    return f"{value:.{decimals}%}" if metric == ACCURACY else f"{value:.4g}"


class Ledger(NamedTuple):
    """Totals over all clients and rounds so far."""

    round: int = 0
    download_bytes: int = 0
    upload_bytes: int = 0
    flops: float | None = 0.0  # on clients, as the paper counts them; None: they could not be counted
    counted_flops: float | None = 0.0  # on clients, with gradients as torch counts them
    seconds: float = 0.0  # of training and evaluation, without pauses between a stop and a resume
    loss_sum: float = 0.0  # of the rounds since the last record
    loss_rounds: int = 0
    drift_sum: Mapping[str, float] = MappingProxyType({})  # of the rounds since the last record, if measured
    drift_rounds: int = 0

    def content(self) -> dict[str, Any]:
        """Return this as a table that can be written as JSON."""
        return {**self._asdict(), "drift_sum": dict(self.drift_sum)}

    def with_drift(self, drift: Mapping[str, float] | None) -> "Ledger":
        """Return this with one more round's drift in it, where it was measured."""
        if drift is None:
            return self
        if drift.keys() != self.drift_sum.keys():  # the first since the last record, or a resume measures other things
            return self._replace(drift_sum=dict(drift), drift_rounds=1)
        sums = {name: self.drift_sum[name] + value for name, value in drift.items()}
        return self._replace(drift_sum=sums, drift_rounds=self.drift_rounds + 1)

    def mean_drift(self) -> dict[str, float] | None:
        """Return the mean over the rounds since the last record; None where none was measured."""
        if not self.drift_rounds:
            return None
        return {name: total / self.drift_rounds for name, total in self.drift_sum.items()}


@dataclass(frozen=True)
class Record:
    """One evaluation: the scores after a number of rounds, and the costs so far."""

    round: int
    loss: float | None  # on the test set; None where there is no test set
    accuracy: float | None  # the primary metric on the test set; None where there is none
    train_loss: float | None  # mean over clients, steps and rounds since the last record; None before the first round
    download_bytes: int
    upload_bytes: int
    flops: float | None  # None: they could not be counted, and `note` says why
    counted_flops: float | None
    seconds: float
    drift: dict[str, float] | None = None  # mean over the rounds since the last record; None where it is not measured
    note: str | None = None
    validation_loss: float | None = None  # on the validation part; None where there is none
    validation_accuracy: float | None = None
    simulated_seconds: float | None = None  # on the sampler's virtual clock; None where there is none
    scores: dict[str, float] = field(default_factory=dict)  # all metrics by name, also of validation and over clients

    @property
    def quality(self) -> tuple[int, float]:
        """The quality of the model (larger is better), by the validation scores if there are any, else by the test
        scores.

        This is the primary metric or, without one, the negative loss. Without both, later records are better.
        """
        held_out = self.validation_loss is not None
        metric = self.validation_accuracy if held_out else self.accuracy
        loss = self.validation_loss if held_out else self.loss
        if metric is not None:
            return 2, metric
        return (0, self.round) if loss is None else (1, -loss)

    @property
    def metric(self) -> str:
        """The name of the primary metric, whose values are `accuracy` and `validation_accuracy`."""
        named = (name.removeprefix("validation.") for name in self.scores if not name.startswith("clients."))
        return next(named, ACCURACY)

    def line(self) -> str:
        """Return this as a line of JSON."""
        content = {name: value for name, value in asdict(self).items() if value is not None or name not in OPTIONAL}
        if not self.scores:
            del content["scores"]
        return json.dumps(content, allow_nan=False) + "\n"

    @classmethod
    def of_line(cls, line: str) -> "Record":
        """Read a line of JSON. Unknown keys, which a later version may have added, are ignored."""
        read = json.loads(line)
        scores = ("loss", "accuracy", "train_loss", "validation_loss", "validation_accuracy", "simulated_seconds")
        check_numbers(read, whole=WHOLE, other=("seconds",), or_none=(*scores, *FLOPS))
        content: dict[str, Any] = {**dict.fromkeys(OPTIONAL), "scores": {}, **read}
        check_numbers(content["scores"], other=content["scores"])
        if content["drift"] is not None:
            check_numbers(content["drift"], other=tuple(content["drift"]))
        try:
            return cls(**{entry.name: content[entry.name] for entry in fields(cls)})
        except KeyError as error:
            raise RunFolderError(f"a metrics record lacks {error}") from error


def check_numbers(
    content: Any, *, whole: Iterable[str] = (), other: Iterable[str] = (), or_none: Iterable[str] = ()
) -> None:
    """Raise unless `content`, read from a file, is a table whose numbers are numbers."""
    if not isinstance(content, Mapping):
        raise RunFolderError(f"a table was expected, not {content!r:.60}")
    for name in (*whole, *other, *or_none):
        value = content.get(name, 0)  # what is missing is for the caller to tell
        number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST
        if number and (name not in whole or (isinstance(value, int) and value >= 0)):
            continue
        if value is not None or name not in or_none:
            allowed = "whole number from 0 on" if name in whole else "number"
            raise RunFolderError(f"{name} must be a {allowed}, not {value!r:.60}")
