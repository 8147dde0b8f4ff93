import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedgbo.engines.layers import accelerate, conv
from fedgbo.engines.layers.conv import FastConv2d, FastMaxPool2d, pool
from tests.engines.layers.compare import assert_same_bits, assert_same_function, run

ORDERS = {
    "alone": lambda: nn.Sequential(nn.MaxPool2d(2)),
    "before ReLU": lambda: nn.Sequential(nn.MaxPool2d(2), nn.ReLU()),
    "after ReLU": lambda: nn.Sequential(nn.ReLU(), nn.MaxPool2d((2, 2), stride=2)),
    "between": lambda: nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.ReLU(inplace=True)),
}


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize(("batch", "channels", "height", "width"), [(32, 3, 32, 32), (1, 1, 28, 28), (3, 2, 7, 9)])
def test_few_channels(kind, batch, channels, height, width):
    layer = nn.Conv2d(channels, 32, 3, dtype=kind)
    assert_same_function(accelerate(layer), layer, torch.randn(batch, channels, height, width, dtype=kind))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize(("batch", "height", "width"), [(32, 15, 15), (32, 13, 13), (1, 5, 8)])
def test_many_channels(kind, batch, height, width):
    layer = nn.Conv2d(32, 64, 3, dtype=kind)
    x = torch.randn(batch, 32, height, width, dtype=kind, requires_grad=True)
    assert_same_function(accelerate(layer), layer, x)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("size", "product"),
    [((8, 8), False), ((5, 6), False), ((3, 4), True)],  # fewer weights than inputs, more, and many more
)
def test_more_weights_than_inputs(size, product, bias, monkeypatch):
    layer = nn.Conv2d(48, 40, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(1, 2), bias=bias)
    x, used, by_product = torch.randn(6, 48, *size, requires_grad=True), [], FastConv2d._by_product
    monkeypatch.setattr(conv, "library", lambda: True)
    monkeypatch.setattr(conv, "slow_mkl", lambda: False)
    monkeypatch.setattr(FastConv2d, "_by_product", lambda *args: used.append(1) or by_product(*args))
    assert_same_function(accelerate(layer), layer, x)
    assert_same_bits(accelerate(layer), x)
    assert bool(used) == product
    used.clear()
    monkeypatch.setattr(conv, "slow_mkl", lambda: True)
    assert_same_function(accelerate(layer), layer, x)
    assert not used


def test_wrong_inputs_raise_as_in_torch():
    fast = accelerate(nn.Conv2d(4, 40, 3))
    with pytest.raises(RuntimeError, match="expected input"):
        fast(torch.randn(1, 3, 4, 4))
    with pytest.raises(RuntimeError, match=r"(?i)kernel"):
        fast(torch.randn(1, 4, 2, 2))
    assert fast(torch.randn(0, 4, 5, 5)).shape == (0, 40, 3, 3)


@settings(deadline=None, max_examples=60)
@given(
    channels=st.integers(1, 6),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.integers(1, 2),
    padding=st.integers(0, 2),
    bias=st.booleans(),
    needs_grad=st.booleans(),
    extra=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    batch=st.integers(1, 3),
)
def test_any_shape(channels, kernel, stride, padding, bias, needs_grad, extra, batch):
    layer = nn.Conv2d(channels, 5, kernel, stride=stride, padding=padding, bias=bias, dtype=torch.float64)
    x = torch.randn(batch, channels, kernel[0] + extra[0], kernel[1] + extra[1], dtype=torch.float64)
    assert_same_function(accelerate(layer), layer, x.requires_grad_(needs_grad))


def test_inputs_in_any_memory_order():
    layer = nn.Conv2d(3, 8, 3)
    x = torch.randn(2, 9, 10, 3).permute(0, 3, 1, 2)
    assert_same_function(accelerate(layer), layer, x)


def test_frozen_weights_get_no_gradient():
    layer = nn.Conv2d(3, 8, 3)
    layer.weight.requires_grad_(False)
    assert_same_function(accelerate(layer), layer, torch.randn(2, 3, 8, 8))


def test_wrong_inputs_fail_as_in_torch():
    layer = nn.Conv2d(3, 8, 3)
    with pytest.raises(RuntimeError, match="channels"):
        accelerate(layer)(torch.randn(2, 1, 8, 8))
    with pytest.raises(RuntimeError, match="Kernel size can't be greater"):
        accelerate(layer)(torch.randn(2, 3, 2, 8))


def test_same_bits_twice():
    assert_same_bits(accelerate(nn.Conv2d(3, 32, 3)), torch.randn(32, 3, 32, 32))
    assert_same_bits(accelerate(nn.Conv2d(32, 64, 3)), torch.randn(32, 32, 13, 13, requires_grad=True))


@settings(deadline=None, max_examples=40)
@given(
    channels=st.integers(1, 4),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    outputs=st.sampled_from([32, 64, 20]),
    bias=st.booleans(),
    extra=st.tuples(st.integers(1, 9), st.integers(1, 12)),
    between=st.sampled_from([(), (nn.ReLU(),)]),
)
def test_a_convolution_pools_in_the_same_pass(channels, kernel, outputs, bias, extra, between):
    stock = nn.Sequential(nn.Conv2d(channels, outputs, kernel, bias=bias), *between, nn.MaxPool2d(2))
    size = [k + more for k, more in zip(kernel, extra, strict=True)]
    fast = accelerate(stock)
    assert fast[0].pooled
    assert_same_function(fast, stock, torch.randn(3, channels, *size))


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


def test_pooling_gives_the_same_bits_twice():
    fast = accelerate(nn.Sequential(nn.MaxPool2d(2), nn.ReLU()))
    assert isinstance(fast[0], FastMaxPool2d)
    assert_same_bits(fast, torch.randn(8, 32, 15, 15, requires_grad=True))
