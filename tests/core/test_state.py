import torch

from fedgbo.core.state import State


def test_sizes_are_what_it_takes_to_send():
    state = State(torch.zeros(5), {"m": torch.zeros(5), "v": torch.zeros(5)})
    assert state.nbytes == 60


def test_tensors_and_back():
    state = State(torch.arange(3.0), {"v": torch.ones(3), "m": torch.zeros(3)})
    assert list(state.tensors()) == ["params", "stats.m", "stats.v"]
    back = State.of_tensors(state.tensors())
    assert torch.equal(back.params, state.params)
    assert torch.equal(back.stats["v"], state.stats["v"])


def test_not_finite_names_the_vector():
    bad = torch.tensor([1.0, float("nan")])
    assert State(torch.zeros(2)).not_finite() is None
    assert State(torch.zeros(2), {"m": bad}).not_finite() == "stats.m"
    assert State(torch.tensor([float("inf"), float("-inf")])).not_finite() == "params"
    assert State(torch.full((2,), 3e38)).not_finite() is None  # though the sum is infinite
