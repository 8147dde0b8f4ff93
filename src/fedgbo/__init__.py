"""FedGBO: federated learning that converges in a fraction of the communication rounds.

data = fedgbo.FederatedData.from_clients(train=[(x0, y0), (x1, y1)], test=(xt, yt))
task = fedgbo.Task(name="mine", data=data, model=lambda: nn.Linear(20, 3), clients_per_round=2, batch_size=8)
result = fedgbo.run(task, fedgbo.FedGBO(fedgbo.SGDm(lr=0.1, beta=0.9)), rounds=20, local_steps=10, seed=0)
"""

from importlib.metadata import PackageNotFoundError, version

from fedgbo.algorithms import MFL, SCAFFOLD, AdaptiveFedOpt, FedAvg, FedGBO, FedMAX, FedProx, Mimelite, MimeXlite
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
)
from fedgbo.core.objective import MaxEntropy, Proximal, Term
from fedgbo.core.optimiser import AffineOptimiser, Optimiser
from fedgbo.core.schedule import Constant, Exponential, InverseSqrt, Schedule, Step
from fedgbo.data import partition
from fedgbo.data.federated import FederatedData
from fedgbo.optimisers import SGD, Adam, RMSProp, SGDm
from fedgbo.pipeline.aggregators import ExactMean, Median, TrimmedMean
from fedgbo.pipeline.samplers import FixedSize, Poisson
from fedgbo.pipeline.transforms import ClipNorm
from fedgbo.runs.loop import run
from fedgbo.runs.record import Record
from fedgbo.runs.result import Result
from fedgbo.runs.round import Progress
from fedgbo.tasks.task import Task

try:
    __version__ = version("fedgbo")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0"

__all__ = [
    "MFL", "SCAFFOLD", "SGD", "Adam", "AdaptiveFedOpt", "AffineOptimiser", "Aggregator", "Client", "ClipNorm",
    "ConfigError", "Constant", "DataError", "DivergenceError", "ExactMean", "Exponential", "FedAvg", "FedGBO",
    "FedGBOError", "FedMAX", "FedProx", "FederatedAlgorithm", "FederatedData", "FederationError", "FixedSize",
    "InverseSqrt", "MaxEntropy", "Mean", "Median", "MimeXlite", "Mimelite", "Optimiser", "Poisson", "Progress",
    "Proximal", "RMSProp", "RankError", "Record", "Result", "RunFolderError", "SGDm", "Sampler", "Schedule",
    "State", "Step", "Task", "Term", "Transform", "TrimmedMean", "Upload", "__version__", "check", "partition", "run",
]  # fmt: skip
