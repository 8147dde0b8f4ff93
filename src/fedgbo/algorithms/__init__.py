"""Algorithms, one a file, and their catalogue."""

from fedgbo.algorithms.adaptivefedopt import AdaptiveFedOpt
from fedgbo.algorithms.fedavg import FedAvg
from fedgbo.algorithms.fedgbo import FedGBO
from fedgbo.algorithms.fedmax import FedMAX
from fedgbo.algorithms.fedprox import FedProx
from fedgbo.algorithms.mfl import MFL
from fedgbo.algorithms.mimelite import Mimelite
from fedgbo.algorithms.mimexlite import MimeXlite
from fedgbo.core.algorithm import FederatedAlgorithm

ALGORITHMS: dict[str, type[FederatedAlgorithm]] = {
    "adaptivefedopt": AdaptiveFedOpt,
    "fedavg": FedAvg,
    "fedgbo": FedGBO,
    "fedmax": FedMAX,
    "fedprox": FedProx,
    "mfl": MFL,
    "mimelite": Mimelite,
    "mimexlite": MimeXlite,
}

__all__ = [
    "ALGORITHMS",
    "MFL",
    "AdaptiveFedOpt",
    "FedAvg",
    "FedGBO",
    "FedMAX",
    "FedProx",
    "MimeXlite",
    "Mimelite",
]
