import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedgbo.engines.layers import accelerate, recurrent
from fedgbo.engines.layers.recurrent import FastLSTM
from fedgbo.native import library
from tests.engines.layers.compare import TOLERANCE, assert_as_exact, assert_same_bits, assert_same_function, relative


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("batch", "steps", "inputs", "hidden", "layers"),
    [(16, 80, 8, 128, 2), (1, 1, 3, 32, 1), (5, 7, 4, 64, 3), (9, 6, 5, 10, 2), (33, 3, 40, 96, 1)],
)
def test_outputs_and_gradients(kind, batch, steps, inputs, hidden, layers):
    layer = nn.LSTM(inputs, hidden, layers, batch_first=True, dtype=kind)
    x = torch.randn(batch, steps, inputs, dtype=kind, requires_grad=True)
    assert_same_function(accelerate(layer), layer, x)


@settings(deadline=None, max_examples=40)
@given(
    batch=st.integers(1, 20),
    steps=st.integers(1, 6),
    inputs=st.integers(1, 40),
    hidden=st.sampled_from([1, 7, 16, 32, 64]),
    batch_first=st.booleans(),
    scale=st.sampled_from([0.1, 1.0, 30.0]),
    wants=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_any_shape(batch, steps, inputs, hidden, batch_first, scale, wants, seed):
    """As near to the truth as torch's own layer. A saturated gate s (scale 30) keeps few digits of 1 - s in float32."""
    torch.manual_seed(seed)
    least = 1e-3 if scale == 30 else TOLERANCE[torch.float32]
    layer = nn.LSTM(inputs, hidden, 2, batch_first=batch_first)
    shape = (batch, steps, inputs) if batch_first else (steps, batch, inputs)
    x = (scale * torch.randn(shape)).requires_grad_(wants)
    assert_as_exact(accelerate(layer), layer, x, least)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("hidden", [32, 11])
def test_given_and_last_states_have_gradients_too(hidden):
    layer = nn.LSTM(3, hidden, 2)
    states = [torch.randn(2, 5, hidden, requires_grad=True) for _ in range(2)]
    x, found = torch.randn(4, 5, 3), []
    for module in (layer, accelerate(layer)):
        leaves = [*states, *layer.parameters()]
        for leaf in leaves:
            leaf.grad = None
        out, (h, c) = module(x, tuple(states))
        (out.sum() + h.square().sum() + c.exp().sum()).backward()
        found.append([out.detach(), h.detach(), c.detach(), *(leaf.grad for leaf in leaves)])
    for theirs, ours in zip(*found, strict=True):
        assert ours.shape == theirs.shape
        assert relative(ours, theirs) < TOLERANCE[torch.float32]


@pytest.mark.usefixtures("backend")
def test_nan_stays_nan():
    fast = accelerate(nn.LSTM(2, 32, batch_first=True))
    x = torch.randn(3, 4, 2)
    x[1, 2, 0] = float("nan")
    out = fast(x)[0]
    assert out[1, 2:].isnan().all()
    assert out[[0, 2]].isfinite().all()


@pytest.mark.parametrize(
    "layer",
    [
        nn.LSTM(2, 4, bidirectional=True),
        nn.LSTM(2, 4, bias=False),
        nn.LSTM(2, 4, 2, dropout=0.5),
        nn.LSTM(2, 4, proj_size=3),
        nn.RNN(2, 4),
    ],
)
def test_other_recurrences_stay(layer):
    assert accelerate(layer) is layer


def outcome(layer, x):
    """The output, or the error: torch has no bfloat16 LSTM for processors without AVX-512."""
    try:
        return layer(x)[0].tolist()
    except RuntimeError as error:
        return str(error)


def test_packed_sequences_one_sample_and_autocast_go_the_way_of_torch():
    layer = nn.LSTM(2, 32)
    fast, x = accelerate(layer), torch.randn(4, 3, 2)
    assert type(fast) is FastLSTM
    packed = nn.utils.rnn.pack_padded_sequence(x, [4, 3, 1])
    assert torch.equal(fast(packed)[0].data, layer(packed)[0].data)
    assert torch.equal(fast(x[:, 0])[0], layer(x[:, 0])[0])
    with torch.autocast("cpu", torch.bfloat16):
        assert outcome(fast, x) == outcome(layer, x)
    with pytest.raises(RuntimeError, match="input"):
        fast(torch.randn(4, 3, 5))
    with pytest.raises(RuntimeError, match="hidden"):
        fast(x, (torch.zeros(1, 2, 32), torch.zeros(1, 2, 32)))


@pytest.mark.parametrize(
    ("width", "dtype", "fast"), [(128, "float32", True), (10, "float32", True), (128, "float64", False)]
)
def test_float32_takes_the_c_loops(width, dtype, fast, monkeypatch):
    if library() is None:
        pytest.skip("no C compiler here")
    layer, calls = accelerate(nn.LSTM(3, width, dtype=getattr(torch, dtype))), []
    forward = recurrent._LSTMLayer.forward
    monkeypatch.setattr(recurrent._LSTMLayer, "forward", staticmethod(lambda *args: calls.append(1) or forward(*args)))
    layer(torch.randn(4, 2, 3, dtype=getattr(torch, dtype)))
    assert bool(calls) == fast


@pytest.mark.usefixtures("backend")
def test_same_bits_twice():
    assert_same_bits(accelerate(nn.LSTM(8, 64, 2, batch_first=True)), torch.randn(16, 20, 8, requires_grad=True))
