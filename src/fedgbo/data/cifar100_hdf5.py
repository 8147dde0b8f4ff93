"""TFF's fed_cifar100: /examples/<client>/{image (n, 32, 32, 3) uint8, label, coarse_label}."""

import numpy as np

from fedgbo.core.errors import DataError
from fedgbo.data.archives import SourceFile
from fedgbo.data.cifar100_files import FINE, SHAPE, labels
from fedgbo.data.hdf5 import client_fields, client_names, open_clients
from fedgbo.data.store import Array

MOST = 60_000  # images that CIFAR-100 has; a file that announces more would only fill the memory


def read_federated(source: SourceFile) -> dict[str, Array]:
    """Return images and labels client by client, the clients' offsets and their names."""
    with open_clients(source) as clients:
        names = client_names(clients)
        members = [client_fields(clients, name, ("image", "label"), source.where) for name in names]
        for name, fields in zip(names, members, strict=True):
            if fields["image"].shape[1:] != (32, 32, 3) or fields["image"].dtype != np.uint8:
                kind = f"{fields['image'].dtype} of shape {fields['image'].shape}"
                raise DataError(f"{source.where}: client '{name}' has images that are {kind}, not uint8 (n, 32, 32, 3)")
        offsets = np.cumsum([0, *(fields["image"].shape[0] for fields in members)], dtype=np.int64)
        if offsets[-1] > MOST:
            raise DataError(f"{source.where} announces {offsets[-1]} images, CIFAR-100 has {MOST}; get it again")
        images = np.empty((offsets[-1], *SHAPE), dtype=np.uint8)
        targets = np.empty(offsets[-1], dtype=np.uint8)
        for c, (name, fields) in enumerate(zip(names, members, strict=True)):
            rows = slice(offsets[c], offsets[c + 1])
            images[rows] = fields["image"][()].transpose(0, 3, 1, 2)
            targets[rows] = labels(fields["label"][()], FINE, f"{source.where}: client '{name}': label")
    return {"images": images, "labels": targets, "offsets": offsets, "client_names": np.array(names)}
