"""Algorithms, one file each, and their catalogue."""

from fedgbo.algorithms.adaptivefedopt import AdaptiveFedOpt
from fedgbo.algorithms.fedavg import FedAvg
from fedgbo.algorithms.fedgbo import FedGBO
from fedgbo.algorithms.fedmax import FedMAX
from fedgbo.algorithms.fedprox import FedProx
from fedgbo.algorithms.mfl import MFL
from fedgbo.algorithms.mime import Mimelite, MimeXlite
from fedgbo.algorithms.scaffold import SCAFFOLD
from fedgbo.core import FederatedAlgorithm

ALGORITHMS: dict[str, type[FederatedAlgorithm]] = {
    "adaptivefedopt": AdaptiveFedOpt,
    "fedavg": FedAvg,
    "fedgbo": FedGBO,
    "fedmax": FedMAX,
    "fedprox": FedProx,
    "mfl": MFL,
    "mimelite": Mimelite,
    "mimexlite": MimeXlite,
    "scaffold": SCAFFOLD,
}

__all__ = [
    "ALGORITHMS", "MFL", "SCAFFOLD", "AdaptiveFedOpt", "FedAvg", "FedGBO", "FedMAX", "FedProx", "MimeXlite",
    "Mimelite",
]  # fmt: skip
