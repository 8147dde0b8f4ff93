"""Federated data: the training samples of all clients, one client after another, and the samples to score with."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from fedgbo.core import ConfigError, DataError, Rows, permutation
from fedgbo.data.items import Form, ItemSamples
from fedgbo.data.read import Collate, Items, Target, is_frame, read
from fedgbo.data.samples import AugmentedSamples, Samples, TensorSamples, Transform
from fedgbo.data.tree import digest_of, joined, kind_of_first

BUILT = 3  # clients whose samples are built one by one, to compare memory


@dataclass(frozen=True, eq=False)
class Owned:
    """Samples of all clients: client c owns offsets[c] to offsets[c + 1], which may be none."""

    samples: Samples
    offsets: Rows  # (clients + 1,)


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Federated data: client c has training samples offsets[c] to offsets[c + 1] - 1; the test set is shared."""

    train: Samples
    offsets: Rows  # (clients + 1,)
    test: Samples | None  # None: no test set
    validation: Owned | None = None  # kept out of the clients' training samples
    client_tests: Owned | None = None  # each client's own test samples
    content_digest: str | None = None  # of the packed store that the data were opened from

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    def size(self, client: int) -> int:
        return int(self.offsets[client + 1] - self.offsets[client])

    def all_samples(self) -> dict[str, Samples]:
        """Return the training, test and validation samples and the clients' test samples that exist."""
        owned = {"validation": self.validation, "clients' test": self.client_tests}
        found = {"training": self.train} if self.test is None else {"training": self.train, "test": self.test}
        return found | {name: part.samples for name, part in owned.items() if part is not None}

    def digest(self) -> str:
        """Return a digest of all samples and their clients. A run can be resumed only with the same data."""
        owned = [part for part in (self.validation, self.client_tests) if part is not None]
        test = "" if self.test is None else self.test.digest()
        more = [(part.samples.digest(), part.offsets) for part in owned]
        return digest_of((self.content_digest or "", self.train.digest(), self.offsets, test, *more))

    @classmethod
    def from_clients(
        cls,
        *,
        train: Iterable[Any],
        test: Any = None,
        client_tests: Iterable[Any] | None = None,
        target: Target = None,
        collate: Collate | None = None,
        transform: Transform | None = None,
    ) -> "FederatedData":
        """Make federated data from one entry per client, and test data.

        Each is a pair (inputs, targets) of arrays, lists or tensors, where inputs and targets may also be dicts or
        tuples of arrays and targets may be None; a dict of arrays, a DataFrame or a Hugging Face data set, where
        `target` names the column of targets; or a torch Dataset. Arrays are copied. Data sets are read when a sample
        is needed, after one pass that checks every sample.

        `test` is for the global model. `client_tests` has one entry per client, or None for a client without test
        samples. Without `test`, the test samples of all clients together are the test set. Without both, there are no
        test scores.

        collate(samples) makes (inputs, targets) from a list of samples, such as sequences of different lengths.
        transform(inputs, rng) changes the inputs of training batches; `rng` is a numpy generator named by the run's
        seed, the round and the client.
        """
        entries = _entries(train, "train")
        form = Form(target, collate, next((tuple(entry.columns) for entry in entries if is_frame(entry)), None))
        if not entries:
            raise DataError("train has no clients; give one (inputs, targets) pair for each client")
        samples, offsets = _together(entries, [f"client {c}" for c in range(len(entries))], form)
        data = cls(samples if transform is None else AugmentedSamples(samples, transform), offsets, None)
        if test is not None:
            data = replace(data, test=_together([test], ["test"], form)[0])
        if client_tests is not None:
            data = replace(data, client_tests=_client_tests(_entries(client_tests, "client_tests"), data.clients, form))
        if collate is None:
            _check_alike(data)
        return data

    @classmethod
    def from_arrays(
        cls, x: Any, y: Any, *, parts: Sequence[Any], test: Any = None, transform: Transform | None = None
    ) -> "FederatedData":
        """Give client c the rows parts[c] of x and y; the partitioners in `fedgbo.partition` make such parts."""
        all_of_it = read((x, y), "x, y")
        if not isinstance(all_of_it, TensorSamples):
            raise DataError("x and y must be arrays; give data sets to FederatedData.from_clients")
        rows, count = [np.asarray(part) for part in parts], len(all_of_it)
        for c, part in enumerate(rows):
            if part.ndim != 1 or (part.size and not np.issubdtype(part.dtype, np.integer)):
                raise DataError(f"parts[{c}] must be a list of row numbers, not {part.dtype} of shape {part.shape}")
            if part.size and not (part.min() >= 0 and part.max() < count):
                raise DataError(f"parts[{c}] has row numbers outside 0 ... {count - 1}")
        train = [all_of_it.batch(part.astype(np.int64)) for part in rows]
        return cls.from_clients(train=train, test=test, transform=transform)

    @classmethod
    def from_flower_datasets(
        cls,
        source: Any,
        *,
        target: Target = "label",
        split: str = "train",
        test_split: str | None = "test",
        collate: Collate | None = None,
        transform: Transform | None = None,
    ) -> "FederatedData":
        """Make one client per partition of a FederatedDataset or a Partitioner of Flower Datasets.

        The test set is the split `test_split`, which a Partitioner does not have.
        """
        partitioners = getattr(source, "partitioners", None)
        if partitioners is not None and split not in partitioners:
            raise DataError(
                f"the data set has no partitions of '{split}' (it has {', '.join(partitioners)}); give split="
            )
        owner = source if partitioners is None else partitioners[split]
        if not hasattr(source, "load_partition") or not (partitioners or hasattr(owner, "num_partitions")):
            kind = type(source).__name__
            raise DataError(f"expected a FederatedDataset or a Partitioner of Flower Datasets, not {kind}")
        named = {} if partitioners is None else {"split": split}
        first = source.load_partition(0, **named)  # a FederatedDataset counts its partitions once it is loaded
        rest = [source.load_partition(k, **named) for k in range(1, owner.num_partitions)]
        test = None
        if test_split is not None and hasattr(source, "load_split"):
            try:
                test = source.load_split(test_split)
            except (KeyError, ValueError) as error:
                raise DataError(
                    f"the data set has no split '{test_split}': {error}; give test_split= another name, or None"
                ) from error
        return cls.from_clients(train=[first, *rest], test=test, target=target, collate=collate, transform=transform)

    def split_validation(self, share: float = 0.2, seed: int = 0) -> "FederatedData":
        """Set `share` of each client's training samples aside for validation; a run is also scored on them.

        `hold_out` chooses the samples. A client with too few samples keeps all of them.
        """
        if self.validation is not None:
            raise ConfigError("the data have a validation part already")
        kept, held = _split(self, share, seed)
        return replace(self, train=kept.samples, offsets=kept.offsets, validation=held)

    @classmethod
    def from_packed(cls, arrays: Mapping[str, Any], where: str, samples: Callable[[str], Samples]) -> "FederatedData":
        """Open a store's arrays; samples("train") and samples("test") read each half; errors name `where`."""
        try:
            offsets, train, test = arrays["train_offsets"], samples("train"), samples("test")
        except KeyError as error:
            raise DataError(f"{where} lacks the array {error.args[0]}; pack the data again") from error
        if len(test) == 0:
            raise DataError(f"{where}: the test set is empty; pack the data again")
        whole_numbers = offsets.ndim == 1 and len(offsets) > 1 and np.issubdtype(offsets.dtype, np.integer)
        if not whole_numbers or offsets[0] != 0 or offsets[-1] != len(train) or (np.diff(offsets) < 1).any():
            rule = f"rise from 0 to the {len(train)} training samples, with some for every client"
            raise DataError(f"{where}: train_offsets must {rule}; pack the data again")
        return cls(train, np.asarray(offsets, dtype=np.int64), test)


