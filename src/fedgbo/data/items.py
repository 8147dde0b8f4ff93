"""Samples that are read one by one from data sets, and put together into batches when these are needed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from fedgbo.core import DataError, FedGBOError, Rows
from fedgbo.data.read import Collate, Items, Target, split, whole_labels
from fedgbo.data.samples import IGNORED, Samples, TensorSamples, range_of
from fedgbo.data.tree import kind_of, kind_of_first, leaves

CHECKED = 64  # samples that are read at once when all are checked


@dataclass(frozen=True, eq=False)
class Form:
    """How samples become a batch: by the user's `collate`, or stacked."""

    target: Target = None
    collate: Collate | None = None
    columns: tuple[Any, ...] | None = None  # of data frames

    def batch(self, items: list[Any]) -> tuple[Any, Any]:
        """Return inputs and targets of samples."""
        if self.collate is None:
            pairs = [(_as_array(x), _as_array(y)) for x, y in map(self._pair, items)]
            inputs = default_collate([x for x, _ in pairs])
            return inputs, None if pairs[0][1] is None else whole_labels(default_collate([y for _, y in pairs]))
        made = self.collate(items)
        if isinstance(made, Mapping):
            return split(made, "the batch that collate returns", self.target)
        if not isinstance(made, tuple | list) or len(made) != 2:
            raise DataError(f"collate(items) must return a pair (inputs, targets) or a dict, not {kind_of(made)}")
        return made[0], whole_labels(made[1])

    def _pair(self, item: Any) -> tuple[Any, Any]:
        if isinstance(item, Mapping):
            return split(item, "a sample", self.target)
        if isinstance(item, tuple | list):
            if len(item) == 2:
                return item[0], item[1]
            if len(item) == 1:
                return item[0], None
            raise DataError(
                f"a sample has {len(item)} parts; give (inputs, target), where several inputs are ((x1, x2), target), "
                "or a dict"
            )
        return item, None


class ItemSamples(Samples):
    """The samples of several data sets, one set after the other. All are read once, to check them."""

    def __init__(self, sets: Sequence[Items | TensorSamples], names: Sequence[str], form: Form) -> None:
        self._sets: list[Any] = [one.source if isinstance(one, Items) else one for one in sets]
        self._form = form
        self._ends = np.cumsum([len(one) for one in sets])
        self._labels = self._check(names)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def batch(self, rows: Rows, rng: np.random.Generator | None = None) -> tuple[Any, Any]:
        try:
            return self._form.batch([self._item(int(row)) for row in rows])
        except FedGBOError:
            raise
        except Exception as error:  # whatever a user's data set or collate raises
            raise DataError(f"a batch cannot be read: {type(error).__name__}: {error}") from error

    def label_range(self) -> tuple[int, int] | None:
        return self._labels

    def _item(self, row: int) -> Any:
        number = int(np.searchsorted(self._ends, row, side="right"))
        return self._sets[number][row - (int(self._ends[number - 1]) if number else 0)]

    def _check(self, names: Sequence[str]) -> tuple[int, int] | None:
        """Read every sample; return the range of the labels. Raise DataError that names a set and a sample."""
        expected, found = "", list[tuple[int, int] | None]()
        for name, own in zip(names, self._sets, strict=True):
            for start in range(0, len(own), CHECKED):
                inputs, targets = self._checked(own, range(start, min(start + CHECKED, len(own))), name)
                found.append(range_of(targets))
                if self._form.collate is None:
                    kind = sample_kind(inputs, targets)
                    expected = expected or kind
                    if kind != expected:
                        where = f"{name}, sample {start}"
                        raise DataError(f"{where}: {kind}, but {names[0]} has {expected}; make them all alike")
        known = [one for one in found if one is not None]
        counted = [one for one in known if one != (IGNORED, IGNORED)]
        if len(known) < len(found):
            return None
        return (min(one[0] for one in counted), max(one[1] for one in counted)) if counted else (IGNORED, IGNORED)

    def _checked(self, own: Any, rows: range, name: str) -> tuple[Any, Any]:
        items: list[Any] = []
        for row in rows:
            try:
                items.append(own[row])
                _check_batch(*self._form.batch(items[-1:]), stacked=self._form.collate is None)
            except Exception as error:  # whatever a user's data set or collate raises
                told = str(error) if isinstance(error, FedGBOError) else f"{type(error).__name__}: {error}"
                found = f" (it is {_told(items[-1])})" if len(items) > row - rows[0] else ""
                raise DataError(f"{name}, sample {row}{found}: {told}") from error
        try:
            return self._form.batch(items)
        except Exception as error:  # samples that are fine by themselves
            raise DataError(
                f"{name}: samples {rows[0]} to {rows[-1]} cannot be put into one batch: {error}; make them alike, or "
                "give collate=, a function that makes (inputs, targets) of a list of samples"
            ) from error


def _as_array(value: Any) -> Any:
    """Return a list of numbers as an array, as a sample read from a table has it."""
    if isinstance(value, Mapping):
        return {name: _as_array(part) for name, part in value.items()}
    if isinstance(value, list) and value:
        first = value[0]
        while isinstance(first, list) and first:
            first = first[0]
        return np.asarray(value) if isinstance(first, int | float) else value
    return value


def _check_batch(inputs: Any, targets: Any, *, stacked: bool) -> None:
    for what, tree in (("inputs", inputs), ("targets", targets)):
        values = list(_values(tree))
        tensors = [value for value in values if isinstance(value, Tensor)]
        odd = [value for value in values if not isinstance(value, Tensor)]
        if odd and (stacked or not tensors):
            hint = "encode texts as numbers" if isinstance(odd[0], str) else "make tensors of them in the data set"
            raise DataError(f"{what} hold {type(odd[0]).__name__}; {hint}, or in collate=")
        for tensor in tensors:
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise DataError(f"{what} have a NaN or an infinity; clean the data first")


def _values(tree: Any) -> Iterator[Any]:
    if isinstance(tree, Mapping):
        for part in tree.values():
            yield from _values(part)
    elif isinstance(tree, tuple | list):
        for part in tree:
            yield from _values(part)
    elif tree is not None:
        yield tree


def sample_kind(inputs: Any, targets: Any) -> str:
    """Describe the first sample of a batch."""
    return f"inputs are {kind_of_first(inputs)}" + ("" if targets is None else f", targets {kind_of_first(targets)}")


def _told(item: Any) -> str:
    return kind_of(item) if any(isinstance(leaf, Tensor) for leaf in leaves(item)) else f"{item!r:.60}"
