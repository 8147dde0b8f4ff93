"""Scores of a model on the test, validation and clients' own test samples.

Functions that return a pair (sum, count), as the default cross-entropy and accuracy do, are added up over chunks of
samples. A function that returns a number, such as an F1 score, is called once with the outputs of all samples.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional

from fedgbo.core import ConfigError, DataError, FedGBOError, Rows, State
from fedgbo.data.federated import FederatedData, Owned
from fedgbo.data.samples import Samples
from fedgbo.data.tree import joined, kind_of
from fedgbo.tasks.task import Task, cross_entropy_sum

CHUNK = 64  # samples that go through the model at once: more is slower, and takes more memory
TEST, VALIDATION = "test", "validation"
WORST = 0.1  # of the clients: Li et al., "Fair resource allocation in federated learning" (2020), report their mean
Score = float | None  # None: a metric that is not a finite number
OwnModels = Callable[[int], State]  # a client's number -> the model that it uses, with its buffers


@dataclass(frozen=True)
class Scores:
    """The loss and every metric by name: on the test set, on the validation part, and for each client."""

    test: Mapping[str, Score] = field(default_factory=dict)  # empty: there is no test set
    validation: Mapping[str, Score] = field(default_factory=dict)
    clients: Mapping[int, Mapping[str, Score]] = field(default_factory=dict)  # on each client's own test samples
    note: str | None = None

    @property
    def loss(self) -> Score:
        """The test loss."""
        return self.test.get("loss")

    @property
    def accuracy(self) -> Score:
        """The primary metric on the test set; None where there is none."""
        return primary(self.test)

    def summary(self) -> dict[str, dict[str, float]]:
        """Return over clients, for the loss and every metric: mean, mean of the worst tenth, standard deviation."""
        found: dict[str, dict[str, float]] = {}
        for name in dict.fromkeys(name for own in self.clients.values() for name in own):
            known = [value for own in self.clients.values() if (value := own.get(name)) is not None]
            if known:
                ordered = np.sort(known)[:: -1 if name == "loss" else 1]
                worst = ordered[: max(1, math.ceil(WORST * len(known)))]
                spread = float(np.std(known))
                found[name] = {"mean": float(np.mean(known)), "worst_decile": float(worst.mean()), "spread": spread}
        return found

    def flat(self) -> dict[str, float]:
        """Return all metrics, and the means over clients, as a record has them."""
        own = {name: value for name, value in self.test.items() if name != "loss"}
        own |= {f"{VALIDATION}.{name}": value for name, value in self.validation.items() if name != "loss"}
        over = self.summary().items()
        own |= {f"clients.{name}.{what}": value for name, numbers in over for what, value in numbers.items()}
        return {name: value for name, value in own.items() if value is not None}

    def not_finite(self) -> str | None:
        """Return which loss is not a finite number, if there is one."""
        named = {"test": self.test, "validation": self.validation}
        named |= {f"client {client}'s test": own for client, own in self.clients.items()}
        for name, own in named.items():
            if (loss := own.get("loss")) is not None and not math.isfinite(loss):
                return f"the {name} loss is {loss}".replace("the client", "client")
        return None

    def content(self) -> bytes:
        """Return this as JSON, for other processes."""
        return json.dumps([self.test, self.validation, list(self.clients.items()), self.note]).encode()

    @classmethod
    def of_content(cls, content: bytes) -> "Scores":
        """Rebuild the scores from `content`."""
        test, validation, clients, note = json.loads(content)
        return cls(test, validation, {int(client): own for client, own in clients}, note)


def primary(scores: Mapping[str, Score]) -> Score:
    """Return the first metric of a set of samples; None where there is none."""
    return next((value for name, value in scores.items() if name != "loss"), None)


@dataclass(frozen=True, eq=False)
class Chunk:
    """Samples that go through the model at once."""

    number: int
    part: str  # test or validation
    samples: Samples
    rows: Rows
    client: int | None = None  # whose samples they are, where that matters
    by_client: bool = False  # whether the client has scores of its own
    pooled: bool = True  # whether the chunk is one of the part


@dataclass(frozen=True, eq=False)
class Piece:
    """What a chunk adds to the scores."""

    samples: int
    pairs: Mapping[str, tuple[float, float]]  # sum and count
    means: Mapping[str, float] = field(default_factory=dict)  # of functions whose outputs cannot be concatenated
    batch: tuple[Any, Any] | None = None  # outputs and targets, on the CPU, where a function takes those of all samples

    def row(self) -> list[float]:
        """Return a piece that has only pairs as numbers."""
        return [float(self.samples), *(number for pair in self.pairs.values() for number in pair)]


class Scorer:
    """Scores outputs with a task's loss and metrics; `sample` is a small batch of outputs and targets.

    What a function returns for the sample tells how it is used: a pair is added up over chunks; a number is computed
    from all outputs or, where they cannot be concatenated, as a mean over chunks.
    """

    def __init__(self, task: Task, sample: tuple[Any, Any]) -> None:
        loss = cross_entropy_sum if task.loss is functional.cross_entropy else task.loss
        self._functions = {"loss": loss, **task.metrics}
        self._pairs = [name for name in self._functions if self._gives_pair(name, sample)]
        self._others = [name for name in self._functions if name not in self._pairs]
        self._whole = _join([sample, sample]) is not None

    @property
    def additive(self) -> bool:
        """Whether all scores are sums over chunks, which other processes can add to."""
        return not self._others

    @property
    def width(self) -> int:
        """How many numbers a row of a piece has."""
        return 1 + 2 * len(self._pairs)

    def piece(self, samples: int, outputs: Any, targets: Any) -> Piece:
        """Return what a chunk adds, from the model's outputs."""
        batch = None
        if self._others and self._whole:
            try:
                batch = joined([outputs]), joined([targets])  # copies, before a metric may write into its arguments
            except (TypeError, RuntimeError) as error:
                raise DataError(
                    f"the model returns {kind_of(outputs)} for {samples} samples; it must return one row for each"
                ) from error
        pairs = {}
        for name in self._pairs:
            value = self._call(name, outputs, targets)
            if not isinstance(value, tuple) or len(value) != 2:
                raise DataError(f"{_named(name)} returned a pair (sum, count) first, and then {_told(value)}")
            pairs[name] = (_number(name, value[0]), _number(name, value[1]))
        if not self._others:
            return Piece(samples, pairs)
        if batch is None:
            return Piece(samples, pairs, {name: self._value(name, outputs, targets) for name in self._others})
        return Piece(samples, pairs, batch=batch)

    def of_row(self, row: Sequence[float]) -> Piece:
        """Undo `Piece.row`."""
        return Piece(int(row[0]), dict(zip(self._pairs, zip(row[1::2], row[2::2], strict=True), strict=True)))

    def scores(self, chunks: Sequence[Chunk], pieces: Iterable[Piece]) -> Scores:
        """Combine the pieces of all chunks, which come in the chunks' order."""
        parts: dict[str, list[Piece]] = {}
        clients: dict[int, list[Piece]] = {}
        for chunk, piece in zip(chunks, pieces, strict=True):
            if chunk.pooled:
                parts.setdefault(chunk.part, []).append(piece)
            if chunk.by_client and chunk.client is not None:
                clients.setdefault(chunk.client, []).append(piece)
        notes: list[str] = []
        found = {part: self._combined(own, f"the {part} set", notes) for part, own in parts.items()}
        each = {client: self._combined(own, f"client {client}'s test set", notes) for client, own in clients.items()}
        more = f"; and {len(notes) - 2} such notes more" if len(notes) > 2 else ""
        note = "; ".join(dict.fromkeys(notes[:2])) + more
        return Scores(found.get(TEST, {}), found.get(VALIDATION, {}), each, note or None)

    def _combined(self, pieces: list[Piece], where: str, notes: list[str]) -> dict[str, Score]:
        """Return the scores of some pieces; say in `notes` what is not as one would expect."""
        found: dict[str, float] = {}
        for name in self._pairs:
            total, count = (math.fsum(piece.pairs[name][k] for piece in pieces) for k in (0, 1))
            if not count and name == "loss":
                raise DataError(f"{where} has no target that counts for the loss; leave it out, or give it some")
            found[name] = total / count if count else math.nan
        found |= self._of_outputs(pieces, where, notes)
        for name, value in found.items():
            if name != "loss" and not math.isfinite(value):
                notes.append(f"{_named(name)} is {value} on {where}")
        ordered = {name: found[name] for name in self._functions}
        return {name: v if name == "loss" or math.isfinite(v) else None for name, v in ordered.items()}

    def _of_outputs(self, pieces: list[Piece], where: str, notes: list[str]) -> dict[str, float]:
        batches = [piece.batch for piece in pieces if piece.batch is not None]
        if not self._others:
            return {}
        if batches and (whole := _join(batches)) is not None:
            return {name: self._value(name, *whole) for name in self._others}
        if len(pieces) > 1:
            names = ", ".join(self._others)
            notes.append(f"{names}: mean over chunks of {CHUNK} samples of {where}, as outputs cannot be concatenated")
        total = sum(piece.samples for piece in pieces)
        means = [
            piece.means if piece.batch is None else {name: self._value(name, *piece.batch) for name in self._others}
            for piece in pieces
        ]
        shares = [piece.samples / total for piece in pieces]
        return {
            name: math.fsum(share * own[name] for share, own in zip(shares, means, strict=True))
            for name in self._others
        }

    def _gives_pair(self, name: str, sample: tuple[Any, Any]) -> bool:
        if self._functions[name] is cross_entropy_sum:
            return True
        try:
            value = self._functions[name](*sample)
        except (
            Exception
        ):  # such as of an AUC, which wants more than one class; if it fails on all samples, that is told
            return False
        return isinstance(value, tuple) and len(value) == 2

    def _value(self, name: str, outputs: Any, targets: Any) -> float:
        value = self._call(name, outputs, targets)
        if isinstance(value, tuple) and len(value) == 2:
            total, count = _number(name, value[0]), _number(name, value[1])
            return total / count if count else math.nan
        return _number(name, value)

    def _call(self, name: str, outputs: Any, targets: Any) -> Any:
        try:
            return self._functions[name](outputs, targets)
        except FedGBOError:
            raise
        except Exception as error:  # whatever a user's function raises
            raise DataError(
                f"{_named(name)} fails on outputs ({kind_of(outputs)}) and targets ({kind_of(targets)}): "
                f"{type(error).__name__}: {error}"
            ) from error