def hold_out(data: FederatedData, share: float = 0.2, seed: int = 0, *, by_client: bool = False) -> FederatedData:
    """Replace the test set with `share` of each client's training samples, for choosing settings.

    The samples are drawn at random. If samples overlap their neighbours, as windows over a text do, the last ones are
    held out instead, and those that overlap both parts are dropped. Every client keeps at least one sample to train
    on, so a client with one sample (or too short a text) holds nothing out. The old test set is never read.

    With `by_client`, they are the test sets of the clients that held them out, for models of the clients' own.
    """
    kept, held = _split(data, share, seed)
    if by_client:
        return FederatedData(kept.samples, kept.offsets, None, client_tests=held)
    return FederatedData(kept.samples, kept.offsets, held.samples)


def _split(data: FederatedData, share: float, seed: int) -> tuple[Owned, Owned]:
    """Return the training samples that clients keep, and those that are held out."""
    if not 0 < share < 1:
        raise ConfigError(f"the share held out must be above 0 and below 1, not {share!r}; 0.2 is a good first try")
    sizes, gap = np.diff(data.offsets), data.train.overlap
    held = np.floor(share * sizes + 0.5).astype(np.int64)
    held = np.where(sizes - held - gap >= 1, held, 0)
    kept = np.where(held > 0, sizes - held - gap, sizes)
    if not held.any():
        few = f"no client has enough samples to hold out {share:g} of them (the largest has {sizes.max()})"
        raise DataError(f"{few}; hold out a larger share, or tune on the test set")
    order = np.arange(sizes.sum())
    if not gap:  # shuffle each client's rows
        shuffled = permutation(len(order), seed, "held out")
        owner = np.repeat(np.arange(len(sizes)), sizes)
        order = shuffled[np.argsort(owner[shuffled], kind="stable")]
    position = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # of a row in its client's order
    first = data.offsets[0]
    train = first + np.sort(order[position < np.repeat(kept, sizes)])
    test = first + np.sort(order[position >= np.repeat(sizes - held, sizes)])
    return Owned(data.train.take(train), _offsets(kept)), Owned(data.train.take(test), _offsets(held))


