import pytest
import torch

from fedgbo.engines import fixed
from fedgbo.engines.fixed import FixedStep


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
