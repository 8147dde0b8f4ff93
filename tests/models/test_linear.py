import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedgbo.core.errors import ConfigError
from fedgbo.costs.flops import forward_macs
from fedgbo.data.samples import SparseSamples
from fedgbo.models.paper import SparseLinear, sent140_linear


def samples(rows=40, features=5000, seed=0):
    rng = np.random.default_rng(seed)
    owner = np.sort(np.concatenate([np.arange(rows), rng.integers(rows, size=12 * rows)]))
    tokens = (features * rng.random(len(owner)) ** 3).astype(np.int64)
    return SparseSamples.from_tokens(owner, tokens, rng.integers(2, size=rows).astype(np.uint8))


def dense(x, features=5000):
    return torch.zeros(len(x), features, dtype=x.dtype).scatter_add_(1, x[..., 0].long(), x[..., 1])


def test_size_operations_and_initial_values_are_those_of_nn_linear():
    torch.manual_seed(3)
    ours = sent140_linear()
    torch.manual_seed(3)
    theirs = nn.Linear(5000, 2)
    assert sum(p.numel() for p in ours.parameters()) == 10_002
    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(ours.bias, theirs.bias)
    assert forward_macs(ours, samples().batch(np.arange(4))[0]) == 10_000


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_outputs_and_gradients_are_those_of_nn_linear_on_dense_vectors(kind):
    ours, theirs = SparseLinear(5000, 2).to(kind), nn.Linear(5000, 2).to(kind)
    theirs.load_state_dict(ours.state_dict())
    x, y = samples().batch(np.arange(40))
    x = x.to(kind)
    torch.testing.assert_close(dense(x).sum(1), torch.ones(40, dtype=kind))
    outputs = ours(x), theirs(dense(x))
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=1e-6)
    for out in outputs:
        functional.cross_entropy(out, y).backward()
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, rtol=0, atol=1e-6)
    torch.testing.assert_close(ours.bias.grad, theirs.bias.grad, rtol=0, atol=1e-6)
    assert ours.weight.grad.abs().sum() > 0


def test_types_that_cannot_hold_feature_numbers_are_refused():
    with pytest.raises(ConfigError, match=r"torch\.float16 cannot hold feature numbers up to 5000; use float32"):
        SparseLinear(5000, 2).half()(torch.zeros(1, 1, 2).half())