def check_local(data: FederatedData, own_models: OwnModels | None) -> None:
    """Raise unless models whose buffers differ between clients can be scored on these data."""
    if data.test is not None and data.client_tests is None:
        raise ConfigError(
            'with buffers="local" each client has its own statistics, so clients are scored separately: give '
            "FederatedData.from_clients client_tests=, one test set for each client, or test=None for no scores"
        )
    if own_models is None and (data.client_tests is not None or data.validation is not None):
        raise ConfigError(
            'with buffers="local" the statistics of each client are needed to score a model, but are not available '
            'here; read the scores in the records of a run in simulation or under torchrun, or use buffers="average"'
        )


def chunks_of(data: FederatedData, *, local: bool = False) -> list[Chunk]:
    """Return the chunks of all samples that a run is scored on.

    Without a test set, all clients' test samples together are the test set. With `local`, where every client has a
    model or buffers of its own, this holds always, and no chunk has samples of two clients.
    """
    found: list[Chunk] = []

    def add(part: str, samples: Samples, begin: int, end: int, **more: Any) -> None:
        for start in range(begin, end, CHUNK):
            found.append(Chunk(len(found), part, samples, np.arange(start, min(start + CHUNK, end)), **more))

    if data.test is not None and not local:
        add(TEST, data.test, 0, len(data.test))
    if data.validation is not None:
        for client, begin, end in _ranges(data.validation, by_client=local):
            add(VALIDATION, data.validation.samples, begin, end, client=client)
    if data.client_tests is not None:
        pooled = local or data.test is None
        for client, begin, end in _ranges(data.client_tests, by_client=True):
            add(TEST, data.client_tests.samples, begin, end, client=client, by_client=True, pooled=pooled)
    return found


def _ranges(owned: Owned, *, by_client: bool) -> Iterator[tuple[int | None, int, int]]:
    if not by_client:
        yield None, 0, len(owned.samples)
        return
    for client, (begin, end) in enumerate(zip(owned.offsets[:-1].tolist(), owned.offsets[1:].tolist(), strict=True)):
        if end > begin:
            yield client, begin, end


def _join(batches: Sequence[tuple[Any, Any]]) -> tuple[Any, Any] | None:
    """Concatenate outputs and targets; None: they cannot be concatenated."""
    try:
        outputs, targets = joined(batches)
    except (TypeError, RuntimeError, ValueError, KeyError, AttributeError):
        return None
    return outputs, targets


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{_named(name)} must return a number or a pair (sum, count), not {_told(value)}") from error


def _named(name: str) -> str:
    return "the loss" if name == "loss" else f"the metric '{name}'"


def _told(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{value!r:.60}"
