import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedgbo.engines.layers import accelerate
from fedgbo.engines.layers.recurrent import FastGRU, NativeLoops
from fedgbo.native import library
from tests.engines.layers.compare import TOLERANCE, assert_as_exact, assert_same_bits, assert_same_function, relative


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("batch", "steps", "inputs", "hidden", "layers"),
    [(32, 80, 8, 128, 2), (1, 1, 3, 32, 1), (5, 7, 4, 64, 3), (9, 6, 5, 10, 2), (13, 3, 1, 96, 1)],
)
def test_outputs_and_gradients(kind, batch, steps, inputs, hidden, layers):
    layer = nn.GRU(inputs, hidden, layers, batch_first=True, dtype=kind)
    x = torch.randn(batch, steps, inputs, dtype=kind, requires_grad=True)
    assert_same_function(accelerate(layer), layer, x)


@settings(deadline=None, max_examples=40)
@given(
    batch=st.integers(1, 20),
    steps=st.integers(1, 6),
    hidden=st.sampled_from([1, 7, 16, 32, 64]),
    batch_first=st.booleans(),
    scale=st.sampled_from([0.1, 1.0, 30.0]),
    seed=st.integers(0, 2**32),
)
def test_any_shape(batch, steps, hidden, batch_first, scale, seed):
    """As near to the truth as torch's own layer. A saturated gate s (scale 30) keeps few digits of 1 - s in float32."""
    torch.manual_seed(seed)
    layer = nn.GRU(3, hidden, 2, batch_first=batch_first)
    shape = (batch, steps, 3) if batch_first else (steps, batch, 3)
    x = (scale * torch.randn(shape)).requires_grad_()
    assert_as_exact(accelerate(layer), layer, x, 1e-3 if scale == 30 else TOLERANCE[torch.float32])


@pytest.mark.usefixtures("backend")
def test_the_paper_s_last_time_step():
    layer = nn.GRU(8, 128, 2, batch_first=True)
    fast, x = accelerate(layer), torch.randn(32, 80, 8)
    grads = []
    for gru in (layer, fast):
        layer.zero_grad()
        gru(x)[0][:, -1].square().sum().backward()
        grads.append([p.grad.clone() for p in layer.parameters()])
    for ours, theirs in zip(grads[1], grads[0], strict=True):
        assert relative(ours, theirs) < TOLERANCE[torch.float32]


@pytest.mark.usefixtures("backend")
def test_last_states_have_gradients_too():
    layer = nn.GRU(3, 32, 2, dtype=torch.float64)
    fast, x = accelerate(layer), torch.randn(4, 5, 3, dtype=torch.float64)
    grads = []
    for gru in (layer, fast):
        layer.zero_grad()
        out, last = gru(x)
        (out.sum() + last.square().sum()).backward()
        grads.append([p.grad.clone() for p in layer.parameters()])
    for ours, theirs in zip(grads[1], grads[0], strict=True):
        assert relative(ours, theirs) < TOLERANCE[torch.float64]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 20.0, 1e4])
def test_native_gates_are_exact_to_a_few_ulp(scale):
    """With zero recurrent weights a step is the gates alone: h' = (1 - z) n."""
    if library() is None:
        pytest.skip("no C compiler here")
    projected = scale * torch.randn(1, 64, 96)
    gates, inner, hidden = projected.clone(), torch.empty(1, 64, 32), torch.zeros(2, 64, 32)
    loops = NativeLoops()
    loops.forward(gates, inner, hidden, torch.zeros(96, 32), torch.zeros(128))
    exact = torch.cat((projected[..., :64].double().sigmoid(), projected[..., 64:].double().tanh()), dim=2)
    assert (gates - exact).abs().max() < 2e-7
    tanh, ours = exact[..., 64:], gates[..., 64:]
    assert ((ours - tanh) / tanh).abs().max() < 5e-7


@pytest.mark.usefixtures("backend")
def test_nan_stays_nan():
    fast = accelerate(nn.GRU(2, 32, batch_first=True))
    x = torch.randn(3, 4, 2)
    x[1, 2, 0] = float("nan")
    out = fast(x)[0]
    assert out[1, 2:].isnan().all()
    assert out[[0, 2]].isfinite().all()


@pytest.mark.parametrize(
    "layer", [nn.GRU(2, 4, bidirectional=True), nn.GRU(2, 4, bias=False), nn.GRU(2, 4, 2, dropout=0.5)]
)
def test_other_recurrences_stay(layer):
    assert accelerate(layer) is layer


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("hidden", [32, 11])
def test_a_given_start_has_a_gradient_too(hidden):
    layer, x, start = nn.GRU(3, hidden, 2), torch.randn(4, 5, 3), torch.randn(2, 5, hidden, requires_grad=True)
    found = []
    for gru in (layer, accelerate(layer)):
        leaves = [start, *layer.parameters()]
        for leaf in leaves:
            leaf.grad = None
        out, last = gru(x, start)
        (out.sum() + last.square().sum()).backward()
        found.append([out.detach(), last.detach(), *(leaf.grad for leaf in leaves)])
    for theirs, ours in zip(*found, strict=True):
        assert relative(ours, theirs) < TOLERANCE[torch.float32]


def test_a_packed_sequence_one_sample_and_autocast_go_the_way_of_torch():
    layer = nn.GRU(2, 32)
    fast, x = accelerate(layer), torch.randn(4, 3, 2)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(fast(x)[0], layer(x)[0])
    packed = nn.utils.rnn.pack_padded_sequence(x, [4, 3, 1])
    assert torch.equal(fast(packed)[0].data, layer(packed)[0].data)
    assert torch.equal(fast(x[:, 0])[0], layer(x[:, 0])[0])
    with pytest.raises(RuntimeError, match="input"):
        fast(torch.randn(4, 3, 5))


@pytest.mark.parametrize(
    ("width", "dtype", "fast"), [(128, "float32", True), (128, "float64", False), (10, "float32", True)]
)
def test_float32_takes_the_c_loops(width, dtype, fast, monkeypatch):
    if library() is None:
        pytest.skip("no C compiler here")
    layer, calls = accelerate(nn.GRU(3, width, dtype=getattr(torch, dtype))), []
    forward = NativeLoops.forward
    monkeypatch.setattr(NativeLoops, "forward", lambda *args: calls.append(1) or forward(*args))
    layer(torch.randn(4, 2, 3, dtype=getattr(torch, dtype)))
    assert bool(calls) == fast


@pytest.mark.usefixtures("backend")
def test_same_bits_twice():
    fast = accelerate(nn.GRU(8, 64, 2, batch_first=True))
    assert isinstance(fast, FastGRU)
    assert_same_bits(fast, torch.randn(32, 20, 8, requires_grad=True))
