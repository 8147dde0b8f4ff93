"""FedGBO and its rivals for federated learning.

data = fedgbo.FederatedData.from_clients(train=[(x0, y0), (x1, y1)], test=(xt, yt))
task = fedgbo.Task(name="mine", data=data, model=lambda: nn.Linear(20, 3), clients_per_round=2, batch_size=8)
result = fedgbo.run(task, fedgbo.FedGBO(fedgbo.SGDm(lr=0.1, beta=0.9)), rounds=20, local_steps=10, seed=0)
"""

import signal
import sys

if sys.orig_argv[1:3] == ["-m", "fedgbo"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during the imports below ends the command without a traceback

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from fedgbo.algorithms import (
    APFL,
    GHBM,
    MFL,
    SCAFFOLD,
    AdaptiveFedOpt,
    Averaged,
    Ditto,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedBN,
    FedBuff,
    FedCM,
    FedDyn,
    FedGBO,
    FedLin,
    FedMAX,
    FedNova,
    FedPer,
    FedProx,
    FedRep,
    FedSAM,
    FedYogi,
    Mime,
    Mimelite,
    MimeXlite,
    MoFedSAM,
    QFedAvg,
)
from fedgbo.core import Aggregator, Client, FederatedAlgorithm, Mean, Sampler, State, Transform, Upload
from fedgbo.core.check import check
from fedgbo.core.errors import (
    ConfigError,
    DataError,
    DivergenceError,
    FederationError,
    FedGBOError,
    RankError,
    RunFolderError,
    StopRun,
)
from fedgbo.core.objective import GradientRule, MaxEntropy, Proximal, SharpnessAware, Term
from fedgbo.core.optimiser import AffineOptimiser, Optimiser
from fedgbo.core.schedule import Constant, Exponential, InverseSqrt, Schedule, Step
from fedgbo.data import partition
from fedgbo.data.federated import FederatedData
from fedgbo.engines.evaluate import Scores
from fedgbo.models.modules import group_norm, places
from fedgbo.optimisers import (
    SGD,
    AdaGrad,
    Adam,
    AdamW,
    AMSGrad,
    CorrectedAdam,
    Lion,
    Nesterov,
    RMSProp,
    SGDm,
    Signum,
    Yogi,
)
from fedgbo.pipeline.aggregators import ExactMean, Median, TrimmedMean
from fedgbo.pipeline.clock import Asynchronous, Deadline
from fedgbo.pipeline.samplers import FixedSize, Poisson
from fedgbo.pipeline.transforms import ClipNorm
from fedgbo.runs.config import load
from fedgbo.runs.evaluate import evaluate
from fedgbo.runs.loop import run
from fedgbo.runs.record import Record
from fedgbo.runs.result import Result
from fedgbo.runs.round import Progress
from fedgbo.tasks.task import Task

if TYPE_CHECKING:
    from fedgbo.experiments.compare import Comparison, compare

try:
    __version__ = version("fedgbo")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0"

__all__ = [
    "APFL", "GHBM", "MFL", "SCAFFOLD", "SGD", "AMSGrad", "AdaGrad", "Adam", "AdamW", "AdaptiveFedOpt",
    "AffineOptimiser", "Aggregator", "Asynchronous", "Averaged", "Client", "ClipNorm", "Comparison", "ConfigError",
    "Constant", "CorrectedAdam", "DataError", "Deadline", "Ditto", "DivergenceError", "ExactMean", "Exponential",
    "FedAdagrad", "FedAdam", "FedAvg", "FedAvgM", "FedBN", "FedBuff", "FedCM", "FedDyn", "FedGBO", "FedGBOError",
    "FedLin", "FedMAX", "FedNova", "FedPer", "FedProx", "FedRep", "FedSAM", "FedYogi", "FederatedAlgorithm",
    "FederatedData", "FederationError", "FixedSize", "GradientRule", "InverseSqrt", "Lion", "MaxEntropy", "Mean",
    "Median", "Mime", "MimeXlite", "Mimelite", "MoFedSAM", "Nesterov", "Optimiser", "Poisson", "Progress",
    "Proximal", "QFedAvg", "RMSProp", "RankError", "Record", "Result", "RunFolderError", "SGDm", "Sampler",
    "Schedule", "Scores", "SharpnessAware", "Signum", "State", "Step", "StopRun", "Task", "Term", "Transform",
    "TrimmedMean", "Upload", "Yogi", "__version__", "check", "compare", "evaluate", "group_norm", "load",
    "partition", "places", "run",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import comparisons at their first use: they need the reports, which take half a second to import."""
    if name in ("Comparison", "compare"):
        from fedgbo.experiments.compare import Comparison, compare

        return Comparison if name == "Comparison" else compare
    raise AttributeError(f"module 'fedgbo' has no attribute {name!r}")
