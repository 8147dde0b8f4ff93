"""Outputs and gradients of two modules side by side."""

from copy import deepcopy

import torch
from torch import nn

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
ROUNDING = 1e-6  # eight float32 roundings of the largest gradient, for the small ones whose terms cancel


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


def assert_as_exact(fast: nn.Module, stock: nn.Module, inputs: torch.Tensor, tolerance=TOLERANCE[torch.float32]):
    """Both float32 modules against the stock one in float64: the fast one may be off by a tolerance, by four times the
    error of the stock one, and by the rounding of the largest gradient.
    """
    (out, grads), (theirs, their_grads) = run(fast, inputs), run(stock, inputs)
    exact = inputs.detach().double().requires_grad_(inputs.requires_grad)
    truth, true_grads = run(deepcopy(stock).double(), exact)
    assert grads.keys() == their_grads.keys() == true_grads.keys()
    largest = max(float(grad.abs().max()) for grad in true_grads.values())
    for name, value in {**true_grads, "output": truth}.items():
        ours, stocks = (out, theirs) if name == "output" else (grads[name], their_grads[name])
        off, stock_off = (float((found - value).abs().max()) for found in (ours, stocks))
        limit = tolerance * float(value.abs().max()) + 4 * stock_off + ROUNDING * largest
        assert off < limit, f"{name}: off by {off:.1e}, torch by {stock_off:.1e}, allowed {limit:.1e}"


def assert_same_bits(module: nn.Module, inputs: torch.Tensor):
    first, first_grads = run(module, inputs)
    second, second_grads = run(module, inputs)
    assert torch.equal(first, second)
    assert all(torch.equal(grad, second_grads[name]) for name, grad in first_grads.items())
