import pytest
import torch
from torch import nn

from fedgbo.engines.layers import FastAttention, accelerate
from tests.engines.layers.compare import TOLERANCE, assert_same_bits, assert_same_function, relative


class Itself(nn.Module):
    """Attention of a sequence with itself."""

    def __init__(self, mask=None, **settings):
        super().__init__()
        self.attention, self.mask = nn.MultiheadAttention(12, 3, **settings), mask

    def forward(self, x):
        more = {} if self.mask is None else {"attn_mask": self.mask, "is_causal": True}
        return self.attention(x, x, x, need_weights=False, **more)[0]


CAUSAL = nn.Transformer.generate_square_subsequent_mask(7)
ENCODER = nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, batch_first=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "build",
    [
        lambda: Itself(batch_first=True),
        lambda: Itself(bias=False),
        lambda: Itself(CAUSAL),
        lambda: Itself(CAUSAL, batch_first=True),
        lambda: nn.TransformerEncoder(ENCODER, 2, enable_nested_tensor=False),
    ],
)
def test_outputs_and_gradients(build, dtype):
    stock = build().to(dtype)
    fast = accelerate(stock)
    assert any(type(layer) is FastAttention for layer in fast.modules())
    x = torch.randn(7, 7, 12, dtype=dtype, requires_grad=True)  # batch and length alike, so that masks fit both
    assert_same_function(fast, stock, x)
    assert_same_bits(fast, x)
    fast.eval()
    stock.eval()
    with torch.no_grad():
        assert torch.equal(fast(x), stock(x))


def test_other_uses_go_the_way_of_torch():
    stock = nn.MultiheadAttention(12, 3, batch_first=True)
    fast, x, y = accelerate(stock), torch.randn(2, 5, 12), torch.randn(2, 5, 12)
    assert type(fast) is FastAttention
    padding, mask = torch.tensor([[False] * 4 + [True]] * 2), torch.rand(5, 5)
    for args, more in (
        ((x, y, y), {"need_weights": False}),
        ((x, x, x), {}),
        ((x, x, x), {"need_weights": False, "key_padding_mask": padding}),
        ((x, x, x), {"need_weights": False, "attn_mask": mask}),
        ((x[0], x[0], x[0]), {"need_weights": False}),
    ):
        ours, theirs = fast(*args, **more), stock(*args, **more)
        assert torch.equal(ours[0], theirs[0])
        assert (ours[1] is None) == (theirs[1] is None)
    with pytest.raises(RuntimeError, match="Need attn_mask"):
        fast(x, x, x, need_weights=False, is_causal=True)
    with pytest.raises(AssertionError, match="embedding dimension of 12"):
        fast(*[torch.randn(2, 5, 10)] * 3, need_weights=False)


@pytest.mark.parametrize(
    "layer",
    [
        nn.MultiheadAttention(12, 3, dropout=0.1),
        nn.MultiheadAttention(12, 3, kdim=5),
        nn.MultiheadAttention(12, 3, add_bias_kv=True),
        nn.MultiheadAttention(12, 3, add_zero_attn=True),
    ],
)
def test_other_layers_stay(layer):
    assert accelerate(layer) is layer


def test_a_causal_sequence_does_not_see_its_future():
    fast, x = accelerate(Itself(CAUSAL, batch_first=True)), torch.randn(2, 7, 12)
    out = fast(x).detach()
    x[:, 4:] = 0
    assert relative(fast(x).detach()[:, :4], out[:, :4]) < TOLERANCE[torch.float32]
    assert not torch.allclose(fast(x)[:, 4:], out[:, 4:])
