"""Floating point operations as torch counts them, without the quirks of the paper's count.

The paper takes 3 F for a gradient, with F in multiply-adds, adds a convolution's bias but not a linear layer's, and has
a backward pass cost twice the forward one in every layer. Here a real forward and backward pass is run and torch counts
the products that it executes, a multiplication and an addition being two operations; the first layer has no gradient of
its input to compute. Activations, pooling and the loss are left out, as they are in both counts.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode


def gradient_flops(
    module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, targets: Tensor
) -> float:
    """Return the operations of one sample's gradient, by taking that of a batch; the module is left as it was."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    was_training, random_state = module.training, torch.get_rng_state()
    try:
        with FlopCounterMode(display=False) as counter:
            torch.autograd.grad(loss(module.train()(inputs), targets), trained, allow_unused=True)
    finally:
        torch.set_rng_state(random_state)  # dropout drew from it
        module.train(was_training)
    return float(counter.get_total_flops()) / len(inputs)
