import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedgbo.engines.layers import accelerate
from fedgbo.engines.layers.conv import FastMaxPool2d, pool
from tests.engines.layers.compare import assert_same_bits, run

ORDERS = {
    "alone": lambda: nn.Sequential(nn.MaxPool2d(2)),
    "before ReLU": lambda: nn.Sequential(nn.MaxPool2d(2), nn.ReLU()),
    "after ReLU": lambda: nn.Sequential(nn.ReLU(), nn.MaxPool2d((2, 2), stride=2)),
    "between": lambda: nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.ReLU(inplace=True)),
}


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(32, 32, 30, 30), (32, 64, 13, 13), (1, 1, 2, 2), (2, 17, 3, 5), (3, 5, 4, 7)])
def test_equals_torch_to_the_bit(order, kind, shape):
    stock = ORDERS[order]()
    x = torch.randn(shape, dtype=kind, requires_grad=True)
    out, grads = run(accelerate(stock), x)
    expected, expected_grads = run(stock, x)
    assert torch.equal(out, expected)
    assert torch.equal(grads["input"], expected_grads["input"])


@settings(deadline=None, max_examples=60)
@given(
    values=st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0, float("nan")]), min_size=4, max_size=4),
    relu=st.booleans(),
)
def test_ties_and_nan_as_in_torch(values, relu):
    x = torch.tensor(values).view(1, 1, 2, 2).requires_grad_()
    stock = nn.Sequential(nn.MaxPool2d(2), nn.ReLU() if relu else nn.Identity())
    out, grads = run(accelerate(stock), x)
    expected, expected_grads = run(stock, x)
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(grads["input"], expected_grads["input"], rtol=0, atol=0, equal_nan=True)


@pytest.mark.usefixtures("backend")
def test_the_first_maximum_gets_the_gradient():
    x = torch.tensor([[[[1.0, 3.0], [3.0, 2.0]]]], requires_grad=True)
    pool(x, relu=True).backward(torch.tensor([[[[5.0]]]]))
    assert x.grad.tolist() == [[[[0.0, 5.0], [0.0, 0.0]]]]


@pytest.mark.usefixtures("backend")
def test_images_too_small_fail_as_in_torch():
    with pytest.raises(RuntimeError, match="too small"):
        pool(torch.randn(1, 1, 1, 4), relu=False)


@pytest.mark.parametrize(
    "layer",
    [
        nn.MaxPool2d(3),
        nn.MaxPool2d(2, stride=1),
        nn.MaxPool2d(2, padding=1),
        nn.MaxPool2d(2, dilation=2),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(2, return_indices=True),
    ],
)
def test_other_poolings_stay(layer):
    assert accelerate(layer) is layer


def test_unbatched_images():
    x = torch.randn(3, 6, 6)
    assert torch.equal(accelerate(nn.MaxPool2d(2))(x), nn.MaxPool2d(2)(x))


def test_same_bits_twice():
    fast = accelerate(nn.Sequential(nn.MaxPool2d(2), nn.ReLU()))
    assert isinstance(fast[0], FastMaxPool2d)
    assert_same_bits(fast, torch.randn(8, 32, 15, 15, requires_grad=True))
