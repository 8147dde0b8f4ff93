"""Outputs and gradients of two modules side by side."""

import torch
from torch import nn

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def relative(ours, theirs):
    """The largest difference, in units of the largest number."""
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30))


def run(module, inputs, seed=0):
    """Return the output and the gradients of all parameters, and of the inputs where they need one."""
    x = inputs.detach().clone().requires_grad_(inputs.requires_grad)
    module.zero_grad(set_to_none=True)
    out = module(x)
    out = out[0] if isinstance(out, tuple) else out
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).to(out.dtype)
    (out * weights).sum().backward()
    grads = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    if x.grad is not None:
        grads["input"] = x.grad.clone()
    return out.detach().clone(), grads


def assert_same_function(fast: nn.Module, stock: nn.Module, inputs: torch.Tensor):
    out, grads = run(fast, inputs)
    expected, expected_grads = run(stock, inputs)
    tolerance = TOLERANCE[expected.dtype]
    assert out.shape == expected.shape
    assert relative(out, expected) < tolerance
    assert grads.keys() == expected_grads.keys()
    for name, grad in grads.items():
        assert grad.shape == expected_grads[name].shape
        assert relative(grad, expected_grads[name]) < tolerance, name


def assert_same_bits(module: nn.Module, inputs: torch.Tensor):
    first, first_grads = run(module, inputs)
    second, second_grads = run(module, inputs)
    assert torch.equal(first, second)
    assert all(torch.equal(grad, second_grads[name]) for name, grad in first_grads.items())
