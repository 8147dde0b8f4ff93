"""Algorithms, one file each, and their catalogue."""

from fedgbo.algorithms.adaptivefedopt import AdaptiveFedOpt, FedAdagrad, FedAdam, FedAvgM, FedYogi
from fedgbo.algorithms.apfl import APFL
from fedgbo.algorithms.averaged import Averaged
from fedgbo.algorithms.ditto import Ditto
from fedgbo.algorithms.fedavg import FedAvg
from fedgbo.algorithms.fedbn import FedBN
from fedgbo.algorithms.fedbuff import FedBuff
from fedgbo.algorithms.fedcm import FedCM
from fedgbo.algorithms.feddyn import FedDyn
from fedgbo.algorithms.fedgbo import FedGBO
from fedgbo.algorithms.fedlin import FedLin
from fedgbo.algorithms.fedmax import FedMAX
from fedgbo.algorithms.fednova import FedNova
from fedgbo.algorithms.fedper import FedPer
from fedgbo.algorithms.fedprox import FedProx
from fedgbo.algorithms.fedrep import FedRep
from fedgbo.algorithms.fedsam import FedSAM
from fedgbo.algorithms.ghbm import GHBM
from fedgbo.algorithms.mfl import MFL
from fedgbo.algorithms.mime import Mime
from fedgbo.algorithms.mimelite import Mimelite, MimeXlite
from fedgbo.algorithms.mofedsam import MoFedSAM
from fedgbo.algorithms.qfedavg import QFedAvg
from fedgbo.algorithms.scaffold import SCAFFOLD
from fedgbo.core import FederatedAlgorithm

ALGORITHMS: dict[str, type[FederatedAlgorithm]] = {
    "adaptivefedopt": AdaptiveFedOpt,
    "apfl": APFL,
    "averaged": Averaged,
    "ditto": Ditto,
    "fedadagrad": FedAdagrad,
    "fedadam": FedAdam,
    "fedavg": FedAvg,
    "fedavgm": FedAvgM,
    "fedbn": FedBN,
    "fedbuff": FedBuff,
    "fedcm": FedCM,
    "feddyn": FedDyn,
    "fedgbo": FedGBO,
    "fedlin": FedLin,
    "fedmax": FedMAX,
    "fednova": FedNova,
    "fedper": FedPer,
    "fedprox": FedProx,
    "fedrep": FedRep,
    "fedsam": FedSAM,
    "fedyogi": FedYogi,
    "ghbm": GHBM,
    "mfl": MFL,
    "mime": Mime,
    "mimelite": Mimelite,
    "mimexlite": MimeXlite,
    "mofedsam": MoFedSAM,
    "qfedavg": QFedAvg,
    "scaffold": SCAFFOLD,
}
PAPER = ("fedavg", "fedprox", "fedmax", "adaptivefedopt", "mfl", "mimelite", "mimexlite", "fedgbo")
"""The algorithms that the paper of FedGBO compares."""
PERSONALISED = ("apfl", "ditto", "fedbn", "fedper", "fedrep")
"""The algorithms whose clients use models of their own."""

__all__ = [
    "ALGORITHMS", "APFL", "GHBM", "MFL", "PAPER", "PERSONALISED", "SCAFFOLD", "AdaptiveFedOpt", "Averaged", "Ditto",
    "FedAdagrad", "FedAdam", "FedAvg", "FedAvgM", "FedBN", "FedBuff", "FedCM", "FedDyn", "FedGBO", "FedLin",
    "FedMAX", "FedNova", "FedPer", "FedProx", "FedRep", "FedSAM", "FedYogi", "Mime", "MimeXlite", "Mimelite",
    "MoFedSAM", "QFedAvg",
]  # fmt: skip
