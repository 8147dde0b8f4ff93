"""The embedded task: 1,797 real handwritten digits of 8x8 pixels, spread over 50 clients with strong label skew.

The images are the test part of UCI's Optical Recognition of Handwritten Digits (Alpaydin and Kaynak, 1998; CC BY 4.0),
in the order in which scikit-learn ships them.
"""

from dataclasses import replace
from importlib.resources import files

import numpy as np
import torch

from fedgbo.core import stream
from fedgbo.data.federated import FederatedData, hold_out
from fedgbo.data.partition import dirichlet
from fedgbo.models.paper import digits_cnn
from fedgbo.tasks.task import Task

CLIENTS = 50
ALPHA = 0.05  # of the label skew: most clients have one or two digits


def digits_clients() -> Task:
    """The same digits, with a fifth of each client's samples as its own test set: for personalised algorithms."""
    task = digits()
    return replace(task, name="digits-clients", data=hold_out(task.data, 0.2, seed=1, by_client=True))


def digits() -> Task:
    """1,797 real handwritten digits of 8x8 pixels on 50 clients with strong label skew."""
    with files("fedgbo.data").joinpath("digits.npz").open("rb") as file, np.load(file, allow_pickle=False) as store:
        images, labels = store["images"], store["labels"]
    order = stream(0, "digits").permutation(len(labels))
    test, train = order[:360], order[360:]
    x = torch.from_numpy(images).float().div_(16).unsqueeze(1)  # (N, 1, 8, 8), in 0 ... 1
    y = torch.from_numpy(labels).long()
    parts = [train[rows] for rows in dirichlet(labels[train], CLIENTS, ALPHA)]
    return Task(
        name="digits",
        data=FederatedData.from_arrays(x, y, parts=parts, test=(x[test], y[test])),
        model=digits_cnn,
        clients_per_round=10,
        batch_size=8,
    )
