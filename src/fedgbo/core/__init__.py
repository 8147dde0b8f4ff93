"""The contracts that everything else is made of, schedules, random streams and errors; imports nothing else of ours."""

from fedgbo.core.algorithm import FederatedAlgorithm, Part, WrappedAlgorithm
from fedgbo.core.client import Client
from fedgbo.core.errors import (
    ConfigError,
    DataError,
    DivergenceError,
    FederationError,
    FedGBOError,
    FolderBusyError,
    MissingExtraError,
    RankError,
    RunFolderError,
    StopRun,
    optional,
    unknown,
)
from fedgbo.core.objective import TERMS, GradientRule, MaxEntropy, Proximal, SharpnessAware, Term, ruled
from fedgbo.core.optimiser import AffineOptimiser, AffineStep, Optimiser, Stats
from fedgbo.core.pipeline import Aggregator, Mean, Sampler, Transform, Upload, Workload
from fedgbo.core.random import Rows, check_seed, name_of, permutation, stream, torch_seed
from fedgbo.core.schedule import (
    SCHEDULES,
    Constant,
    Exponential,
    InverseSqrt,
    Number,
    Schedule,
    Step,
    at_round,
    decay,
    not_negative,
    positive,
    share,
    whole,
)
from fedgbo.core.state import State

__all__ = [
    "SCHEDULES", "TERMS", "AffineOptimiser", "AffineStep", "Aggregator", "Client", "ConfigError", "Constant",
    "DataError", "DivergenceError", "Exponential", "FedGBOError", "FederatedAlgorithm", "FederationError",
    "FolderBusyError", "GradientRule", "InverseSqrt", "MaxEntropy", "Mean", "MissingExtraError", "Number",
    "Optimiser", "Part", "Proximal", "RankError", "Rows", "RunFolderError", "Sampler", "Schedule", "SharpnessAware",
    "State", "Stats", "Step", "StopRun", "Term", "Transform", "Upload", "Workload", "WrappedAlgorithm", "at_round",
    "check_seed", "decay", "name_of", "not_negative", "optional", "permutation", "positive", "ruled", "share", "stream",
    "torch_seed", "unknown", "whole",
]  # fmt: skip
