"""One training step (forward, loss, backward) of each paper model on one core: torch's layers against ours.

Repetitions are interleaved and medians printed, so that a noisy machine hits both alike. Times are processor time of
this thread, which does not count the time that other processes had the core.

    python scripts/bench_layers.py [--repetitions 40] [--no-allocator]
"""

import argparse
import copy
import resource
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgbo.engines.device import keep_freed_memory
from fedgbo.engines.layers import accelerate
from fedgbo.native import library

BATCH = 32


def paper_cnn(channels: int, size: int, classes: int) -> nn.Module:
    """Build the paper's network for images of size x size."""
    left = ((size - 2) // 2 - 2) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * left * left, 512),
        nn.ReLU(),
        nn.Linear(512, classes),
    )


class PaperGRU(nn.Module):
    """Shakespeare: the next character after 80."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(79, 8)
        self.gru = nn.GRU(8, 128, num_layers=2, batch_first=True)
        self.output = nn.Linear(128, 79)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores (B, 79) for characters (B, 80)."""
        return self.output(self.gru(self.embedding(x))[0][:, -1])


def models() -> dict[str, tuple[nn.Module, Tensor, int]]:
    """Return model, inputs and number of classes."""
    return {
        "CIFAR100": (paper_cnn(3, 32, 100), torch.randn(BATCH, 3, 32, 32), 100),
        "FEMNIST": (paper_cnn(1, 28, 62), torch.randn(BATCH, 1, 28, 28), 62),
        "Shakespeare": (PaperGRU(), torch.randint(79, (BATCH, 80)), 79),
    }


def training_step(module: nn.Module, inputs: Tensor, targets: Tensor) -> Callable[[], None]:
    """Return a function that computes all gradients anew."""

    def step() -> None:
        for p in module.parameters():
            p.grad = None
        functional.cross_entropy(module(inputs), targets).backward()

    return step


def measure(steps: dict[str, Callable[[], object]], repetitions: int) -> dict[str, tuple[float, float]]:
    """Return milliseconds and page faults of each, medians of interleaved repetitions."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    faults: dict[str, list[int]] = {name: [] for name in steps}
    for repetition in range(-5, repetitions):  # the first ones warm up
        for name, step in steps.items():
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            start = time.thread_time()
            step()
            if repetition >= 0:
                times[name].append(1e3 * (time.thread_time() - start))
                faults[name].append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return {name: (statistics.median(times[name]), statistics.median(faults[name])) for name in steps}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=40)
    parser.add_argument("--no-allocator", action="store_true", help="leave glibc as it is")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept = not options.no_allocator and keep_freed_memory()
    square = torch.randn(1024, 1024)
    steps: dict[str, Callable[[], object]] = {"product": lambda: square @ square}
    for name, (module, inputs, classes) in models().items():
        targets = torch.randint(classes, (BATCH,))
        stock = copy.deepcopy(module)
        steps[f"{name} stock"] = training_step(stock, inputs, targets)
        steps[f"{name} ours"] = training_step(accelerate(module), inputs, targets)
    result = measure(steps, options.repetitions)
    print(f"native loops: {library() is not None}; memory kept: {kept}")
    print(f"1024 x 1024 product: {2 * 1024**3 / result['product'][0] / 1e6:.0f} GFLOP/s")
    print(f"{'':12} {'stock ms':>9} {'ours ms':>9} {'ratio':>6} {'faults':>13}")
    for name in models():
        (stock, old), (ours, new) = result[f"{name} stock"], result[f"{name} ours"]
        print(f"{name:12} {stock:9.2f} {ours:9.2f} {stock / ours:6.2f} {old:6.0f} {new:6.0f}")


if __name__ == "__main__":
    main()
