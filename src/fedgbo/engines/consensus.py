"""What the processes of a team put together, and whether they are still at one."""

import json
from collections.abc import Iterable

import torch

from fedgbo.core.errors import RankError
from fedgbo.core.state import State
from fedgbo.engines.mean import ExactSum, Mean
from fedgbo.engines.team import Team

BITS = 2**52  # a float64 holds such numbers exactly


def complete(mean: Mean, team: Team, down: State, count: int) -> None:
    """Let `mean` be over the `count` clients of all processes. A process without clients learns what they send up."""
    if count < team.size:
        for name in json.loads(team.lead(lambda: json.dumps(list(mean.sums)).encode())):
            mean.sums.setdefault(name, ExactSum(torch.zeros_like(down.params, dtype=torch.float64)))
    team.add_up(list(mean.sums.values()))


def fingerprint(state: State) -> int:
    """Return a whole number that tells states apart that differ in a bit: the sum of their bytes, read as integers."""
    total = 0
    for tensor in state.tensors().values():
        total += int(tensor.view(torch.int32 if tensor.element_size() >= 4 else torch.int16).sum(dtype=torch.int64))
    return total % BITS


def check_same(fingerprints: Iterable[float]) -> None:
    """Raise unless all processes have trained from the same model."""
    if len(set(fingerprints)) > 1:
        raise RankError(
            "the processes no longer hold the same model: their servers' steps came out differently, as can happen "
            "between machines of different kinds; use machines of one kind, with the same torch"
        )
