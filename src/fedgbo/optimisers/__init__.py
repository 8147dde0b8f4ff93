"""Optimisers, one formula family a file, and their catalogue."""

from fedgbo.core import Optimiser
from fedgbo.optimisers.adam import Adam
from fedgbo.optimisers.rmsprop import RMSProp
from fedgbo.optimisers.sgd import SGD
from fedgbo.optimisers.sgdm import SGDm

OPTIMISERS: dict[str, type[Optimiser]] = {"adam": Adam, "rmsprop": RMSProp, "sgd": SGD, "sgdm": SGDm}

__all__ = ["OPTIMISERS", "SGD", "Adam", "RMSProp", "SGDm"]
