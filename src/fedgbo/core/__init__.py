"""The contracts that everything else is made of; imports nothing else of ours."""

from fedgbo.core.aggregator import Aggregator
from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.client import Client
from fedgbo.core.objective import TERMS, MaxEntropy, Proximal, Term
from fedgbo.core.optimiser import AffineOptimiser, AffineStep, Optimiser, Stats
from fedgbo.core.sampler import Sampler
from fedgbo.core.schedule import SCHEDULES, Constant, Exponential, InverseSqrt, Number, Schedule, Step, at_round
from fedgbo.core.state import State
from fedgbo.core.transform import Transform, with_state
from fedgbo.core.upload import Mean, Upload

__all__ = [
    "SCHEDULES", "TERMS", "AffineOptimiser", "AffineStep", "Aggregator", "Client", "Constant", "Exponential",
    "FederatedAlgorithm", "InverseSqrt", "MaxEntropy", "Mean", "Number", "Optimiser", "Proximal", "Sampler", "Schedule",
    "State", "Stats", "Step", "Term", "Transform", "Upload", "at_round", "with_state",
]  # fmt: skip
