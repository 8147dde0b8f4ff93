"""Models that people use, as tasks of the bench: random data of the usual shapes, 20 clients, 10 of them in a round."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgbo.data.federated import FederatedData
from fedgbo.tasks.task import Task

CLIENTS, PER_ROUND, SAMPLES, TEST = 20, 10, 100, 50  # samples of a client, and of the test set
SYMBOLS, LENGTH, WIDTH = 80, 80, 128  # of the texts, and of the models that read them


class LastState(nn.Module):
    """Two layers of LSTM over characters; the last state predicts the next character."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, 8)
        self.lstm = nn.LSTM(8, WIDTH, num_layers=2, batch_first=True)
        self.output = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, characters: Tensor) -> Tensor:
        """Return (B, symbols) scores for (B, time) characters."""
        scores: Tensor = self.output(self.lstm(self.embedding(characters))[0][:, -1])
        return scores


class Encoder(nn.Module):
    """Two layers of a transformer's encoder over characters, without dropout; the mean state predicts a class."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.output = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, characters: Tensor) -> Tensor:
        """Return (B, symbols) scores for (B, time) characters."""
        scores: Tensor = self.output(self.encoder(self.embedding(characters) + self.position).mean(1))
        return scores


class Residual(nn.Module):
    """Two 3x3 convolutions with GroupNorm beside a shortcut."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            *(nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.GroupNorm(8, out), nn.ReLU()),
            *(nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.GroupNorm(8, out)),
        )
        same = channels == out and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, out, H / stride, W / stride)."""
        return functional.relu(self.path(x) + self.shortcut(x))


def logistic() -> nn.Module:
    """Logistic regression: 610 parameters."""
    return nn.Linear(60, 10)


def mlp() -> nn.Module:
    """One hidden layer on MNIST's pixels: 101,770 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def small_cnn() -> nn.Module:
    """A padded 3x3 convolution of 16 channels on 8x8 images: 17,258 parameters."""
    convolution = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*convolution, nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10))


def mcmahan_cnn() -> nn.Module:
    """The network of McMahan et al. (2017) for MNIST: 1,663,370 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10)),
    )


def resnet18() -> nn.Module:
    """ResNet-18 for 32x32 images, with GroupNorm: 11.2 million parameters."""
    blocks: list[nn.Module] = []
    for channels, out, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        blocks += [Residual(channels, out, stride), Residual(out, out, 1)]
    first = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(8, 64), nn.ReLU()
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


@dataclass(frozen=True)
class Model:
    """A model, its data's shape, and what is wanted of it."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of a sample; (LENGTH,) characters, else numbers
    classes: int
    batch_size: int
    local_steps: int
    wanted: float  # times the plain loop
    per_round: int = PER_ROUND

    def task(self) -> Task:
        """Return the model with random data."""
        random = torch.Generator().manual_seed(0)

        def samples(count: int) -> tuple[Tensor, Tensor]:
            text = self.shape == (LENGTH,)
            size = (count, *self.shape)
            x = torch.randint(SYMBOLS, size, generator=random) if text else torch.randn(size, generator=random)
            return x, torch.randint(self.classes, (count,), generator=random)

        data = FederatedData.from_clients(train=[samples(SAMPLES) for _ in range(CLIENTS)], test=samples(TEST))
        return Task(self.build.__name__, data, self.build, clients_per_round=self.per_round, batch_size=self.batch_size)


MODELS = {
    "logistic": Model(logistic, (60,), 10, batch_size=10, local_steps=10, wanted=20.0),
    "mlp": Model(mlp, (1, 28, 28), 10, batch_size=20, local_steps=10, wanted=4.5),
    "small-cnn": Model(small_cnn, (1, 8, 8), 10, batch_size=10, local_steps=10, wanted=18.0),
    "mcmahan-cnn": Model(mcmahan_cnn, (1, 28, 28), 10, batch_size=10, local_steps=10, wanted=1.8),
    "lstm": Model(LastState, (LENGTH,), SYMBOLS, batch_size=16, local_steps=4, wanted=1.5),
    "transformer": Model(Encoder, (LENGTH,), SYMBOLS, batch_size=16, local_steps=4, wanted=1.3),
    "resnet18": Model(resnet18, (3, 32, 32), 10, batch_size=20, local_steps=2, wanted=1.1, per_round=2),
}
