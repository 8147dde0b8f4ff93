"""Tasks, one a file, and their catalogue."""

from collections.abc import Callable

from fedgbo.tasks.cifar10 import cifar10
from fedgbo.tasks.cifar100 import cifar100, cifar100_synthetic
from fedgbo.tasks.digits import digits, digits_clients
from fedgbo.tasks.fashion_mnist import fashion_mnist
from fedgbo.tasks.femnist import femnist, femnist_synthetic
from fedgbo.tasks.quadratic import quadratic
from fedgbo.tasks.sent140 import sent140, sent140_synthetic
from fedgbo.tasks.shakespeare import shakespeare, shakespeare_synthetic
from fedgbo.tasks.task import Task

TASKS: dict[str, Callable[..., Task]] = {
    "digits": digits,
    "digits-clients": digits_clients,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "cifar100-synthetic": cifar100_synthetic,
    "fashion-mnist": fashion_mnist,
    "femnist": femnist,
    "femnist-synthetic": femnist_synthetic,
    "quadratic": quadratic,
    "sent140": sent140,
    "sent140-synthetic": sent140_synthetic,
    "shakespeare": shakespeare,
    "shakespeare-synthetic": shakespeare_synthetic,
}

__all__ = ["TASKS", "Task"]
