"""The catalogue of readers: one function for each task with public files."""

from collections.abc import Callable

from fedgbo.data.cifar100 import read_cifar100
from fedgbo.data.femnist import read_femnist
from fedgbo.data.sent140 import read_sent140
from fedgbo.data.shakespeare import read_shakespeare
from fedgbo.data.store import Packed

READERS: dict[str, Callable[..., Packed]] = {
    "cifar100": read_cifar100,
    "femnist": read_femnist,
    "sent140": read_sent140,
    "shakespeare": read_shakespeare,
}
