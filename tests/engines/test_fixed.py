import pytest
import torch

import fedgbo
from fedgbo.engines import fixed
from fedgbo.engines.fixed import FixedStep
from fedgbo.optimisers import OPTIMISERS
from tests.conftest import make_task
from tests.optimisers.test_formulas import EXAMPLES

LENGTH = 37


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("native", [True, False])
def test_a_step_in_place_is_the_optimiser_s_update(name, kind, native, monkeypatch):
    if not native:
        monkeypatch.setattr("fedgbo.engines.fixed.library", lambda: None)
    optimiser = EXAMPLES[name]
    params, grad = torch.randn(LENGTH, dtype=kind), torch.randn(LENGTH, dtype=kind)
    stats = {key: torch.rand(LENGTH, dtype=kind) for key in optimiser.init(params)}
    step = FixedStep.of(optimiser, stats)
    expected = optimiser.update(params, stats, grad)
    y = params.clone()
    step.take(y[:10], grad[:10])
    step.take(y[10:], grad[10:], begin=10)
    assert torch.allclose(y, expected, rtol=1e-5 if kind == torch.float32 else 1e-12)


class Decayed(fedgbo.SGDm):
    """Changes the step, but not what it inherits about it."""

    def update(self, params, stats, grad):
        return super().update(params, stats, grad) - 0.1 * params


class Shifted(fedgbo.SGD):
    """An offset that is a number."""

    def update(self, params, stats, grad):
        return super().update(params, stats, grad) - 1

    def affine(self, stats):
        return 1.0, self.lr


def test_a_subclass_with_its_own_update_speaks_for_itself():
    stats = {"m": torch.ones(3)}
    assert FixedStep.of(fedgbo.SGDm(0.1, 0.9), stats) is not None
    assert FixedStep.of(Decayed(0.1, 0.9), stats) is None
    assert FixedStep.of(Shifted(0.1), {}) is None


def test_a_run_with_such_an_optimiser_uses_its_update():
    plain = fedgbo.run(make_task(), fedgbo.FedGBO(fedgbo.SGDm(0.1, 0.9)), rounds=2)
    decayed = fedgbo.run(make_task(), fedgbo.FedGBO(Decayed(0.1, 0.9), inverse=False), rounds=2)
    assert not torch.allclose(plain.params, decayed.params)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_step_on_a_part_of_the_vector_in_the_shape_of_a_layer(native, dtype, monkeypatch):
    if not native:
        monkeypatch.setattr(fixed, "library", lambda: None)
    numbers = torch.arange(20, dtype=dtype)
    grad = torch.full((2, 6), 3.0, dtype=dtype)
    for step, expected in (
        (FixedStep(numbers, numbers / 4), 1 - (numbers + numbers / 4 * 3)),
        (FixedStep(numbers, 0.5), 1 - (numbers + 1.5)),
        (FixedStep(None, 0.5), torch.full_like(numbers, -0.5)),
    ):
        y = torch.ones(20, dtype=dtype)
        step.take(y[5:17].view(2, 6), grad, begin=5)
        assert torch.equal(y[5:17], expected[5:17])
        assert torch.equal(y[:5], torch.ones(5, dtype=dtype))
