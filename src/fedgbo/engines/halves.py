"""A client alone on two cores: the gradient of a batch as the sum over its two halves.

Five clients on two cores would leave one core idle for a sixth of the time. Which client is split, and into what,
follows from the round alone and not from the number of workers, so that bits do not depend on them.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from fedgbo.core.objective import Term
from fedgbo.engines.flat import FlatModel

SMALLEST = 16  # samples of a batch that is worth splitting
TOLERANCE = 1e-3  # of the gradient's norm; float32 sums in another order differ by 1e-6
Batch = tuple[Tensor, Tensor]
Backward = Callable[[FlatModel, Batch, Sequence[Term]], Tensor]  # fills the model's gradients, returns the loss
Submit = Callable[[Callable[[FlatModel], Any]], "Future[Any]"]  # has work done on a model that is free


def whole(model: FlatModel, batch: Batch, terms: Sequence[Term]) -> Tensor:
    """The batch in one piece."""
    model.clear()
    return model.backward(batch, terms)


def in_turn(model: FlatModel, batch: Batch, terms: Sequence[Term]) -> Tensor:
    """One half after the other."""
    model.clear()
    (first, share), (second, rest) = _split(batch)
    return model.backward(first, terms, share) + model.backward(second, terms, rest)


def at_once(submit: Submit) -> Backward:
    """The second half by another worker, if one is free by the time that the first is done."""

    def both(model: FlatModel, batch: Batch, terms: Sequence[Term]) -> Tensor:
        (first, share), (second, rest) = _split(batch)

        def help_out(other: FlatModel) -> tuple[Any, Tensor]:
            other.clear()
            with other.looking_at(model.params):
                loss = other.backward(second, terms, rest)
            return other.give_gradients(), loss

        helped = submit(help_out)
        model.clear()
        try:
            loss = model.backward(first, terms, share)
        finally:
            alone = helped.cancel()
            if not alone:
                helped.exception()  # wait: it reads this model's parameters
        if alone:
            return loss + model.backward(second, terms, rest)
        gradients, more = helped.result()
        model.add_gradients(gradients)
        total: Tensor = loss + more
        return total

    return both


def splits(model: FlatModel, batch: Batch) -> bool:
    """Return whether the gradient of a batch is the sum over its halves: not so where samples see each other."""
    if len(batch[1]) < SMALLEST:
        return False
    whole(model, batch, ())
    expected = model.flat_gradient()
    in_turn(model, batch, ())
    difference = torch.linalg.vector_norm(model.flat_gradient() - expected)
    return bool(difference <= TOLERANCE * torch.linalg.vector_norm(expected))


def _split(batch: Batch) -> tuple[tuple[Batch, float], tuple[Batch, float]]:
    inputs, targets = batch
    size = len(inputs)
    middle = (size + 1) // 2
    return (
        ((inputs[:middle], targets[:middle]), middle / size),
        ((inputs[middle:], targets[middle:]), (size - middle) / size),
    )
