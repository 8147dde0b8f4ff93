"""Which reader packs which task's public files, and what it can be told."""

from collections.abc import Callable

from fedgbo.data.cifar100 import read_cifar100
from fedgbo.data.femnist import read_femnist
from fedgbo.data.packed import Packed
from fedgbo.data.sent140 import read_sent140
from fedgbo.data.shakespeare import read_shakespeare

READERS: dict[str, Callable[..., Packed]] = {
    "cifar100": read_cifar100,
    "femnist": read_femnist,
    "sent140": read_sent140,
    "shakespeare": read_shakespeare,
}