@dataclass(frozen=True)
class MemoryComparison:
    """Bytes of all training and test samples: packed, and the naive way, with each sample as tensors of its own."""

    naive: int
    packed: int

    @property
    def ratio(self) -> float:
        return self.naive / self.packed


def compare_memory(data: FederatedData) -> MemoryComparison:
    """Build the first clients the naive way and scale to all: exact if all samples have the same shape."""
    built = [data.train.batch(np.arange(*data.offsets[c : c + 2])) for c in range(min(BUILT, data.clients))]
    count = sum(len(targets) for _, targets in built)
    used = sum(tensor.element_size() * tensor.nelement() for pair in built for tensor in pair)
    halves = [data.train] if data.test is None else [data.train, data.test]
    samples = sum(len(half) for half in halves)
    held = [value for half in halves for value in vars(half).values()]
    arrays = {id(value): int(value.nbytes) for value in held if isinstance(value, np.ndarray | Tensor)}  # each once
    packed = sum(arrays.values()) + int(data.offsets.nbytes)
    return MemoryComparison(naive=used * samples // count, packed=packed)


def _entries(given: Any, what: str) -> list[Any]:
    """Return one entry for each client, of a list or of anything else that can be gone through."""
    if isinstance(given, Mapping | str | bytes | Tensor | np.ndarray) or not isinstance(given, Iterable):
        raise DataError(f"{what} must be a list with one entry for each client, not {type(given).__name__}")
    return list(given)


def _offsets(sizes: Any) -> Rows:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _together(entries: Sequence[Any], names: Sequence[str], form: Form) -> tuple[Samples, Rows]:
    """Read entries and put their samples one after the other."""
    how = (form.target, form.collate, form.columns)
    parts = [read(entry, name, *how) for entry, name in zip(entries, names, strict=True)]
    offsets = _offsets([len(part) for part in parts])
    if any(isinstance(part, Items) for part in parts) or form.collate is not None:
        return ItemSamples(parts, names, form), offsets
    in_memory = [part for part in parts if isinstance(part, TensorSamples)]
    kinds = [_kinds(part) for part in in_memory]
    for name, kind in zip(names, kinds, strict=True):
        _compare(name, kind, names[0], kinds[0])
    inputs, targets = joined([(part.inputs, part.targets) for part in in_memory])
    return TensorSamples(inputs, targets), offsets


def _client_tests(entries: Sequence[Any], clients: int, form: Form) -> Owned:
    if len(entries) != clients:
        raise DataError(
            f"client_tests has {len(entries)} entries, but there are {clients} clients; give one for each client, and "
            "None for a client without test samples"
        )
    given = {c: entry for c, entry in enumerate(entries) if entry is not None}
    if not given:
        raise DataError("client_tests has no samples; leave it out, or give some clients test samples")
    samples, offsets = _together(list(given.values()), [f"client {c}'s test set" for c in given], form)
    sizes = np.zeros(clients, dtype=np.int64)
    sizes[list(given)] = np.diff(offsets)
    return Owned(samples, _offsets(sizes))


def _check_alike(data: FederatedData) -> None:
    """Raise unless all samples have the types and shapes of the training samples."""
    expected = _kinds(data.train)
    for name, samples in data.all_samples().items():
        _compare(name, _kinds(samples), "client 0", expected)


def _kinds(samples: Samples) -> tuple[str, str]:
    """Describe the inputs and the targets of one sample."""
    inputs, targets = (kind_of_first(tree).replace(" of shape ()", "") for tree in samples.batch(np.arange(1)))
    return inputs, targets


def _compare(where: str, found: tuple[str, str], whose: str, expected: tuple[str, str]) -> None:
    for what, ours, theirs in zip(("inputs", "targets"), found, expected, strict=True):
        if ours != theirs:
            raise DataError(f"{where}: {what} are {ours} a sample, but {whose} has {theirs}; make them all alike")
