"""Formulas that add up multiples of vectors, such as x - mean: found out by asking, not by being told."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass

import torch
from torch import Tensor

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.elementwise import is_elementwise
from fedgbo.core.state import State

TOLERANCE = 1e-12  # of the numbers that are added


@dataclass(frozen=True, eq=False)
class Linear:
    """Each of the server's next vectors is a sum of multiples of those it has and of those in the mean."""

    stats: tuple[str, ...]  # the names of the next statistics
    factors: Tensor  # (1 + next statistics, vectors that go in): the model's come first, on both sides


def linear(
    algorithm: FederatedAlgorithm, stats: tuple[str, ...], mean_stats: tuple[str, ...], steps: float, length: int
) -> Linear | None:
    """Read the factors off `server_update`, for a server and a mean with statistics of these names; None if not linear.

    Here they are those of x, m and the mean difference:

    >>> from fedgbo.algorithms import FedGBO
    >>> from fedgbo.optimisers import RMSProp, SGDm
    >>> linear(FedGBO(SGDm(lr=0.5, beta=0.9)), ("m",), (), steps=4.0, length=100).factors.tolist()
    [[1.0, 0.0, -1.0], [0.0, 0.0, 0.5]]
    >>> linear(FedGBO(RMSProp(lr=0.5, beta=0.9)), ("v",), (), steps=4.0, length=100)
    """
    if not is_elementwise(algorithm) or not is_settled(algorithm):
        return None
    own = 1 + len(stats)
    names: list[str] = []

    def after(vectors: Sequence[Tensor]) -> list[Tensor]:
        server = State(vectors[0], dict(zip(stats, vectors[1:own], strict=True)))
        mean = State(vectors[own], dict(zip(mean_stats, vectors[own + 1 :], strict=True)))
        state = algorithm.server_update(server, mean, steps)
        names.extend(state.stats)
        return [state.params, *state.stats.values()]

    factors = factors_of(after, own + 1 + len(mean_stats), length)
    return None if factors is None else Linear(tuple(names), factors)


def is_settled(thing: object) -> bool:
    """Return whether an object is nothing but settings that stay: what its formulas did once they will do again."""
    if isinstance(thing, tuple):
        return all(map(is_settled, thing))
    if not is_dataclass(thing) or isinstance(thing, type):
        return thing is None or isinstance(thing, bool | int | float | str)
    settings = {field.name: getattr(thing, field.name) for field in fields(thing)}
    frozen = type(thing).__dataclass_params__.frozen  # type: ignore[attr-defined]
    return frozen and vars(thing).keys() <= settings.keys() and all(map(is_settled, settings.values()))


def factors_of(formula: Callable[[Sequence[Tensor]], Sequence[Tensor]], count: int, length: int) -> Tensor | None:
    """Return the factors, (made, count), if what the formula makes of `count` vectors are sums of multiples of them.

    The formula should treat every number by itself. So one call tells all factors: the i-th number of the i-th vector
    is 1 and that of the others is 0. After those come a number that is 0 in all vectors, for a constant to show up, and
    random ones of all magnitudes up to the model's length, at which a formula gives itself away that only looks linear,
    or that treats some places in another way.
    """
    asked = _questions(count, length)
    try:
        with torch.random.fork_rng(devices=[]):  # a formula may draw noise
            told = torch.stack(list(formula(list(asked.clone())))).detach()
        factors = told[:, :count].clone()
        error, size = (told - factors @ asked).abs(), factors.abs() @ asked.abs()
    except Exception:  # it is not for such vectors
        return None
    linear = told.dtype == torch.float64 and told.shape[1] == asked.shape[1] and (error <= TOLERANCE * size).all()
    return factors if bool(linear) else None


def _questions(count: int, length: int) -> Tensor:
    """Return the vectors to ask with; the random numbers are from 1e-8 to 1e8, of both signs, the same each time."""
    random, points = torch.Generator().manual_seed(0), max(16, length - count - 1)
    sign = torch.randint(0, 2, (count, points), generator=random) * 2 - 1
    numbers = sign * 10 ** (16 * torch.rand(count, points, generator=random, dtype=torch.float64) - 8)
    return torch.cat([torch.eye(count, dtype=torch.float64), torch.zeros(count, 1), numbers], dim=1)
