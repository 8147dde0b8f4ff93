"""Optimisers, one formula family a file, and their catalogue."""

from fedgbo.core import Optimiser
from fedgbo.optimisers.adagrad import AdaGrad
from fedgbo.optimisers.adam import Adam
from fedgbo.optimisers.adamw import AdamW
from fedgbo.optimisers.amsgrad import AMSGrad
from fedgbo.optimisers.correctedadam import CorrectedAdam
from fedgbo.optimisers.lion import Lion
from fedgbo.optimisers.nesterov import Nesterov
from fedgbo.optimisers.rmsprop import RMSProp
from fedgbo.optimisers.sgd import SGD
from fedgbo.optimisers.sgdm import SGDm
from fedgbo.optimisers.signum import Signum
from fedgbo.optimisers.yogi import Yogi

OPTIMISERS: dict[str, type[Optimiser]] = {
    "adagrad": AdaGrad,
    "adam": Adam,
    "adamw": AdamW,
    "amsgrad": AMSGrad,
    "correctedadam": CorrectedAdam,
    "lion": Lion,
    "nesterov": Nesterov,
    "rmsprop": RMSProp,
    "sgd": SGD,
    "sgdm": SGDm,
    "signum": Signum,
    "yogi": Yogi,
}

__all__ = [
    "OPTIMISERS", "SGD", "AMSGrad", "AdaGrad", "Adam", "AdamW", "CorrectedAdam", "Lion", "Nesterov", "RMSProp",
    "SGDm", "Signum",    "Yogi",
]  # fmt: skip
