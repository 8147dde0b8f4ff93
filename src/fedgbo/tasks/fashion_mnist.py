"""Fashion-MNIST: grey images of 10 kinds of clothes, dealt to clients by one of three splits."""

from pathlib import Path

from torch import nn

from fedgbo.data.images import split_image_data
from fedgbo.data.partition import Split
from fedgbo.data.store import open_packed
from fedgbo.models.paper import paper_cnn
from fedgbo.tasks.task import Task

CLIENTS_PER_ROUND = 10


def fashion_mnist(
    *,
    data: Path | str | None = None,
    split: str = "dirichlet",
    clients: int = 100,
    alpha: float = 0.5,
    shards_per_client: int = 2,
    seed: int = 0,
) -> Task:
    """70,000 grey images of clothes in 10 classes on 100 clients with label skew; needs `fedgbo data`.

    `split` is "iid", "dirichlet" (by `alpha`) or "shards"; `data` is the folder of the packed data.
    """
    dealt = Split(split, clients, alpha, shards_per_client, seed)
    opened = split_image_data(open_packed("fashion-mnist", data), dealt)
    return Task("fashion-mnist", opened, _model, clients_per_round=min(CLIENTS_PER_ROUND, clients), batch_size=32)


def _model() -> nn.Module:
    return paper_cnn(channels=1, size=28, classes=10)
