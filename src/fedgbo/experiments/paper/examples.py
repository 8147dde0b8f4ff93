"""Any algorithm with any optimiser, with made-up numbers: what it costs does not depend on them."""

from fedgbo.algorithms import ALGORITHMS
from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.optimiser import Optimiser
from fedgbo.experiments.presets import algorithm_table, optimiser_slots
from fedgbo.optimisers import OPTIMISERS
from fedgbo.runs.describe import build, parameters

NUMBER = 0.5


def example_optimiser(name: str) -> Optimiser:
    """Build an optimiser.

    >>> example_optimiser("sgdm")
    SGDm(lr=0.5, beta=0.5)
    """
    return OPTIMISERS[name](**{key: NUMBER for key, needed in parameters(OPTIMISERS[name]).items() if needed})


def example(algorithm: str, optimiser: str) -> FederatedAlgorithm:
    """Build an algorithm; one that trains with plain SGD takes no other optimiser.

    >>> example("fedprox", "sgd")
    FedProx(objective=(), optimiser=SGD(lr=0.5), mu=0.5)
    """
    made = ALGORITHMS[algorithm]
    slots = optimiser_slots(made)
    settings = {key: NUMBER for key, needed in parameters(OPTIMISERS[optimiser]).items() if needed}
    settings |= {key: NUMBER for key, needed in parameters(made).items() if needed and key not in slots}
    if len(slots) > 1:
        settings["server_lr"] = NUMBER
    built: FederatedAlgorithm = build("algorithm", algorithm_table(algorithm, optimiser, settings))
    return built


def client_optimisers(algorithm: str) -> tuple[str, ...]:
    """Return the optimisers that the algorithm's clients can train with, in the paper's order.

    >>> client_optimisers("mfl"), client_optimisers("adaptivefedopt")
    (('rmsprop', 'sgdm', 'adam'), ('sgd',))
    """
    kind = next(iter(optimiser_slots(ALGORITHMS[algorithm]).values()))
    return ("rmsprop", "sgdm", "adam") if kind is Optimiser else ("sgd",)


def richest_optimiser(algorithm: str) -> str:
    """Return the optimiser with the most statistics that the algorithm takes, be it on clients or on the server.

    >>> richest_optimiser("fedavg"), richest_optimiser("adaptivefedopt")
    ('sgd', 'adam')
    """
    return "adam" if Optimiser in optimiser_slots(ALGORITHMS[algorithm]).values() else "sgd"
