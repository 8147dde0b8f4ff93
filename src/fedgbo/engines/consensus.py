"""What the processes of a team put together, and whether they are still at one."""

import json
from collections.abc import Iterable

import torch
from torch import Tensor

from fedgbo.core.errors import RankError
from fedgbo.core.state import State
from fedgbo.engines.mean import ExactSum, Mean
from fedgbo.engines.team import Team

BITS = 2**52  # a float64 holds such numbers exactly


def complete(mean: Mean, team: Team, down: State, count: int) -> None:
    """Let `mean` be over the `count` clients of all processes. A process without clients learns what they send up."""
    if team.size == 1:
        return
    mean.settle()
    if count < team.size:
        for name in json.loads(team.lead(lambda: json.dumps(list(mean.sums)).encode())):
            mean.sums.setdefault(name, ExactSum(torch.zeros_like(down.params, dtype=torch.float64)))
    team.add_up(list(mean.sums.values()))


def fingerprint(params: Tensor) -> int:
    """Return the sum of the model's numbers, their bits read as integers.

    It tells models apart that differ in one number, and nearly always those that differ in more.

    >>> fingerprint(torch.tensor([1.0, 2.0])) == fingerprint(torch.tensor([1.0, 2.0000002]))
    False
    """
    whole = torch.int32 if params.element_size() >= 4 else torch.int16
    return int(params.view(whole).sum(dtype=torch.int64)) % BITS


def check_same(fingerprints: Iterable[float]) -> None:
    """Raise unless all processes have trained from the same model."""
    if len(set(fingerprints)) > 1:
        raise RankError(
            "the processes no longer hold the same model: their servers' steps came out differently, as can happen "
            "between machines of different kinds; use machines of one kind, with the same torch"
        )
