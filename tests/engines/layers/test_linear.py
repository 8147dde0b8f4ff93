"""Products by oneDNN instead of MKL: on every processor whose torch has oneDNN, as if MKL were slow there."""

import time
from pathlib import Path

import pytest
import torch
from torch import nn

from fedgbo import native
from fedgbo.engines import layers
from fedgbo.engines.layers import FastLinear, accelerate, replaced
from tests.engines.layers.compare import assert_same_bits, assert_same_function, relative


@pytest.fixture(autouse=True)
def _slow_mkl(monkeypatch):
    there = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    for module, worth in ((native, "WORTH_ONEDNN"), (layers, "WORTH_PYTHON")):
        monkeypatch.setattr(module, "slow_mkl", lambda: there)
        monkeypatch.setattr(module, worth, 1)


@pytest.fixture
def sizes(monkeypatch):
    """The rows, columns and inner lengths of oneDNN's products."""
    seen, product = [], layers.product

    def counted(a, b, bias=None):
        seen.append((a.shape[0], b.shape[1], a.shape[1]))
        return product(a, b, bias)

    monkeypatch.setattr(layers, "product", counted)
    return seen


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(20, 30), (1, 30), (3, 7, 30), (2, 3, 1, 30)])
def test_outputs_and_gradients(shape, bias, sizes):
    stock = nn.Linear(30, 17, bias=bias)
    fast, x = accelerate(stock), torch.randn(shape, requires_grad=True)
    assert_same_function(fast, stock, x)
    rows = x.numel() // 30
    assert sizes == ([(rows, 17, 30), (rows, 30, 17), (17, 30, rows)] if native.slow_mkl() else [])
    assert_same_bits(fast, x)


def test_a_transposed_input_and_an_activation_in_place():
    stock = nn.Sequential(nn.Linear(30, 17), nn.ReLU(inplace=True))
    assert_same_function(accelerate(stock), stock, torch.randn(30, 9, 5).permute(2, 1, 0))


@pytest.mark.parametrize("build", [lambda: nn.LSTM(9, 32, 2), lambda: nn.GRU(9, 32, 2)])
def test_recurrent_layers(build):
    stock = build()
    assert_same_function(accelerate(stock), stock, torch.randn(6, 5, 9, requires_grad=True))


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_transformer(batch_first):
    stock = nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, batch_first=batch_first)
    fast = accelerate(stock)
    assert replaced(fast) == (["Linear", "MultiheadAttention"] if native.slow_mkl() else ["MultiheadAttention"])
    assert_same_function(fast, stock, torch.randn(4, 7, 12, requires_grad=True))


def test_second_derivatives():
    stock, x = nn.Linear(30, 17), torch.randn(5, 30, requires_grad=True)

    def curvature(layer):
        (slope,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(slope.pow(3).sum(), (x, layer.weight, layer.bias))

    for ours, theirs in zip(curvature(accelerate(stock)), curvature(stock), strict=True):
        assert relative(ours, theirs) < 1e-5


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_torch_func():
    stock, xs = nn.Linear(30, 17), torch.randn(4, 5, 30)
    params = {name: p.detach() for name, p in stock.named_parameters()}

    def gradients(layer):
        def loss(params, x):
            return torch.func.functional_call(layer, params, (x,)).square().mean()

        return torch.func.vmap(torch.func.grad(loss), (None, 0))(params, xs)

    ours, theirs = gradients(accelerate(stock)), gradients(stock)
    assert all(relative(ours[name], theirs[name]) < 1e-5 for name in theirs)


def test_other_inputs_go_the_way_of_torch(sizes):
    stock = nn.Linear(30, 17)
    fast, x = FastLinear(30, 17), torch.randn(5, 30)
    fast.load_state_dict(stock.state_dict())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(fast(x), stock(x))
    assert torch.equal(fast(x[0]), stock(x[0]))
    assert fast(torch.randn(0, 30)).shape == (0, 17)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fast(torch.randn(5, 29))
    with pytest.raises(RuntimeError, match="dtype"):
        fast(x.double())
    assert torch.equal(fast.double()(x.double()), stock.double()(x.double()))
    assert sizes == []


def test_small_layers_stay(monkeypatch):
    monkeypatch.setattr(layers, "WORTH_PYTHON", 2**20)
    small, double = nn.Linear(31, 32), nn.Linear(32, 32, dtype=torch.float64)
    assert accelerate(small) is small
    assert accelerate(double) is double


def test_small_minibatches_are_torch_s(monkeypatch, sizes):
    monkeypatch.setattr(layers, "WORTH_PYTHON", 20 * 30 * 17)
    stock = nn.Linear(30, 17)
    fast = accelerate(stock)
    few, enough = torch.randn(19, 30), torch.randn(20, 30)
    assert torch.equal(fast(few), stock(few))
    assert sizes == []
    assert relative(fast(enough), stock(enough)) < 1e-5
    assert len(sizes) == native.slow_mkl()


@pytest.mark.parametrize("rows_first", [True, False])
def test_parts_of_a_matrix_are_as_fast(rows_first):
    whole = torch.randn(256, 400)
    part = whole[:, :300] if rows_first else whole[:, :300].t()
    a = torch.randn(100, len(part))

    def least(b):
        begins, ends = [], []
        for _ in range(5):
            begins.append(time.thread_time())
            product = native.product(a, b)
            ends.append(time.thread_time())
        return min(end - begin for begin, end in zip(begins, ends, strict=True)), product

    (seconds, ours), (dense, theirs) = least(part), least(part.clone(memory_format=torch.contiguous_format))
    assert relative(ours, theirs) < 1e-5
    assert seconds < 20 * dense  # oneDNN's code for such a second matrix takes 1000 times as long


def test_small_products_are_torch_s(monkeypatch):
    a, b, called = torch.randn(8, 8), torch.randn(8, 8), []
    monkeypatch.setattr(native, "slow_mkl", lambda: called.append(1))
    monkeypatch.setattr(native, "WORTH_ONEDNN", 513)
    assert torch.equal(native.product(a, b), a @ b)
    assert torch.equal(native.product(a, b, a[0]), torch.addmm(a[0], a, b))
    assert called == []  # of no interest for so small a product


def test_mkl_is_slow_with_avx512_of_others_than_intel(monkeypatch):
    monkeypatch.undo()
    cpu = Path("/proc/cpuinfo")
    words = set(cpu.read_text().split()) if cpu.exists() else set()
    assert native.slow_mkl() == (native.library() is not None and "avx512f" in words and "GenuineIntel" not in words)
