"""CIFAR-10: colour images of 10 classes, dealt to clients by one of three splits."""

from pathlib import Path

from torch import nn

from fedgbo.data.images import split_image_data
from fedgbo.data.partition import Split
from fedgbo.data.store import open_packed
from fedgbo.models.paper import paper_cnn
from fedgbo.tasks.task import Task

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
SIZE, PADDING = 32, 4
CLIENTS_PER_ROUND = 10


def cifar10(
    *,
    data: Path | str | None = None,
    split: str = "dirichlet",
    clients: int = 100,
    alpha: float = 0.5,
    shards_per_client: int = 2,
    seed: int = 0,
) -> Task:
    """60,000 colour images in 10 classes on 100 clients with label skew; needs `fedgbo data`.

    `split` is "iid", "dirichlet" (by `alpha`) or "shards"; `data` is the folder of the packed data.
    """
    dealt = Split(split, clients, alpha, shards_per_client, seed)
    store = open_packed("cifar10", data)
    opened = split_image_data(store, dealt, mean=MEAN, std=STD, flip=True, crop=SIZE, padding=PADDING)
    return Task("cifar10", opened, _model, clients_per_round=min(CLIENTS_PER_ROUND, clients), batch_size=32)


def _model() -> nn.Module:
    return paper_cnn(channels=3, size=SIZE, classes=10)
